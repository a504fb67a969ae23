"""How ranks find each other, talk, wait, and end together: communicators, and the MPI job behind them."""

"""Communicators and the MPI job behind them: how ranks find each other, communicate, wait and end together."""

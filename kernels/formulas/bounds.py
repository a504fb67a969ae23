"""Lower and upper bounds that carry NaN: what has gone wrong shows, on every device.

`min` and `max` do not: on a GPU they are instructions that return whichever operand is a number, so that a network that
has diverged would look finite. A comparison with NaN is false; the forms below then leave x as it is, and are the ones
that vector instructions of CPUs have (minps, maxps).
"""

from pytagi_ddp.kernels.formulas.formula import formula


@formula
def at_least(x, bound):
    """max(x, bound), or NaN if x is."""
    return bound if bound > x else x


@formula
def at_most(x, bound):
    """min(x, bound), or NaN if x is."""
    return bound if bound < x else x


@formula
def displaces(x, best):
    """Whether x follows `best` as the largest so far: it is larger, or NaN, which no number displaces."""
    return x > best or x != x

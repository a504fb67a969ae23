"""Lower and upper bounds that propagate NaN on every device.

`min` and `max` do not: on a GPU their instructions return the operand that is a number, so that a diverged network
would look finite. A comparison with NaN is false, so the forms below return x. They match vector instructions of CPUs
(minps, maxps).
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
    """Whether x replaces `best` as the largest so far: it is larger, or NaN, which no number replaces."""
    return x > best or x != x

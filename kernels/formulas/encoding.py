"""Piecewise-linear encoding of a unit by bins.

A bin from `low` to `high` gives bottom + (top - bottom) u, where u = (z - low)/(high - low) is clipped to 0 from below,
except in the first bin of a unit, and to 1 from above, except in its last bin.

A number that has a unit of its own gives `top` where z is this number, up to rounding, else `bottom`.

Source: Gorishniy, Rubachev & Babenko (2022), "On embeddings for numerical features in tabular deep learning", NeurIPS;
the moments of a clipped Gaussian as in `activation`.
"""

import numpy as np

from pytagi_ddp.kernels.formulas.activation import HALF, ONE, QUARTER, TWO, ZERO, clipped_moments, rectified_moments
from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula

FOUR = np.float32(4)
ROUNDING = np.float32(1e-6)  # of a number that was scaled in float32 or float64


@formula
def place_in_bin(z, low, high, bottom, top, least, most):
    """The output of the bin for a number z, and the slope there. u is clipped to [least, most]."""
    u, rise = (z - low) / (high - low), top - bottom
    value = least if u < least else most if u > most else u
    return bottom + rise * value, (ZERO if u < least or u > most else rise / (high - low))


@formula
def value_unit(m, s, value, bottom, top):
    """The mean of the unit of a number for z ~ N(m, s). Its variance is 0: z is this number surely, or almost never."""
    near = abs(m - value) <= ROUNDING * at_least(abs(value), ONE)
    return top if near and s == ZERO else bottom


@formula
def bin_moments(m, s, low, high, bottom, top, least, most):
    """Mean and variance of the output of the bin for z ~ N(m, s), and the expected slope."""
    first, last = least < ZERO, most > ONE
    width, rise = high - low, top - bottom
    u, v = (m - low) / width, s / (width * width)
    mean, var, inside = u, v, ONE
    if first != last:  # clipped at one end
        mean, var, inside = rectified_moments(ONE - u if first else u, v)
        mean = ONE - mean if first else mean
    elif not first:
        mean, var, inside = clipped_moments(TWO * u - ONE, FOUR * v)
        mean, var = HALF * mean + HALF, QUARTER * var
    return bottom + rise * mean, at_least(rise * rise * var, ZERO), inside * rise / width

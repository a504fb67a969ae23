"""Piecewise-linear encoding: how far a unit has come through each of its bins.

A bin from `low` to `high` gives u = (z - low)/(high - low), clipped to 0 from below, except in the first bin of a unit,
and to 1 from above, except in its last bin.

Source: Gorishniy, Rubachev & Babenko (2022), "On embeddings for numerical features in tabular deep learning", NeurIPS;
the moments of a clipped Gaussian as in `activation`.
"""

import numpy as np

from pytagi_ddp.kernels.formulas.activation import HALF, ONE, QUARTER, TWO, ZERO, clipped_moments, rectified_moments
from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula

FOUR = np.float32(4)


@formula
def place_in_bin(z, low, high, first, last):
    """(u, du/dz) of a number z."""
    u = (z - low) / (high - low)
    below = u < ZERO and not first
    above = u > ONE and not last
    value = ZERO if below else ONE if above else u
    return value, (ZERO if below or above else ONE / (high - low))


@formula
def bin_moments(m, s, low, high, first, last):
    """Mean and variance of u for z ~ N(m, s), and the expected du/dz."""
    width = high - low
    u, v = (m - low) / width, s / (width * width)
    mean, var, inside = u, v, ONE
    if first != last:  # clipped at one end
        mean, var, inside = rectified_moments(ONE - u if first else u, v)
        mean = ONE - mean if first else mean
    elif not first:
        mean, var, inside = clipped_moments(TWO * u - ONE, FOUR * v)
        mean, var = HALF * mean + HALF, QUARTER * var
    return mean, at_least(var, ZERO), inside / width

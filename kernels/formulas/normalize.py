"""Normalisation of a Gaussian unit with an uncertain affine map.

z = r (a - mean) w + b, with a ~ N(m, s), w ~ N(w_mu, w_var), b ~ N(b_mu, b_var), r = 1/sqrt(var + eps).

Batches are pooled by sums about a common shift: n values a, with their variances, give total = sum (m - shift) and
square = sum ((m - shift)^2 + s).
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula

ZERO, ONE = np.float32(0), np.float32(1)


@formula
def reciprocal_deviation(square, denominator, eps):
    """r of a variance square/denominator."""
    return ONE / math.sqrt(square / denominator + eps)


@formula
def normalized_moments(m, s, mean, r, w_mu, w_var, b_mu, b_var):
    """(mean, variance) of z."""
    t = r * (m - mean)
    return t * w_mu + b_mu, r * r * s * (w_mu * w_mu + w_var) + w_var * t * t + b_var


@formula
def weight_summands(m, mean, r, dm, ds):
    """The summands of the batch sums (g, h) of w, from the deltas (dm, ds) of z; the summands of b are (dm, ds)."""
    t = r * (m - mean)
    return t * dm, t * t * ds


@formula
def input_deltas(r, w_mu, dm, ds):
    """(dm, ds) of a from those of z."""
    slope = r * w_mu
    return slope * dm, slope * slope * ds


@formula
def through_statistics(m, mean, r, w_mu, shift, slope):
    """What dm of a loses as mean and r depend on every a, with shift = sum dm/n and slope = sum r (m - mean) dm/(n - 1)
    of the deltas dm of z, over the n values of the batch."""
    return r * w_mu * (shift + r * (m - mean) * slope)


@formula
def pooled_sums(total, square, mean, m2, n, shift):
    """(total, square) with a batch of n values added that has the mean `mean` and m2 = sum ((m - mean)^2 + s)."""
    d = mean - shift
    return total + n * d, square + (m2 + n * d * d)


@formula
def pooled_spread(n, total, square):
    """(mean - shift, sum of squares about the mean) of pooled values; the sum may round below 0."""
    d = total / n
    return d, square - total * d


@formula
def pooled_moments(shift, n, total, square):
    """(mean, variance) of pooled values; 0 for the variance of one value."""
    d, m2 = pooled_spread(n, total, square)
    return shift + d, at_least(m2, ZERO) / at_least(n - ONE, ONE)


@formula
def moved_running(mean, var, momentum, n, total, square):
    """momentum * (mean, var) + (1 - momentum) * those of the pooled values (more than one), whose shift is `mean`."""
    d, m2 = pooled_spread(n, total, square)
    return mean + (ONE - momentum) * d, momentum * var + (ONE - momentum) * (at_least(m2, ZERO) / (n - ONE))

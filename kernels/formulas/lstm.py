"""One time step of an LSTM: moments of its cell and output, and the deltas of the backward pass.

Gates are f (forget), i (input), c (candidate), o (output). Source: Vuong, Nguyen & Goulet (2024), arXiv:2401.16174
(TAGI-LSTM); cuTAGI.
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.activation import sigmoid_moments, tanh_moments
from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula

f = np.float32
ZERO, ONE, TWO = f(0), f(1), f(2)
VAR_FLOOR = f(1e-5)  # replaces a variance that is not positive


@formula
def product_moments(m, s, n, t, cov):
    """Moments of x y for x ~ N(m, s) and y ~ N(n, t) with this covariance."""
    return m * n + cov, s * t + s * n * n + t * m * m + cov * cov + TWO * cov * m * n


@formula
def bounded(s, j):
    """(variance, slope) of a sigmoid or tanh p of a Gaussian with variance s, from its derivative j.

    Linearised, the variance j^2 s has no bound, and products of such variables grow from step to step. But j is p (1 -
    p), or 1 - p^2: the largest variance of a variable between 0 and 1, or -1 and 1, with the mean p. So the variance is
    limited to j, and the slope to the one that gives this variance. With j s up to 1 there is nothing to limit.
    """
    slope = j / math.sqrt(at_least(j * s, ONE))
    return slope * slope * s, slope


@formula
def cell_moments(z_f, s_f, z_i, s_i, z_c, s_c, z_o, s_o, ic, fo, io, co, c_mu, c_var):
    """C = f C' + i c and h = o tanh C, with bounded variances of f, i, o and tanh C, and so of h.

    Args:
        z_f, s_f, ...: moments of the gates before their activation.
        ic, fo, io, co: covariances of the gates before their activation, due to what they have in common: for ic the
            input and the previous h, for the others the input.
        c_mu, c_var: moments of C', the cell state of the previous step.

    Returns:
        Moments of h and of C; the sensitivities of C to the gates f, i, c before their activation; of h to gate o; of h
        to C; and of C to C'.
    """
    f, _, j_f = sigmoid_moments(z_f, s_f)
    i, _, j_i = sigmoid_moments(z_i, s_i)
    c, s_c, j_c = tanh_moments(z_c, s_c)
    o, _, j_o = sigmoid_moments(z_o, s_o)
    s_f, j_f = bounded(s_f, j_f)
    s_i, j_i = bounded(s_i, j_i)
    s_o, j_o = bounded(s_o, j_o)
    k_f, k_i, k_c = j_f * c_mu, j_i * c, j_c * i
    kept_mu, kept_var = product_moments(f, s_f, c_mu, c_var, ZERO)
    new_mu, new_var = product_moments(i, s_i, c, s_c, j_i * j_c * ic)
    mean, var = kept_mu + new_mu, kept_var + new_var
    t, _, j_t = tanh_moments(mean, var)
    s_t, j_t = bounded(var, j_t)
    h, s_h = product_moments(o, s_o, t, s_t, j_t * j_o * (fo * k_f + io * k_i + co * k_c))
    return h, s_h, mean, var, k_f, k_i, k_c, j_o * t, j_t * o, f


@formula
def cell_deltas(h_c, dm, ds, later_dm, later_ds):
    """Deltas of C, from those of h, whose slope is h_c, and those from the next step."""
    return h_c * dm + later_dm, h_c * h_c * ds + later_ds


@formula
def input_slopes(slopes, w_f, w_i, w_c, w_o):
    """Slopes of a unit to one of its inputs: of C, of h without its path through C, and of h in total."""
    k_f, k_i, k_c, k_o, h_c = slopes
    to_c = k_f * w_f + k_i * w_i + k_c * w_c
    to_o = k_o * w_o
    return to_c, to_o, h_c * to_c + to_o


@formula
def input_deltas(slopes, w_f, w_i, w_c, w_o, cell_dm, dm, ds, later_ds):
    """The summands of a unit in the deltas of one of its inputs, whose weights in the four gates are w_f, w_i, w_c,
    w_o.

    Args:
        slopes: slopes of C to f, i, c; of h to o; of h to C.
        cell_dm: from `cell_deltas`. dm, ds: deltas of h. later_ds: delta of C, from the next step.
    """
    to_c, to_o, to_h = input_slopes(slopes, w_f, w_i, w_c, w_o)
    return to_c * cell_dm + to_o * dm, to_h * to_h * ds + to_c * to_c * later_ds


@formula
def mended_variance(s):
    """s, or 1e-5 if it is negative, as in the step of a parameter."""
    return VAR_FLOOR if s < ZERO else s


@formula
def posterior(m, s, k, dm, ds):
    """Moments of x ~ N(m, s), given deltas of a variable that depends on x with slope k.

    The sum of the deltas of several outputs may remove more variance than s.
    """
    p = k * s
    return m + p * dm, mended_variance(s + p * p * ds)


@formula
def smoother_gain(cov, prior_s):
    """Covariance of a state and the next one, divided by the prior variance of the next one (at least 1e-5)."""
    return cov / (VAR_FLOOR if prior_s <= ZERO else prior_s)


@formula
def smoothing(gain, next_m, next_s, prior_m, prior_s):
    """Change of the moments of a state, if the next one is N(next_m, next_s) instead of its prior."""
    return gain * (next_m - prior_m), gain * gain * (next_s - prior_s)

"""Class-probability activations: scalar parts of softmax, Remax and closed-form softmax.

Source: Goulet, Nguyen & Amiri (2021), JMLR 22; cuTAGI.
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula

f = np.float32
ZERO, HALF, ONE, TWO = f(0), f(0.5), f(1), f(2)
FLOOR = f(1e-6)


@formula
def softmax_moments(a, s, s_top):
    """(variance, Jacobian) of the share a of a class; s: variance of its input, s_top: of the largest input."""
    j = a * (ONE - a)
    return j * j * (s + s_top), j


@formula
def remax_mean(m, s, total, total_var):
    """E[M/T] of a rectified unit M ~ (m, s) and the total T, both log-normal; not yet normalised.

    e^v of the variances v of ln M, ln T, and of their covariance, are 1 + s/m^2, 1 + s_T/m_T^2 and 1 + s/(m_T m), so
    that all logarithms cancel: m (1 + s_T/m_T^2)/(m_T + s/m).
    """
    return at_least(m * (ONE + total_var / (total * total)) / (total + s / m), FLOOR)


@formula
def remax_var(a, m, s, total, total_var):
    """Variance of the normalised share a of M in T: a^2 (e^Var(ln M/T) - 1)."""
    p, q, k = s / (m * m), total_var / (total * total), s / (total * m)
    spread = (p + q + p * q - TWO * k - k * k) / ((ONE + k) * (ONE + k))
    return at_least(spread, ZERO) * a * a  # the difference may round below 0


@formula
def remax_jcb(a, var, m, s, c, z_var, total):
    """Jacobian of the share a and its variance; c = Phi of the rectified unit, z_var the variance of its input.

    An input without variance has Jacobian 0.
    """
    p, k = s / (m * m), s / (total * m)
    cov = a * m * (p - k) / (ONE + k)
    return ZERO if z_var <= ZERO else at_most(math.sqrt(var) * math.sqrt(z_var), cov / c) / z_var


@formula
def closed_form_softmax_moments(m, s, e, total, log_total, log_total_var):
    """(mean, variance, Jacobian) of e^z / sum e^z, all log-normal; e: the mean of e^z, total: that of the sum.

    m may have any offset that is the same for all classes of the sample.
    """
    k = math.log1p(e * math.expm1(s) / total)
    log_s = s + log_total_var - TWO * k
    a = math.exp(m - log_total + HALF * log_s)
    return a, at_least(math.expm1(log_s) * a * a, ZERO), (a * (ONE - a) if s <= ZERO else a * (s - k) / s)

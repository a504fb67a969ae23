"""Class-probability activations: scalar parts of softmax, Remax and closed-form softmax.

Source: Goulet, Nguyen & Amiri (2021), JMLR 22; cuTAGI.
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.activation import log_moments
from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula

f = np.float32
ZERO, HALF, ONE, TWO = f(0), f(0.5), f(1), f(2)
FLOOR = f(1e-6)


@formula
def remax_mean(m, s, log_total, log_total_var, total):
    """E[M/T] of a rectified unit M ~ (m, s) and the total T, both taken as log-normal; not yet normalised.

    Returns (mean, log-variance of M/T, e^{Cov(ln M/T, ln M)} - 1).
    """
    log_m, log_s = log_moments(m, s)
    k = math.log1p(s / (total * m))
    e_s = log_s + log_total_var - TWO * k
    return at_least(math.exp(log_m - log_total + HALF * e_s), FLOOR), e_s, math.expm1(log_s - k)


@formula
def remax_var_jcb(a, e_s, growth, m, c, z_var):
    """Variance and Jacobian of the normalised Remax output a; c = Phi of the rectified unit, z_var its input's.

    An input without variance has Jacobian 0: there is nothing that a delta could change.
    """
    var = at_least(math.expm1(e_s), ZERO) * a * a  # e_s, a difference of log-variances, can come out below 0
    cov = growth * a * m
    return var, (ZERO if z_var <= ZERO else at_most(math.sqrt(var) * math.sqrt(z_var), cov / c) / z_var)


@formula
def closed_form_softmax_moments(m, s, e, total, log_total, log_total_var):
    """(mean, variance, Jacobian) of e^z / sum e^z, all log-normal; e: the mean of e^z, total: that of the sum.

    m may be counted from any origin that all classes of the sample share.
    """
    k = math.log1p(e * math.expm1(s) / total)
    log_s = s + log_total_var - TWO * k
    a = math.exp(m - log_total + HALF * log_s)
    return a, at_least(math.expm1(log_s) * a * a, ZERO), (a * (ONE - a) if s <= ZERO else a * (s - k) / s)

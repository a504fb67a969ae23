"""Moments (mean, variance) after an activation and its Jacobian, from the mean m and variance s before it.

Mixture*: exact moments of the rectified/clipped Gaussian. The rest linearise around the mean.
Source: Goulet, Nguyen & Amiri (2021), JMLR 22; cuTAGI.
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.normal import exp, normal_cdf_pdf, sigmoid, tanh

f = np.float32
ZERO, QUARTER, HALF, ONE, TWO = f(0), f(0.25), f(0.5), f(1), f(2)
LEAK = f(0.1)
FLOOR = f(1e-6)  # smallest mean and variance that a mixture activation returns
SD_MIN = f(1e-18)  # keeps m/sd finite: a unit with zero variance takes the limit of the formulas


@formula
def relu_moments(m, s):
    """max(0, z), linearised: (m, s, 1) where m > 0, else (0, 0, 0)."""
    on = m > ZERO
    return (m if on else ZERO), (s if on else ZERO), (ONE if on else ZERO)


@formula
def leaky_relu_moments(m, s):
    """Slope 1 where m > 0, else 0.1."""
    j = ONE if m > ZERO else LEAK
    return j * m, j * j * s, j


@formula
def sigmoid_moments(m, s):
    """p = sigmoid(m), J = p(1 - p): (p, J^2 s, J)."""
    p = sigmoid(m)
    j = p * (ONE - p)
    return p, j * j * s, j


@formula
def tanh_moments(m, s):
    """p = tanh(m), J = 1 - p^2: (p, J^2 s, J)."""
    p = tanh(m)
    j = ONE - p * p
    return p, j * j * s, j


@formula
def softplus_moments(m, s):
    """(ln(1 + e^m), p^2 s, p) with p = sigmoid(m)."""
    p = sigmoid(m)
    return max(m, ZERO) + math.log1p(exp(-abs(m))), p * p * s, p


@formula
def mixture_relu_moments(m, s):
    """Moments of max(0, z), z ~ N(m, s): mu = m Phi + sd phi; J = Phi(m/sd)."""
    sd = max(math.sqrt(s), SD_MIN)
    cdf, pdf = normal_cdf_pdf(m / sd)
    mu = m * cdf + sd * pdf
    var = -mu * mu + TWO * mu * m - m * sd * pdf + (s - m * m) * cdf
    return max(FLOOR, mu), max(FLOOR, var), cdf


@formula
def clipped_moments(m, s):
    """Moments of z clipped to [-1, 1], not floored, and J = Phi(lower) + Phi(upper) - 1."""
    sd = max(math.sqrt(s), SD_MIN)
    cdf_l, pdf_l = normal_cdf_pdf((ONE + m) / sd)
    cdf_u, pdf_u = normal_cdf_pdf((ONE - m) / sd)
    mu = (m + ONE) * cdf_l + (m - ONE) * cdf_u + sd * (pdf_l - pdf_u) - m
    mm = m * m
    var = (
        cdf_l * (s - mm - TWO * m - ONE)
        + cdf_u * (s - mm + TWO * m - ONE)
        + sd * (pdf_u * (m - ONE) - pdf_l * (m + ONE))
        - mu * mu
        + TWO * mu * m
        + mm
        - s
        + TWO
    )
    return mu, var, cdf_l + cdf_u - ONE


@formula
def mixture_tanh_moments(m, s):
    """Hard tanh of a Gaussian."""
    mu, var, j = clipped_moments(m, s)
    return mu, max(FLOOR, var), j


@formula
def mixture_sigmoid_moments(m, s):
    """Hard sigmoid of a Gaussian: (hard tanh + 1)/2."""
    mu, var, j = clipped_moments(m, s)
    return mu * HALF + HALF, max(FLOOR, var * QUARTER), j * HALF


@formula
def exp_moments(m, s):
    """Log-normal moments: (E[e^z], V[e^z], E[e^z])."""
    mean = math.exp(m + HALF * s)
    return mean, math.exp(TWO * m + s) * math.expm1(s), mean


@formula
def log_moments(m, s):
    """Moments of ln X for a log-normal X with mean m and variance s: (ln m - v/2, v), v = ln(1 + s/m^2)."""
    v = math.log1p(s / (m * m))
    return math.log(m) - HALF * v, v

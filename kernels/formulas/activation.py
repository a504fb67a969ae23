"""Moments (mean, variance) after an activation and its Jacobian, from the mean m and variance s before it.

Mixture*: exact moments of the rectified or clipped Gaussian. The others linearise around the mean.
Source: Goulet, Nguyen & Amiri (2021), JMLR 22; cuTAGI.

A new elementwise activation needs a formula here and its name in `ELEMENTWISE`; the kernels of all devices follow.
"""

import inspect
import math
from collections.abc import Callable

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.normal import X_MAX, exp, normal_tail_pdf, sigmoid, tanh

f = np.float32
ZERO, QUARTER, HALF, ONE, TWO = f(0), f(0.25), f(0.5), f(1), f(2)
FLOOR = f(1e-6)  # smallest mean and variance that a mixture activation returns
WIDE = f(8)  # standard deviation from which a Gaussian is nearly flat between -1 and 1
TWO_5TH, FIFTEENTH = f(2 / 5), f(1 / 15)  # Hermite's quadrature over [-1, 1]
R0, R1, R2 = f(2 / 3), f(34 / 105), f(2 / 35)  # and that of products with 1 - u^2
SD_MIN = f(1e-18)  # keeps m/sd finite: a unit with zero variance takes the limit of the formulas


@formula
def relu_moments(m, s):
    """max(0, z), linearised: (m, s, 1) where m > 0, else (0, 0, 0)."""
    off = m <= ZERO  # False for NaN, which is passed on
    return (ZERO if off else m), (ZERO if off else s), (ZERO if off else ONE)


@formula
def leaky_relu_moments(m, s, negative_slope):
    """(J m, J^2 s, J), J = 1 where m > 0 and negative_slope elsewhere."""
    j = ONE if m > ZERO else negative_slope
    return j * m, j * j * s, j


@formula
def elu_moments(m, s, alpha):
    """(m, s, 1) where m > 0, else (alpha (e^m - 1), J^2 s, J) with J = alpha e^m."""
    below = at_most(m, ZERO)  # e^m of a larger m could overflow
    j = ONE if m > ZERO else alpha * exp(below)
    return (m if m > ZERO else alpha * math.expm1(below)), j * j * s, j


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
    return at_least(m, ZERO) + math.log1p(exp(-abs(m))), p * p * s, p


@formula
def mean_excess(x):
    """(Phi(-x), phi(x) - x Phi(-x), phi(x)) for 0 <= x <= 13: the second is E[max(z - x, 0)] of a standard normal z."""
    tail, pdf = normal_tail_pdf(x)
    return tail, pdf - x * tail, pdf


@formula
def rectified_moments(m, s):
    """Moments of max(0, z), z ~ N(m, s), not floored, and J = Phi(m/sd).

    With b = |m|/sd and its mean excess g: mean max(m, 0) + sd g, variance s (Phi(m/sd) - g (b + g)). The usual form,
    (s + m^2) Phi + m sd phi - mean^2, is equal but loses the variance in float32 where m^2 is much larger.
    """
    sd = at_least(math.sqrt(s), SD_MIN)
    b = at_most(abs(m) / sd, X_MAX)
    tail, g, _ = mean_excess(b)
    cdf = ONE - tail if m > ZERO else tail
    return at_least(m, ZERO) + sd * g, s * (cdf - g * (b + g)), cdf


@formula
def mixture_relu_moments(m, s):
    """Rectified Gaussian."""
    mu, var, j = rectified_moments(m, s)
    return at_least(mu, FLOOR), at_least(var, FLOOR), j


@formula
def clipped_moments(m, s):
    """Moments of z clipped to [-1, 1], not floored, and J = P(-1 < z < 1).

    With the distances a and b of |m| from -1 and 1 in standard deviations, the mean for m >= 0 (it is odd in m) and the
    variance are

        min(m, 1) + sd (g_a - g_b)    s (J - a g_a - b g_b - (g_a - g_b)^2), plus 2 s b g_a above 1

    as in `rectified_moments`. From sd = 8 on, s times a difference would lose all digits. There they are 1 - q and q (2
    - q) - r, with the integrals q of P(z < u), r of (1 - u^2) p(u) and J of the density p over -1 < u < 1, by Hermite's
    quadrature of values and two derivatives at both ends.
    """
    sd = at_least(math.sqrt(s), SD_MIN)
    n = abs(m)
    above = n > ONE
    a, b = at_most((n + ONE) / sd, X_MAX), at_most(abs(n - ONE) / sd, X_MAX)
    tail_a, g_a, pdf_a = mean_excess(a)
    tail_b, g_b, pdf_b = mean_excess(b)
    below_1 = tail_b if above else ONE - tail_b  # P(z < 1)
    if sd < WIDE:
        inside = below_1 - tail_a
        d = g_a - g_b
        mean = at_most(n, ONE) + sd * d
        var = s * (inside - a * g_a - b * g_b - d * d + (TWO * b * g_a if above else ZERO))
    else:
        k, h = sd / s, (-b if above else b)  # 1/sd, but NaN where s is infinite
        total, slope, curve = pdf_a + pdf_b, a * pdf_a + h * pdf_b, (a * a - ONE) * pdf_a + (h * h - ONE) * pdf_b
        q = tail_a + below_1 + k * (TWO_5TH * (pdf_a - pdf_b) + k * (FIFTEENTH * (a * pdf_a - h * pdf_b)))
        inside = k * (total + k * (TWO_5TH * slope + k * (FIFTEENTH * curve)))
        mean = ONE - q
        var = q * (TWO - q) - k * (R0 * total + k * (R1 * slope + k * (R2 * curve)))
    return (mean if m >= ZERO else -mean), var, inside


@formula
def mixture_tanh_moments(m, s):
    """Hard tanh of a Gaussian."""
    mu, var, j = clipped_moments(m, s)
    return mu, at_least(var, FLOOR), j


@formula
def mixture_sigmoid_moments(m, s):
    """Hard sigmoid of a Gaussian: (hard tanh + 1)/2."""
    mu, var, j = clipped_moments(m, s)
    return mu * HALF + HALF, at_least(var * QUARTER, FLOOR), j * HALF


@formula
def exp_moments(m, s):
    """Log-normal moments: (E[e^z], V[e^z], E[e^z])."""
    mean = math.exp(m + HALF * s)
    return mean, mean * (mean * math.expm1(s)), mean  # in this order: infinite only where the variance is


@formula
def log_moments(m, s):
    """Moments of ln X for a log-normal X with mean m and variance s: (ln m - v/2, v), v = ln(1 + s/m^2)."""
    v = math.log1p(s / (m * m))
    return math.log(m) - HALF * v, v


ELEMENTWISE: dict[str, Callable] = {
    "relu": relu_moments,
    "leaky_relu": leaky_relu_moments,
    "elu": elu_moments,
    "sigmoid": sigmoid_moments,
    "tanh": tanh_moments,
    "softplus": softplus_moments,
    "mixture_relu": mixture_relu_moments,
    "mixture_sigmoid": mixture_sigmoid_moments,
    "mixture_tanh": mixture_tanh_moments,
}


def parameters_of(moments: Callable) -> tuple[str, ...]:
    """Arguments of a formula in addition to (m, s): up to two settings of the layer, numbers for all units."""
    return tuple(inspect.signature(getattr(moments, "py_func", moments)).parameters)[2:]

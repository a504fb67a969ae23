"""Exponential, logistic functions and the normal distribution, as polynomials that loops can vectorise.

libm calls (exp, erfc, tanh) stay scalar in compiled loops; these forms use + - * / and one bit shift.
"""

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula

f = np.float32
ZERO, HALF, ONE, TWO = f(0), f(0.5), f(1), f(2)
RSQRT2 = f(0.7071067811865476)
INV_SQRT_2PI = f(0.3989422804014327)
LOG2E = f(1.4426950408889634)
LN2_HIGH, LN2_LOW = f(0.693359375), f(-2.12194440e-4)
EXP_MIN, EXP_MAX = f(-87.0), f(88.3)
X_MAX = f(13.0)  # phi(13) = 8e-38 is a normal number, Phi(-13) = 6e-39 a subnormal one: 0 if those are flushed
E2, E3, E4, E5, E6 = f(0.49999994), f(0.16666667), f(0.041668), f(0.0083333), f(0.0013981)
SHIFT = np.int32(23)
BIAS = np.int32(127)

K = f(2.875)
C0, C1, C2 = f(0.0008557811961509287), f(0.00019765163597185165), f(-0.007653720211237669)
C3, C4, C5 = f(0.020975351333618164), f(-0.02652965486049652), f(-0.00397551991045475)
C6, C7, C8 = f(0.09451497346162796), f(-0.23504725098609924), f(0.7209628820419312)

ROOT_HALF_BITS = np.int32(0x3F3504F3)  # of sqrt(1/2)
MANTISSA = np.int32(0x7FFFFF)
L0, L1, L2, L3 = f(3.3333331174e-1), f(-2.4999993993e-1), f(2.0000714765e-1), f(-1.6668057665e-1)
L4, L5, L6, L7 = f(1.4249322787e-1), f(-1.2420140846e-1), f(1.1676998740e-1), f(-1.1514610310e-1)
L8 = f(7.0376836292e-2)

TANH_SMALL = f(0.625)
T1, T2, T3, T4, T5 = (
    f(-3.33332819e-1),
    f(1.33314422e-1),
    f(-5.37397155e-2),
    f(2.06390888e-2),
    f(-5.70498873e-3),
)


@formula
def exp(x):
    """e^x within 2 ulp, x clamped to [-87, 88.3] so that the result is a normal float32."""
    x = at_most(at_least(x, EXP_MIN), EXP_MAX)
    n = np.int32(x * LOG2E + (HALF if x >= ZERO else -HALF))  # truncation: rounds to nearest
    nf = f(n)
    r = x - nf * LN2_HIGH - nf * LN2_LOW
    p = ONE + r * (ONE + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * E6)))))
    return p * np.int32((n + BIAS) << SHIFT).view(f)


@formula
def log(x):
    """ln x of a normal, positive float32, within 2 ulp (absolute 1e-7 near 1)."""
    bits = f(x).view(np.int32) - ROOT_HALF_BITS
    n = bits >> SHIFT
    r = np.int32((bits & MANTISSA) + ROOT_HALF_BITS).view(f) - ONE  # in [sqrt(1/2) - 1, sqrt(2) - 1]
    p = L0 + r * (L1 + r * (L2 + r * (L3 + r * (L4 + r * (L5 + r * (L6 + r * (L7 + r * L8)))))))
    nf = f(n)
    return nf * LN2_HIGH + (r + (nf * LN2_LOW + r * r * (r * p - HALF)))


@formula
def sigmoid(x):
    """1/(1 + e^-x), without overflow at either end."""
    e = exp(-abs(x))
    p = ONE / (ONE + e)
    return p if x >= ZERO else e * p


@formula
def tanh(x):
    """tanh x; an odd polynomial near 0, where (1 - e)/(1 + e) would cancel."""
    a = abs(x)
    e = exp(-TWO * a)
    large = (ONE - e) / (ONE + e)
    z = x * x
    small = a + a * z * (T1 + z * (T2 + z * (T3 + z * (T4 + z * T5))))
    t = small if a < TANH_SMALL else large
    return t if x >= ZERO else -t


@formula
def erfc_polynomial(u):
    """p(u) of erfc(z) = e^(-z^2) p(u)/(1 + z), z >= 0, u = (z - K)/(z + K): a minimax fit of degree 8, K = 2.875."""
    p = C0
    p = p * u + C1
    p = p * u + C2
    p = p * u + C3
    p = p * u + C4
    p = p * u + C5
    p = p * u + C6
    p = p * u + C7
    p = p * u + C8
    return p


@formula
def normal_tail_pdf(x):
    """(Phi(-x), phi(x)) of the standard normal for x >= 0; relative error about 5e-7 (4e-6 at x = 12).

    From x = 13 on, both are constant (6e-39 and 8e-38). From x = 12.95 on, the first is subnormal (below 1.18e-38), and
    so 0 in CPU kernels.
    """
    x = at_most(x, X_MAX)
    z = x * RSQRT2
    e = exp(-HALF * x * x)
    zk = z + K
    z1 = z + ONE
    rc = ONE / (zk * z1)
    u = (z - K) * z1 * rc
    p = erfc_polynomial(u)
    return HALF * e * p * zk * rc, INV_SQRT_2PI * e

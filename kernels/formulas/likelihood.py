"""Observations at an output N(m, s): dm = d log Z/dm and ds = d^2 log Z/dm^2, Z = E[p(y | z)].

The posterior moments of the output are m + s dm and s + s^2 ds. Each formula of `LIKELIHOODS` takes (m, s, y, a, b),
where a and b are parameters of the observation, and returns (dm, ds) without the Jacobian, which `weighed` applies.

Sources: Minka (2001), "A family of algorithms for approximate Bayesian inference" (moments of tilted Gaussians);
Takahasi & Mori (1974), "Double exponential formulas for numerical integration" (the trapezoid rule after a change of
variables); Johnson, Kotz & Balakrishnan (1994), "Continuous univariate distributions" (Mills' ratio).
"""

import math
from collections.abc import Callable

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.normal import RSQRT2, K, erfc_polynomial, exp, normal_tail_pdf
from pytagi_ddp.kernels.formulas.update import observation_delta

f = np.float32
ZERO, HALF, ONE, TWO, THREE, FOUR, SIX, TWELVE = f(0), f(0.5), f(1), f(2), f(3), f(4), f(6), f(12)
FIVE, SEVEN, TEN, NAN = f(5), f(7), f(10), f(np.nan)
TENTH, TWELFTH, QUARTER = f(0.1), f(1 / 12), f(0.25)
ROOT_HALF_PI = f(math.sqrt(math.pi / 2))
FAR = f(1e12)  # standard deviations that replace an infinite bound of an interval
LEAST_VAR, LEAST_SD = f(1e-12), f(1e-6)  # replace a variance and a standard deviation of 0
ASYMPTOTIC = f(8)  # from here on 1 - x R(x) by its series
DROP = f(14)  # nodes end where the integrand is e^-14 of its maximum
WIDTHS = f(5.3)  # standard deviations at which a Gaussian is e^-14 of its maximum
MOST, NEWTON, LEAST_RATIO = 20, 6, f(1.01)
NODES, STUDENT_NODES = 72, 64
LAST, STUDENT_LAST = f(NODES - 1), f(STUDENT_NODES - 1)
LEAST_OMEGA = f(1e-37)
TRIALS, LOG_TRIALS = f(1e12), f(math.log(1e12))


@formula
def weighed(m, s, j, weight, dm, ds):
    """The deltas of an observation with this weight for an output with Jacobian j: w j dm, w j^2 ds.

    Moments or deltas that are not finite give NaN, which the parameter step reports.
    """
    g, h = weight * j * dm, weight * j * j * ds
    known = math.isfinite(abs(m) + s) and math.isfinite(g) and math.isfinite(h)
    return (g if known else NAN), (h if known else NAN)


@formula
def mills(x):
    """Mills' ratio R = Phi(-x)/phi(x) of the standard normal, and 1 - x R, for x >= 0.

    Relative errors are below 1e-6 and 6e-5.
    """
    z = x * RSQRT2
    near = ROOT_HALF_PI * erfc_polynomial((z - K) / (z + K)) / (ONE + z)
    x1 = at_least(x, ONE)
    q = ONE / (x1 * x1)
    far = q * (ONE - THREE * q * (ONE - FIVE * q * (ONE - SEVEN * q)))
    return ((ONE - far) / x1 if x > ASYMPTOTIC else near), (far if x > ASYMPTOTIC else ONE - x * near)


@formula
def gaussian_observation(m, s, y, v, unused):
    """y = z + noise of variance v: dm = (y - m)/(s + v), ds = -1/(s + v)."""
    return observation_delta(m, s, ONE, y, v)


@formula
def given_observation(m, s, y, dm, ds):
    """Given deltas."""
    return dm, ds


@formula
def interval_observation(m, s, low, high, v):
    """low < z + e <= high, e ~ N(0, v): Z = Phi(b) - Phi(a), a and b the bounds less m, over sqrt(s + v).

    dm = (phi(a) - phi(b))/Z/sqrt(s + v), ds = ((a phi(a) - b phi(b))/Z - (..)^2)/(s + v), from Mills' ratios in the
    tails and, for a narrow interval, from the series in its width. low = high is an exact observation of z + e.
    """
    scale = ONE / math.sqrt(s + v)
    a, b = at_least((low - m) * scale, -FAR), at_most((high - m) * scale, FAR)
    d = at_most((high - low) * scale, FAR)
    left = a + b < ZERO  # reflected: the interval is to the right of m, or around it
    a, b = (-b if left else a), (-a if left else b)
    c = HALF * (a + b)
    if d * at_least(c, ONE) < TENTH:
        h = TWELFTH * d * d - ONE
        g = -c * h
    elif a >= ZERO:
        ra, ea = mills(a)
        rb, eb = mills(b)
        q = exp(-d * c)
        over = ONE / (ra - q * rb)
        g = (ONE - q) * over
        h = -((ONE - q) * (ea - q * eb) + q * d * (ra - rb)) * over * over
    else:
        ta, pa = normal_tail_pdf(-a)
        tb, pb = normal_tail_pdf(b)
        over = ONE / (ONE - ta - tb)
        g = (pa - pb) * over
        h = (a * pa - b * pb) * over - g * g
    return (-g if left else g) * scale, h * scale * scale


@formula
def laplace_observation(m, s, y, b, unused):
    """y = z + e with the density exp(-|e|/b)/(2 b): two exponentially tilted tails, by Mills' ratios.

    With u = |y - m|/sqrt(s), t = sqrt(s)/b, R1 = R(t - u), R2 = R(t + u), r = R2/R1:
    sqrt(s) dm = +-t (1 - r)/(1 + r), s ds = 4 t^2 r/(1 + r)^2 - 2 t/(R1 + R2).

    Where t - u is large, r is near 1, and 1 - r = (2 u - (t + u) e1 + (t - u) e2)/((t + u)(1 - e1)), e = 1 - x R(x).
    """
    sd = at_least(math.sqrt(s), LEAST_SD * b)
    u, t = abs(y - m) / sd, sd / b
    x, x2 = t - u, t + u
    r2, e2 = mills(x2)
    r1, e1 = mills(abs(x))
    tail, density = normal_tail_pdf(abs(x))
    inverse = ONE / r1 if x >= ZERO else density / (ONE - tail)  # 1/R1
    r = r2 * inverse
    rest = e1 * r if x >= ZERO else r - x * r2  # (1 - x R1) r
    one = ONE + r
    rise = (TWO * u - x2 * e1 + x * e2) / (x2 * (ONE - e1)) if x > ASYMPTOTIC else ONE - r  # 1 - r
    g = rise / (one * b)
    return (g if y >= m else -g), -TWO * inverse * (rest + e2) / (one * one * b * sd)


@formula
def student_observation(m, s, y, scale, nu):
    """y = z + e, e Student's t with this scale and nu degrees of freedom, a mixture of Gaussians of variance scale^2/l.

    l ~ Gamma(nu/2, rate nu/2), by the trapezoid rule in log l. With q = 1/(s + scale^2/l) under the posterior of l,
    dm = (y - m) E[q], ds = (y - m)^2 Var[q] - E[q]. Here variances have the unit s + scale^2, so that no square of them
    is beyond float32.
    """
    e, a, v = y - m, HALF * nu, scale * scale
    per = ONE / (s + v)
    s, v, square = s * per, v * per, e * e * per
    third = DROP / (THREE * a)
    low = -third - math.sqrt(third * third + TWO * DROP / a) - math.log(ONE + square / (nu * v))
    high = at_most(math.sqrt(TWO * DROP / a), math.log(FOUR + TWO * DROP / a))
    top, total, first, second = -FAR, ZERO, ZERO, ZERO
    for k in range(STUDENT_NODES):
        u = low + (high - low) * f(k) / STUDENT_LAST
        q = ONE / (s + v * exp(-u))
        logs = a * (u - exp(u)) + HALF * (math.log(q) - square * q)
        if logs > top:
            shrink = exp(top - logs)
            total, first, second, top = total * shrink, first * shrink, second * shrink, logs
        w = exp(logs - top)
        total += w
        first += w * q
        second += w * q * q
    first, second = first / total, second / total
    return e * first * per, (square * at_least(second - first * first, ZERO) - first) * per


@formula
def omega(t):
    """w > 0 with w + log w = t (Wright's omega)."""
    e = exp(at_most(t, ONE))
    w = t - math.log(at_least(t, ONE)) if t > ONE else e / (ONE + e)
    for _ in range(3):
        w = at_least(w, LEAST_OMEGA)
        w = w * (ONE + t - math.log(w)) / (ONE + w)
    return at_least(w, LEAST_OMEGA)


@formula
def rate_mode(m, s, y):
    """Distance from m of the mode of N(z; m, s) exp(y z - e^z)."""
    log_s = math.log(s)
    w = omega(log_s + m + s * y)
    return math.log(w) - log_s - m if w > ONE else s * y - w


@formula
def softplus_and_slope(x):
    """log(1 + e^x) and its derivative 1/(1 + e^-x)."""
    e = exp(-abs(x))
    p = ONE / (ONE + e)
    return at_least(x, ZERO) + math.log1p(e), (p if x >= ZERO else e * p)


@formula
def softplus_rise(a, there, t, p):
    """a(z + t) - a(z) - p t for a = log(1 + e^z), p = a'(z); near 0 by its series, where the difference cancels."""
    h = p * (ONE - p)
    near = HALF * h * t * t * (ONE + t * ((ONE - TWO * p) / THREE + t * (ONE - SIX * h) / TWELVE))
    return near if abs(t) < TENTH else there - a - p * t


@formula
def node_moments(m, s, y, failures):
    """(dm, ds) for y successes and these failures with the log odds z, p(y | z) ~ exp(y z - n log(1 + e^z)), for any s.

    n is their sum. Both are given, because in float32 the sum loses the smaller one if the other is 1e7 times as large.

    Newton's method finds the mode. The trapezoid rule uses nodes t = c (e^(bv) - 1), v from -1 to 1, around it, which
    extend as far as the integrand on each side. With a wide prior, dm = (E[z] - m)/s and ds = (Var[z]/s - 1)/s; with a
    narrow one, where these cancel, dm = E[l'] and ds = Var[l'] + E[l''], l = log p(y | z).
    """
    s = at_least(s, LEAST_VAR)
    r, n = ONE / s, y + failures
    mirrored = m * r + y > HALF * n  # so that the mode is not above 0
    m, y = (-m if mirrored else m), (failures if mirrored else y)
    o = at_most(rate_mode(m + math.log(n), s, y), -m)  # mode - m
    a, p, h, slope = ZERO, ZERO, ZERO, ZERO
    for turn in range(NEWTON):
        a, p = softplus_and_slope(m + o)
        h = n * p * (ONE - p)
        slope = y - n * p - o * r
        o += slope / (r + h) if turn < NEWTON - 1 else ZERO
    z = m + o
    width = WIDTHS / math.sqrt(r + h)
    left, right = -width, width
    for side in range(2):  # doubled until the integrand is negligible, or halved while it is
        t = right if side == 0 else left
        least, shrinks = t, False
        for turn in range(MOST):
            there, _q = softplus_and_slope(z + t)
            gone = n * softplus_rise(a, there, t, p) + HALF * r * t * t - slope * t > DROP
            if gone:
                least = t
                shrinks = shrinks or turn == 0
            if gone == shrinks:
                t = HALF * t if shrinks else TWO * t
        if side == 0:
            right = least
        else:
            left = least
    ratio = -right / left
    ratio = LEAST_RATIO if abs(ratio - ONE) < LEAST_RATIO - ONE else ratio
    c, b = right / (ratio - ONE), math.log(ratio)
    total, first, second, mean, square, curvature = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    for k in range(NODES):
        e = exp(b * (TWO * f(k) / LAST - ONE))
        t = c * (e - ONE)
        there, q = softplus_and_slope(z + t)
        w = e * exp(slope * t - n * softplus_rise(a, there, t, p) - HALF * r * t * t)
        d = n * (q - p)
        total += w
        first += w * t
        second += w * t * t
        mean += w * d
        square += w * d * d
        curvature += w * (n * q * (ONE - q))
    over = ONE / total
    first, second, mean, square, curvature = first * over, second * over, mean * over, square * over, curvature * over
    wide = s * at_least(h, TEN) > ONE
    dm = (o + first) * r if wide else y - n * p - mean
    ds = ((second - first * first) * r - ONE) * r if wide else square - mean * mean - curvature
    return (-dm if mirrored else dm), ds


@formula
def binomial_observation(m, s, y, failures, shift):
    """y successes and these failures with the log odds z + shift.

    Negative binomial counts y with mean e^z and variance e^z + e^2z/r are y successes and r failures, shift -log r. A
    Poisson count with mean c e^z has `TRIALS` failures, shift log c - `LOG_TRIALS`: the limit of many trials with small
    odds, for c e^z up to 1e12.
    """
    return node_moments(m + shift, s, y, failures)


@formula
def gamma_observation(m, s, y, shape, unused):
    """y ~ Gamma with mean e^z and this shape k, density ~ exp(-k z - k y e^-z): a Poisson likelihood of -z."""
    dm, ds = node_moments(math.log(shape * y) - LOG_TRIALS - m, s, shape, TRIALS)
    return -dm, ds


# The expected probabilities p of classes with the logits N(m, s) solve
#
#     ln p_k + s_k p_k = m_k + s_k/2 - c,    sum_k p_k = 1,
#
# the minimum of a convex function, sum_k (p_k ln p_k + s_k p_k^2/2 - (m_k + s_k/2) p_k). Newton's method finds it. With
# the residual r = m + s/2 - ln p - s p, and v = 1/(1 + s p), ln p rises by d = v (r - c); c = sum(p v r)/sum(p v) keeps
# the sum of p. `grown` keeps steps from going too far; afterwards p is divided by its sum.
TURNS = 30  # most steps
SMALL, NARROW = f(1e-3), f(1 / 16)  # a change of all p_k below SMALL/(1 + NARROW s_k) ends them
LEAST = f(1e-37)  # probability


@formula
def class_start(m, top, s):
    """Logarithm of the first p, up to a constant, and at most 0; top: the largest m of the row."""
    return (m - top) / (ONE + QUARTER * s)


@formula
def class_residual(p, log_p, m, top, s):
    """(r, v) of a class, see above; m and top: as of `class_start`."""
    return (m - top) + s * (HALF - p) - log_p, ONE / (ONE + s * p)


@formula
def grown(d):
    """The factor of p for a step d of ln p: 1 + d in the direction in which ln p + s p is concave, else 1/(1 - d)."""
    return ONE + d if d > ZERO else ONE / (ONE - d)


@formula
def class_step(r, c, p, s):
    """The step d of ln p for the residual r, see above."""
    return (r - c) / (ONE + s * p)


@formula
def class_change(new, p, s):
    """The change of p to `new` of a class, which is small if it is at most `SMALL`."""
    return abs(new - p) * (ONE + NARROW * s)


# The update of all logits by the curvature H = diag(p) - p p' of the softmax: deltas (I + H S)^-1 (y - p), and the
# diagonal of -(I + H S)^-1 H. With d = 1/(1 + s p), B = sum p d, q = p d/B and A = sum s p d (y - p), they are:


@formula
def class_summands(p, hit, s):
    """The summands of A and B; hit: as of `class_deltas`."""
    part = p / (ONE + s * p)
    return s * part * (hit - p), part


@formula
def class_deltas(p, hit, s, a, b):
    """Deltas of the logit of a class: d (y - p) + q A, -p d (1 - q); the first ones of all classes have the sum 0.

    hit: y, 1 for the class that was observed, 0 for the others. a, b: A and B.
    """
    d = ONE / (ONE + s * p)
    q = p * d / b
    return d * (hit - p) + q * a, -p * d * (ONE - q)


LIKELIHOODS: dict[str, Callable] = {
    "gaussian": gaussian_observation,
    "given": given_observation,
    "interval": interval_observation,
    "laplace": laplace_observation,
    "student_t": student_observation,
    "gamma": gamma_observation,
    "binomial": binomial_observation,
}

"""Closed-form updates: the output layer against observations, and the capped parameter step.

Source: Goulet, Nguyen & Amiri (2021), JMLR 22; Deka, Nguyen & Goulet (2024) for the heteroscedastic noise (AGVI).
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula

f = np.float32
ZERO, HALF, ONE, TWO, THREE, FOUR = f(0), f(0.5), f(1), f(2), f(3), f(4)
TENTH, LARGEST, NAN, INFINITY = f(0.1), f(np.finfo(np.float32).max), f(np.nan), f(np.inf)
VAR_FLOOR, NOTHING = f(1e-5), f(2**-30)


@formula
def observation_delta(m, s, j, y, var_obs):
    """Deltas at an output N(m, s), Jacobian j, from the observation y with variance var_obs.

    dm = j (y - m)/(s + var_obs), ds = -j^2/(s + var_obs); a NaN observation is missing: (0, 0). A non-finite output or
    Jacobian gives NaN, which the parameter step reports.
    """
    q = j / (s + var_obs)
    dm = q * (y - m)
    ds = -q * j
    finite = math.isfinite(abs(m) + s) and math.isfinite(j)
    known = finite and math.isfinite(dm) and math.isfinite(ds)
    otherwise = ZERO if finite or math.isnan(y) else NAN
    return (dm if known else otherwise), (ds if known else otherwise)


@formula
def heteros_delta(m, s, j, noise_m, noise_s, noise_j, y):
    """Deltas at (mean output, noise output) of a network that predicts the noise variance (AGVI).

    noise_m, noise_s: moments of the predicted observation variance; noise_j: its Jacobian. NaN y: all zero. Non-finite
    moments or Jacobians give NaN, as in `observation_delta`. If the deltas of a large, finite noise overflow, they are
    0.
    """
    total = s + noise_m
    dm = j * (y - m) / total
    ds = -j * j / total
    gain = noise_m / total
    v_mean = gain * (y - m)
    v_var = noise_m - gain * noise_m
    v2_mean = v_mean * v_mean + v_var
    v2_var = TWO * v_var * v_var + FOUR * v_var * v_mean * v_mean
    prior_var = THREE * noise_s + TWO * noise_m * noise_m
    k = noise_s / prior_var
    jv = noise_j / noise_s
    dn = jv * k * (v2_mean - noise_m)
    dns = jv * jv * k * k * (v2_var - prior_var)
    finite = math.isfinite(abs(m) + s) and math.isfinite(abs(noise_m) + noise_s)
    finite = finite and math.isfinite(abs(j) + abs(noise_j))
    known = finite and math.isfinite(dm) and math.isfinite(ds)
    otherwise = ZERO if finite or math.isnan(y) else NAN
    trusted = known and math.isfinite(dn) and math.isfinite(dns)
    return (
        dm if known else otherwise,
        ds if known else otherwise,
        dn if trusted else otherwise,
        dns if trusted else otherwise,
    )


@formula
def capped_step(m, s, g, h, cap):
    """The posterior of a parameter from its prior N(m, s) and batch sums g, h: (m, s, variance was negative).

    Both deltas, s g and s^2 h, are limited to +-sqrt(s)/cap; a resulting variance <= 0 becomes 1e-5. A parameter of
    variance 0 does not change.
    """
    bar = math.sqrt(s) / cap
    dm = at_most(at_least(s * g, -bar), bar)
    ds = at_most(at_least(at_most(s * s, LARGEST) * h, -bar), bar)  # 0 with h = 0, also if s * s overflows
    new_s = s + ds
    negative = new_s < NOTHING * s  # new_s <= 0 < s: s + ds is never so small; one comparison is faster
    return m + dm, (VAR_FLOOR if negative else new_s), negative


@formula
def pulled(m, s, m0, s0, rate):
    """N(m, s), after the prior N(m0, s0) has replaced the share `rate` of its precision tau = 1/s.

    tau <- (1 - rate) tau + rate tau0, tau m <- (1 - rate) tau m + rate tau0 m0. With D = (1 - rate) s0 + rate s and q =
    rate s/D this is m + q (m0 - m) and s + q (s0 - s) = s s0/D; the latter form does not cancel if s is far above s0.
    Parameters of variance 0, or with a prior of variance 0, do not change.
    """
    d = (ONE - rate) * s0 + rate * s
    inverse = ONE / d if s0 > ZERO and d > ZERO else ZERO
    q = rate * s * inverse
    wide = s > TWO * s0 and inverse > ZERO
    return m + q * (m0 - m), (s * (s0 * inverse) if wide else s + q * (s0 - s))


@formula
def stepped(m, s, g, h, cap, m0, s0, rate, pulls):
    """`capped_step` and, where `pulls`, then `pulled`: (m, s, variance was negative, not finite).

    If a delta or the new parameter is not finite, the parameter does not change, and its variance does not count as
    negative.
    """
    new_m, new_s, negative = capped_step(m, s, g, h, cap)
    if pulls:
        new_m, new_s = pulled(new_m, new_s, m0, s0, rate)
    finite = (abs(g) + abs(h) < INFINITY) & (abs(new_m) + new_s < INFINITY)
    return (new_m if finite else m), (new_s if finite else s), finite & negative, not finite


@formula
def forgotten(s, factor, prior):
    """The variance if all evidence counts for 1/factor: factor s, at most the prior's; a larger s does not change."""
    return at_most(factor * s, at_least(prior, s))


@formula
def cap_factor(samples):
    """Divisor c of the cap sqrt(s)/c on one step's change: 0.1, 2 or 3 for 1, 2-255 or more samples; 1 for none."""
    if samples < 2:
        return ONE if samples == 0 else TENTH
    return TWO if samples < 256 else THREE


@formula
def pooled_factors(samples, ranks, average, rate):
    """(scale, samples, rate) of a step with the summed deltas of `samples` samples on `ranks` ranks; 0: no step.

    The average over ranks has the cap for one rank's samples, rounded up. It has 1/ranks of the evidence, so instead of
    r = a/(N + a), the rate of its pull is a/(ranks N + a) = r/(r + ranks (1 - r)).
    """
    n, r = np.int32(samples + HALF), np.int32(ranks + HALF)
    if n == 0:
        return ZERO, ZERO, ZERO
    if average:
        shared = rate if r == 1 else rate / (rate + f(r) * (ONE - rate))
        return ONE / f(r), f((n + r - 1) // r), shared
    return ONE, f(n), rate

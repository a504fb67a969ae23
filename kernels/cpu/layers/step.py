"""The parameter step, over the whole arena in one call."""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.runtime.compile import loop
from pytagi_ddp.kernels.formulas import update
from pytagi_ddp.kernels.tensors import Array, Tensor

cap_factor, capped_step, pooled = update.cap_factor, update.capped_step, update.pooled_factors
forgotten = update.forgotten
INFINITY = np.float32(np.inf)
NONE, ONE = np.int32(0), np.int32(1)


@loop("n n n n 3 k k k k k")
def _step(mu, var, g, h, factors, starts, stops, steps, negative, non_finite):
    scale = factors[0]
    for k in prange(starts.size):
        below, bad = NONE, NONE
        cap = factors[2] * cap_factor(np.int32(factors[1]) * steps[k])
        # The loop only vectorises (7 times as fast) with slices and selections instead of offsets and branches.
        part = slice(starts[k], stops[k] if scale else starts[k])
        m, s, gs, hs = mu[part], var[part], g[part], h[part]
        for i in range(m.size):
            gi, hi = scale * gs[i], scale * hs[i]
            new_m, new_s, fell = capped_step(m[i], s[i], gi, hi, cap)
            finite = (abs(gi) + abs(hi) < INFINITY) & (abs(new_m) + new_s < INFINITY)
            m[i] = new_m if finite else m[i]
            s[i] = new_s if finite else s[i]
            below += ONE if finite and fell else NONE
            bad += NONE if finite else ONE
        negative[k], non_finite[k] = below, bad


@loop("3 3 _")
def _pooled_factors(header, factors, average):
    factors[0], factors[1] = pooled(header[0], header[1], average)
    factors[2] = ONE


@loop("n k k k _")
def _forget(var, starts, stops, priors, factor):
    for k in prange(starts.size):
        s, prior = var[starts[k] : stops[k]], priors[k]
        for i in range(s.size):
            s[i] = forgotten(s[i], factor, prior)


def step(
    parameters: Tensor,
    factors: Array,
    starts: Array,
    stops: Array,
    steps: Array,
    negative: Array,
    non_finite: Array,
) -> None:
    """Adds the capped deltas scale * (s g, s^2 h) to every parameter; factors: (scale, samples, caps); 0: no step.

    Parameters are flat. Segment k is [starts[k], stops[k]): one tensor or a part of one, whose cap has the divisor
    caps * cap_factor(samples * steps[k]); negative[k] and non_finite[k] receive how many of its variances fell to <= 0
    (and were set to 1e-5) and how many of its deltas, or of the parameters after them, were not finite (those
    parameters stay as they are).
    """
    _step(*parameters, factors, starts, stops, steps, negative, non_finite)


def pooled_factors(header: Array, factors: Array, average: bool) -> None:
    """Sets factors = (scale, samples, 1) of a step from header = (samples, active ranks, ...), summed over ranks."""
    _pooled_factors(header, factors, average)


def forget(var: Array, starts: Array, stops: Array, priors: Array, factor: float) -> None:
    """var = min(factor var, priors[k]) in each segment [starts[k], stops[k]); variances above priors[k] stay.

    Variances are flat; a segment has one prior variance.
    """
    _forget(var, starts, stops, priors, np.float32(factor))

"""The parameter step over the whole arena in one call."""

import math

from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop
from pytagi_ddp.kernels.formulas.update import capped_step


@loop
def step(mu, var, g, h, scale, cap, starts, stops, negative, non_finite):
    """Adds the capped deltas scale * (s g, s^2 h) to every parameter.

    mu, var, g, h: flat, of one length. Segment k is [starts[k], stops[k]): one tensor or a part of one;
    negative[k] and non_finite[k] receive how many of its variances fell to <= 0 (and became 1e-5) and how many of
    its deltas were not finite (those parameters stay as they are).
    """
    for k in prange(starts.size):
        below, bad = 0, 0
        for i in range(starts[k], stops[k]):
            gi, hi = scale * g[i], scale * h[i]
            m, s, fell = capped_step(mu[i], var[i], gi, hi, cap)
            finite = math.isfinite(gi) and math.isfinite(hi)
            if finite:
                mu[i], var[i] = m, s
                below += fell
            else:
                bad += 1
        negative[k], non_finite[k] = below, bad

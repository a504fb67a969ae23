"""The parameter step, for all parameters in one call."""

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import inner, loop, portion
from pytagi_ddp.kernels.formulas import update
from pytagi_ddp.kernels.tensors import Array, Tensor

cap_factor, stepped, pooled = update.cap_factor, update.stepped, update.pooled_factors
forgotten = update.forgotten
NONE, ONE = np.int32(0), np.int32(1)
INFINITY = np.float32(np.inf)


def _count(mu, var, g, h, start, stop):
    """The number of parameters at [start, stop) that are not finite, or have non-finite sums."""
    m, s, gs, hs = mu[start:stop], var[start:stop], g[start:stop], h[start:stop]
    bad = NONE
    for i in range(m.size):
        finite = (abs(gs[i]) + abs(hs[i]) < INFINITY) & (abs(m[i]) + abs(s[i]) < INFINITY)
        bad += NONE if finite else ONE
    return bad


def _count_sums(g, h, start, stop):
    """The number of non-finite sums at [start, stop); reads half as much as `_count`."""
    gs, hs = g[start:stop], h[start:stop]
    bad = NONE
    for i in range(gs.size):
        bad += NONE if abs(gs[i]) + abs(hs[i]) < INFINITY else ONE
    return bad


count, count_sums = inner(_count), inner(_count_sums)


@loop("n n n n 4 k k k")
def _look(thread, threads, mu, var, g, h, factors, starts, stops, non_finite):
    base, share = portion(starts.size, thread, threads)
    for each in range(share):
        k = base + each
        non_finite[k] = count(mu, var, g, h, starts[k], stops[k] if factors[0] else starts[k])


@loop("n n 4 k k k")
def _check(thread, threads, g, h, factors, starts, stops, found):
    """The number of sums that are not finite, by segment."""
    base, share = portion(starts.size, thread, threads)
    for each in range(share):
        k = base + each
        found[k] = count_sums(g, h, starts[k], stops[k] if factors[0] else starts[k])


@loop("n n n n 4 k k k k k k k k")
def _step(
    thread, threads, mu, var, g, h, factors, starts, stops, found, steps, prior_mu, prior_var, negative, non_finite
):
    scale, rate, refused = factors[0], factors[3], False
    for k in range(found.size):
        refused |= found[k] > NONE
    base, share = portion(starts.size, thread, threads)
    for each in range(share):
        k = base + each
        if refused:
            negative[k], non_finite[k] = NONE, count(mu, var, g, h, starts[k], stops[k])
            continue
        below, bad = NONE, NONE
        cap = factors[2] * cap_factor(np.int32(factors[1]) * steps[k])
        # With slices and selections instead of offsets and branches, the loop is vectorised (7 times as fast).
        part = slice(starts[k], stops[k] if scale != 0 else starts[k])
        m, s, gs, hs = mu[part], var[part], g[part], h[part]
        m0, s0 = prior_mu[k], prior_var[k]
        if rate > 0:  # two loops: without a pull it is faster, with the bits of earlier versions
            for i in range(m.size):
                m[i], s[i], fell, wrong = stepped(m[i], s[i], scale * gs[i], scale * hs[i], cap, m0, s0, rate, True)
                below += ONE if fell else NONE
                bad += ONE if wrong else NONE
        else:
            for i in range(m.size):
                m[i], s[i], fell, wrong = stepped(m[i], s[i], scale * gs[i], scale * hs[i], cap, m0, s0, rate, False)
                below += ONE if fell else NONE
                bad += ONE if wrong else NONE
        negative[k], non_finite[k] = below, bad


@loop("n n k")
def _settle(thread, threads, state, kept, non_finite):
    refused = False
    for k in range(non_finite.size):
        refused |= non_finite[k] > NONE
    base, share = portion(state.size, thread, threads)
    for each in range(share):
        i = base + each
        if refused:
            state[i] = kept[i]
        else:
            kept[i] = state[i]


@loop("3 4 _ _")
def _pooled_factors(header, factors, average, rate):
    factors[0], factors[1], factors[3] = pooled(header[0], header[1], average, rate)
    factors[2] = ONE


@loop("n k k k _")
def _forget(thread, threads, var, starts, stops, priors, factor):
    base, share = portion(starts.size, thread, threads)
    for each in range(share):
        k = base + each
        s, prior = var[starts[k] : stops[k]], priors[k]
        for i in range(s.size):
            s[i] = forgotten(s[i], factor, prior)


def look(parameters: Tensor, factors: Array, starts: Array, stops: Array, non_finite: Array) -> None:
    """Writes to non_finite[k] the number of parameters of segment k that are not finite, or have non-finite sums.

    With the scale 0 there is no step, and all counts are 0.
    """
    _look(*parameters, factors, starts, stops, non_finite)


def step(
    parameters: Tensor,
    factors: Array,
    starts: Array,
    stops: Array,
    steps: Array,
    prior_mu: Array,
    prior_var: Array,
    negative: Array,
    non_finite: Array,
) -> None:
    """Adds the capped deltas scale * (s g, s^2 h) to every parameter; then pulls it towards its prior.

    factors: (scale, samples, caps, rate). With the scale 0 there is no step. With the rate 0 there is no pull;
    otherwise it follows the formula `pulled`, towards N(prior_mu[k], prior_var[k]) in segment k (prior_var 0: no pull).

    Parameters are flat. Segment k is [starts[k], stops[k]): one tensor or a part of one, whose cap has the divisor caps
    * cap_factor(samples * steps[k]). negative[k] gets the number of its variances that fell to <= 0 (and were set to
    1e-5), and non_finite[k] the count of `look`. If any sum is not finite, the step is refused: no parameter changes.
    With finite sums, only parameters that are not finite do not change.
    """
    found = np.empty_like(non_finite)
    _check(*parameters[2:], factors, starts, stops, found)
    _step(*parameters, factors, starts, stops, found, steps, prior_mu, prior_var, negative, non_finite)


def settle(state: Array, kept: Array, non_finite: Array) -> None:
    """Ends a step for state that passes change: saves it to `kept`, or restores it if a count is not 0."""
    _settle(state, kept, non_finite)


def pooled_factors(header: Array, factors: Array, average: bool, rate: float) -> None:
    """Sets factors = (scale, samples, 1, rate) of a step; header = (samples, active ranks, ...), summed over ranks."""
    _pooled_factors(header, factors, average, np.float32(rate))


def forget(var: Array, starts: Array, stops: Array, priors: Array, factor: float) -> None:
    """var = min(factor var, priors[k]) in each segment [starts[k], stops[k]); larger variances do not change.

    Variances are flat; a segment has one prior variance.
    """
    _forget(var, starts, stops, priors, np.float32(factor))

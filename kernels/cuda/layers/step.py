"""The parameter step, for all parameters in one launch."""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import (
    block_sum,
    cuda,
    device,
    float32,
    floats,
    int32,
    ints,
    kernel,
    tree_sum,
)
from pytagi_ddp.kernels.formulas import update
from pytagi_ddp.kernels.tensors import Array, Tensor

cap_factor, stepped, pooled = update.cap_factor, update.stepped, update.pooled_factors
forgotten = update.forgotten
THREADS = 256
ZERO, ONE = np.float32(0), np.float32(1)
INFINITY = np.float32(np.inf)


@device
def any_of(counts, parts, scratch):
    """The number of threads of the block that have found a count above 0. Every thread calls it."""
    met = ZERO
    for k in range(cuda.threadIdx.x, parts, THREADS):
        if counts[k] > 0:
            met = ONE
    return block_sum(met, scratch, THREADS)


@kernel(floats, floats, floats, floats, floats, ints, ints, ints, threads=THREADS)
def _look(mu, var, g, h, factors, starts, stops, non_finite):
    scratch = cuda.shared.array(THREADS, float32)
    k = cuda.blockIdx.x
    bad = ZERO
    if factors[0] != ZERO:
        for i in range(starts[k] + cuda.threadIdx.x, stops[k], THREADS):
            finite = abs(g[i]) + abs(h[i]) < INFINITY and abs(mu[i]) + abs(var[i]) < INFINITY
            bad += ZERO if finite else ONE
    bad = tree_sum(bad, scratch, THREADS, 1)  # whole numbers up to 16384: exact
    if cuda.threadIdx.x == 0:
        non_finite[k] = int32(bad)


@kernel(floats, floats, floats, floats, floats, ints, ints, ints, floats, floats, ints, ints, int32, threads=THREADS)
def _step(mu, var, g, h, factors, starts, stops, steps, prior_mu, prior_var, negative, non_finite, parts):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    k = cuda.blockIdx.x
    scale, rate = factors[0], factors[3]
    m0, s0 = prior_mu[k], prior_var[k]
    cap = factors[2] * cap_factor(int32(factors[1]) * steps[k])
    below, refused = ZERO, any_of(non_finite, parts, second)
    if scale != ZERO and refused == ZERO:
        for i in range(starts[k] + cuda.threadIdx.x, stops[k], THREADS):
            gi, hi = scale * g[i], scale * h[i]
            mu[i], var[i], fell, _ = stepped(mu[i], var[i], gi, hi, cap, m0, s0, rate, rate > ZERO)
            below += ONE if fell else ZERO
    below = tree_sum(below, scratch, THREADS, 1)
    if cuda.threadIdx.x == 0:
        negative[k] = int32(below)


@kernel(floats, floats, ints, int32, int32, threads=THREADS)
def _settle(state, kept, non_finite, size, parts):
    scratch = cuda.shared.array(THREADS, float32)
    refused = any_of(non_finite, parts, scratch)
    for i in range(cuda.threadIdx.x, size, THREADS):
        if refused > ZERO:
            state[i] = kept[i]
        else:
            kept[i] = state[i]


@kernel(floats, floats, int32, float32, threads=32)
def _pooled_factors(header, factors, average, rate):
    if cuda.threadIdx.x == 0:
        factors[0], factors[1], factors[3] = pooled(header[0], header[1], average, rate)
        factors[2] = ONE


@kernel(floats, ints, ints, floats, float32, threads=THREADS)
def _forget(var, starts, stops, priors, factor):
    k = cuda.blockIdx.x
    for i in range(starts[k] + cuda.threadIdx.x, stops[k], THREADS):
        var[i] = forgotten(var[i], factor, priors[k])


def look(parameters: Tensor, factors: Array, starts: Array, stops: Array, non_finite: Array) -> None:
    """Writes to non_finite[k] the number of parameters of segment k that are not finite, or have non-finite sums.

    With the scale 0 there is no step, and all counts are 0.
    """
    _look.launch(starts.size, *parameters, factors, starts, stops, non_finite)


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

    Parameters are flat. Segment k, a block of threads, is [starts[k], stops[k]): one tensor or a part of one, whose cap
    has the divisor caps * cap_factor(samples * steps[k]). negative[k] gets the number of its variances that fell to <=
    0 (and were set to 1e-5); non_finite[k] has the counts of `look`. If any of them is above 0, the step is refused: no
    parameter changes.
    """
    look(parameters, factors, starts, stops, non_finite)
    segments = (starts, stops, steps, prior_mu, prior_var)
    _step.launch(starts.size, *parameters, factors, *segments, negative, non_finite, non_finite.size)


def settle(state: Array, kept: Array, non_finite: Array) -> None:
    """Ends a step for state that passes change: saves it to `kept`, or restores it if a count is not 0.

    It uses one block of threads, because state is small.
    """
    _settle.launch(1, state, kept, non_finite, state.size, non_finite.size)


def pooled_factors(header: Array, factors: Array, average: bool, rate: float) -> None:
    """Sets factors = (scale, samples, 1, rate) of a step; header = (samples, active ranks, ...), summed over ranks."""
    _pooled_factors.launch(1, header, factors, average, np.float32(rate))


def forget(var: Array, starts: Array, stops: Array, priors: Array, factor: float) -> None:
    """var = min(factor var, priors[k]) in each segment [starts[k], stops[k]); larger variances do not change.

    Variances are flat; a segment, a block of threads, has one prior variance.
    """
    _forget.launch(starts.size, var, starts, stops, priors, np.float32(factor))

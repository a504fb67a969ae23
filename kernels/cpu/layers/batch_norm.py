"""Batch normalisation of a (rows, features) array: rows are samples, or samples x pixels of a channels-last image."""

import numpy as np

from pytagi_ddp.kernels.cpu.layers.columns import add_partials
from pytagi_ddp.kernels.cpu.layers.elementwise import add_state
from pytagi_ddp.kernels.cpu.runtime.array import copy
from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.normalize import (
    input_deltas,
    moved_running,
    normalized_moments,
    pooled_moments,
    pooled_sums,
    reciprocal_deviation,
    through_statistics,
    weight_summands,
)
from pytagi_ddp.kernels.tensors import Array, Delta, Normalization, State, Sums

ROWS = 128  # rows of one partial sum, for accurate float32 sums that do not depend on the number of threads
ZERO, ONE = np.float32(0), np.float32(1)
activations: tuple[str, ...] = ()  # none: on a CPU, computing them again takes longer than reading them


def partial_shape(rows: int, features: int) -> tuple[int, int, int]:
    """Shape of the scratch array that `moments` and `backward` need."""
    return (4, -(-rows // ROWS), features)


def _in_parts(n) -> bool:
    """Whether scratch memory has the shape of `partial_shape`."""
    return n.k == -(-n.r // ROWS)


@loop("rf rf f 4kf _", _in_parts)
def _sum_parts(thread, threads, mu, var, mean, partial, centred):
    """Sums of means; or, if `centred`, of squares about their mean, and of distances to it."""
    rows, features = mu.shape
    base, share = portion(partial.shape[1], thread, threads)
    for each in range(share):
        k = base + each
        for c in range(features):
            partial[0, k, c] = ZERO
            partial[1, k, c] = ZERO
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            if centred:
                for c in range(features):
                    d = mu[i, c] - mean[c]
                    partial[0, k, c] += d * d + var[i, c]
                    partial[1, k, c] += d
            else:
                for c in range(features):
                    partial[1, k, c] += mu[i, c]


@loop("4kf _ f f _")
def _add_parts(partial, rows, mean, m2, centred):
    """The mean; or, if `centred`, the sum of squares, and what the first sums lost of a large mean."""
    for c in range(mean.size):
        total, rest = ZERO, ZERO
        for k in range(partial.shape[1]):
            total += partial[0, k, c]
            rest += partial[1, k, c]
        d = rest / np.float32(rows)
        mean[c] = mean[c] + d if centred else d
        m2[c] = at_least(total - rest * d, at_most(total, ZERO))  # of wrong variances, below 0, it stays wrong


@loop("f _ _ f")
def _rescale(square, denominator, eps, r):
    for c in range(square.size):
        r[c] = reciprocal_deviation(square[c], denominator, eps)


@loop("f f _ f 1 f f")
def _pool_moments(mean, m2, rows, shift, count, total, square):
    n = np.float32(rows)
    count[0] += n
    for c in range(mean.size):
        total[c], square[c] = pooled_sums(total[c], square[c], mean[c], m2[c], n, shift[c])


@loop("f 1 f f f f")
def _pooled_statistics(shift, count, total, square, mean, var):
    n = count[0]
    for c in range(mean.size):
        mean[c], var[c] = pooled_moments(shift[c], n, total[c], square[c])


@loop("f f _ 1 f f")
def _update_running(mean, var, momentum, count, total, square):
    n = count[0]
    if n > ONE:
        for c in range(mean.size):
            mean[c], var[c] = moved_running(mean[c], var[c], momentum, n, total[c], square[c])
    count[0] = ZERO
    for c in range(mean.size):
        total[c] = ZERO
        square[c] = ZERO


@loop("rf rf f f f f f f rf rf")
def _forward(thread, threads, mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    rows, features = mu.shape
    base, share = portion((rows + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        k = base + each
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                out_mu[i, c], out_var[i, c] = normalized_moments(
                    mu[i, c], var[i, c], mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c]
                )


@loop("rf rf f f f f f f rf rf")
def _forward_added(thread, threads, mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    """`_forward`, added to the content of out."""
    rows, features = mu.shape
    base, share = portion((rows + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        k = base + each
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                m, s = normalized_moments(mu[i, c], var[i, c], mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c])
                out_mu[i, c] += m
                out_var[i, c] += s


@loop("rf rf f f f f f f rf rf rf rf")
def _forward_onto(thread, threads, mu, var, mean, r, w_mu, w_var, b_mu, b_var, added_mu, added_var, out_mu, out_var):
    """`_forward`, plus (added_mu, added_var)."""
    rows, features = mu.shape
    base, share = portion((rows + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        k = base + each
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                m, s = normalized_moments(mu[i, c], var[i, c], mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c])
                out_mu[i, c], out_var[i, c] = m + added_mu[i, c], s + added_var[i, c]


@formula
def _clear(partial, k):
    for j in range(4):
        for c in range(partial.shape[2]):
            partial[j, k, c] = ZERO


@formula
def _add_summands(partial, k, c, of_weight, dm, ds):
    """Adds the contribution of a unit to the batch sums of its weight and bias."""
    partial[0, k, c] += of_weight[0]
    partial[1, k, c] += of_weight[1]
    partial[2, k, c] += dm
    partial[3, k, c] += ds


@loop("rf f f f rf rf 4kf", _in_parts, apart=True)
def _backward(thread, threads, mu, mean, r, w_mu, delta_mu, delta_var, partial):
    rows, features = mu.shape
    base, share = portion(partial.shape[1], thread, threads)
    for each in range(share):
        k = base + each
        _clear(partial, k)
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                dm, ds = delta_mu[i, c], delta_var[i, c]
                _add_summands(partial, k, c, weight_summands(mu[i, c], mean[c], r[c], dm, ds), dm, ds)
                delta_mu[i, c], delta_var[i, c] = input_deltas(r[c], w_mu[c], dm, ds)


@loop("rf rf f f f rf rf 4kf", _in_parts, apart=True)
def _backward_through(thread, threads, mu, jcb, mean, r, w_mu, delta_mu, delta_var, partial):
    """`_backward`, with deltas multiplied by the Jacobian of the input."""
    rows, features = mu.shape
    base, share = portion(partial.shape[1], thread, threads)
    for each in range(share):
        k = base + each
        _clear(partial, k)
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                dm, ds = delta_mu[i, c], delta_var[i, c]
                _add_summands(partial, k, c, weight_summands(mu[i, c], mean[c], r[c], dm, ds), dm, ds)
                dm, ds = input_deltas(r[c], w_mu[c], dm, ds)
                j_c = jcb[i, c]
                delta_mu[i, c], delta_var[i, c] = dm * j_c, ds * (j_c * j_c)


@loop("4kf _ f f")
def _mean_deltas(thread, threads, partial, rows, shift, slope):
    base, share = portion(shift.size, thread, threads)
    for each in range(share):
        c = base + each
        of_weight, of_bias = ZERO, ZERO
        for k in range(partial.shape[1]):
            of_weight += partial[0, k, c]
            of_bias += partial[2, k, c]
        shift[c], slope[c] = of_bias / np.float32(rows), of_weight / np.float32(rows - 1)


@loop("rf f f f f f rf")
def _subtract(thread, threads, mu, mean, r, w_mu, shift, slope, delta_mu):
    rows, features = mu.shape
    base, share = portion((rows + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        k = base + each
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                delta_mu[i, c] -= through_statistics(mu[i, c], mean[c], r[c], w_mu[c], shift[c], slope[c])


@loop("rf rf f f f f f rf")
def _subtract_through(thread, threads, mu, jcb, mean, r, w_mu, shift, slope, delta_mu):
    """`_subtract`, multiplied by the Jacobian of the input."""
    rows, features = mu.shape
    base, share = portion((rows + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        k = base + each
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                dm = through_statistics(mu[i, c], mean[c], r[c], w_mu[c], shift[c], slope[c])
                delta_mu[i, c] -= dm * jcb[i, c]


def moments(x: State, partial: Array, mean: Array, m2: Array) -> None:
    """mean = sum m / rows; m2 = sum (m - mean)^2 + sum s, for each feature."""
    for centred in (False, True):
        _sum_parts(x.mu, x.var, mean, partial, centred)
        _add_parts(partial, len(x.mu), mean, m2, centred)


def statistics(
    x: State,
    partial: Array,
    mean: Array,
    m2: Array,
    r: Array,
    eps: float,
    running: State,
    sums: Sums,
    momentum: float | None,
) -> None:
    """`moments`, `pool_moments`, `rescale` by rows - 1, and (with a momentum) `update_running`."""
    rows = x.batch
    moments(x, partial, mean, m2)
    pool_moments(mean, m2, rows, running.mu, sums)
    rescale(m2, rows - 1, eps, r)
    if momentum is not None:
        update_running(*running[:2], momentum, sums)


def rescale(square: Array, denominator: float, eps: float, r: Array) -> None:
    """r = 1/sqrt(square/denominator + eps)."""
    _rescale(square, np.float32(denominator), np.float32(eps), r)


def pool_moments(mean: Array, m2: Array, rows: int, shift: Array, sums: Sums) -> None:
    """Adds a batch to sums about `shift`. With the same shift on all ranks, their sums can be added."""
    _pool_moments(mean, m2, rows, shift, *sums)


def pooled_statistics(shift: Array, sums: Sums, mean: Array, var: Array) -> None:
    """Mean and variance of the batch from the sums of `pool_moments`, added over ranks; var = 0 for a single value."""
    _pooled_statistics(shift, *sums, mean, var)


def update_running(running_mean: Array, running_var: Array, momentum: float, sums: Sums) -> None:
    """running = momentum * running + (1 - momentum) * pooled batch; then clears the sums. No-op if they are empty."""
    _update_running(running_mean, running_var, np.float32(momentum), *sums)


def forward(norm: Normalization, added: State | Normalization | None = None) -> None:
    """norm.out = norm, plus `added` if given: the other branch of a residual block; `added.out` is not used."""
    x, w, b, out = norm.x, norm.weights, norm.bias, norm.out
    inputs = x.mu, x.var, norm.mean, norm.r, w.mu, w.var, b.mu, b.var
    if isinstance(added, Normalization):
        forward(added._replace(out=out.reshape(*added.out.mu.shape)))
        _forward_added(*inputs, out.mu, out.var)
        return
    if added is None or added.var is None:
        _forward(*inputs, out.mu, out.var)
    else:
        _forward_onto(*inputs, added.mu, added.var, out.mu, out.var)
    if added is not None and added.var is None:
        add_state(out, added)


def backward(norm: Normalization, delta: Delta, into: Delta, partial: Array, accumulate: bool) -> None:
    """Batch sums for w and b; `into`, which may be `delta`: the deltas of x, through its Jacobian."""
    if into is not delta:  # the loop works in place, see `kernels.cpu.activation`
        copy(delta.mu, into.mu)
        copy(delta.var, into.var)
    operands = norm.mean, norm.r, norm.weights.mu, into.mu, into.var, partial
    if norm.x.jcb is None:
        _backward(norm.x.mu, *operands)
    else:
        _backward_through(norm.x.mu, norm.x.jcb, *operands)
    add_partials(partial, accumulate, norm.weights, norm.bias)


def subtract_statistics(norm: Normalization, into: Delta, partial: Array, means: Array) -> None:
    """After `backward`: subtracts from the deltas of x the part due to the statistics, which depend on x.

    partial: the result of `backward`. means: (2, features), scratch.
    """
    x = norm.x
    _mean_deltas(partial, x.batch, *means)
    operands = norm.mean, norm.r, norm.weights.mu, *means, into.mu
    if x.jcb is None:
        _subtract(x.mu, *operands)
    else:
        _subtract_through(x.mu, x.jcb, *operands)

"""Batch normalisation of a (rows, features) array: rows are samples, or samples x pixels of a channels-last image."""

import numpy as np

from pytagi_ddp.kernels.cuda.columns import (
    LANES,
    THREADS,
    WIDTH,
    add_partials,
    column,
    lane,
    lanes_sums,
    merge_moments,
    merge_threads,
    weight_sums,
)
from pytagi_ddp.kernels.cuda.compile import blocks, cuda, float32, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.formulas.normalize import (
    moved_running,
    normalized_moments,
    pooled_moments,
    pooled_sums,
    reciprocal_deviation,
)
from pytagi_ddp.kernels.tensors import Array, Delta, State, Sums, Tensor

ROWS = 32 * LANES  # rows of one block of threads: 1024 blocks for 64 channels of 128 images of 32 x 32 pixels
ZERO, ONE = np.float32(0), np.float32(1)


def partial_shape(rows: int, features: int) -> tuple[int, int, int]:
    """Shape of the scratch array that `moments` and `backward` need."""
    return (4, blocks(rows, ROWS), features)


@kernel(floats, floats, floats, int32, int32, int32, threads=THREADS)
def _partial_moments(mu, var, partial, rows, features, parts):
    """Planes of partial: mean and sum of squares about it (and of variances) of each block's rows, by Welford."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    c = column()
    k = cuda.blockIdx.x
    n, mean, m2 = ZERO, ZERO, ZERO
    if c < features:
        for row in range(k * ROWS + lane(), min(rows, (k + 1) * ROWS), LANES):
            m = mu[row * features + c]
            n += ONE
            d = m - mean
            mean += d / n
            m2 += d * (m - mean) + var[row * features + c]
    n, mean, m2 = merge_threads(n, mean, m2, counts, means, squares, WIDTH)
    if c < features and lane() == 0:
        partial[k * features + c] = mean
        partial[(parts + k) * features + c] = m2


@kernel(floats, floats, floats, int32, int32, int32, threads=THREADS)
def _merge_partials(partial, mean, m2, rows, features, parts):
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    c = column()
    n, a, s = ZERO, ZERO, ZERO
    if c < features:
        for k in range(lane(), parts, LANES):
            size = float32(min(rows - k * ROWS, ROWS))
            i = k * features + c
            n, a, s = merge_moments(n, a, s, size, partial[i], partial[parts * features + i])
    n, a, s = merge_threads(n, a, s, counts, means, squares, WIDTH)
    if c < features and lane() == 0:
        mean[c] = a
        m2[c] = s


@kernel(floats, floats, float32, float32, int32, threads=THREADS)
def _rescale(square, r, denominator, eps, features):
    c = thread_index()
    if c < features:
        r[c] = reciprocal_deviation(square[c], denominator, eps)


@kernel(floats, floats, floats, floats, floats, floats, float32, int32, threads=THREADS)
def _pool_moments(mean, m2, shift, count, total, square, rows, features):
    c = thread_index()
    if c == 0:
        count[0] += rows
    if c < features:
        total[c], square[c] = pooled_sums(total[c], square[c], mean[c], m2[c], rows, shift[c])


@kernel(*[floats] * 6, int32, threads=THREADS)
def _pooled_statistics(shift, count, total, square, mean, var, features):
    c = thread_index()
    if c < features:
        mean[c], var[c] = pooled_moments(shift[c], count[0], total[c], square[c])


@kernel(floats, floats, floats, floats, floats, float32, int32, threads=THREADS)
def _update_running(mean, var, count, total, square, momentum, features):
    n = count[0]
    for c in range(cuda.threadIdx.x, features, THREADS):
        if n > ONE:
            mean[c], var[c] = moved_running(mean[c], var[c], momentum, n, total[c], square[c])
        total[c] = ZERO
        square[c] = ZERO
    cuda.syncthreads()  # every thread of this only block has read the count
    if cuda.threadIdx.x == 0:
        count[0] = ZERO


@kernel(*[floats] * 10, int32, int32, threads=THREADS)
def _forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var, rows, features):
    c = column()
    if c < features:
        first = cuda.blockIdx.x * ROWS
        for row in range(first + lane(), min(rows, first + ROWS), LANES):
            i = row * features + c
            out_mu[i], out_var[i] = normalized_moments(
                mu[i], var[i], mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c]
            )


@kernel(*[floats] * 7, int32, int32, int32, threads=THREADS)
def _backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, rows, features, parts):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    c = column()
    k = cuda.blockIdx.x
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    if c < features:
        first, stop = k * ROWS, min(rows, (k + 1) * ROWS)
        gw, hw, gb, hb = weight_sums(first, stop, c, features, mean[c], r[c], w_mu[c], mu, delta_mu, delta_var)
    gw, hw, gb, hb = lanes_sums(gw, hw, gb, hb, scratch, second)
    if c < features and lane() == 0:
        i = k * features + c
        plane = parts * features
        partial[i], partial[plane + i], partial[2 * plane + i], partial[3 * plane + i] = gw, hw, gb, hb


def _grid(shape: tuple[int, int]) -> tuple[int, int]:
    return blocks(shape[0], ROWS), blocks(shape[1], WIDTH)


def moments(x: State, partial: Array, mean: Array, m2: Array) -> None:
    """mean = sum m / rows; m2 = sum (m - mean)^2 + sum s, for each feature."""
    sizes = (*x.mu.shape, partial.shape[1])
    _partial_moments.launch(_grid(x.mu.shape), x.mu, x.var, partial, *sizes)
    _merge_partials.launch((1, blocks(x.mu.shape[1], WIDTH)), partial, mean, m2, *sizes)


def rescale(square: Array, denominator: float, eps: float, r: Array) -> None:
    """r = 1/sqrt(square/denominator + eps)."""
    _rescale.launch(blocks(square.size, THREADS), square, r, denominator, eps, square.size)


def pool_moments(mean: Array, m2: Array, rows: int, shift: Array, sums: Sums) -> None:
    """Adds a batch to sums about `shift`, which is the same on every rank: so sums of ranks are sums of batches."""
    n = mean.size
    _pool_moments.launch(blocks(n, THREADS), mean, m2, shift, *sums, rows, n)


def pooled_statistics(shift: Array, sums: Sums, mean: Array, var: Array) -> None:
    """Mean and variance of the batch whose sums are those of `pool_moments`, added over ranks; var = 0 of one value."""
    n = mean.size
    _pooled_statistics.launch(blocks(n, THREADS), shift, *sums, mean, var, n)


def update_running(running_mean: Array, running_var: Array, momentum: float, sums: Sums) -> None:
    """running = momentum * running + (1 - momentum) * pooled batch; then clears the sums. Nothing if they are empty."""
    _update_running.launch(1, running_mean, running_var, *sums, momentum, running_mean.size)


def forward(x: State, mean: Array, r: Array, weights: Tensor, bias: Tensor, out: State) -> None:
    """out = r (x - mean) w + b."""
    affine = weights.mu, weights.var, bias.mu, bias.var
    _forward.launch(_grid(x.mu.shape), x.mu, x.var, mean, r, *affine, out.mu, out.var, *x.mu.shape)


def backward(
    x: State, delta: Delta, mean: Array, r: Array, weights: Tensor, bias: Tensor, partial: Array, accumulate: bool
) -> None:
    """Batch sums for w and b; the deltas, in place, become those of the input (without its Jacobian)."""
    sizes = (*x.mu.shape, partial.shape[1])
    _backward.launch(_grid(x.mu.shape), x.mu, mean, r, weights.mu, delta.mu, delta.var, partial, *sizes)
    add_partials(partial, accumulate, weights, bias)

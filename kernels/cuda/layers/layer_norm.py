"""Norms of (batch, positions, features): statistics per sample, affine map per feature."""

import numpy as np

from pytagi_ddp.kernels.cuda.products.columns import (
    LANES,
    THREADS,
    WIDTH,
    add_partials,
    column,
    keep_partials,
    lane,
    merge_threads,
    weight_sums,
)
from pytagi_ddp.kernels.cuda.products.work import i32
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, cuda, float32, floats, int32, kernel, tree_sum
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.formulas.normalize import (
    normalized_moments,
    reciprocal_deviation,
)
from pytagi_ddp.kernels.tensors import Array, Delta, State, Tensor

POSITIONS = 8 * LANES  # positions of one block of threads in the forward pass
ZERO, ONE = np.float32(0), np.float32(1)


@kernel(floats, floats, floats, floats, float32, int32, threads=THREADS)
def _moments(mu, var, mean, r, eps, units):
    """One block per sample: Welford's method in each thread, whose moments are then merged in a tree."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    start = cuda.blockIdx.x * units
    n, a, s = ZERO, ZERO, ZERO
    for i in range(start + cuda.threadIdx.x, start + units, THREADS):
        n += ONE
        d = mu[i] - a
        a += d / n
        s += d * (mu[i] - a) + var[i]
    n, a, s = merge_threads(n, a, s, counts, means, squares, 1)
    if cuda.threadIdx.x == 0:
        mean[cuda.blockIdx.x] = a
        r[cuda.blockIdx.x] = reciprocal_deviation(s, n - ONE, eps)


@kernel(floats, floats, floats, floats, float32, int32, threads=THREADS)
def _mean_squares(mu, var, mean, r, eps, units):
    scratch = cuda.shared.array(THREADS, float32)
    start = cuda.blockIdx.x * units
    total = ZERO
    for i in range(start + cuda.threadIdx.x, start + units, THREADS):
        total += mu[i] * mu[i] + var[i]
    total = tree_sum(total, scratch, THREADS, 1)
    if cuda.threadIdx.x == 0:
        mean[cuda.blockIdx.x] = ZERO
        r[cuda.blockIdx.x] = reciprocal_deviation(total, float32(units), eps)


@kernel(*[floats] * 10, int32, int32, threads=THREADS)
def _forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var, positions, features):
    c = column()
    b, part = divide(i32(cuda.blockIdx.x), i32((positions + POSITIONS - 1) // POSITIONS))
    if c < features:
        first = part * POSITIONS
        for p in range(first + lane(), min(positions, first + POSITIONS), LANES):
            i = (b * positions + p) * features + c
            out_mu[i], out_var[i] = normalized_moments(
                mu[i], var[i], mean[b], r[b], w_mu[c], w_var[c], b_mu[c], b_var[c]
            )


@kernel(*[floats] * 7, int32, int32, int32, threads=THREADS)
def _backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, batch, positions, features):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    c = column()
    b = cuda.blockIdx.x
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    if c < features:
        first, stop = b * positions, (b + 1) * positions
        gw, hw, gb, hb = weight_sums(first, stop, c, features, mean[b], r[b], w_mu[c], mu, delta_mu, delta_var)
    keep_partials(partial, gw, hw, gb, hb, b, c, batch, features, scratch, second)


def moments(x: State, eps: float, mean: Array, r: Array) -> None:
    """Per sample: mean over all positions and features, r = 1/sqrt(variance + eps) with n - 1 in the denominator."""
    batch, positions, features = x.mu.shape
    _moments.launch(batch, x.mu, x.var, mean, r, eps, positions * features)


def mean_squares(x: State, eps: float, mean: Array, r: Array) -> None:
    """Per sample: mean 0, r = 1/sqrt(E[a^2] + eps) with the mean of a^2 over all positions and features."""
    batch, positions, features = x.mu.shape
    _mean_squares.launch(batch, x.mu, x.var, mean, r, eps, positions * features)


def forward(x: State, mean: Array, r: Array, weights: Tensor, bias: Tensor, out: State) -> None:
    """out = r (x - mean) w + b."""
    batch, positions, features = x.mu.shape
    grid = (batch * blocks(positions, POSITIONS), blocks(features, WIDTH))
    affine = weights.mu, weights.var, bias.mu, bias.var
    _forward.launch(grid, x.mu, x.var, mean, r, *affine, out.mu, out.var, positions, features)


def backward(
    x: State, delta: Delta, mean: Array, r: Array, weights: Tensor, bias: Tensor, partial: Array, accumulate: bool
) -> None:
    """Batch sums for w and b (partial: (4, batch, features) scratch); `delta` becomes the deltas of the input."""
    grid = (x.mu.shape[0], blocks(x.mu.shape[2], WIDTH))
    _backward.launch(grid, x.mu, mean, r, weights.mu, delta.mu, delta.var, partial, *x.mu.shape)
    add_partials(partial, accumulate, weights, bias)

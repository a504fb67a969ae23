"""Sums over the rows of a (rows, features) array: first over blocks of rows, then over these partial sums.

A block of threads covers WIDTH neighbouring features and takes LANES rows at a time, so that it reads each row in one
piece. A second launch, or the last block of the tile to finish, adds the partial sums. Every sum is a tree of fixed
shape: the same input gives the same bits.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import blocks, cuda, device, float32, floats, int32, kernel, tree_sum
from pytagi_ddp.kernels.cuda.runtime.intrinsics import arrive
from pytagi_ddp.kernels.cuda.runtime.workspace import workspace
from pytagi_ddp.kernels.formulas.normalize import input_deltas, weight_summands
from pytagi_ddp.kernels.tensors import Array, Delta, Tensor

THREADS = 256
LANES = THREADS // 32
WIDTH = THREADS // LANES
ROWS = 64 * LANES  # rows of one block of `sum_columns`
ZERO = np.float32(0)


@device
def column():
    """The feature of this thread; grid axis y counts tiles of features."""
    return cuda.blockIdx.y * WIDTH + cuda.threadIdx.x % WIDTH


@device
def lane():
    """The number of this thread's row among LANES rows."""
    return cuda.threadIdx.x // WIDTH


@device
def is_last_block(tickets, i, count, scratch):
    """Whether this block is the last of `count` blocks to call this. It can read all earlier writes of the others.

    tickets: zeros, and zero again after the last call; scratch: a shared int32. Every thread must call it.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        scratch[0] = arrive(tickets, i, int32(count - 1))
    cuda.syncthreads()
    return scratch[0] == count - 1


@device
def weight_sums(first, stop, c, features, mean, r, w_mu, mu, delta_mu, delta_var):
    """Sums (g, h) for weights and biases over this lane's rows of a normalisation; replaces deltas by the input's."""
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    for row in range(first + lane(), stop, LANES):
        i = row * features + c
        dm, ds = delta_mu[i], delta_var[i]
        g, h = weight_summands(mu[i], mean, r, dm, ds)
        gw += g
        hw += h
        gb += dm
        hb += ds
        delta_mu[i], delta_var[i] = input_deltas(r, w_mu, dm, ds)
    return gw, hw, gb, hb


@device
def _lanes_sums(gw, hw, gb, hb, scratch, second):
    """Sums over the lanes of a feature, valid in its first lane; alternates two shared arrays of THREADS numbers."""
    return (
        tree_sum(gw, scratch, THREADS, WIDTH),
        tree_sum(hw, second, THREADS, WIDTH),
        tree_sum(gb, scratch, THREADS, WIDTH),
        tree_sum(hb, second, THREADS, WIDTH),
    )


@device
def merge_moments(n, mean, m2, other_n, other_mean, other_m2):
    """(count, mean, sum of squares about the mean) of the union of two sets (Chan, Golub & LeVeque 1979)."""
    total = n + other_n
    share = other_n / total if total > ZERO else ZERO
    d = other_mean - mean
    return total, mean + d * share, m2 + other_m2 + d * d * n * share


@device
def merge_threads(n, mean, m2, counts, means, squares, last):
    """Merges moments of threads that differ by multiples of `last`, for the first; three shared arrays of THREADS."""
    i = cuda.threadIdx.x
    counts[i], means[i], squares[i] = n, mean, m2
    half = THREADS // 2
    while half >= last:
        cuda.syncthreads()
        if i < half:
            o = i + half
            n, mean, m2 = merge_moments(counts[i], means[i], squares[i], counts[o], means[o], squares[o])
            counts[i], means[i], squares[i] = n, mean, m2
        half //= 2
    return n, mean, m2


@device
def keep_partials(partial, gw, hw, gb, hb, part, c, parts, features, scratch, second):
    """Writes the sums over the lanes as this part of partial (4, parts, features), for `sum_partials`."""
    gw, hw, gb, hb = _lanes_sums(gw, hw, gb, hb, scratch, second)
    if c < features and lane() == 0:
        i = part * features + c
        plane = parts * features
        partial[i], partial[plane + i], partial[2 * plane + i], partial[3 * plane + i] = gw, hw, gb, hb


@device
def sum_partials(partial, g_w, h_w, g_b, h_b, c, parts, features, biased, accumulate, scratch, second):
    """Sums partial (4, parts, features) over its parts, for the features of this block of threads."""
    plane = parts * features
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    if c < features:
        for k in range(lane(), parts, LANES):
            i = k * features + c
            gw += partial[i]
            hw += partial[plane + i]
            if biased:
                gb += partial[2 * plane + i]
                hb += partial[3 * plane + i]
    gw, hw, gb, hb = _lanes_sums(gw, hw, gb, hb, scratch, second)
    if c < features and lane() == 0:
        g_w[c] = g_w[c] + gw if accumulate else gw
        h_w[c] = h_w[c] + hw if accumulate else hw
        if biased:
            g_b[c] = g_b[c] + gb if accumulate else gb
            h_b[c] = h_b[c] + hb if accumulate else hb


@kernel(floats, floats, floats, floats, floats, int32, int32, int32, int32, threads=THREADS)
def _add_partials(partial, g_w, h_w, g_b, h_b, parts, features, biased, accumulate):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    sum_partials(partial, g_w, h_w, g_b, h_b, column(), parts, features, biased, accumulate, scratch, second)


def add_partials(partial: Array, accumulate: bool, weights: Tensor, bias: Tensor) -> None:
    """Sums partial (4, parts, features) over its parts; writes the sums to g and h, or adds them if `accumulate`.

    The planes of partial belong to g and h of the weights, then (if there are any) to g and h of the biases.
    """
    _, parts, features = partial.shape
    biased = bias.delta_mu_sum.size > 0
    grid = 1, blocks(features, WIDTH)
    _add_partials.launch(grid, partial, *weights[2:], *bias[2:], parts, features, biased, accumulate)


@kernel(floats, floats, floats, int32, int32, int32, threads=THREADS)
def _partial_sums(first, second, partial, rows, parts, features):
    scratch = cuda.shared.array(THREADS, float32)
    other = cuda.shared.array(THREADS, float32)
    c = column()
    a, b = ZERO, ZERO
    if c < features:
        begin = cuda.blockIdx.x * ROWS
        for row in range(begin + lane(), min(rows, begin + ROWS), LANES):
            a += first[row * features + c]
            b += second[row * features + c]
    a = tree_sum(a, scratch, THREADS, WIDTH)
    b = tree_sum(b, other, THREADS, WIDTH)
    if c < features and lane() == 0:
        i = cuda.blockIdx.x * features + c
        partial[i], partial[parts * features + i] = a, b


def sum_columns(rows: Delta, bias: Tensor, accumulate: bool) -> None:
    """Sums means and variances of (rows, features) deltas into g and h of a bias, or adds them if `accumulate`."""
    features = bias.delta_mu_sum.size
    n = rows.mu.size // features
    parts = blocks(n, ROWS)
    partial = workspace(2 * parts * features, rows.mu)[: 2 * parts * features].reshape(2, parts, features)
    grid = parts, blocks(features, WIDTH)
    _partial_sums.launch(grid, rows.mu, rows.var, partial, n, parts, features)
    nothing = bias.delta_mu_sum[:0]
    add_partials(partial, accumulate, bias, Tensor(None, None, nothing, nothing))

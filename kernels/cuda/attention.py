"""Attention with moments. Same functions, arguments and formulas as `kernels.cpu.attention`.

A thread makes both moments of one element of a product, a block of threads one row of Remax.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.compile import (
    block_sum,
    blocks,
    cuda,
    float32,
    floats,
    int32,
    kernel,
    optional,
    thread_index,
)
from pytagi_ddp.kernels.cuda.geometry import block_size
from pytagi_ddp.kernels.formulas.activation import mixture_relu_moments
from pytagi_ddp.kernels.formulas.attention import rotated, score_deltas, share_slopes
from pytagi_ddp.kernels.formulas.softmax import remax_mean, remax_var
from pytagi_ddp.kernels.tensors import CAUSAL_FACTOR, CAUSAL_RESULT, Array, Delta, Heads, State

THREADS = block_size(128)
ZERO = np.float32(0)


@kernel(
    *[floats, optional(floats), *[int32] * 6] * 2,
    floats, floats, *[int32] * 11,
    threads=THREADS,
)  # fmt: skip
def _multiply(
    x, x_var, x_first, x_batch, x_head, x_row, x_column, x_share,
    y, y_var, y_first, y_batch, y_head, y_row, y_column, y_share,
    out, out_var, first, batch, head, row, share, heads, rows, depth, columns, causal, x_transposed,
):  # fmt: skip
    i, j = thread_index() // columns, thread_index() % columns
    if i < rows:
        b, h0 = cuda.blockIdx.y // (heads // share), cuda.blockIdx.y % (heads // share) * share
        begin, end = 0, depth  # of the sum
        if causal == CAUSAL_FACTOR:
            if x_transposed:
                begin = i
            else:
                end = i + 1
        if causal != CAUSAL_RESULT or j <= i:
            mean, variance = ZERO, ZERO
            for h in range(h0, h0 + share):
                at_x = x_first + b * x_batch + h // x_share * x_head + i * x_row
                at_y = y_first + b * y_batch + h // y_share * y_head + j * y_column
                for k in range(begin, end):
                    p, q = at_x + k * x_column, at_y + k * y_row
                    m, w = x[p], y[q]
                    mean += m * w
                    if x_var is not None:
                        variance += x_var[p] * (w * w)
                    if y_var is not None:
                        variance += m * m * y_var[q]
                        if x_var is not None:
                            variance += x_var[p] * y_var[q]
            o = first + b * batch + h0 // share * head + i * row + j
            out[o], out_var[o] = mean, variance


@kernel(floats, floats, floats, floats, float32, int32, int32, threads=THREADS)
def _remax(mu, var, d, c, scale, steps, causal):
    scratch = cuda.shared.array(THREADS, float32)
    start, thread = cuda.blockIdx.x * steps, cuda.threadIdx.x
    n = cuda.blockIdx.x % steps + 1 if causal else steps
    total, total_var, norm = ZERO, ZERO, ZERO
    for i in range(start + thread, start + n, THREADS):
        mu[i], var[i], c[i] = mixture_relu_moments(scale * mu[i], scale * scale * var[i])
        total += mu[i]
        total_var += var[i]
    total = block_sum(total, scratch, THREADS)
    total_var = block_sum(total_var, scratch, THREADS)
    for i in range(start + thread, start + n, THREADS):
        d[i] = remax_mean(mu[i], var[i], total, total_var)
        norm += d[i]
    norm = block_sum(norm, scratch, THREADS)
    for i in range(start + thread, start + steps, THREADS):
        if i < start + n:
            a = d[i] / norm
            m, s, cdf = mu[i], var[i], c[i]
            mu[i], var[i] = a, remax_var(a, m, s, total, total_var)
            d[i], c[i] = share_slopes(a, m, s, cdf, total)
        else:
            mu[i], var[i], d[i], c[i] = ZERO, ZERO, ZERO, ZERO


@kernel(floats, floats, floats, floats, floats, float32, int32, int32, threads=THREADS)
def _remax_backward(delta_mu, delta_var, mu, d, c, scale, steps, causal):
    scratch = cuda.shared.array(THREADS, float32)
    start, thread = cuda.blockIdx.x * steps, cuda.threadIdx.x
    n = cuda.blockIdx.x % steps + 1 if causal else steps
    sum_mu, sum_var = ZERO, ZERO
    for i in range(start + thread, start + n, THREADS):
        sum_mu += mu[i] * delta_mu[i]
        sum_var += mu[i] * mu[i] * delta_var[i]
    sum_mu = block_sum(sum_mu, scratch, THREADS)
    sum_var = block_sum(sum_var, scratch, THREADS)
    for i in range(start + thread, start + steps, THREADS):
        dm, ds = ZERO, ZERO
        if i < start + n:
            dm, ds = score_deltas(mu[i], d[i], c[i], delta_mu[i], delta_var[i], sum_mu, sum_var)
        delta_mu[i], delta_var[i] = scale * dm, scale * scale * ds


@kernel(floats, floats, floats, float32, int32, int32, int32, int32, int32, threads=THREADS)
def _rotate(mu, var, table, direction, pairs, heads, steps, size, units):
    p = thread_index()
    if p < pairs:
        half = size // 2
        row, k = p // (heads * half), p % (heads * half)
        i = row * units + k // half * size + k % half * 2
        turn = row % steps * size + k % half
        mu[i], mu[i + 1], var[i], var[i + 1] = rotated(
            mu[i], mu[i + 1], var[i], var[i + 1], table[turn], direction * table[turn + half]
        )


def multiply(
    x: Heads, y: Heads, out: Heads, batch: int, heads: int, rows: int, depth: int, columns: int, causal: int
) -> None:
    """out (rows, columns) = x (rows, depth) y (depth, columns) for each head of each sample.

    causal: ALL; CAUSAL_FACTOR if x has nothing above its diagonal; CAUSAL_RESULT if out needs nothing there.
    """
    factors = [argument for factor in (x, y) for argument in (*factor.units[:2], *_strided(factor))]
    target = out.units.mu, out.units.var, out.first, out.batch, out.head, out.row, out.share
    grid = blocks(rows * columns, THREADS), batch * heads // out.share
    _multiply.launch(grid, *factors, *target, heads, rows, depth, columns, causal, x.transposed)


def _strided(m: Heads) -> tuple[int, ...]:
    row, column = (1, m.row) if m.transposed else (m.row, 1)
    return m.first, m.batch, m.head, row, column, m.share


def remax(scores: State, slopes: Delta, scale: float, causal: bool) -> None:
    """Scores (rows, time steps), times `scale`, become shares of their row; slopes = (D, c) of the Jacobian.

    causal: row t of each head has the first t + 1 steps only; the others are 0.
    """
    rows, steps = scores.mu.shape
    _remax.launch(rows, scores.mu, scores.var, slopes.mu, slopes.var, scale, steps, causal)


def remax_backward(delta: Delta, shares: Array, slopes: Delta, scale: float, causal: bool) -> None:
    """Deltas of shares become those of the scores, before `scale`."""
    rows, steps = shares.shape
    _remax_backward.launch(rows, delta.mu, delta.var, shares, slopes.mu, slopes.var, scale, steps, causal)


def rotate(units: Delta | State, table: Array, heads: int, inverse: bool) -> None:
    """Turns pairs of units (batch * time steps, units) of the first `heads` heads by the angle of their step, in place.

    table (time steps, units of a head): cosines, then sines. inverse: back, as for deltas.
    """
    steps, size = table.shape
    rows, n = units.mu.shape
    pairs = rows * heads * (size // 2)
    direction = -1.0 if inverse else 1.0
    _rotate.launch(blocks(pairs, THREADS), units.mu, units.var, table, direction, pairs, heads, steps, size, n)

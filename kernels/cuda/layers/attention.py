"""Attention with moments. Same functions, arguments and formulas as `kernels.cpu.attention`.

In products, a block computes one tile of both moments from pieces of the factors in shared memory, so that all rows or
columns of the tile use each number that is read. In Remax, a block computes one row.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.products.work import i32
from pytagi_ddp.kernels.cuda.runtime.compile import (
    ALIGN,
    block_sum,
    blocks,
    cuda,
    device,
    float32,
    floats,
    int32,
    kernel,
    optional,
    thread_index,
)
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide, load1, load4, store1
from pytagi_ddp.kernels.formulas.activation import mixture_relu_moments
from pytagi_ddp.kernels.formulas.attention import rotated, score_deltas, share_slopes
from pytagi_ddp.kernels.formulas.softmax import remax_mean, remax_var
from pytagi_ddp.kernels.tensors import CAUSAL_FACTOR, CAUSAL_RESULT, Array, Delta, Heads, State

THREADS = 128
TILE, DEPTH = 32, 16  # rows and columns of a tile; terms of its sums added at a time
SIDE = TILE // 4  # threads along a side of the tile: each computes 4 x 4 results
TILED = SIDE * SIDE
WIDTH = TILE + 4  # of rows in shared memory: distributes transposed stores over the banks
STAGED = DEPTH * WIDTH
ZERO = np.float32(0)


@device
def _stage(shared, shared_var, m, v, at, row, column, count, depth):
    """Copies elements (i, k) of a piece of a factor to shared memory, at k WIDTH + i; zeros for i >= count, k >= depth.

    One of the strides `row` and `column` is 1. Neighbouring threads read along that one, and so neighbouring numbers.
    """
    e = i32(cuda.threadIdx.x)
    while e < i32(TILE * DEPTH):
        if column == i32(1):
            i, k = divide(e, i32(DEPTH))
        else:
            k, i = divide(e, i32(TILE))
        inside = i < count and k < depth
        p, o = i32(at + i32(i * row) + i32(k * column)), i32(i32(k * i32(WIDTH)) + i)
        store1(shared, o, load1(m, p) if inside else ZERO)
        if v is not None:
            store1(shared_var, o, load1(v, p) if inside else ZERO)
        e = i32(e + i32(TILED))


@kernel(
    *[floats, optional(floats), *[int32] * 6] * 2,
    floats, floats, *[int32] * 11,
    threads=TILED, min_blocks=8, one_needed=True,
)  # fmt: skip
def _multiply(
    x, x_var, x_first, x_batch, x_head, x_row, x_column, x_share,
    y, y_var, y_first, y_batch, y_head, y_row, y_column, y_share,
    out, out_var, first, batch, head, row, share, heads, rows, depth, columns, causal, x_transposed,
):  # fmt: skip
    xs = cuda.shared.array(STAGED, float32, ALIGN)
    xs_var = cuda.shared.array(STAGED, float32, ALIGN)
    ys = cuda.shared.array(STAGED, float32, ALIGN)
    ys_var = cuda.shared.array(STAGED, float32, ALIGN)
    mean = cuda.local.array(16, float32)
    variance = cuda.local.array(16, float32)
    m = cuda.local.array(4, float32)
    v = cuda.local.array(4, float32)
    w = cuda.local.array(4, float32)
    z = cuda.local.array(4, float32)
    down, across = divide(i32(rows + i32(TILE - 1)), i32(TILE))[0], divide(i32(columns + i32(TILE - 1)), i32(TILE))[0]
    thread = i32(cuda.threadIdx.x)
    matrix, tile = divide(i32(cuda.blockIdx.x), i32(down * across))
    i0, j0 = divide(tile, across)
    i0, j0 = i32(i0 * i32(TILE)), i32(j0 * i32(TILE))
    if causal == CAUSAL_RESULT and j0 >= i32(i0 + i32(TILE)):
        return
    i, j = divide(thread, i32(SIDE))
    i, j = i32(i * i32(4)), i32(j * i32(4))  # row and column, in the tile, of this thread's first sum
    b, h = divide(i32(matrix * share), heads)
    begin, end = i32(0), depth  # of the sum; all terms outside of this range are zero
    if causal == CAUSAL_FACTOR:
        if x_transposed:
            begin = i0
        else:
            end = min(depth, i32(i0 + i32(TILE)))
    for s in range(16):
        mean[s], variance[s] = ZERO, ZERO
    last = i32(h + share)
    o = i32(first + i32(b * batch) + i32(divide(h, share)[0] * head))
    while h < last:
        at_x = i32(x_first + i32(b * x_batch) + i32(divide(h, x_share)[0] * x_head) + i32(i0 * x_row))
        at_y = i32(y_first + i32(b * y_batch) + i32(divide(h, y_share)[0] * y_head) + i32(j0 * y_column))
        k0 = begin
        while k0 < end:
            left = i32(end - k0)
            _stage(xs, xs_var, x, x_var, i32(at_x + i32(k0 * x_column)), x_row, x_column, i32(rows - i0), left)
            _stage(ys, ys_var, y, y_var, i32(at_y + i32(k0 * y_row)), y_column, y_row, i32(columns - j0), left)
            cuda.syncthreads()
            at, stop = i32(0), i32(STAGED)
            while at < stop:
                m[0], m[1], m[2], m[3] = load4(xs, i32(at + i))
                w[0], w[1], w[2], w[3] = load4(ys, i32(at + j))
                if x_var is not None:
                    v[0], v[1], v[2], v[3] = load4(xs_var, i32(at + i))
                if y_var is not None:
                    z[0], z[1], z[2], z[3] = load4(ys_var, i32(at + j))
                for c in range(4):
                    for a in range(4):
                        mean[4 * a + c] += m[a] * w[c]
                        if y_var is not None:
                            variance[4 * a + c] += m[a] * m[a] * z[c]
                            if x_var is not None:
                                variance[4 * a + c] += v[a] * (w[c] * w[c] + z[c])
                        elif x_var is not None:
                            variance[4 * a + c] += v[a] * (w[c] * w[c])
                at = i32(at + i32(WIDTH))
            cuda.syncthreads()
            k0 = i32(k0 + i32(DEPTH))
        h = i32(h + i32(1))
    for a in range(4):
        for c in range(4):
            if i32(i0 + i + i32(a)) < rows and i32(j0 + j + i32(c)) < columns:
                p = i32(o + i32(i32(i0 + i + i32(a)) * row) + j0 + j + i32(c))
                store1(out, p, mean[4 * a + c])
                store1(out_var, p, variance[4 * a + c])


@kernel(floats, floats, floats, floats, float32, int32, int32, threads=THREADS)
def _remax(mu, var, d, c, scale, steps, causal):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    start, thread = cuda.blockIdx.x * steps, cuda.threadIdx.x
    n = cuda.blockIdx.x % steps + 1 if causal else steps
    total, total_var, norm = ZERO, ZERO, ZERO
    for i in range(start + thread, start + n, THREADS):
        mu[i], var[i], c[i] = mixture_relu_moments(scale * mu[i], scale * scale * var[i])
        total += mu[i]
        total_var += var[i]
    total = block_sum(total, scratch, THREADS)
    total_var = block_sum(total_var, second, THREADS)
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
    second = cuda.shared.array(THREADS, float32)
    start, thread = cuda.blockIdx.x * steps, cuda.threadIdx.x
    n = cuda.blockIdx.x % steps + 1 if causal else steps
    sum_mu, sum_var = ZERO, ZERO
    for i in range(start + thread, start + n, THREADS):
        sum_mu += mu[i] * delta_mu[i]
        sum_var += mu[i] * mu[i] * delta_var[i]
    sum_mu = block_sum(sum_mu, scratch, THREADS)
    sum_var = block_sum(sum_var, second, THREADS)
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
    """out (rows, columns) = x (rows, depth) y (depth, columns) per head and sample; one factor may lack variances.

    causal: ALL; CAUSAL_FACTOR if x is 0 above its diagonal; CAUSAL_RESULT if out is not needed above its diagonal.
    """
    factors = [argument for factor in (x, y) for argument in (*factor.units[:2], *_strided(factor))]
    target = out.units.mu, out.units.var, out.first, out.batch, out.head, out.row, out.share
    grid = batch * heads // out.share * blocks(rows, TILE) * blocks(columns, TILE)
    _multiply.launch(grid, *factors, *target, heads, rows, depth, columns, causal, x.transposed)


def _strided(m: Heads) -> tuple[int, ...]:
    row, column = (1, m.row) if m.transposed else (m.row, 1)
    return m.first, m.batch, m.head, row, column, m.share


def remax(scores: State, slopes: Delta, scale: float, causal: bool) -> None:
    """Scores (rows, time steps), times `scale`, become shares of their row; slopes = (D, c) of the Jacobian.

    causal: row t of each head has shares of the first t + 1 time steps only; its others are 0.
    """
    rows, steps = scores.mu.shape
    _remax.launch(rows, scores.mu, scores.var, slopes.mu, slopes.var, scale, steps, causal)


def remax_backward(delta: Delta, shares: Array, slopes: Delta, scale: float, causal: bool) -> None:
    """Replaces the deltas of the shares by those of the scores before the factor `scale`."""
    rows, steps = shares.shape
    _remax_backward.launch(rows, delta.mu, delta.var, shares, slopes.mu, slopes.var, scale, steps, causal)


def rotate(units: Delta | State, table: Array, heads: int, inverse: bool) -> None:
    """Rotates pairs of units (batch * time steps, units) of the first `heads` heads by the angle of their step, in
    place.

    table (time steps, units of a head): cosines, then sines. inverse: rotates in the other direction, for deltas.
    """
    steps, size = table.shape
    rows, n = units.mu.shape
    pairs = rows * heads * (size // 2)
    direction = -1.0 if inverse else 1.0
    _rotate.launch(blocks(pairs, THREADS), units.mu, units.var, table, direction, pairs, heads, steps, size, n)

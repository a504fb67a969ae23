"""Batch normalisation of a (rows, features) array: rows are samples, or samples x pixels of a channels-last image.

Memory traffic limits these kernels. They reduce it in three ways. They compute the previous activation (one of
`activations`) each time they read its input, so that its three results are not written and read again. The last block
to finish with a tile of features adds the sums of all blocks. They also add another branch to the result.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.products.columns import (
    LANES,
    THREADS,
    WIDTH,
    column,
    is_last_block,
    keep_partials,
    lane,
    merge_moments,
    merge_threads,
    sum_partials,
)
from pytagi_ddp.kernels.cuda.products.fused_activation import NONE, TAKEN, activated
from pytagi_ddp.kernels.cuda.runtime.compile import (
    blocks,
    cuda,
    device,
    float32,
    floats,
    int32,
    ints,
    kernel,
    thread_index,
    tree_sum,
)
from pytagi_ddp.kernels.cuda.runtime.workspace import tickets
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
from pytagi_ddp.kernels.tensors import Array, Delta, Normalization, PartialMoments, State, Sums

ROWS = 32 * LANES  # rows of one block of threads: 1024 blocks for 64 channels of 128 images of 32 x 32 pixels
ZERO, ONE = np.float32(0), np.float32(1)
MOMENTS, POOLED, MOVED = range(3)  # the last stage that `_statistics` computes
FEW = 8  # features of a block of `_finish`
NOTHING, MEANS, BOTH = range(3)  # addition to a result
activations = tuple(TAKEN)[1:]


def partial_shape(rows: int, features: int) -> tuple[int, int, int]:
    """Shape of the scratch array that `moments`, `statistics` and `backward` need."""
    return (4, blocks(rows, ROWS), features)


@device
def merge_parts(partial, c, first, step, rows, part_rows, features, parts):
    """Count, mean and sum of squares about the mean, from every step-th part of feature c in the planes of partial."""
    n, a, s = ZERO, ZERO, ZERO
    for part in range(first, parts, step):
        size = float32(min(rows - part * part_rows, part_rows))
        i = part * features + c
        n, a, s = merge_moments(n, a, s, size, partial[i], partial[parts * features + i])
    return n, a, s


@device
def pool(a, s, c, r, running_mean, running_var, count, total, square, eps, momentum, rows, goal):
    """Updates all values that depend on the moments (a, s) of feature c, except the row count."""
    n = float32(rows)
    r[c] = reciprocal_deviation(s, float32(rows - 1), eps)
    sum_, square_ = pooled_sums(total[c], square[c], a, s, n, running_mean[c])
    if goal == MOVED:
        n += count[0]
        if n > ONE:
            running_mean[c], running_var[c] = moved_running(running_mean[c], running_var[c], momentum, n, sum_, square_)
        sum_, square_ = ZERO, ZERO
    total[c], square[c] = sum_, square_


@kernel(floats, floats, floats, ints, *[floats] * 8, *[float32] * 2, *[int32] * 5, threads=THREADS)
def _statistics(
    mu, var, partial, tickets, mean, m2, r, running_mean, running_var, count, total, square,
    eps, momentum, rows, features, parts, activation, goal,
):  # fmt: skip
    """Each block writes Welford moments of its rows to the planes of partial; a tile's last block does the rest."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    place = cuda.shared.array(1, int32)
    last = cuda.shared.array(1, int32)
    c = column()
    k = cuda.blockIdx.x
    n, a, s = ZERO, ZERO, ZERO
    if c < features:
        for row in range(k * ROWS + lane(), min(rows, (k + 1) * ROWS), LANES):
            m, v, _ = activated(activation, mu[row * features + c], var[row * features + c])
            n += ONE
            d = m - a
            a += d / n
            s += d * (m - a) + v
    n, a, s = merge_threads(n, a, s, counts, means, squares, WIDTH)
    if c < features and lane() == 0:
        partial[k * features + c] = a
        partial[(parts + k) * features + c] = s
    if not is_last_block(tickets, cuda.blockIdx.y, parts, place):
        return

    n, a, s = ZERO, ZERO, ZERO
    if c < features:
        n, a, s = merge_parts(partial, c, lane(), LANES, rows, ROWS, features, parts)
    n, a, s = merge_threads(n, a, s, counts, means, squares, WIDTH)
    if c < features and lane() == 0:
        mean[c], m2[c] = a, s
        if goal != MOMENTS:
            pool(a, s, c, r, running_mean, running_var, count, total, square, eps, momentum, rows, goal)
    if goal == MOMENTS:
        return
    tiles = (features + WIDTH - 1) // WIDTH  # also the index of a ticket: whether all tiles have read the count
    if is_last_block(tickets, tiles, tiles, last) and cuda.threadIdx.x == 0:
        count[0] = ZERO if goal == MOVED else count[0] + float32(rows)


@kernel(floats, ints, *[floats] * 8, *[float32] * 2, *[int32] * 5, threads=THREADS)
def _finish(
    partial, tickets, mean, m2, r, running_mean, running_var, count, total, square,
    eps, momentum, rows, part_rows, features, parts, goal,
):  # fmt: skip
    """The second half of `_statistics`, for the many parts of `part_rows` rows whose moments a product has computed."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    place = cuda.shared.array(1, int32)
    c = cuda.blockIdx.x * FEW + cuda.threadIdx.x % FEW
    first = cuda.threadIdx.x // FEW
    n, a, s = ZERO, ZERO, ZERO
    if c < features:
        n, a, s = merge_parts(partial, c, first, THREADS // FEW, rows, part_rows, features, parts)
    n, a, s = merge_threads(n, a, s, counts, means, squares, FEW)
    if c < features and first == 0:
        mean[c], m2[c] = a, s
        if goal != MOMENTS:
            pool(a, s, c, r, running_mean, running_var, count, total, square, eps, momentum, rows, goal)
    if goal == MOMENTS:
        return
    tiles = (features + FEW - 1) // FEW
    if is_last_block(tickets, 0, tiles, place) and cuda.threadIdx.x == 0:
        count[0] = ZERO if goal == MOVED else count[0] + float32(rows)


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
    cuda.syncthreads()  # every thread of the only block has read the count
    if cuda.threadIdx.x == 0:
        count[0] = ZERO


@kernel(*[floats] * 12, int32, int32, int32, int32, threads=THREADS)
def _forward(
    mu, var, mean, r, w_mu, w_var, b_mu, b_var, add_mu, add_var, out_mu, out_var, rows, features, activation, added
):
    c = column()
    if c < features:
        first = cuda.blockIdx.x * ROWS
        for row in range(first + lane(), min(rows, first + ROWS), LANES):
            i = row * features + c
            m, s, _ = activated(activation, mu[i], var[i])
            m, s = normalized_moments(m, s, mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c])
            if added != NOTHING:
                m += add_mu[i]
            if added == BOTH:
                s += add_var[i]
            out_mu[i], out_var[i] = m, s


@kernel(*[floats] * 18, int32, int32, int32, int32, threads=THREADS)
def _forward_both(
    mu, var, mean, r, w_mu, w_var, b_mu, b_var, mu2, var2, mean2, r2, w_mu2, w_var2, b_mu2, b_var2, out_mu, out_var,
    rows, features, activation, activation2,
):  # fmt: skip
    c = column()
    if c < features:
        first = cuda.blockIdx.x * ROWS
        for row in range(first + lane(), min(rows, first + ROWS), LANES):
            i = row * features + c
            m, s, _ = activated(activation, mu[i], var[i])
            m, s = normalized_moments(m, s, mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c])
            m2, s2, _ = activated(activation2, mu2[i], var2[i])
            m2, s2 = normalized_moments(m2, s2, mean2[c], r2[c], w_mu2[c], w_var2[c], b_mu2[c], b_var2[c])
            out_mu[i], out_var[i] = m + m2, s + s2


@kernel(*[floats] * 11, ints, *[floats] * 4, *[int32] * 7, threads=THREADS)
def _backward(
    mu, var, jcb, mean, r, w_mu, delta_mu, delta_var, into_mu, into_var, partial, tickets, g_w, h_w, g_b, h_b,
    rows, features, parts, activation, sloped, biased, accumulate,
):  # fmt: skip
    scratch = cuda.shared.array(THREADS, float32)
    place = cuda.shared.array(1, int32)
    second = cuda.shared.array(THREADS, float32)
    c = column()
    k = cuda.blockIdx.x
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    if c < features:
        for row in range(k * ROWS + lane(), min(rows, (k + 1) * ROWS), LANES):
            i = row * features + c
            dm, ds = delta_mu[i], delta_var[i]
            m, j = mu[i], ONE
            if activation != NONE:
                m, _, j = activated(activation, m, var[i])
            g, h = weight_summands(m, mean[c], r[c], dm, ds)
            gw += g
            hw += h
            gb += dm
            hb += ds
            dm, ds = input_deltas(r[c], w_mu[c], dm, ds)
            if sloped:
                j = jcb[i]
            into_mu[i], into_var[i] = dm * j, ds * (j * j)
    keep_partials(partial, gw, hw, gb, hb, k, c, parts, features, scratch, second)
    if is_last_block(tickets, cuda.blockIdx.y, parts, place):
        sum_partials(partial, g_w, h_w, g_b, h_b, c, parts, features, biased, accumulate, scratch, second)


@kernel(floats, floats, int32, int32, int32, threads=THREADS)
def _mean_deltas(partial, means, rows, features, parts):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    c = column()
    of_weight, of_bias = ZERO, ZERO
    if c < features:
        for k in range(lane(), parts, LANES):
            of_weight += partial[k * features + c]
            of_bias += partial[(2 * parts + k) * features + c]
    of_weight = tree_sum(of_weight, scratch, THREADS, WIDTH)
    of_bias = tree_sum(of_bias, second, THREADS, WIDTH)
    if c < features and lane() == 0:
        means[c], means[features + c] = of_bias / float32(rows), of_weight / float32(rows - 1)


@kernel(*[floats] * 8, *[int32] * 4, threads=THREADS)
def _subtract_statistics(mu, var, jcb, mean, r, w_mu, means, into_mu, rows, features, activation, sloped):
    c = column()
    if c < features:
        first = cuda.blockIdx.x * ROWS
        for row in range(first + lane(), min(rows, first + ROWS), LANES):
            i = row * features + c
            m, j = mu[i], ONE
            if activation != NONE:
                m, _, j = activated(activation, m, var[i])
            if sloped:
                j = jcb[i]
            into_mu[i] -= j * through_statistics(m, mean[c], r[c], w_mu[c], means[c], means[features + c])


def _grid(shape: tuple[int, int]) -> tuple[int, int]:
    return blocks(shape[0], ROWS), blocks(shape[1], WIDTH)


def _tickets(x: State) -> Array:
    """Tickets (see `is_last_block`): one for each tile of features, and one for all tiles together."""
    return tickets(_grid(x.mu.shape)[1] + 1, x.mu)


def moments(
    x: State, partial: Array, mean: Array, m2: Array, *, activation: str = "", made: PartialMoments | None = None
) -> None:
    """mean = sum m / rows; m2 = sum (m - mean)^2 + sum s, for each feature of the activated x.

    made: partial moments from the previous product, so that x is not read.
    """
    _launch_statistics(x, partial, [mean, m2, *[mean] * 6], (0, 0), activation, MOMENTS, made)


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
    *,
    activation: str = "",
    made: PartialMoments | None = None,
) -> None:
    """`moments`, `pool_moments`, `rescale` by rows - 1, and (with a momentum) `update_running`, in one launch."""
    goal = POOLED if momentum is None else MOVED
    _launch_statistics(x, partial, [mean, m2, r, *running[:2], *sums], (eps, momentum or 0), activation, goal, made)


def _launch_statistics(
    x: State,
    partial: Array,
    results: list[Array],
    numbers: tuple[float, float],
    activation: str,
    goal: int,
    made: PartialMoments | None,
) -> None:
    rows, features = x.mu.shape
    if made is None:
        sizes = rows, features, partial.shape[1], TAKEN[activation], goal
        _statistics.launch(_grid(x.mu.shape), x.mu, x.var, partial, _tickets(x), *results, *numbers, *sizes)
    else:
        sizes = rows, made.rows, features, blocks(rows, made.rows), goal
        _finish.launch(blocks(features, FEW), made.values, tickets(1, x.mu), *results, *numbers, *sizes)


def rescale(square: Array, denominator: float, eps: float, r: Array) -> None:
    """r = 1/sqrt(square/denominator + eps)."""
    _rescale.launch(blocks(square.size, THREADS), square, r, denominator, eps, square.size)


def pool_moments(mean: Array, m2: Array, rows: int, shift: Array, sums: Sums) -> None:
    """Adds a batch to sums about `shift`. With the same shift on all ranks, their sums can be added."""
    n = mean.size
    _pool_moments.launch(blocks(n, THREADS), mean, m2, shift, *sums, rows, n)


def pooled_statistics(shift: Array, sums: Sums, mean: Array, var: Array) -> None:
    """Mean and variance of the batch from the sums of `pool_moments`, added over ranks; var = 0 for a single value."""
    n = mean.size
    _pooled_statistics.launch(blocks(n, THREADS), shift, *sums, mean, var, n)


def update_running(running_mean: Array, running_var: Array, momentum: float, sums: Sums) -> None:
    """running = momentum * running + (1 - momentum) * pooled batch; then clears the sums. No-op if they are empty."""
    _update_running.launch(1, running_mean, running_var, *sums, momentum, running_mean.size)


def forward(norm: Normalization, added: State | Normalization | None = None) -> None:
    """norm.out = norm, plus `added` if given: the other branch of a residual block.

    If `added` is another normalisation, this may leave the memory `added.out` unwritten.
    """
    out, shape = norm.out, norm.x.mu.shape
    if isinstance(added, Normalization) and added.x.mu.shape != shape:
        forward(added)
        added = added.out
    if isinstance(added, Normalization):
        sizes = (*shape, TAKEN[norm.activation], TAKEN[added.activation])
        _forward_both.launch(_grid(shape), *_operands(norm), *_operands(added), out.mu, out.var, *sizes)
        return
    extra, what = (out.mu, out.var), NOTHING
    if added is not None:
        extra, what = (added.mu, out.var if added.var is None else added.var), MEANS if added.var is None else BOTH
    _forward.launch(_grid(shape), *_operands(norm), *extra, out.mu, out.var, *shape, TAKEN[norm.activation], what)


def _operands(norm: Normalization) -> tuple:
    return *norm.x[:2], norm.mean, norm.r, *norm.weights[:2], *norm.bias[:2]


def backward(norm: Normalization, delta: Delta, into: Delta, partial: Array, accumulate: bool) -> None:
    """Batch sums for w and b; `into`, which may be `delta`: deltas of x, through its Jacobian and the activation."""
    x, g_b = norm.x, norm.bias[2:]
    flags = TAKEN[norm.activation], x.jcb is not None, g_b[0].size > 0, accumulate
    moved = delta.mu, delta.var, into.mu, into.var, partial, _tickets(x), *norm.weights[2:], *g_b
    _backward.launch(_grid(x.mu.shape), *_slopes(norm), *moved, *x.mu.shape, partial.shape[1], *flags)


def subtract_statistics(norm: Normalization, into: Delta, partial: Array, means: Array) -> None:
    """After `backward`: subtracts from the deltas of x the part due to the statistics, which depend on x.

    partial: the result of `backward`. means: (2, features), scratch.
    """
    x = norm.x
    rows, features = x.mu.shape
    _mean_deltas.launch((1, blocks(features, WIDTH)), partial, means, rows, features, partial.shape[1])
    flags = TAKEN[norm.activation], x.jcb is not None
    _subtract_statistics.launch(_grid(x.mu.shape), *_slopes(norm), means, into.mu, rows, features, *flags)


def _slopes(norm: Normalization) -> tuple:
    """Arguments for the backward pass of deltas: the input (for its activation or its Jacobian), and the affine map."""
    x = norm.x
    return x.mu, x.mu if x.var is None else x.var, x.mu if x.jcb is None else x.jcb, norm.mean, norm.r, norm.weights.mu

"""The last step of a product: bias, Jacobian or accumulation, and the sum over the parts of a split product."""

from pytagi_ddp.kernels.cuda.products.columns import merge_moments
from pytagi_ddp.kernels.cuda.products.fused_activation import activated
from pytagi_ddp.kernels.cuda.products.plan import FORWARD, KNOWN, STATE, TRANSPOSED, at_inputs, at_weights
from pytagi_ddp.kernels.cuda.products.work import ONE, ZERO, i32, locate
from pytagi_ddp.kernels.cuda.runtime.compile import cuda, device, float32, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide, load1, store1

THREADS = 256
SLOPED, ADDED = 1, 2  # bits of `extra` in products that compute deltas


@device
def finish_forward(mean, variance, element, column, extra, bias_mu, bias_var, out_mu, out_var):
    """Stores a sum, with the bias of its column if `extra`. Returns the stored moments."""
    if extra:
        mean += bias_mu[column]
        variance += bias_var[column]
    out_mu[element] = mean
    out_var[element] = variance
    return mean, variance


@device
def finish_state(mean, variance, element, extra, jcb, out_mu, out_var):
    """Stores a delta. extra: SLOPED: first multiply by J (variance: J^2) of the element; ADDED: then add to `out`."""
    if extra & SLOPED:
        j = jcb[element]
        mean *= j
        variance *= j * j
    if extra & ADDED:
        mean += out_mu[element]
        variance += out_var[element]
    out_mu[element] = mean
    out_var[element] = variance


@device
def finish_sum(mean, variance, element, extra, g, h):
    """Stores g and h of a parameter; if `extra`, adds to the stored values."""
    if extra:
        mean += g[element]
        variance += h[element]
    g[element] = mean
    h[element] = variance


@device
def parameter_place(row, taps, channels):
    """The place of a row of PARAMETERS: rows are (tap, input channel), memory is (column, input channel, tap).

    Returns the index for column 0 and the distance between columns.
    """
    tap, channel = divide(row, channels)
    return i32(i32(channel * taps) + tap), i32(channels * taps)


def makes_moments(kind: int) -> bool:
    """Whether products of a kind can compute `PartialMoments` of their results."""
    return kind in (FORWARD, KNOWN)


def room_for_moments(kind: int, tile: tuple[int, int], rows: int) -> int:
    """Size of the shared memory of `store`, in numbers, if a thread has sums of `rows` rows."""
    owners = tile[0] // rows
    return (2 * tile[1] + 1) * owners if makes_moments(kind) else 0


def make_store(
    kind: int, tile: tuple[int, int], count: tuple[int, int], group: tuple[int, int], apart: tuple[int, int]
):
    """Makes the function by which threads of a product store their sums.

    Args:
        kind: kind of the product.
        tile: rows and columns of a block.
        count: rows and columns of sums of a thread.
        group: rows and columns of a group of adjacent sums.
        apart: distance from one such group of a thread to its next, in rows and in columns.
    """
    BM, BN = tile
    MOMENTS, OWNERS = makes_moments(kind), BM // count[0]  # OWNERS: threads that share the rows of a column
    SQUARES, COUNTS = OWNERS * BN, 2 * OWNERS * BN  # offsets in shared memory, from the means
    STEP = BM * BN // (count[0] * count[1])  # threads of a block
    ROWS, COLUMNS = count
    GROUP_M, GROUP_N = group
    APART_M, APART_N = apart
    LATER = ROWS * COLUMNS - COLUMNS
    AT_INPUTS, AT_WEIGHTS, OF_DELTAS = at_inputs(kind), at_weights(kind), kind % TRANSPOSED == STATE

    @device
    def store(mean, variance, row0, column0, work, sizes, parts, extra, finish, out, owner, moments, partial, shared):
        """Stores the sums of one thread.

        mean, variance: the sums, row by row; row0, column0: place of the first; parts: of the whole product.
        moments: 0, or 1 + number of an activation: then `partial` receives the moments of this tile after it.
        owner: number of this thread among those that share a column. shared: memory of `room_for_moments`.
        """
        n = ZERO
        if MOMENTS:
            centre = cuda.local.array(COLUMNS, float32)
            spread = cuda.local.array(COLUMNS, float32)
            for j in range(COLUMNS):
                centre[j] = ZERO
                spread[j] = ZERO
        batch, image_h, image_w, channels_in, _, _, _, kernel_size, stride, _ = sizes
        rows, columns = work.rows, work.columns
        size = i32(rows * columns)
        if AT_INPUTS:
            size = i32(i32(i32(batch * image_h) * image_w) * columns)
        for i in range(ROWS):
            row = i32(row0 + i32(i // GROUP_M * APART_M) + i32(i % GROUP_M))
            if row < rows:
                place, step = i32(row * columns), i32(1)  # index of the first result, and distance between them
                if AT_INPUTS:
                    phase_y, phase_x = divide(work.phase, stride)
                    image, y, x = locate(row, work.grid, image_h)
                    y, x = i32(i32(y * stride) + phase_y), i32(i32(x * stride) + phase_x)
                    place = i32(i32(i32(i32(image + y) * image_w) + x) * columns)
                elif AT_WEIGHTS:
                    place, step = row, rows
                    if parts == i32(1):
                        place, step = parameter_place(row, i32(kernel_size * kernel_size), channels_in)
                if parts > i32(1):
                    place = i32(place + i32(i32(work.which * i32(2)) * size))
                n += ONE
                for j in range(COLUMNS):
                    column = i32(column0 + i32(j // GROUP_N * APART_N + j % GROUP_N))
                    if column < columns:
                        o = i32(place + i32(column * step))
                        if parts > i32(1):
                            out[0][o], out[0][i32(o + size)] = mean[j], variance[j]
                        elif OF_DELTAS:
                            finish_state(mean[j], variance[j], o, extra, finish[0], out[0], out[1])
                        elif not AT_WEIGHTS:
                            m, v = finish_forward(
                                mean[j], variance[j], o, column, extra, finish[0], finish[1], out[0], out[1]
                            )
                            if MOMENTS and moments > 0:
                                m, v, _ = activated(moments - 1, m, v)
                                d = m - centre[j]
                                centre[j] += d / n
                                spread[j] += d * (m - centre[j]) + v
                        elif row < i32(i32(kernel_size * kernel_size) * channels_in):
                            finish_sum(mean[j], variance[j], o, extra, out[0], out[1])
                        else:
                            finish_sum(mean[j], variance[j], column, extra, finish[0], finish[1])
            # The sums of the next row move up: registers cannot be indexed by i.
            for s in range(LATER):
                mean[s] = mean[s + COLUMNS]
            for s in range(LATER):
                variance[s] = variance[s + COLUMNS]
        if MOMENTS and moments > 0:
            cuda.syncthreads()  # all threads are done reading the shared memory of the product
            place = i32(i32(owner * i32(BN)) + i32(column0 - work.column0))
            for j in range(COLUMNS):
                o = i32(place + i32(j // GROUP_N * APART_N + j % GROUP_N))
                store1(shared, o, centre[j])
                store1(shared, i32(o + i32(SQUARES)), spread[j])
            if column0 == work.column0:
                store1(shared, i32(i32(COUNTS) + owner), n)
            cuda.syncthreads()
            number = divide(work.row0, i32(BM))[0]
            tiles = divide(i32(work.rows + i32(BM - 1)), i32(BM))[0]
            for j in range(cuda.threadIdx.x, BN, STEP):
                if work.column0 + j < work.columns:
                    n, a, s = ZERO, ZERO, ZERO
                    for k in range(OWNERS):
                        size, o = load1(shared, COUNTS + k), k * BN + j
                        n, a, s = merge_moments(n, a, s, size, load1(shared, o), load1(shared, o + SQUARES))
                    o = i32(i32(number * work.columns) + work.column0 + i32(j))
                    partial[o] = a
                    partial[i32(o + i32(tiles * work.columns))] = s

    return store


@device
def sum_parts(parts, element, size, count):
    """Sums of both moments over the parts of a split product, in their order; parts: (count, 2, size)."""
    mean, variance = ZERO, ZERO
    o = element
    for _ in range(count):
        mean += parts[o]
        variance += parts[i32(o + size)]
        o = i32(o + i32(size + size))
    return mean, variance


@kernel(floats, int32, int32, int32, int32, floats, floats, floats, floats, threads=THREADS)
def sum_forward(parts, size, count, columns, extra, bias_mu, bias_var, out_mu, out_var):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        _, column = divide(i, columns)
        finish_forward(mean, variance, i, column, extra, bias_mu, bias_var, out_mu, out_var)


@kernel(floats, int32, int32, int32, floats, floats, floats, threads=THREADS)
def sum_state(parts, size, count, extra, jcb, out_mu, out_var):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        finish_state(mean, variance, i, extra, jcb, out_mu, out_var)


@kernel(floats, int32, int32, int32, int32, int32, int32, floats, floats, floats, floats, threads=THREADS)
def sum_parameters(parts, size, count, rows, taps, channels, extra, g_b, h_b, g_w, h_w):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        column, row = divide(i, rows)
        if row < i32(taps * channels):
            place, apart = parameter_place(row, taps, channels)
            finish_sum(mean, variance, i32(place + i32(column * apart)), extra, g_w, h_w)
        else:
            finish_sum(mean, variance, column, extra, g_b, h_b)

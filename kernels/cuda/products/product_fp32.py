"""Fused moment products in float32: one pass over the tiles gives both moments.

A block of the large tile has 128 threads and computes 128 x 64 means and variances; each thread keeps 8 x 8 of both in
registers, and reads factors from shared memory in groups of four, one instruction each. Shared memory has two halves,
each for operand tiles of eight k, stored k by k: while one half is multiplied, the next tiles are loaded into registers
and then stored to the other half. The smaller tiles are for products that would be mostly padding in the large one.
Those of one warp, 8 x 64 and 64 x 8, have an operand so narrow that some threads do not load any group of it.
"""

from pytagi_ddp.kernels.cuda.products.finish import make_store, room_for_moments
from pytagi_ddp.kernels.cuda.products.gather import advance, gather4, matrix4
from pytagi_ddp.kernels.cuda.products.plan import DEPTH, Tile, at_inputs, at_weights, uncertain
from pytagi_ddp.kernels.cuda.products.work import ZERO, assign, i32, locate, move, origin_of
from pytagi_ddp.kernels.cuda.runtime.compile import ALIGN, Kernel, cuda, float32, floats, int32, kernel
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide, load4, store1, store4

PAD = 4  # numbers between the rows of shared memory: distributes transposed stores over the banks


def make_product(kind: int, tile: Tile, name: str) -> Kernel:
    """The kernel of one kind of product (see `work`) and one tile; grid: (tiles, phases * parts).

    Its arguments: the image operand x (mean, variance), the matrix operand w (mean, variance), two arrays that
    `finish` needs, the results (mean, variance), memory for their moments, the layer's sizes; the number of parts of
    the sum over k and the terms of each (of several parts, the first result is the workspace); whether x and w are read
    four at a time; `extra` of `finish`, `ones` of `gather4`, `moments` of `store`. Any array may be passed for one that
    the kind of product does not use.
    """
    BM, BN, TM, TN = tile
    THREADS = tile.threads
    AT_INPUTS, AT_WEIGHTS = at_inputs(kind), at_weights(kind)
    K_LAST = not AT_WEIGHTS  # k runs along the memory of x
    W_K_LAST = not (AT_INPUTS or AT_WEIGHTS)
    TWO_X, TWO_W = uncertain(kind)  # whether the operand has a variance
    LX, LW = BM + PAD, BN + PAD
    SX, SW = DEPTH * LX, DEPTH * LW
    VAR_X, VAR_W = 2 * SX, 2 * SW  # distance from a mean to its variance in shared memory
    SHARED_X, SHARED_W = (2 * VAR_X if TWO_X else VAR_X), (2 * VAR_W if TWO_W else VAR_W)
    GROUPS_M, GROUPS_N = TM // 4, TN // 4
    APART_M, APART_N = BM // GROUPS_M, BN // GROUPS_N  # distance between a thread's groups of four
    SUMS = TM * TN
    FOURS_X = DEPTH // 4 if K_LAST else BM // 4  # groups of four in a row of memory of a tile
    FOURS_W = DEPTH // 4 if W_K_LAST else BN // 4
    ROWS_X, ROWS_W = THREADS // FOURS_X, THREADS // FOURS_W  # rows that all threads fetch at once
    LINES_X, LINES_W = (BM if K_LAST else DEPTH), (BN if W_K_LAST else DEPTH)  # rows of memory of a tile
    NX, NW = -(-LINES_X // ROWS_X), -(-LINES_W // ROWS_W)  # groups of four that a thread fetches per tile
    FETCH_X, FETCH_W = 4 * NX, 4 * NW
    ALL_X, ALL_W = ROWS_X <= LINES_X, ROWS_W <= LINES_W  # whether every thread fetches some
    SIGN = i32(-1 if AT_INPUTS else 1)

    SHARED_X = max(SHARED_X, room_for_moments(kind, (BM, BN), TM))
    store = make_store(kind, (BM, BN), (TM, TN), (4, 4), (APART_M, APART_N))

    @kernel(
        *[floats] * 9, *[int32] * 17, threads=THREADS, min_blocks=2, name=name
    )  # fmt: skip
    def product(
        x_mu, x_var, w_mu, w_var, finish_mu, finish_var, out_mu, out_var, partial,
        batch, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad,
        parts, part, wide_x, wide_w, extra, ones, moments,
    ):  # fmt: skip
        shared_x = cuda.shared.array(SHARED_X, float32, ALIGN)
        shared_w = cuda.shared.array(SHARED_W, float32, ALIGN)
        mean = cuda.local.array(SUMS, float32)
        variance = cuda.local.array(SUMS, float32)
        x = cuda.local.array(TM, float32)
        x2 = cuda.local.array(TM, float32)
        w = cuda.local.array(TN, float32)
        w2 = cuda.local.array(TN, float32)
        next_x = cuda.local.array(FETCH_X, float32)
        next_x2 = cuda.local.array(FETCH_X, float32)
        next_w = cuda.local.array(FETCH_W, float32)
        next_w2 = cuda.local.array(FETCH_W, float32)
        start = cuda.local.array(NX, int32)
        at_y = cuda.local.array(NX, int32)
        at_x = cuda.local.array(NX, int32)
        thread = i32(cuda.threadIdx.x)

        sizes = batch, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad
        work = assign(AT_INPUTS, AT_WEIGHTS, BM, BN, DEPTH, sizes, part, ones)
        if work.row0 >= work.rows:
            return
        view, grid = work.view, work.grid

        # This thread fetches groups of four from (row_x, along_x) on, ROWS_X rows apart; row_sum, column_sum: its sums.
        row_x, along_x = divide(thread, i32(FOURS_X))
        row_w, along_w = divide(thread, i32(FOURS_W))
        along_x, along_w = i32(along_x * i32(4)), i32(along_w * i32(4))
        row_sum, column_sum = divide(thread, i32(BN // TN))
        row_sum, column_sum = i32(row_sum * i32(4)), i32(column_sum * i32(4))
        tap = advance((i32(0), i32(0), i32(0)), i32((work.begin if K_LAST else work.row0) + along_x), view)
        for n in range(NX):
            position = i32((work.row0 if K_LAST else work.begin) + row_x + i32(n * ROWS_X))
            start[n], at_y[n], at_x[n] = locate(position, grid, work.image_size)
        for i in range(SUMS):
            mean[i] = ZERO
            variance[i] = ZERO

        half, t = i32(0), i32(0)
        while t <= work.tiles:
            if t < work.tiles:
                k = i32(work.begin + i32(t * i32(DEPTH)))
                for n in range(NX):
                    position = i32((work.row0 if K_LAST else k) + row_x + i32(n * ROWS_X))
                    place = start[n], at_y[n], at_x[n]
                    exists = position < work.positions and (ALL_X or row_x < i32(LINES_X))
                    origin = origin_of(place, grid, exists)
                    gather4(next_x, next_x2, 4 * n, x_mu, x_var, origin, tap, view, SIGN, wide_x, ones, TWO_X)
                    if not K_LAST:
                        start[n], at_y[n], at_x[n] = move(place, i32(DEPTH), grid, work.image_size)
                if K_LAST:
                    tap = advance(tap, i32(DEPTH), view)
                for n in range(NW):
                    row, column = i32(row_w + i32(n * ROWS_W)), along_w
                    if W_K_LAST:
                        row, row_end = i32(row + work.column0), work.columns
                        column, row_size = i32(column + k), work.depth
                    else:
                        row, row_end = i32(i32(row + k) + work.first_row), i32(work.first_row + work.depth)
                        column, row_size = i32(column + work.column0), work.columns
                    if not ALL_W and row_w >= i32(LINES_W):
                        row = row_end
                    matrix4(next_w, next_w2, 4 * n, w_mu, w_var, row, column, row_end, row_size, wide_w, TWO_W)
            if t > i32(0):
                ox = i32(i32(i32(1) - half) * i32(SX) + row_sum)
                ow = i32(i32(i32(1) - half) * i32(SW) + column_sum)
                end = i32(ox + i32(DEPTH * LX))
                while ox < end:
                    for g in range(GROUPS_M):
                        o, e = i32(ox + i32(g * APART_M)), 4 * g
                        x[e + 0], x[e + 1], x[e + 2], x[e + 3] = load4(shared_x, o)
                        if TWO_X:
                            x2[e + 0], x2[e + 1], x2[e + 2], x2[e + 3] = load4(shared_x, i32(o + i32(VAR_X)))
                    for g in range(GROUPS_N):
                        o, e = i32(ow + i32(g * APART_N)), 4 * g
                        w[e + 0], w[e + 1], w[e + 2], w[e + 3] = load4(shared_w, o)
                        if TWO_W:
                            w2[e + 0], w2[e + 1], w2[e + 2], w2[e + 3] = load4(shared_w, i32(o + i32(VAR_W)))
                    for j in range(TN):
                        for i in range(TM):
                            s = i * TN + j
                            mean[s] += x[i] * w[j]
                            if TWO_X and TWO_W:
                                variance[s] += x2[i] * (w[j] * w[j] + w2[j])
                                variance[s] += (x[i] * x[i]) * w2[j]
                            elif TWO_X:
                                variance[s] += x2[i] * (w[j] * w[j])
                            else:
                                variance[s] += (x[i] * x[i]) * w2[j]
                    ox = i32(ox + i32(LX))
                    ow = i32(ow + i32(LW))
            if t < work.tiles and (ALL_X or row_x < i32(LINES_X)):
                for n in range(NX):
                    if K_LAST:
                        o = i32(half * i32(SX) + i32(along_x * i32(LX)) + row_x + i32(n * ROWS_X))
                        for e in range(4):
                            store1(shared_x, i32(o + i32(e * LX)), next_x[4 * n + e])
                            if TWO_X:
                                store1(shared_x, i32(o + i32(VAR_X + e * LX)), next_x2[4 * n + e])
                    else:
                        o, e = i32(half * i32(SX) + i32(i32(row_x + i32(n * ROWS_X)) * i32(LX)) + along_x), 4 * n
                        store4(shared_x, o, next_x[e], next_x[e + 1], next_x[e + 2], next_x[e + 3])
                        if TWO_X:
                            o = i32(o + i32(VAR_X))
                            store4(shared_x, o, next_x2[e], next_x2[e + 1], next_x2[e + 2], next_x2[e + 3])
            if t < work.tiles and (ALL_W or row_w < i32(LINES_W)):
                for n in range(NW):
                    if W_K_LAST:
                        o = i32(half * i32(SW) + i32(along_w * i32(LW)) + row_w + i32(n * ROWS_W))
                        for e in range(4):
                            store1(shared_w, i32(o + i32(e * LW)), next_w[4 * n + e])
                            if TWO_W:
                                store1(shared_w, i32(o + i32(VAR_W + e * LW)), next_w2[4 * n + e])
                    else:
                        o, e = i32(half * i32(SW) + i32(i32(row_w + i32(n * ROWS_W)) * i32(LW)) + along_w), 4 * n
                        store4(shared_w, o, next_w[e], next_w[e + 1], next_w[e + 2], next_w[e + 3])
                        if TWO_W:
                            store4(
                                shared_w,
                                i32(o + i32(VAR_W)),
                                next_w2[e],
                                next_w2[e + 1],
                                next_w2[e + 2],
                                next_w2[e + 3],
                            )
            cuda.syncthreads()
            half = i32(i32(1) - half)
            t = i32(t + i32(1))

        owner = divide(thread, i32(BN // TN))[0]
        store(
            mean, variance, i32(work.row0 + row_sum), i32(work.column0 + column_sum), work, sizes,
            parts, extra, (finish_mu, finish_var), (out_mu, out_var), owner, moments, partial, shared_x,
        )  # fmt: skip

    return product

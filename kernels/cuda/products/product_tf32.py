"""Fused moment products on tensor cores (compute capability 8.0 and later): factors rounded to TF32, sums in float32.

A block of 128 threads computes 128 x 64 means and variances, each of its four warps 64 x 32. Tiles of eight k are
copied to shared memory asynchronously, two ahead of the one that is multiplied. They keep the order of the operand's
memory: either rows of eight k, with the halves swapped in every other group of four rows, or k by k, with a gap of
eight numbers. In both layouts the 32 numbers that a warp reads at once lie in 32 different banks.
"""

from typing import NamedTuple

import numpy as np

from pytagi_ddp.kernels.cuda.products.finish import make_store, room_for_moments
from pytagi_ddp.kernels.cuda.products.gather import advance, send4, send_matrix4
from pytagi_ddp.kernels.cuda.products.plan import DEPTH, at_inputs, at_weights, uncertain
from pytagi_ddp.kernels.cuda.products.work import ZERO, assign, i32, locate, move, origin_of
from pytagi_ddp.kernels.cuda.runtime.compile import ALIGN, Kernel, cuda, device, float32, floats, int32, kernel
from pytagi_ddp.kernels.cuda.runtime.intrinsics import copy_commit, copy_wait, divide, load1, mma_tf32

STAGES = 3  # one tile being multiplied, one awaited, one being copied
# Tensor cores drop the last 13 bits of a factor x. If x/3 of the smallest kept bit is added first, the error is zero on
# average, and at most two thirds of that bit. This takes one instruction; exact rounding would take two or three.
NEAREST = np.float32(2.0**-10 / 3)
PAD = 8  # gap, in numbers, between lines of shared memory that run along rows or columns of the product


class WarpTile(NamedTuple):
    """Rows and columns of a block, and of one of its warps (multiples of 16 and 8)."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int

    @property
    def threads(self) -> int:
        return (self.rows // self.warp_rows) * (self.columns // self.warp_columns) * 32


def make_product(kind: int, tile: WarpTile, name: str) -> Kernel:
    """Same grid and arguments as `product_fp32.make_product`."""
    BM, BN, WM, WN = tile
    THREADS = tile.threads
    AT_INPUTS, AT_WEIGHTS = at_inputs(kind), at_weights(kind)
    K_LAST = not AT_WEIGHTS
    W_K_LAST = not (AT_INPUTS or AT_WEIGHTS)
    TWO_X, TWO_W = uncertain(kind)
    LX, LW = (DEPTH if K_LAST else BM + PAD), (DEPTH if W_K_LAST else BN + PAD)
    SX, SW = (BM * LX if K_LAST else DEPTH * LX), (BN * LW if W_K_LAST else DEPTH * LW)
    VAR_X, VAR_W = STAGES * SX, STAGES * SW  # distance from a mean to its variance in shared memory
    SHARED_X, SHARED_W = (2 * VAR_X if TWO_X else VAR_X), (2 * VAR_W if TWO_W else VAR_W)
    MMA_M, MMA_N = WM // 16, WN // 8
    SUMS_M, SUMS_N = 2 * MMA_M, 2 * MMA_N
    SUMS = SUMS_M * SUMS_N
    FOURS_X = DEPTH // 4 if K_LAST else BM // 4
    FOURS_W = DEPTH // 4 if W_K_LAST else BN // 4
    ROWS_X, ROWS_W = THREADS // FOURS_X, THREADS // FOURS_W
    NX, NW = BM * DEPTH // 4 // THREADS, BN * DEPTH // 4 // THREADS
    STEP_X, STEP_W = (DEPTH if K_LAST else 1), (DEPTH if W_K_LAST else 1)  # between rows (X), columns (W)
    SIGN = i32(-1 if AT_INPUTS else 1)

    @device
    def multiply(sums, i, j, a, b):
        """Adds a b to a thread's sums of two rows and two columns; `sums` holds them row by row."""
        upper, lower = 2 * i * SUMS_N + 2 * j, (2 * i + 1) * SUMS_N + 2 * j
        sums[upper], sums[upper + 1], sums[lower], sums[lower + 1] = mma_tf32(
            a[0], a[1], a[2], a[3], b[2 * j], b[2 * j + 1],
            sums[upper], sums[upper + 1], sums[lower], sums[lower + 1],
        )  # fmt: skip

    SHARED_X = max(SHARED_X, room_for_moments(kind, (BM, BN), SUMS_M))
    store = make_store(kind, (BM, BN), (SUMS_M, SUMS_N), (1, 2), (8, 8))

    @kernel(*[floats] * 9, *[int32] * 17, threads=THREADS, min_blocks=2, min_capability=(8, 0), name=name)
    def product(
        x_mu, x_var, w_mu, w_var, finish_mu, finish_var, out_mu, out_var, partial,
        batch, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad,
        parts, part, wide_x, wide_w, extra, ones, moments,
    ):  # fmt: skip
        shared_x = cuda.shared.array(SHARED_X, float32, ALIGN)
        shared_w = cuda.shared.array(SHARED_W, float32, ALIGN)
        mean = cuda.local.array(SUMS, float32)
        variance = cuda.local.array(SUMS, float32)
        x = cuda.local.array(4, float32)
        x2 = cuda.local.array(4, float32)
        xx = cuda.local.array(4, float32)
        w = cuda.local.array(SUMS_N, float32)
        w2 = cuda.local.array(SUMS_N, float32)
        ww = cuda.local.array(SUMS_N, float32)
        start = cuda.local.array(NX, int32)
        at_y = cuda.local.array(NX, int32)
        at_x = cuda.local.array(NX, int32)
        thread = i32(cuda.threadIdx.x)

        sizes = batch, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad
        work = assign(AT_INPUTS, AT_WEIGHTS, BM, BN, DEPTH, sizes, part, ones)
        if work.row0 >= work.rows:
            return
        view, grid = work.view, work.grid

        # The elements that this thread fetches, and their places in shared memory.
        row_x, along_x = divide(thread, i32(FOURS_X))
        row_w, along_w = divide(thread, i32(FOURS_W))
        along_x, along_w = i32(along_x * i32(4)), i32(along_w * i32(4))
        to_x, to_w = i32(i32(row_x * i32(LX)) + along_x), i32(i32(row_w * i32(LW)) + along_w)
        if K_LAST:
            to_x = i32(to_x ^ (row_x & i32(4)))
        if W_K_LAST:
            to_w = i32(to_w ^ (row_w & i32(4)))
        tap = advance((i32(0), i32(0), i32(0)), i32((work.begin if K_LAST else work.row0) + along_x), view)
        for n in range(NX):
            position = i32((work.row0 if K_LAST else work.begin) + row_x + i32(n * ROWS_X))
            start[n], at_y[n], at_x[n] = locate(position, grid, work.image_size)

        # Operands of an mma: rows `group` and group + 8, k `slot` (first) and slot + 4 (second); columns `group`.
        warp, lane = divide(thread, i32(32))
        group, slot = divide(lane, i32(4))
        warp_row, warp_column = divide(warp, i32(BN // WN))
        warp_row, warp_column = i32(warp_row * i32(WM)), i32(warp_column * i32(WN))
        first_x, first_w = i32(warp_row + group), i32(warp_column + group)
        if K_LAST:
            first_x = i32(i32(first_x * i32(LX)) + i32(slot ^ (group & i32(4))))
            second_x = i32(first_x ^ i32(4))
        else:
            first_x = i32(first_x + i32(slot * i32(LX)))
            second_x = i32(first_x + i32(4 * LX))
        if W_K_LAST:
            first_w = i32(i32(first_w * i32(LW)) + i32(slot ^ (group & i32(4))))
            second_w = i32(first_w ^ i32(4))
        else:
            first_w = i32(first_w + i32(slot * i32(LW)))
            second_w = i32(first_w + i32(4 * LW))
        for i in range(SUMS):
            mean[i] = ZERO
            variance[i] = ZERO

        # While tile t is multiplied, the copy of tile t + STAGES - 1 starts.
        into, stage = i32(0), i32(0)
        t = i32(1 - STAGES)
        while t < work.tiles:
            if t >= i32(0):
                copy_wait()
                cuda.syncthreads()
            if i32(t + i32(STAGES - 1)) < work.tiles:
                k = i32(work.begin + i32(i32(t + i32(STAGES - 1)) * i32(DEPTH)))
                for n in range(NX):
                    position = i32((work.row0 if K_LAST else k) + row_x + i32(n * ROWS_X))
                    place = start[n], at_y[n], at_x[n]
                    origin = origin_of(place, grid, position < work.positions)
                    o = i32(i32(into * i32(SX)) + to_x + i32(n * ROWS_X * LX))
                    send4(shared_x, o, i32(VAR_X), x_mu, x_var, origin, tap, view, SIGN, wide_x, ones, TWO_X)
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
                    o = i32(i32(into * i32(SW)) + to_w + i32(n * ROWS_W * LW))
                    send_matrix4(shared_w, o, i32(VAR_W), w_mu, w_var, row, column, row_end, row_size, wide_w, TWO_W)
                into = i32(into + i32(1)) if into < i32(STAGES - 1) else i32(0)
            copy_commit()
            if t >= i32(0):
                ox, ow = i32(stage * i32(SX)), i32(stage * i32(SW))
                for j in range(SUMS_N):
                    o = i32(ow + (first_w if j % 2 == 0 else second_w) + i32(j // 2 * 8 * STEP_W))
                    m = load1(shared_w, o)
                    w[j] = m * NEAREST + m
                    if TWO_W:
                        s = load1(shared_w, i32(o + i32(VAR_W)))
                        w2[j] = s * NEAREST + s
                        ww[j] = w[j] * m + w2[j]
                    else:
                        ww[j] = w[j] * m
                for i in range(MMA_M):
                    for e in range(4):
                        o = i32(ox + (first_x if e < 2 else second_x) + i32((16 * i + e % 2 * 8) * STEP_X))
                        m = load1(shared_x, o)
                        x[e] = m * NEAREST + m
                        xx[e] = x[e] * m
                        if TWO_X:
                            s = load1(shared_x, i32(o + i32(VAR_X)))
                            x2[e] = s * NEAREST + s
                    for j in range(MMA_N):
                        multiply(mean, i, j, x, w)
                        if TWO_X:
                            multiply(variance, i, j, x2, ww)
                        if TWO_W:
                            multiply(variance, i, j, xx, w2)
                stage = i32(stage + i32(1)) if stage < i32(STAGES - 1) else i32(0)
            t = i32(t + i32(1))

        row, column = i32(work.row0 + warp_row + group), i32(work.column0 + warp_column + i32(slot * i32(2)))
        owner = i32(divide(warp_row, i32(WM // 8))[0] + group)
        store(
            mean, variance, row, column, work, sizes, parts, extra,
            (finish_mu, finish_var), (out_mu, out_var), owner, moments, partial, shared_x,
        )  # fmt: skip

    return product

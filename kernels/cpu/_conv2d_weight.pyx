# cython: cdivision=True
"""Sums over batch and positions from which the weight deltas of a convolution are made."""

from libc.string cimport memcpy, memset

from pytagi_ddp.kernels.cpu._blas cimport add, cut, packed, panel_width, product, square, sum_rows
from pytagi_ddp.kernels.cpu._patches cimport ROWS, Patches, chunk_of, gather, positions_of

cdef enum:
    SLICE = 256  # patch elements that a thread should have of the sums, or threads share the positions out instead


cdef int weight_slices(int threads, int C, int taps) noexcept nogil:
    """Into how many slices of channels the threads cut the weight sums; threads / slices share the positions out.

    With slices alone each thread builds only its part of the patches and there is nothing to add up at the end.
    """
    cdef int slices = threads
    while slices > 1 and (threads % slices or C * taps // slices < SLICE):
        slices -= 1
    return slices


cdef size_t sums_size(int O, int C, int taps, int slices, int threads) noexcept nogil:
    """Sums that one thread holds: those of a chunk at a time, or of its whole slice if others add to it."""
    cdef int channels = chunk_of(C, taps)
    if slices < threads:
        channels = C // slices + 16
    return 2 * O * <size_t>(channels * taps + 1)


cdef void weight_tile(const Patches* patches, const float* delta_mu, const float* delta_var, float* g_w, float* h_w,
                      float* g_b, float* h_b, bint accumulate, int O, int tile, int tiles, int slices, float* totals,
                      float* block) noexcept nogil:
    """Sums for a slice of the channels over a share of the positions; with channel 0, those of the bias."""
    cdef int C = patches.channels, taps = patches.kernel_height * patches.kernel_width, chunk = chunk_of(C, taps)
    cdef int c0 = cut(C, tile % slices, slices), c1 = cut(C, tile % slices + 1, slices), c, end, columns, rows
    cdef long n0 = cut(positions_of(patches), tile // slices, tiles // slices), n
    cdef long n1 = cut(positions_of(patches), tile // slices + 1, tiles // slices)
    cdef bint alone = slices == tiles
    cdef float* g = totals + 2 * O
    cdef float* h
    cdef float* panel = block + <long>ROWS * taps * chunk
    if c0 == 0:
        memset(totals, 0, 2 * O * sizeof(float))
        sum_rows(delta_mu + n0 * O, O, totals, n1 - n0, O)
        sum_rows(delta_var + n0 * O, O, totals + O, n1 - n0, O)
        if alone and g_b:
            put(totals, g_b, O, accumulate)
            put(totals + O, h_b, O, accumulate)
    for c from c0 <= c < c1 by chunk:
        end = min(c + chunk, c1)
        columns = (end - c) * taps
        h = g + <long>O * columns
        if n0 == n1:
            memset(g, 0, 2 * <size_t>O * columns * sizeof(float))
        for n from n0 <= n < n1 by ROWS:
            rows = min(ROWS, n1 - n)
            gather(patches, n, rows, c, end, block)
            add_outer(delta_mu + n * O, O, block, rows, columns, n > n0, g, panel)
            square(block, block, <long>rows * columns)
            add_outer(delta_var + n * O, O, block, rows, columns, n > n0, h, panel)
        if alone:
            unpack(g, g_w, C, taps, c, end, 0, O, accumulate)
            unpack(h, h_w, C, taps, c, end, 0, O, accumulate)
        else:
            g = h + <long>O * columns


cdef void add_outer(const float* delta, int O, const float* block, int rows, int columns, float beta, float* sums,
                    float* panel) noexcept nogil:
    """sums (O, columns) = delta^T block + beta sums."""
    cdef int o, width, limit = panel_width()
    for o from 0 <= o < O by limit:
        width = min(limit, O - o)
        product(True, False, width, columns, rows, packed(delta + o, O, rows, width, panel), width, block, columns,
                beta, sums + <long>o * columns, columns)


cdef inline void put(const float* x, float* out, int n, bint accumulate) noexcept nogil:
    if accumulate:
        add(x, out, n)
    else:
        memcpy(out, x, n * sizeof(float))


cdef void unpack(const float* sums, float* out, int C, int taps, int c0, int c1, int o0, int o1,
                 bint accumulate) noexcept nogil:
    """sums (O, taps, channels c0:c1) to out (O, C, taps), outputs o0:o1."""
    cdef int o, c, tap, chunk = c1 - c0
    cdef const float* source
    cdef float* target
    for o in range(o0, o1):
        source = sums + <long>o * taps * chunk
        target = out + (<long>o * C + c0) * taps
        for c in range(chunk):
            for tap in range(taps):
                target[tap] = source[tap * chunk + c] + (target[tap] if accumulate else 0)
            target += taps


cdef void add_parts(const float* totals, size_t size, int tiles, int slices, float* g_w, float* h_w, float* g_b,
                    float* h_b, bint accumulate, int O, int C, int taps, int o0, int o1) noexcept nogil:
    """Adds up what the threads hold for outputs o0:o1, in the order of the threads."""
    cdef int tile, c, c1, end, chunk = chunk_of(C, taps)
    cdef const float* g
    cdef bint more
    for tile in range(tiles):
        more = accumulate or tile >= slices
        g = totals + tile * size
        if tile % slices == 0 and g_b:
            put(g + o0, g_b + o0, o1 - o0, more)
            put(g + O + o0, h_b + o0, o1 - o0, more)
        g += 2 * O
        c1 = cut(C, tile % slices + 1, slices)
        for c from cut(C, tile % slices, slices) <= c < c1 by chunk:
            end = min(c + chunk, c1)
            unpack(g, g_w, C, taps, c, end, o0, o1, more)
            unpack(g + <long>O * taps * (end - c), h_w, C, taps, c, end, o0, o1, more)
            g += 2 * <long>O * taps * (end - c)

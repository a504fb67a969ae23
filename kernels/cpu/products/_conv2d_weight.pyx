# cython: cdivision=True
"""Sums over batch and positions for the weight deltas of a convolution. _conv2d.pyx calls this.

A convolution has units x at its inputs and deltas d at its outputs: g = sum d x, h = sum d_var x^2. A transposed one is
its adjoint, with deltas x at the inputs and units d at the outputs: g = sum d x, h = sum d^2 x_var. Both are products
of the values at the outputs, transposed, and patches of the image.

The channels of the image are divided among the threads, in *slices*. If there are more threads than slices, several
threads have the same slice and different positions; their sums are added at the end (`add_parts`).
"""

from libc.string cimport memcpy, memset

from pytagi_ddp.kernels.cpu.products._blas cimport Product, add, cut, packed, panel_width, product, square, sum_rows
from pytagi_ddp.kernels.cpu.products._patches cimport ROWS, Patches, chunk_of, gather, positions_of, rows_of
from pytagi_ddp.kernels.cpu.products._winograd cimport kernel_planes_of, tiles_of, winograd
from pytagi_ddp.kernels.cpu.products._winograd_weight cimport (add_tiles, restore_sums, winograd_chunk,
                                                               winograd_weight_size)

cdef enum:
    SLICE = 256  # patch elements (channels times taps) that a slice should have at least


cdef int weight_slices(int threads, long C, long taps) noexcept nogil:
    """The number of slices of channels: a divisor of `threads`, such that slices are large enough."""
    cdef long slices = threads
    while slices > 1 and (threads % slices or C * taps // slices < SLICE):
        slices -= 1
    return slices


cdef inline long taps_of(const Patches* p, int O) noexcept nogil:
    """Sums for each pair of output and channel: the taps of a kernel, or the planes of a Winograd algorithm."""
    cdef long form = winograd(p, O, False)
    return kernel_planes_of(form) if form else p.kernel_height * p.kernel_width


cdef inline long channels_of(const Patches* p, int O) noexcept nogil:
    """Channels of a chunk, whose sums are computed at a time."""
    cdef long form = winograd(p, O, False)
    return winograd_chunk(form, p.channels, O) if form else chunk_of(p.channels, taps_of(p, O))


cdef size_t sums_size(const Patches* p, int O, int slices, int threads) noexcept nogil:
    """Memory for the sums of one thread: of a chunk, or of its whole slice if others have the same slice."""
    cdef long channels = channels_of(p, O)
    if slices < threads:
        channels = p.channels // slices + 16
    return 2 * O * <size_t>(channels * taps_of(p, O) + 1)


cdef size_t weight_size(const Patches* p, int O) noexcept nogil:
    """The scratch memory of `weight_tile`, in float32, without its sums."""
    cdef long form = winograd(p, O, False)
    if form:
        return winograd_weight_size(form, p.channels, O)
    return ROWS * <size_t>(channels_of(p, O) * taps_of(p, O) + panel_width())


cdef void weight_tile(Product multiply_var, const Patches* patches, const Terms* terms, float* g_w, float* h_w,
                      float* g_b, float* h_b, bint accumulate, int O, int tile, int tiles, int slices, float* totals,
                      float* block) noexcept nogil:
    """The sums of one thread: of a slice of the channels, over a share of the positions.

    Threads with the first slice also compute those of the bias, unless g_b is NULL. Sums are written to g_w, h_w, g_b
    and h_b if no other thread has the same slice, otherwise to `totals`: two sums for the bias (O), then g and h of
    each chunk.
    """
    cdef long C = patches.channels, chunk = channels_of(patches, O), form = winograd(patches, O, False), c, end
    cdef long c0 = cut(C, tile % slices, slices), c1 = cut(C, tile % slices + 1, slices)
    cdef long n = positions_of(patches), n0, n1
    cdef bint alone = slices == tiles
    cdef float* g = totals + 2 * O
    cdef float* h
    if tile % slices == 0 and g_b:  # not `c0 == 0`: if there are few channels, other slices also begin at 0
        n0, n1 = cut(n, tile // slices, tiles // slices), cut(n, tile // slices + 1, tiles // slices)
        memset(totals, 0, 2 * O * sizeof(float))
        sum_rows(terms.out + n0 * O, O, totals, n1 - n0, O)
        sum_rows(terms.out_var + n0 * O, O, totals + O, n1 - n0, O)
        if alone:
            put(totals, g_b, O, accumulate)
            put(totals + O, h_b, O, accumulate)
    if form:
        n = tiles_of(patches, form, False)
    n0, n1 = cut(n, tile // slices, tiles // slices), cut(n, tile // slices + 1, tiles // slices)
    for c from c0 <= c < c1 by chunk:
        end = min(c + chunk, c1)
        h = g + <long>O * taps_of(patches, O) * (end - c)
        if n0 == n1:
            memset(g, 0, 2 * (h - g) * sizeof(float))
        elif form:
            add_tiles(product, form, patches, terms.image, False, terms.out, False, O, c, end, n0, n1, g, block)
            if terms.image_var:
                add_tiles(multiply_var, form, patches, terms.image_var, False, terms.out, True, O, c, end, n0, n1, h,
                          block)
            else:
                add_tiles(multiply_var, form, patches, terms.image, True, terms.out_var, False, O, c, end, n0, n1, h,
                          block)
        else:
            add_patches(multiply_var, patches, terms, O, c, end, n0, n1, g, h, block)
        if alone:
            unpack(patches, g, g_w, O, c, end, 0, O, accumulate)
            unpack(patches, h, h_w, O, c, end, 0, O, accumulate)
        else:
            g = h + (h - g)


cdef void add_patches(Product multiply_var, const Patches* patches, const Terms* terms, int O, int c0, int c1, long n0,
                      long n1, float* g, float* h, float* block) noexcept nogil:
    """g, h (O, taps, channels c0:c1) = the sums over positions n0:n1."""
    cdef Patches p = patches[0]
    cdef long columns = (c1 - c0) * p.kernel_height * p.kernel_width, rows
    cdef float* panel = block + <long>ROWS * columns
    cdef long n
    for n from n0 <= n < n1 by rows_of(columns):
        rows = min(rows_of(columns), n1 - n)
        p.x = <float*>terms.image
        gather(&p, n, rows, c0, c1, block)
        add_outer(product, terms.out + n * O, False, O, block, rows, columns, n > n0, g, panel)
        if terms.image_var:
            p.x = <float*>terms.image_var
            gather(&p, n, rows, c0, c1, block)
            add_outer(multiply_var, terms.out + n * O, True, O, block, rows, columns, n > n0, h, panel)
        else:
            square(block, block, <long>rows * columns)
            add_outer(multiply_var, terms.out_var + n * O, False, O, block, rows, columns, n > n0, h, panel)


cdef void add_outer(Product multiply, const float* out, bint squared, int O, const float* block, int rows, int columns,
                    float beta, float* sums, float* panel) noexcept nogil:
    """sums (O, columns) = out^T block + beta sums; squared: out^2 in place of out. `panel` is scratch memory."""
    cdef long o, width, limit = panel_width()
    cdef const float* factor
    for o from 0 <= o < O by limit:
        width = min(limit, O - o)
        factor = packed(out + o, O, rows, width, panel)
        if squared:
            square(factor, panel, <long>rows * width)
            factor = panel
        multiply(True, False, width, columns, rows, factor, width, block, columns, beta, sums + <long>o * columns,
                 columns)


cdef inline void put(const float* x, float* out, int n, bint accumulate) noexcept nogil:
    """out = x, or += if `accumulate`."""
    if accumulate:
        add(x, out, n)
    else:
        memcpy(out, x, n * sizeof(float))


cdef void unpack(const Patches* p, const float* sums, float* out, int O, int c0, int c1, int o0, int o1,
                 bint accumulate) noexcept nogil:
    """out (O, C, taps) = sums (O, taps, channels), or += if `accumulate`, for outputs o0:o1 and channels c0:c1.

    In a Winograd algorithm, sums are those of the planes of kernels, and are transformed.
    """
    cdef long C = p.channels, taps = p.kernel_height * p.kernel_width, form = winograd(p, O, False)
    cdef long o, c, tap, chunk = c1 - c0
    cdef const float* source
    cdef float* target
    if form:
        restore_sums(form, sums, out, C, O, c0, c1, o0, o1, accumulate)
        return
    for o in range(o0, o1):
        source = sums + <long>o * taps * chunk
        target = out + (<long>o * C + c0) * taps
        for c in range(chunk):
            for tap in range(taps):
                target[tap] = source[tap * chunk + c] + (target[tap] if accumulate else 0)
            target += taps


cdef void add_parts(const Patches* p, const float* totals, size_t size, int tiles, int slices, float* g_w, float* h_w,
                    float* g_b, float* h_b, bint accumulate, int O, int o0, int o1) noexcept nogil:
    """Adds the sums of all threads for outputs o0:o1, always in the same order, so that the bits are the same."""
    cdef long C = p.channels, tile, c, c1, end, chunk = channels_of(p, O)
    cdef const float* g
    cdef size_t one
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
            one = O * <size_t>taps_of(p, O) * (end - c)
            unpack(p, g, g_w, O, c, end, o0, o1, more)
            unpack(p, g + one, h_w, O, c, end, o0, o1, more)
            g += 2 * one

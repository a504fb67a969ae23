# cython: cdivision=True
"""Convolutions by Winograd algorithms, which need fewer multiplications.

winograd.h explains the algorithms (*forms*) and transforms tiles; this file loops over the tiles of a batch of images.
_conv2d_*.pyx use it if `winograd` returns a form. Multiplications for 4 x 4 outputs, and their number in plain sums:

    3 x 3 kernels, F(2 x 2, 3 x 3)           64 of 144
    3 x 3 kernels, F(4 x 4, 3 x 3)           36 of 144
    5 x 5 kernels, F(2 x 2, 5 x 5)          144 of 400
    3 x 3 kernels with stride 2              81 of 144
    4 x 4 kernels with stride 2             100 of 256

Source: Lavin & Gray 2016, "Fast algorithms for convolutional neural networks", arXiv:1509.09308.

A block of tiles is transformed at a time: d (planes, tiles, depth), where *depth* are the channels that are summed
over. With the kernels (planes, depth, lanes), where *lanes* are the channels of the result, each plane gives a matrix
product m (planes, tiles, lanes), which is transformed to the outputs. Tiles at the right and bottom may extend beyond
the image: their outputs there are dropped.

Rounding errors are relative to the largest numbers that a tile depends on. Those of F(2) are about 1e-6 of the largest
term, as with the plain sum. An output of F(2) depends only on pixels of its own 3 x 3 window; if all these are 0, the
output is exactly 0. Errors of the other forms, with the points +-3/4, +-3/2, infinity and (except with stride 2) 0, are
1e-6 to 3e-6 of the largest mean or variance; with the usual points +-1 and +-2, those of means are more than twice as
large. An output whose window is 0, in a tile with large pixels, has rounding errors of these. A variance that rounds to
less than 0 becomes 0.
"""

from pytagi_ddp.kernels.cpu.products._blas cimport panel_width
from pytagi_ddp.kernels.cpu.products._patches cimport Patches

cdef extern from "winograd.h" nogil:
    void transform_pixels "tagi_transform_pixels"(int form, bint adjoint, const float** rows, bint squared, int column,
                                                  int width, size_t pixel, int tiles, float* out, size_t stride,
                                                  size_t size, size_t channels)
    void restore_pixels "tagi_restore_pixels"(int form, bint adjoint, const float* m, size_t stride, size_t size,
                                              int tiles, bint positive, const float* start, bint more,
                                              const float* jcb, int power, float* x, int lines, int columns,
                                              size_t line, size_t pixel, size_t channels)
    void transform_kernels "tagi_transform_kernels"(int form, const float* w, const float* s, size_t stride, int kind,
                                                    bint flip, float* out, size_t plane)

cdef enum:
    BLOCK = 64  # tiles of a block in the forms with stride 2
    FEW_TILES = 32  # with fewer tiles, F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3) are slower
    FEW_OTHERS = 16  # the same in other forms
    KERNELS = 1100000  # limit of transformed weights that are kept; more are transformed again for each block of tiles


cdef int largest = 4


def set_largest(int edge):
    """Sets the largest edge of a tile, 4, 2 or 0 (plain sums), for tests and measurements.

    Results must be the same except for rounding.
    """
    global largest
    largest = edge


cdef int winograd(const Patches* p, int O, bint adjoint) noexcept nogil:
    """The fastest form for a convolution with O outputs; PLAIN if none can be used, or none is faster.

    adjoint: for sums at the inputs, which may be more than the outputs.
    """
    cdef long k = p.kernel_height
    if p.kernel_width != k or p.top != p.left or p.channels % 16 or O % 16:
        return PLAIN
    cdef double cost = 0.75 * k * k * p.batch * p.out_height * p.out_width
    if p.stride == 1 and k == 3:
        return cheaper(F4, cheaper(F2, PLAIN, p, adjoint, &cost), p, adjoint, &cost)
    if p.stride == 1 and k == 5:
        return cheaper(F2_5, PLAIN, p, adjoint, &cost)
    if p.stride == 2 and k == 3 and p.top <= 1:
        return cheaper(ODD_3 if p.top else EVEN_3, PLAIN, p, adjoint, &cost)
    if p.stride == 2 and k == 4 and p.top == 1:
        return cheaper(STRIDED_4, PLAIN, p, adjoint, &cost)
    return PLAIN


cdef inline int cheaper(int form, int best, const Patches* p, bint adjoint, double* cost) noexcept nogil:
    """The form, if it needs fewer multiplications per pair of channels than `cost` (then updated); else `best`."""
    cdef long tiles = tiles_of(p, form, adjoint)
    cdef double products = <double>tiles * edge_of(form) * edge_of(form)
    cdef long few = FEW_TILES if form in (F2, F4) else FEW_OTHERS
    if made_of(form, False) > largest or tiles < few or products >= cost[0]:
        return best
    cost[0] = products
    return form


cdef int tiles_across(const Patches* p, int form, bint adjoint) noexcept nogil:
    cdef long made = made_of(form, adjoint)
    return ((p.width if adjoint else p.out_width) + made - 1) // made


cdef int tiles_down(const Patches* p, int form, bint adjoint) noexcept nogil:
    cdef long made = made_of(form, adjoint)
    return ((p.height if adjoint else p.out_height) + made - 1) // made


cdef int tiles_of(const Patches* p, int form, bint adjoint) noexcept nogil:
    """Tiles of the whole batch."""
    return p.batch * tiles_across(p, form, adjoint) * tiles_down(p, form, adjoint)


cdef int kernel_planes_of(int form) noexcept nogil:
    return kernel_edge_of(form) * kernel_edge_of(form)


cdef size_t size_of_planes(int form, size_t size) noexcept nogil:
    """The float32 of all planes of a block, each of `size`, with their padding."""
    return edge_of(form) * edge_of(form) * size + kernel_planes_of(form) * PAD


cdef int block_of(int form, int depth) noexcept nogil:
    """Tiles of a block: few, so that their planes fit into the second-level cache, but more if there are many kernels.

    Kernels that do not fit into it are read again for each block, which larger blocks amortise.
    """
    if strided(form):
        return BLOCK
    return min(256, max(64, depth)) if form == F2 else min(128, max(64, depth // 2))


cdef int panel_of() noexcept nogil:
    """Lanes of a panel of kernels: at most 128, so that panels of many channels fit into the cache."""
    return min(128, panel_width())


cdef bint at_once(int form, int depth, int lanes) noexcept nogil:
    """Whether all kernels are transformed before the first block, and kept."""
    return kernel_planes_of(form) * <long>depth * lanes < KERNELS


cdef size_t winograd_size(int form, int depth, int lanes) noexcept nogil:
    """The scratch memory of `convolve`, in float32."""
    cdef size_t panel = panel_of(), panels = lanes // panel + 1 if at_once(form, depth, lanes) else 1
    cdef size_t block = block_of(form, depth)
    return (size_of_planes(form, block * depth) + size_of_planes(form, block * panel)
            + kernel_planes_of(form) * panels * (depth * panel + PAD))


cdef float* transform_panel(const Convolution* job, int form, int C, int O, int first, int width,
                            float* out) noexcept nogil:
    """out (planes, depth, width) = transformed kernels for lanes first:first + width; returns the end of `out`."""
    cdef long depth = O if job.adjoint else C, taps = taps_of(form) * taps_of(form), l, d
    cdef size_t lane_stride = taps if job.adjoint else taps * C, depth_stride = taps * C if job.adjoint else taps, at
    cdef size_t plane = <size_t>depth * width + PAD
    for l from 0 <= l < width by 16:
        for d in range(depth):
            at = (first + l) * lane_stride + d * depth_stride
            transform_kernels(form, job.w + at, job.s + at if job.s else NULL, lane_stride, job.kind,
                              job.adjoint, out + <size_t>d * width + l, plane)
    return out + kernel_planes_of(form) * plane


cdef void transform_tiles(int form, bint adjoint, const float* x, bint squared, const Patches* p, int channels, int c0,
                          int c1, int first, int tiles, float* out) noexcept nogil:
    """out (planes, tiles, c1 - c0) = the transformed windows of x, or of x^2, for tiles first:first + tiles.

    x is at the inputs of the convolution p, or, adjoint, at its outputs. The windows are channels c0:c1 of the
    `channels` of x. Neighbouring tiles of an image are transformed in one call.
    """
    cdef long step = step_of(form, adjoint), across = tiles_across(p, form, adjoint), done = 0, n, line, column, r
    cdef long height = p.out_height if adjoint else p.height, width = p.out_width if adjoint else p.width
    cdef long before = p.top if not adjoint else 1 if strided(form) else taps_of(form) - 1 - p.top  # the first pixel
    cdef long down = tiles_down(p, form, adjoint)
    cdef long image
    cdef const float* rows[10]
    while done < tiles:
        column = (first + done) % across
        n = min(across - column, tiles - done)
        column = column * step - before
        line = (first + done) // across % down * step - before
        image = (first + done) // (across * down) * <long>height
        for r in range(window_of(form, adjoint)):
            rows[r] = (x + ((image + line + r) * width + column) * channels + c0 if 0 <= line + r < height else NULL)
        transform_pixels(form, adjoint, rows, squared, column, width, channels, n, out + <size_t>done * (c1 - c0),
                         c1 - c0, <size_t>tiles * (c1 - c0), c1 - c0)
        done += n


cdef void restore_tiles(int form, const float* m, const Convolution* job, const Patches* p, int lanes, int l, int width,
                        int first, int tiles) noexcept nogil:
    """Writes the outputs of tiles first:first + tiles, lanes l:l + width, from the sums m (planes, tiles, width)."""
    cdef long made = made_of(form, job.adjoint), across = tiles_across(p, form, job.adjoint), done = 0, n, line, column
    cdef long down = tiles_down(p, form, job.adjoint), height = p.height if job.adjoint else p.out_height
    cdef long pixels = p.width if job.adjoint else p.out_width
    cdef size_t at
    while done < tiles:
        column = (first + done) % across
        n = min(across - column, tiles - done)
        column *= made
        line = (first + done) // across % down * made
        at = (first + done) // (across * down) * <size_t>height + line
        at = (at * pixels + column) * lanes + l
        restore_pixels(form, job.adjoint, m + <size_t>done * width, width, <size_t>tiles * width, n, job.positive,
                       job.start + l if job.start else NULL, job.more, job.jcb + at if job.jcb else NULL,
                       2 if job.kind == SQUARE else 1, job.out + at, height - line, pixels - column,
                       <size_t>pixels * lanes, lanes, width)
        done += n


cdef void convolve(const Convolution* job, int form, const Patches* p, int O, int t0, int t1, int l0, int l1,
                   float* scratch) noexcept nogil:
    """Computes tiles t0:t1, lanes l0:l1 of a convolution with O outputs; scratch memory has d, m and the kernels."""
    cdef long C = p.channels, depth = O if job.adjoint else C, lanes = C if job.adjoint else O
    cdef long block = block_of(form, depth), panel = panel_of(), edge = kernel_edge_of(form), t, tiles, l, width, i, j
    cdef bint once = at_once(form, depth, lanes)
    cdef float* d = scratch
    cdef float* m = d + size_of_planes(form, <size_t>block * depth)
    cdef float* kernels = m + size_of_planes(form, <size_t>block * panel)
    cdef float* end = kernels
    cdef const float* kernel
    if once:
        for l from l0 <= l < l1 by panel:
            end = transform_panel(job, form, C, O, l, min(panel, l1 - l), end)
    for t from t0 <= t < t1 by block:
        tiles = min(block, t1 - t)
        transform_tiles(form, job.adjoint, job.x, job.squared, p, depth, 0, depth, t, tiles, d)
        kernel = kernels
        for l from l0 <= l < l1 by panel:
            width = min(panel, l1 - l)
            if not once:
                kernel = kernels
                transform_panel(job, form, C, O, l, width, kernels)
            for i in range(edge):
                for j in range(edge):
                    job.multiply(False, False, tiles * sharing(form, i, j), width, depth,
                                 d + place(form, i, j, <size_t>tiles * depth), depth, kernel, width, 0,
                                 m + place(form, i, j, <size_t>tiles * width), width)
                    kernel += <size_t>depth * width + PAD
            restore_tiles(form, m, job, p, lanes, l, width, t, tiles)

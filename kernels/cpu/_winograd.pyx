# cython: cdivision=True
"""Convolutions by 3 x 3 kernels with stride 1 in the Winograd forms: fewer multiplications, by way of transforms.

An output tile of edge x edge pixels is A^T [(G g G^T) (B^T d B)] A: g is the kernel, d the (edge + 2)^2 pixels that the
tile sees. The transformed pixels of a block of tiles and the transformed kernels make (edge + 2)^2 matrices each,
"planes", and the sum over channels is a product for each plane. F(4x4, 3x3) multiplies 36 times in place of 144, and
serves images that its tiles fill, where there are enough tiles to repay its larger transforms of kernels; F(2x2, 3x3)
multiplies 16 times in place of 36. Source: Lavin & Gray 2016, "Fast algorithms for convolutional neural networks",
arXiv:1509.09308.

Rounding errors are those of the largest terms that a tile sees. F(2) stays near the plain sum: about 1e-6 of the
largest term. An output is made from pixels of its own 3 x 3 window only: where that is zero, so is the output, exactly.
A variance could round to less than 0 only where its window has one pixel that is not zero, and the kernels of all
channels have less than a millionth of their largest weight there; such a sum becomes 0. F(4) takes the points of
interpolation 0, +-3/4, +-3/2 and infinity: errors are 1e-6 to 3e-6 of the largest mean and 1e-6 to 2e-6 of the largest
variance (of means with the usual +-1, +-2: more than twice as much). A window without light beside a bright one is not
exactly zero, but within rounding errors of the bright one, and at least 0 if it is a variance.

A plane ends with a cache line of padding: planes that lie a power of two apart would share a few cache sets.
"""

from pytagi_ddp.kernels.cpu._blas cimport panel_width
from pytagi_ddp.kernels.cpu._patches cimport Patches

cdef extern from "winograd.h" nogil:
    void transform_pixels(int edge, const float** rows, bint squared, bint first, bint last, size_t pixel, int tiles,
                          float* out, size_t stride, size_t plane, size_t channels)
    void restore_pixels(int edge, const float* m, size_t stride, size_t plane, int tiles, bint positive,
                        const float* start, bint more, const float* jcb, int power, float* x, size_t line,
                        size_t pixel, size_t channels)
    void transform_kernels(int edge, const float* w, const float* s, size_t stride, int kind, bint flip, float* out,
                           size_t plane)

cdef enum:
    PAD = 16
    FEW_TILES = 32  # that do not repay the transforms of the kernels
    KERNELS = 1100000  # transformed kernels that stay near the core; more are made anew for each block of tiles


cdef int largest = 4


def set_largest(int edge):
    """For tests and measurements: tiles of at most 4, 2 or 0 (plain sums) pixels must give the same results."""
    global largest
    largest = edge


cdef int winograd(const Patches* p, int O) noexcept nogil:
    """Pixels along the edge of a tile, in the form that pays most; 0 if none can be used, or pays."""
    cdef int edge
    if (p.kernel_height == p.kernel_width == 3 and p.stride == p.top == p.left == 1 and p.out_height == p.height
            and p.out_width == p.width and p.channels % 16 == O % 16 == 0):
        for edge from largest >= edge >= 2 by 2:
            if p.height % edge == p.width % edge == 0 and tiles_of(p, edge) >= FEW_TILES:
                return edge
    return 0


cdef int tiles_of(const Patches* p, int edge) noexcept nogil:
    return p.batch * (p.height // edge) * (p.width // edge)


cdef int planes_of(int edge) noexcept nogil:
    return (edge + 2) * (edge + 2)


cdef int block_of(int edge, int depth) noexcept nogil:
    """Tiles per block: their planes stay in the second-level cache, or repay kernels that do not."""
    return min(256, max(64, depth)) if edge == 2 else min(128, max(64, depth // 2))


cdef int panel_of() noexcept nogil:
    """Lanes per panel of kernels: with as many as other BLAS would like, those of many channels leave the cache."""
    return min(128, panel_width())


cdef bint at_once(int edge, int depth, int lanes) noexcept nogil:
    """Whether all kernels are transformed at once."""
    return planes_of(edge) * <long>depth * lanes < KERNELS


cdef size_t winograd_size(int edge, int depth, int lanes) noexcept nogil:
    """Scratch of `convolve`."""
    cdef size_t panel = panel_of(), panels = lanes // panel + 1 if at_once(edge, depth, lanes) else 1
    return planes_of(edge) * (block_of(edge, depth) * (depth + panel) + 2 * PAD + panels * (depth * panel + PAD))


cdef float* transform_panel(const Convolution* job, int edge, int C, int O, int first, int width,
                            float* out) noexcept nogil:
    """out (planes, depth, width) = kernels to lanes first:first + width; returns its end."""
    cdef int depth = O if job.adjoint else C, l, d
    cdef size_t lane_stride = 9 if job.adjoint else 9 * C, depth_stride = 9 * C if job.adjoint else 9, at
    cdef size_t plane = <size_t>depth * width + PAD
    for l from 0 <= l < width by 16:
        for d in range(depth):
            at = (first + l) * lane_stride + d * depth_stride
            transform_kernels(edge, job.w + at, job.s + at if job.s else NULL, lane_stride, job.kind,
                              job.adjoint, out + <size_t>d * width + l, plane)
    return out + planes_of(edge) * plane


cdef void transform_tiles(int edge, const float* x, bint squared, const Patches* p, int channels, int c0, int c1,
                          int first, int tiles, float* out, size_t plane) noexcept nogil:
    """out (planes, tiles, c1 - c0) = tiles first:first + tiles of x (or x^2)."""
    cdef int across = p.width // edge, down = p.height // edge, done = 0, n, line, column, r
    cdef long image
    cdef const float* rows[6]
    while done < tiles:
        column = (first + done) % across
        line = (first + done) // across % down * edge - 1
        image = (first + done) // (across * down) * <long>p.height
        n = min(across - column, tiles - done)
        for r in range(edge + 2):
            rows[r] = (x + ((image + line + r) * p.width + edge * column) * channels + c0
                       if 0 <= line + r < p.height else NULL)
        transform_pixels(edge, rows, squared, column == 0, column + n == across, channels, n,
                         out + <size_t>done * (c1 - c0), c1 - c0, plane, c1 - c0)
        done += n


cdef void restore_tiles(int edge, const float* m, size_t plane, const Convolution* job, const Patches* p, int lanes,
                        int l, int width, int first, int tiles) noexcept nogil:
    """Lanes l:l + width of the pixels of tiles first:first + tiles, from m (planes, tiles, width)."""
    cdef int across = p.width // edge, done = 0, n
    cdef size_t at
    while done < tiles:
        n = min(across - (first + done) % across, tiles - done)
        at = (<size_t>((first + done) // across) * p.width + (first + done) % across) * edge * lanes + l
        restore_pixels(edge, m + <size_t>done * width, width, plane, n, job.positive,
                       job.start + l if job.start else NULL, job.more, job.jcb + at if job.jcb else NULL,
                       2 if job.kind == SQUARE else 1, job.out + at, <size_t>p.width * lanes, lanes, width)
        done += n


cdef void convolve(const Convolution* job, int edge, const Patches* p, int O, int t0, int t1, int l0, int l1,
                   float* scratch) noexcept nogil:
    """Lanes (channels of the result) l0:l1 of tiles t0:t1."""
    cdef int C = p.channels, depth = O if job.adjoint else C, lanes = C if job.adjoint else O
    cdef int block = block_of(edge, depth), panel = panel_of(), planes = planes_of(edge), t, tiles, l, width, i
    cdef bint once = at_once(edge, depth, lanes)
    cdef float* d = scratch
    cdef float* m = d + planes * (<size_t>block * depth + PAD)
    cdef float* kernels = m + planes * (<size_t>block * panel + PAD)
    cdef float* end = kernels
    cdef const float* kernel
    cdef size_t plane, results
    if once:
        for l from l0 <= l < l1 by panel:
            end = transform_panel(job, edge, C, O, l, min(panel, l1 - l), end)
    for t from t0 <= t < t1 by block:
        tiles = min(block, t1 - t)
        plane = <size_t>tiles * depth + PAD
        transform_tiles(edge, job.x, job.squared, p, depth, 0, depth, t, tiles, d, plane)
        kernel = kernels
        for l from l0 <= l < l1 by panel:
            width = min(panel, l1 - l)
            results = <size_t>tiles * width + PAD
            if not once:
                kernel = kernels
                transform_panel(job, edge, C, O, l, width, kernels)
            for i in range(planes):
                job.multiply(False, False, tiles, width, depth, d + i * plane, depth, kernel, width, 0,
                             m + i * results, width)
                kernel += <size_t>depth * width + PAD
            restore_tiles(edge, m, results, job, p, lanes, l, width, t, tiles)

# cython: cdivision=True
"""Convolutions by 3 x 3 kernels with stride 1 in the Winograd form: fewer multiplications, by way of transforms.

winograd.h explains the form and transforms tiles; this file goes through the tiles of a batch of images. _conv2d_*.pyx
use it where `winograd` says so. A tile of outputs is A^T [(G g G^T) (B^T d B)] A, where g is the kernel and d the
(edge + 2)^2 pixels that the tile depends on. F(4 x 4, 3 x 3) multiplies 36 times in place of 144; it needs images that
its tiles fill, and enough tiles to repay its larger transforms of kernels. F(2 x 2, 3 x 3) multiplies 16 times in place
of 36. Source: Lavin & Gray 2016, "Fast algorithms for convolutional neural networks", arXiv:1509.09308.

A block of tiles is transformed at a time: d (planes, tiles, depth), where *depth* are the channels that are summed
over. With the kernels (planes, depth, lanes), where *lanes* are the channels of the result, each plane gives a matrix
product m (planes, tiles, lanes), which is transformed to the outputs. A plane ends with a cache line of padding: planes
that lie a power of two apart would share a few cache sets.

Rounding errors go by the largest numbers that a tile depends on. Those of F(2) are about 1e-6 of the largest term, as
with the plain sum. An output of F(2) is made only from pixels of its own 3 x 3 window; where all these are 0, so is the
output, exactly. Those of F(4), with its points 0, +-3/4, +-3/2 and infinity, are 1e-6 to 3e-6 of the largest mean, and
1e-6 to 2e-6 of the largest variance; with the usual points +-1 and +-2, those of means are more than twice as large. An
output of F(4) whose window is 0, in a tile that depends on large pixels as well, is within rounding errors of these.
A variance that rounds to less than 0 becomes 0.
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
    PAD = 16  # float32 of padding behind a plane
    FEW_TILES = 32  # fewer tiles do not repay the transforms of the kernels
    KERNELS = 1100000  # so many transformed weights stay near the core; more are made anew for each block of tiles


cdef int largest = 4


def set_largest(int edge):
    """Sets the largest edge of a tile, 4, 2 or 0 (plain sums), for tests and measurements.

    Results must be the same but for rounding.
    """
    global largest
    largest = edge


cdef int winograd(const Patches* p, int O) noexcept nogil:
    """The edge of tiles for a convolution with O outputs, 4 or 2; 0 if this form cannot be used or does not pay."""
    cdef int edge
    if (p.kernel_height == p.kernel_width == 3 and p.stride == p.top == p.left == 1 and p.out_height == p.height
            and p.out_width == p.width and p.channels % 16 == O % 16 == 0):
        for edge from largest >= edge >= 2 by 2:
            if p.height % edge == p.width % edge == 0 and tiles_of(p, edge) >= FEW_TILES:
                return edge
    return 0


cdef int tiles_of(const Patches* p, int edge) noexcept nogil:
    """Tiles of the whole batch."""
    return p.batch * (p.height // edge) * (p.width // edge)


cdef int planes_of(int edge) noexcept nogil:
    """Elements of a transformed tile."""
    return (edge + 2) * (edge + 2)


cdef int block_of(int edge, int depth) noexcept nogil:
    """Tiles of a block: so few that their planes stay in the second-level cache, but more if there are many kernels.

    Kernels that do not stay in it are read again for each block, and larger blocks repay that.
    """
    return min(256, max(64, depth)) if edge == 2 else min(128, max(64, depth // 2))


cdef int panel_of() noexcept nogil:
    """Lanes of a panel of kernels: at most 128, or panels of many channels would not stay in the cache."""
    return min(128, panel_width())


cdef bint at_once(int edge, int depth, int lanes) noexcept nogil:
    """Whether all kernels are transformed before the first block, and kept."""
    return planes_of(edge) * <long>depth * lanes < KERNELS


cdef size_t winograd_size(int edge, int depth, int lanes) noexcept nogil:
    """How many float32 of scratch memory `convolve` needs."""
    cdef size_t panel = panel_of(), panels = lanes // panel + 1 if at_once(edge, depth, lanes) else 1
    return planes_of(edge) * (block_of(edge, depth) * (depth + panel) + 2 * PAD + panels * (depth * panel + PAD))


cdef float* transform_panel(const Convolution* job, int edge, int C, int O, int first, int width,
                            float* out) noexcept nogil:
    """out (planes, depth, width) = transformed kernels for lanes first:first + width; returns the end of `out`."""
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
    """out (planes, tiles, c1 - c0) = the transformed windows of x, or of x^2, for tiles first:first + tiles.

    They are channels c0:c1 of the `channels` that x has. Planes are `plane` numbers apart. Tiles side by side in
    an image are transformed in one call.
    """
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
    """Writes the outputs of tiles first:first + tiles, lanes l:l + width, from the sums m (planes, tiles, width)."""
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
    """Makes tiles t0:t1, lanes l0:l1 of a convolution with O outputs; scratch holds d, m and the kernels."""
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

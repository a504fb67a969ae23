# cython: cdivision=True
"""Sums for the weight deltas of a convolution by 3 x 3 kernels in the Winograd form. _conv2d_weight.pyx calls this.

What a tile with deltas e and pixels d contributes to a kernel is G^T [(A e A^T) (B^T d B)] G (winograd.h). So pixels
are transformed as in _winograd.pyx, and deltas by A. For each plane, the sum over tiles is a matrix product of
transformed deltas (tiles, outputs), transposed, and pixels (tiles, channels). G is applied once, to the sums.
"""

from pytagi_ddp.kernels.cpu._blas cimport Product, panel_width
from pytagi_ddp.kernels.cpu._patches cimport Patches
from pytagi_ddp.kernels.cpu._winograd cimport planes_of, transform_tiles

cdef extern from "winograd.h" nogil:
    void transform_deltas(int edge, const float* x, bint squared, size_t line, size_t pixel, int tiles, float* out,
                          size_t stride, size_t plane, size_t channels)
    void restore_kernels(int edge, const float* m, size_t plane, bint more, float* out)

cdef enum:
    PAD = 16  # float32 of padding behind a plane, see _winograd.pyx
    TILES = 128  # tiles of a block, of 2 x 2 pixels
    LARGE_TILES = 64  # the same of 4 x 4 pixels
    SUMS = 524288  # sums of a chunk of channels, in all planes: 2 MB


cdef inline int block_of(int edge) noexcept nogil:
    return TILES if edge == 2 else LARGE_TILES


cdef int winograd_chunk(int edge, int C, int O) noexcept nogil:
    """Channels of a chunk, whose sums are made at a time."""
    return min(C, max(64, SUMS // (planes_of(edge) * O) // 16 * 16))


cdef size_t winograd_weight_size(int edge, int C, int O) noexcept nogil:
    """How many float32 of scratch memory `add_tiles` needs."""
    return planes_of(edge) * (block_of(edge) * <size_t>(winograd_chunk(edge, C, O) + panel_width()) + 2 * PAD)


cdef void add_tiles(Product multiply, int edge, const Patches* p, const float* image, bint image_squared,
                    const float* delta, bint delta_squared, int O, int c0, int c1, int t0, int t1, float* sums,
                    float* scratch) noexcept nogil:
    """sums (planes, O, c1 - c0) = the products of transformed deltas and pixels, summed over tiles t0:t1.

    image_squared, delta_squared: squares of the pixels or deltas are taken.
    """
    cdef int t, tiles, width = c1 - c0, block = block_of(edge)
    cdef float* d = scratch + planes_of(edge) * (block * <size_t>panel_width() + PAD)
    cdef size_t plane
    for t from t0 <= t < t1 by block:
        tiles = min(block, t1 - t)
        plane = <size_t>tiles * width + PAD
        transform_tiles(edge, image, image_squared, p, p.channels, c0, c1, t, tiles, d, plane)
        add_products(multiply, edge, p, delta, delta_squared, O, width, t, tiles, t > t0, d, plane, sums, scratch)


cdef void add_products(Product multiply, int edge, const Patches* p, const float* delta, bint squared, int O,
                       int width, int first, int tiles, bint more, const float* d, size_t plane, float* sums,
                       float* e) noexcept nogil:
    """sums (planes, O, width) = the products of the deltas of a block of tiles and its transformed pixels d.

    more: adds them to the sums. e is scratch memory for transformed deltas.
    """
    cdef int o, outputs, panel = panel_width(), across = p.width // edge, done, n, i
    cdef size_t size, pixel
    for o from 0 <= o < O by panel:
        outputs = min(panel, O - o)
        size = <size_t>tiles * outputs + PAD
        done = 0
        while done < tiles:
            n = min(across - (first + done) % across, tiles - done)
            pixel = (<size_t>((first + done) // across) * p.width + (first + done) % across) * edge
            transform_deltas(edge, delta + pixel * O + o, squared, <size_t>p.width * O, O, n,
                             e + <size_t>done * outputs, outputs, size, outputs)
            done += n
        for i in range(planes_of(edge)):
            multiply(True, False, outputs, width, tiles, e + i * size, outputs, d + i * plane, width, more,
                     sums + (<size_t>i * O + o) * width, width)


cdef void restore_sums(int edge, const float* sums, float* out, int C, int O, int c0, int c1, int o0, int o1,
                       bint accumulate) noexcept nogil:
    """out[o0:o1, c0:c1] (of O, C, 3, 3) = G^T sums G, from sums (planes, O, c1 - c0); or += if `accumulate`."""
    cdef int o, c, width = c1 - c0
    for o in range(o0, o1):
        for c from 0 <= c < width by 16:
            restore_kernels(edge, sums + <size_t>o * width + c, <size_t>O * width, accumulate,
                            out + (<size_t>o * C + c0 + c) * 9)

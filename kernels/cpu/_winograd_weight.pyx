# cython: cdivision=True
"""Sums for the weight deltas of a convolution by 3 x 3 kernels in the Winograd form. See _winograd.pyx.

The gradient of an output tile's product with its deltas e with respect to the kernel, G^T [(A e A^T) (B^T d B)] G:
the same transform of the pixels d, and for each plane a sum over all tiles of products with transformed deltas.
"""

from pytagi_ddp.kernels.cpu._blas cimport Product, panel_width
from pytagi_ddp.kernels.cpu._patches cimport Patches
from pytagi_ddp.kernels.cpu._winograd cimport planes_of, transform_tiles

cdef extern from "winograd.h" nogil:
    void transform_deltas(int edge, const float* x, bint squared, size_t line, size_t pixel, int tiles, float* out,
                          size_t stride, size_t plane, size_t channels)
    void restore_kernels(int edge, const float* m, size_t plane, bint more, float* out)

cdef enum:
    PAD = 16
    TILES = 128  # per block, of 2 x 2 pixels
    LARGE_TILES = 64
    SUMS = 524288  # transformed sums of a chunk of channels: 2 MB


cdef inline int block_of(int edge) noexcept nogil:
    return TILES if edge == 2 else LARGE_TILES


cdef int winograd_chunk(int edge, int C, int O) noexcept nogil:
    """Channels whose sums are made at a time."""
    return min(C, max(64, SUMS // (planes_of(edge) * O) // 16 * 16))


cdef size_t winograd_weight_size(int edge, int C, int O) noexcept nogil:
    """Scratch of `add_tiles`."""
    return planes_of(edge) * (block_of(edge) * <size_t>(winograd_chunk(edge, C, O) + panel_width()) + 2 * PAD)


cdef void add_tiles(Product multiply, int edge, const Patches* p, const float* image, bint image_squared,
                    const float* delta, bint delta_squared, int O, int c0, int c1, int t0, int t1, float* sums,
                    float* scratch) noexcept nogil:
    """sums (planes, O, c1 - c0) = the transformed sums over tiles t0:t1 of delta and image, or of their squares."""
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
    """sums (planes, O, width) (+)= transformed deltas^T d."""
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
    """(planes, O, c1 - c0) to out (O, C, 3, 3), outputs o0:o1 and channels c0:c1."""
    cdef int o, c, width = c1 - c0
    for o in range(o0, o1):
        for c from 0 <= c < width by 16:
            restore_kernels(edge, sums + <size_t>o * width + c, <size_t>O * width, accumulate,
                            out + (<size_t>o * C + c0 + c) * 9)

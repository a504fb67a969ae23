# cython: cdivision=True
"""Sums for the weight deltas of a convolution by a Winograd algorithm. _conv2d_weight.pyx calls this.

The contribution of a tile with deltas e and pixels d to a kernel is G^T [(A e A^T) (B^T d B)] G (winograd.h). So pixels
are transformed as in _winograd.pyx, and deltas by A. For each plane of the kernels, the sum over tiles is a matrix
product of transformed deltas (tiles, outputs), transposed, and pixels (tiles, channels). G is applied once, to the
sums."""

from pytagi_ddp.kernels.cpu.products._blas cimport Product, panel_width
from pytagi_ddp.kernels.cpu.products._patches cimport Patches
from pytagi_ddp.kernels.cpu.products._winograd cimport (F2, kernel_edge_of, kernel_planes_of, made_of, place, sharing,
                                                        size_of_planes, taps_of, tiles_across, tiles_down,
                                                        transform_tiles)

cdef extern from "winograd.h" nogil:
    void transform_deltas "tagi_transform_deltas"(int form, const float* x, bint squared, int lines, int columns,
                                                  size_t line, size_t pixel, int tiles, float* out, size_t stride,
                                                  size_t size, size_t channels)
    void restore_kernels "tagi_restore_kernels"(int form, const float* m, size_t plane, bint more, float* out)

cdef enum:
    TILES = 128  # tiles of a block in the form F(2 x 2, 3 x 3)
    LARGE_TILES = 64  # the same in other forms
    SUMS = 524288  # sums of a chunk of channels, in all planes: 2 MB


cdef inline int block_of(int form) noexcept nogil:
    return TILES if form == F2 else LARGE_TILES


cdef int winograd_chunk(int form, int C, int O) noexcept nogil:
    """Channels of a chunk, whose sums are computed at a time."""
    return min(C, max(64, SUMS // (kernel_planes_of(form) * <long>O) // 16 * 16))


cdef size_t winograd_weight_size(int form, int C, int O) noexcept nogil:
    """The scratch memory of `add_tiles`, in float32."""
    cdef size_t block = block_of(form)
    return size_of_planes(form, block * winograd_chunk(form, C, O)) + size_of_planes(form, block * panel_width())


cdef void add_tiles(Product multiply, int form, const Patches* p, const float* image, bint image_squared,
                    const float* delta, bint delta_squared, int O, int c0, int c1, int t0, int t1, float* sums,
                    float* scratch) noexcept nogil:
    """sums (planes, O, c1 - c0) = the products of transformed deltas and pixels, summed over tiles t0:t1.

    image_squared, delta_squared: squares of the pixels or deltas are taken.
    """
    cdef long t, tiles, width = c1 - c0, block = block_of(form)
    cdef float* d = scratch + size_of_planes(form, block * <size_t>panel_width())
    for t from t0 <= t < t1 by block:
        tiles = min(block, t1 - t)
        transform_tiles(form, False, image, image_squared, p, p.channels, c0, c1, t, tiles, d)
        add_products(multiply, form, p, delta, delta_squared, O, width, t, tiles, t > t0, d, sums, scratch)


cdef void add_products(Product multiply, int form, const Patches* p, const float* delta, bint squared, int O,
                       int width, int first, int tiles, bint more, const float* d, float* sums,
                       float* e) noexcept nogil:
    """sums (planes, O, width) = the products of the deltas of a block of tiles and its transformed pixels d.

    more: adds them to the sums. e is scratch memory for transformed deltas.
    """
    cdef long made = made_of(form, False), edge = kernel_edge_of(form), across = tiles_across(p, form, False)
    cdef long down = tiles_down(p, form, False), o, outputs, panel = panel_width(), done, n, i, j, line, column
    cdef size_t pixel
    for o from 0 <= o < O by panel:
        outputs = min(panel, O - o)
        done = 0
        while done < tiles:
            column = (first + done) % across
            n = min(across - column, tiles - done)
            column *= made
            line = (first + done) // across % down * made
            pixel = ((first + done) // (across * down) * <size_t>p.out_height + line) * p.out_width + column
            transform_deltas(form, delta + pixel * O + o, squared, p.out_height - line, p.out_width - column,
                             <size_t>p.out_width * O, O, n, e + <size_t>done * outputs, outputs,
                             <size_t>tiles * outputs, outputs)
            done += n
        for i in range(edge):
            for j in range(edge):
                multiply(True, False, outputs, width, tiles * sharing(form, i, j),
                         e + place(form, i, j, <size_t>tiles * outputs), outputs,
                         d + place(form, i, j, <size_t>tiles * width), width, more,
                         sums + (<size_t>(i * edge + j) * O + o) * width, width)


cdef void restore_sums(int form, const float* sums, float* out, int C, int O, int c0, int c1, int o0, int o1,
                       bint accumulate) noexcept nogil:
    """out[o0:o1, c0:c1] (of O, C, taps, taps) = G^T sums G, from sums (planes, O, c1 - c0); or += if `accumulate`."""
    cdef long o, c, width = c1 - c0, taps = taps_of(form) * taps_of(form)
    for o in range(o0, o1):
        for c from 0 <= c < width by 16:
            restore_kernels(form, sums + <size_t>o * width + c, <size_t>O * width, accumulate,
                            out + (<size_t>o * C + c0 + c) * taps)

# cython: cdivision=True
"""Sums at the outputs of a convolution, each over the taps of its window. _conv2d.pyx calls this.

A convolution is a product of patches and weights. A *patch* is the window of pixels that one output depends on, as a
row of a matrix (_patches.pyx). Patches of the whole batch would take up to k * k times the memory of its images. So a
block of them is built at a time, small enough for the cache, and used by all products that need it. Its rows continue
from image to image, so that products are large even if images are small. Its columns are all taps of a chunk of
channels, and weights are copied into the same order.
"""

from pytagi_ddp.kernels.cpu.products._blas cimport (Grid, Product, best_grid, copy_rows, cut, fill_rows, lines,
                                                    panel_width, times_jacobian)
from pytagi_ddp.kernels.cpu.products._conv2d_product cimport Factors, Finish, add_block, squares, winograd_tile
from pytagi_ddp.kernels.cpu.products._patches cimport ROWS, Patches, chunk_of, positions_of, rows_of
from pytagi_ddp.kernels.cpu.products._winograd cimport winograd, winograd_size


cdef size_t output_size(const Patches* image, int O, int tiles) noexcept nogil:
    """The scratch memory of `output_tile`, in float32, if the results are divided into `tiles` tiles."""
    cdef long taps = image.kernel_height * image.kernel_width
    cdef size_t columns = chunk_of(image.channels, taps) * taps
    cdef long form = winograd(image, O, False)
    if form:
        return lines(winograd_size(form, image.channels, O))
    cdef Grid grid = best_grid(positions_of(image), O, tiles)
    return columns * ROWS + 3 * lines(columns * (O // grid.column_parts + 16))


cdef void output_tile(Product multiply_var, const Patches* image, const Factors* f, const Finish* finish, float* out_mu,
                      float* out_var, int O, int tile, int tiles, float* block) noexcept nogil:
    """Both moments for the tile of the results (positions x outputs) of one thread."""
    if winograd(image, O, False):
        winograd_tile(multiply_var, image, f, finish, False, out_mu, out_var, O, tile, tiles, block)
        return
    cdef Patches p = image[0]
    cdef Grid grid = best_grid(positions_of(image), O, tiles)
    cdef long n0 = cut(positions_of(image), tile // grid.column_parts, grid.row_parts), n, at
    cdef long n1 = cut(positions_of(image), tile // grid.column_parts + 1, grid.row_parts)
    cdef long o0 = cut(O, tile % grid.column_parts, grid.column_parts)
    cdef long o1 = cut(O, tile % grid.column_parts + 1, grid.column_parts)
    cdef long C = p.channels, taps = p.kernel_height * p.kernel_width, width = o1 - o0
    cdef long chunk = chunk_of(C, taps), c, c1, columns, rows
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* s = w + lines(<long>width * taps * chunk)
    cdef float* w2s = s + lines(<long>width * taps * chunk)
    cdef bint start = finish.start_mu != NULL
    for c from 0 <= c < C by chunk:
        c1 = min(c + chunk, C)
        columns = (c1 - c) * taps
        pack_outputs(f.w, w, block, C, taps, o0, o1, c, c1)
        if f.w_var:
            pack_outputs(f.w_var, s, block, C, taps, o0, o1, c, c1)
        squares(f, w, s, w2s, <long>width * columns)
        for n from n0 <= n < n1 by rows_of(columns):
            rows = min(rows_of(columns), n1 - n)
            at = n * O + o0
            if c == 0 and start:
                fill_rows(out_mu + at, O, finish.start_mu + o0, rows, width)
                fill_rows(out_var + at, O, finish.start_var + o0, rows, width)
            add_block(multiply_var, f, &p, n, rows, c, c1, block, w, s, w2s, width, start or c > 0, out_mu + at,
                      out_var + at, O)
            if c1 == C and finish.jcb:
                for at from n * O + o0 <= at < (n + rows) * O by O:
                    times_jacobian(out_mu + at, out_var + at, finish.jcb + at, width)


cdef void pack_outputs(const float* w, float* out, float* block, int C, int taps, int o0, int o1, int c0,
                       int c1) noexcept nogil:
    """Copies w[o0:o1, c0:c1, taps] to panels of outputs, each (taps, channels, outputs).

    The weights of 16 outputs are copied to `block` first, which is three times as fast: in w they may be a power of two
    apart, and share a few cache sets.
    """
    cdef long first, o, n, i, c, tap, width, panel = panel_width(), chunk = c1 - c0, columns = chunk * taps
    cdef float* target
    for first from o0 <= first < o1 by panel:
        width = min(panel, o1 - first)
        for o from 0 <= o < width by 16:
            n = min(16, width - o)
            copy_rows(w + (<long>(first + o) * C + c0) * taps, <long>C * taps, block, n, columns)
            for c in range(chunk):
                for tap in range(taps):
                    target = out + (<long>tap * chunk + c) * width + o
                    for i in range(n):
                        target[i] = block[i * columns + c * taps + tap]
        out += <long>width * columns

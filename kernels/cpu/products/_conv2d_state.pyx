# cython: cdivision=True
"""Sums at the inputs of a convolution, each over the windows that contain the pixel: the adjoint of the convolution.

_conv2d.pyx calls this. There are two ways:

* Gather. Pixels whose line and column have the same remainders by the stride are a *phase*. For the pixels of a phase,
  the sums are a convolution, with stride 1, of the values at the outputs by the taps that reach these pixels, flipped.
  So they are computed as in _conv2d_output.pyx, and each is written once.
* Scatter. The values at each output position are multiplied by the weights of all taps, and the products are added to
  the pixels under the taps. This copies C numbers for each tap and *output* position, twice, instead of O numbers for
  each tap and *input* position. It is faster if the outputs have far fewer positions than the image, or many more
  channels.
"""

from libc.string cimport memcpy

from pytagi_ddp.kernels.cpu.products._blas cimport (Grid, Product, best_grid, cut, fill_rows, panel_width, product,
                                                    square, times_jacobian)
from pytagi_ddp.kernels.cpu.products._conv2d_product cimport Factors, Finish, add_block, squares, winograd_tile
from pytagi_ddp.kernels.cpu.products._patches cimport (MOST_COLUMNS, ROWS, Patches, chunk_of, positions_of, rows_of,
                                                       scatter)
from pytagi_ddp.kernels.cpu.products._winograd cimport winograd, winograd_size


cdef inline int phase_taps(int kernel, int stride, int pad, int phase) noexcept nogil:
    """The number of taps of a kernel that reach the pixels whose index is `phase` modulo the stride."""
    return (kernel - (phase + pad) % stride + stride - 1) // stride


cdef bint scatters(const Patches* image, int O, int tiles) noexcept nogil:
    """Whether to scatter: see the top of this file. Then each thread computes whole images, because windows overlap."""
    cdef long pixels = <long>image.batch * image.height * image.width
    return image.batch >= tiles and (2 * positions_of(image) * image.channels * image.stride * image.stride
                                     < pixels * O)


cdef size_t state_size(const Patches* image, int O, int tiles) noexcept nogil:
    """The scratch memory of `state_tile`, in float32, if the results are divided into `tiles` tiles."""
    cdef long s = image.stride, taps = image.kernel_height * image.kernel_width, C = image.channels
    cdef size_t columns = max(MOST_COLUMNS, 16 * taps)
    cdef long form = winograd(image, O, True)
    if form:
        return winograd_size(form, O, C)
    if scatters(image, O, tiles):
        return columns * <size_t>(ROWS + 3 * O) + ROWS * <size_t>O
    cdef long rows = <long>image.batch * ((image.height + s - 1) // s) * ((image.width + s - 1) // s)
    cdef Grid grid = best_grid(rows, C, tiles)
    cdef size_t results = 0 if s == 1 else 2 * (rows // grid.row_parts + 16) * <size_t>(C // grid.column_parts + 16)
    return columns * <size_t>(ROWS + 3 * (C // grid.column_parts + 16)) + results


cdef void state_tile(Product multiply_var, const Patches* image, const Factors* f, const Finish* finish, float* in_mu,
                     float* in_var, int O, int tile, int tiles, float* scratch) noexcept nogil:
    """Both moments for the tile of the results (pixels x channels) of one thread."""
    cdef long s = image.stride, y, x
    cdef Patches p
    if winograd(image, O, True):
        winograd_tile(multiply_var, image, f, finish, True, in_mu, in_var, O, tile, tiles, scratch)
        return
    if scatters(image, O, tiles):
        state_scattered(multiply_var, image, f, finish, in_mu, in_var, O, <long>image.batch * tile // tiles,
                        <long>image.batch * (tile + 1) // tiles, scratch)
        return
    p.batch, p.height, p.width, p.channels, p.stride = image.batch, image.out_height, image.out_width, O, 1
    for y in range(min(s, image.height)):
        p.kernel_height = phase_taps(image.kernel_height, s, image.top, y)
        p.top = p.kernel_height - 1 - (y + image.top) // s
        p.out_height = (image.height - y + s - 1) // s
        for x in range(min(s, image.width)):
            p.kernel_width = phase_taps(image.kernel_width, s, image.left, x)
            p.left = p.kernel_width - 1 - (x + image.left) // s
            p.out_width = (image.width - x + s - 1) // s
            state_phase(multiply_var, p, image, f, finish, in_mu, in_var, y, x, tile, tiles, scratch)


cdef void state_phase(Product multiply_var, Patches p, const Patches* image, const Factors* f, const Finish* finish,
                      float* in_mu, float* in_var, int y, int x, int tile, int tiles, float* block) noexcept nogil:
    """The thread's share of the pixels of phase (y, x); `p` describes their windows, over the values at the outputs."""
    cdef long O = p.channels, C = image.channels, taps = p.kernel_height * p.kernel_width, chunk = chunk_of(O, taps)
    cdef Grid grid = best_grid(positions_of(&p), C, tiles)
    cdef long n0 = cut(positions_of(&p), tile // grid.column_parts, grid.row_parts), n, at
    cdef long n1 = cut(positions_of(&p), tile // grid.column_parts + 1, grid.row_parts)
    cdef long c0 = cut(C, tile % grid.column_parts, grid.column_parts)
    cdef long c1 = cut(C, tile % grid.column_parts + 1, grid.column_parts)
    cdef long width = c1 - c0, stride = C, o, o1, rows, columns
    cdef long size = <long>taps * chunk * width
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* w2s = w + size
    cdef float* s = w2s + size
    cdef float* mean = in_mu + n0 * C + c0
    cdef float* var = in_var + n0 * C + c0
    cdef bint start = finish.start_mu != NULL
    if image.stride > 1:  # pixels of a phase are not contiguous: `place` copies results to them
        mean = s + size
        var = mean + (n1 - n0) * width
        stride = width
    for o from 0 <= o < O by chunk:
        o1 = min(o + chunk, O)
        pack_channels(f.w, w, image, &p, y, x, o, o1, c0, c1)
        if f.w_var:
            pack_channels(f.w_var, s, image, &p, y, x, o, o1, c0, c1)
        columns = (o1 - o) * taps
        squares(f, w, s, w2s, <long>columns * width)
        for n from n0 <= n < n1 by rows_of(columns):
            rows = min(rows_of(columns), n1 - n)
            at = (n - n0) * stride
            if o == 0 and (start or taps == 0):  # without taps, no window has these pixels
                fill_rows(mean + at, stride, finish.start_mu + c0 if start else NULL, rows, width)
                fill_rows(var + at, stride, finish.start_var + c0 if start else NULL, rows, width)
            if taps:
                add_block(multiply_var, f, &p, n, rows, o, o1, block, w, s, w2s, width, start or o > 0, mean + at,
                          var + at, stride)
            if o1 == O:
                place(&p, image, mean + at, var + at, stride, finish.jcb, in_mu, in_var, n, rows, y, x, c0, c1)


cdef void pack_channels(const float* w_mu, float* out, const Patches* image, const Patches* p, int y, int x, int o0,
                        int o1, int c0, int c1) noexcept nogil:
    """Copies w_mu[o0:o1, c0:c1] to panels of channels, each (flipped taps of phase (y, x), outputs, channels)."""
    cdef long s = image.stride, taps = image.kernel_height * image.kernel_width, panel = panel_width()
    cdef long first, last, r, q, tap, o, c
    cdef const float* source
    for first from c0 <= first < c1 by panel:
        last = min(first + panel, c1)
        for r in range(p.kernel_height - 1, -1, -1):
            for q in range(p.kernel_width - 1, -1, -1):
                tap = ((y + image.top) % s + r * s) * image.kernel_width + (x + image.left) % s + q * s
                for o in range(o0, o1):
                    source = w_mu + <long>o * image.channels * taps + tap
                    for c in range(first, last):
                        out[c - first] = source[<long>c * taps]
                    out += last - first


cdef void place(const Patches* p, const Patches* image, const float* mean, const float* var, int stride,
                const float* jcb, float* in_mu, float* in_var, long first, int rows, int y, int x, int c0,
                int c1) noexcept nogil:
    """Copies a block of results to its pixels, of phase (y, x), and multiplies them by the Jacobian."""
    cdef long s = image.stride
    cdef long n, pixel
    if s == 1 and jcb == NULL:
        return
    for n in range(first, first + rows):
        pixel = n // (p.out_height * p.out_width) * image.height + n // p.out_width % p.out_height * s + y
        pixel = (pixel * image.width + n % p.out_width * s + x) * image.channels + c0
        if s > 1:
            memcpy(in_mu + pixel, mean + (n - first) * stride, (c1 - c0) * sizeof(float))
            memcpy(in_var + pixel, var + (n - first) * stride, (c1 - c0) * sizeof(float))
        if jcb:
            times_jacobian(in_mu + pixel, in_var + pixel, jcb + pixel, c1 - c0)


cdef void state_scattered(Product multiply_var, const Patches* image, const Factors* f, const Finish* finish,
                          float* in_mu, float* in_var, int O, int b0, int b1, float* block) noexcept nogil:
    """Images b0:b1, by scattering."""
    cdef Patches p = image[0]
    cdef long C = p.channels, taps = p.kernel_height * p.kernel_width, chunk = chunk_of(C, taps), c, c1, columns, rows
    cdef long area = p.out_height * p.out_width
    cdef long at = <long>b0 * p.height * p.width * C, pixels = <long>(b1 - b0) * p.height * p.width, n
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* w2s = w + <long>O * taps * chunk
    cdef float* s = w2s + <long>O * taps * chunk
    cdef float* x2 = s + <long>O * taps * chunk
    fill_rows(in_mu + at, C, finish.start_mu, pixels, C)
    fill_rows(in_var + at, C, finish.start_var, pixels, C)
    for c from 0 <= c < C by chunk:
        c1 = min(c + chunk, C)
        columns = (c1 - c) * taps
        pack_taps(f.w, w, O, C, taps, c, c1)
        if f.w_var:
            pack_taps(f.w_var, s, O, C, taps, c, c1)
        squares(f, w, s, w2s, <long>O * columns)
        for n from b0 * area <= n < b1 * area by rows_of(columns):
            rows = min(rows_of(columns), b1 * area - n)
            product(False, False, rows, columns, O, f.x + n * O, O, w, columns, 0, block, columns)
            p.x = in_mu
            scatter(&p, n, rows, c, c1, block)
            p.x = in_var
            if f.w_var:
                square(f.x + n * O, x2, <long>rows * O)
                multiply_var(False, False, rows, columns, O, x2, O, s, columns, 0, block, columns)
            if f.x_var:
                multiply_var(False, False, rows, columns, O, f.x_var + n * O, O, w2s, columns, f.w_var != NULL, block,
                             columns)
            scatter(&p, n, rows, c, c1, block)
    if finish.jcb:
        times_jacobian(in_mu + at, in_var + at, finish.jcb + at, pixels * C)


cdef void pack_taps(const float* w, float* out, int O, int C, int taps, int c0, int c1) noexcept nogil:
    """Copies w[:, c0:c1, taps] to (outputs, taps, channels)."""
    cdef long o, i, tap, chunk = c1 - c0
    for o in range(O):
        for i in range(chunk):
            for tap in range(taps):
                out[(<long>o * taps + tap) * chunk + i] = w[(<long>o * C + c0 + i) * taps + tap]

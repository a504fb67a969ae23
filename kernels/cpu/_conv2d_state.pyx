# cython: cdivision=True
"""Deltas of a convolution's input.

For the pixels of one phase of the stride they are a convolution, with stride 1, of the output's deltas by flipped
weights. So they are gathered like the forward pass, and each is written once. The other way, a product whose result
is scattered over the pixels, handles C elements per tap and *output* position instead of O per tap and *input*
position, and each of them twice; it wins where the map shrinks or the channels grow much.
"""

from libc.string cimport memcpy, memset

from pytagi_ddp.kernels.cpu._blas cimport (Grid, Product, best_grid, cut, fill_rows, panel_width, product, square,
                                             times_jacobian, times_panels)
from pytagi_ddp.kernels.cpu._patches cimport COLUMNS, ROWS, Patches, chunk_of, gather, positions_of, scatter
from pytagi_ddp.kernels.cpu._winograd cimport MEAN, SQUARE, Convolution, convolve, tiles_of, winograd, winograd_size


cdef inline int phase_taps(int kernel, int stride, int pad, int phase) noexcept nogil:
    """How many of a kernel's taps reach the pixels whose index is `phase` modulo the stride."""
    return max(0, (kernel - (phase + pad) % stride + stride - 1) // stride)


cdef bint scatters(const Patches* image, int O, int tiles) noexcept nogil:
    """Which of the two ways to the input's deltas: see the top of this file."""
    cdef long pixels = <long>image.batch * image.height * image.width
    return image.batch >= tiles and (2 * positions_of(image) * image.channels * image.stride * image.stride
                                     < pixels * O)


cdef size_t state_size(const Patches* image, int O, int tiles) noexcept nogil:
    """Scratch of one thread for its deltas of the input."""
    cdef int s = image.stride, taps = image.kernel_height * image.kernel_width, C = image.channels
    cdef size_t columns = max(COLUMNS, 16 * taps)
    if winograd(image, O):
        return winograd_size(O, C)
    if scatters(image, O, tiles):
        return columns * <size_t>(ROWS + 2 * O)
    cdef long rows = <long>image.batch * ((image.height + s - 1) // s) * ((image.width + s - 1) // s)
    cdef Grid grid = best_grid(rows, C, tiles)
    cdef size_t results = 0 if s == 1 else 2 * (rows // grid.row_parts + 16) * <size_t>(C // grid.column_parts + 16)
    return columns * <size_t>(ROWS + 2 * (C // grid.column_parts + 16)) + results


cdef void state_tile(Product multiply_var, const Patches* image, const float* delta_mu, const float* delta_var,
                     const float* w_mu, const float* jcb, float* in_mu, float* in_var, int O, int tile, int tiles,
                     float* scratch) noexcept nogil:
    cdef int s = image.stride, y, x
    cdef Patches p
    if winograd(image, O):
        state_winograd(multiply_var, image, delta_mu, delta_var, w_mu, jcb, in_mu, in_var, O, tile, tiles, scratch)
        return
    if scatters(image, O, tiles):
        state_scattered(multiply_var, image, delta_mu, delta_var, w_mu, jcb, in_mu, in_var, O,
                        <long>image.batch * tile // tiles, <long>image.batch * (tile + 1) // tiles, scratch)
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
            state_phase(multiply_var, p, image, delta_mu, delta_var, w_mu, jcb, in_mu, in_var, y, x, tile, tiles,
                        scratch)


cdef void state_winograd(Product multiply_var, const Patches* image, const float* delta_mu, const float* delta_var,
                         const float* w_mu, const float* jcb, float* in_mu, float* in_var, int O, int tile, int tiles,
                         float* scratch) noexcept nogil:
    cdef int C = image.channels, n = tiles_of(image), i
    cdef Grid grid = best_grid(n, C, tiles)
    cdef Convolution jobs[2]
    jobs[0] = Convolution(product, delta_mu, False, w_mu, NULL, MEAN, True, False, NULL, False, jcb, in_mu)
    jobs[1] = Convolution(multiply_var, delta_var, False, w_mu, NULL, SQUARE, True, False, NULL, False, jcb, in_var)
    for i in range(2):
        convolve(&jobs[i], image, O, cut(n, tile // grid.column_parts, grid.row_parts),
                 cut(n, tile // grid.column_parts + 1, grid.row_parts),
                 cut(C, tile % grid.column_parts, grid.column_parts),
                 cut(C, tile % grid.column_parts + 1, grid.column_parts), scratch)


cdef void state_phase(Product multiply_var, Patches p, const Patches* image, const float* delta_mu,
                      const float* delta_var, const float* w_mu, const float* jcb, float* in_mu, float* in_var, int y,
                      int x, int tile, int tiles, float* block) noexcept nogil:
    """Deltas of the pixels (y, x) modulo the stride."""
    cdef int O = p.channels, C = image.channels, taps = p.kernel_height * p.kernel_width, chunk = chunk_of(O, taps)
    cdef Grid grid = best_grid(positions_of(&p), C, tiles)
    cdef long n0 = cut(positions_of(&p), tile // grid.column_parts, grid.row_parts), n
    cdef long n1 = cut(positions_of(&p), tile // grid.column_parts + 1, grid.row_parts)
    cdef int c0 = cut(C, tile % grid.column_parts, grid.column_parts)
    cdef int c1 = cut(C, tile % grid.column_parts + 1, grid.column_parts)
    cdef int width = c1 - c0, stride = C, o, o1, columns, rows
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* w2 = w + <long>taps * chunk * width
    cdef float* mean = in_mu + n0 * C + c0
    cdef float* var = in_var + n0 * C + c0
    if image.stride > 1:  # the pixels are not side by side
        mean = w2 + <long>taps * chunk * width
        var = mean + (n1 - n0) * width
        stride = width
    for o from 0 <= o < O by chunk:
        o1 = min(o + chunk, O)
        columns = (o1 - o) * taps
        pack_channels(w_mu, w, image, &p, y, x, o, o1, c0, c1)
        square(w, w2, <long>columns * width)
        for n from n0 <= n < n1 by ROWS:
            rows = min(ROWS, n1 - n)
            if taps == 0:  # the kernel steps over these pixels
                fill_rows(mean + (n - n0) * stride, stride, NULL, rows, width)
                fill_rows(var + (n - n0) * stride, stride, NULL, rows, width)
            else:
                p.x = <float*>delta_mu
                gather(&p, n, rows, o, o1, block)
                times_panels(product, block, rows, columns, w, width, o > 0, mean + (n - n0) * stride, stride)
                p.x = <float*>delta_var
                gather(&p, n, rows, o, o1, block)
                times_panels(multiply_var, block, rows, columns, w2, width, o > 0, var + (n - n0) * stride, stride)
            if o1 == O:
                place(&p, image, mean + (n - n0) * stride, var + (n - n0) * stride, stride, jcb, in_mu, in_var, n,
                      rows, y, x, c0, c1)


cdef void pack_channels(const float* w_mu, float* out, const Patches* image, const Patches* p, int y, int x, int o0,
                        int o1, int c0, int c1) noexcept nogil:
    """w_mu[o0:o1, c0:c1] to panels of channels, each (taps of phase (y, x), flipped; outputs; channels)."""
    cdef int s = image.stride, taps = image.kernel_height * image.kernel_width, panel = panel_width()
    cdef int first, last, r, q, tap, o, c
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
    """Brings a block of results to its pixels, (y, x) modulo the stride, and multiplies by the Jacobian."""
    cdef int s = image.stride
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


cdef void state_scattered(Product multiply_var, const Patches* image, const float* delta_mu, const float* delta_var,
                          const float* w_mu, const float* jcb, float* in_mu, float* in_var, int O, int b0, int b1,
                          float* block) noexcept nogil:
    """Deltas of images b0:b1, by adding up what each output position sends to its taps."""
    cdef Patches p = image[0]
    cdef int C = p.channels, taps = p.kernel_height * p.kernel_width, chunk = chunk_of(C, taps), c, c1, columns, rows
    cdef int area = p.out_height * p.out_width, o, i, tap
    cdef long at = <long>b0 * p.height * p.width * C, size = <long>(b1 - b0) * p.height * p.width * C, n
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* w2 = w + <long>O * taps * chunk
    memset(in_mu + at, 0, size * sizeof(float))
    memset(in_var + at, 0, size * sizeof(float))
    for c from 0 <= c < C by chunk:
        c1 = min(c + chunk, C)
        columns = (c1 - c) * taps
        for o in range(O):
            for i in range(c1 - c):
                for tap in range(taps):
                    w[<long>o * columns + tap * (c1 - c) + i] = w_mu[(<long>o * C + c + i) * taps + tap]
        square(w, w2, <long>O * columns)
        for n from b0 * area <= n < b1 * area by ROWS:
            rows = min(ROWS, b1 * area - n)
            product(False, False, rows, columns, O, delta_mu + n * O, O, w, columns, 0, block, columns)
            p.x = in_mu
            scatter(&p, n, rows, c, c1, block)
            multiply_var(False, False, rows, columns, O, delta_var + n * O, O, w2, columns, 0, block, columns)
            p.x = in_var
            scatter(&p, n, rows, c, c1, block)
    if jcb:
        times_jacobian(in_mu + at, in_var + at, jcb + at, size)

# cython: wraparound=False, cdivision=True
"""Moment products of a 2-D convolution: blocks of patches times weights, in OpenMP threads. See conv2d.py.

A block of patches is built once, used by every product that needs it while it is in cache, and never materialised
for the batch. Its rows run over the positions of all images, so small maps make products as large as large maps do;
its columns are all taps of a chunk of channels. The thread that uses a chunk brings its weights into the order of
the columns, and sums of weight deltas out of it. Convolutions by 3 x 3 kernels with stride 1 have a faster form:
see _winograd.pyx.
"""

from cython.parallel cimport parallel, prange

from pytagi_ddp.kernels.cpu._blas cimport (Grid, Product, best_grid, copy_rows, cut, fill_rows, lines, panel_width,
                                           product, square, square_plus, times_panels, variance_product)
from pytagi_ddp.kernels.cpu._conv2d_state cimport state_size, state_tile
from pytagi_ddp.kernels.cpu._conv2d_weight cimport add_parts, sums_size, weight_size, weight_slices, weight_tile
from pytagi_ddp.kernels.cpu._patches cimport ROWS, Patches, chunk_of, gather, positions_of
from pytagi_ddp.kernels.cpu._winograd cimport (MEAN, SQUARE_PLUS, Convolution, convolve, tiles_of, winograd,
                                                 winograd_size)

from pytagi_ddp.kernels.cpu.extension import size_error
from pytagi_ddp.kernels.cpu.workspace import workspace

cdef enum:
    SERIAL = 500000  # multiply-adds of a product below which waking the threads costs more than they save


cdef bint shaped(const Py_ssize_t* shape, Py_ssize_t n0, Py_ssize_t n1, Py_ssize_t n2, Py_ssize_t n3):
    return shape[0] == n0 and shape[1] == n1 and shape[2] == n2 and shape[3] == n3


def forward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] var, const float[:, :, :, ::1] w_mu,
            const float[:, :, :, ::1] w_var, const float[::1] b_mu, const float[::1] b_var,
            float[:, :, :, ::1] out_mu, float[:, :, :, ::1] out_var, int stride, int pad, int threads, bint mixed):
    cdef int B = mu.shape[0], H = mu.shape[1], W = mu.shape[2], C = mu.shape[3], O = w_mu.shape[0], k = w_mu.shape[2]
    cdef int Ho = out_mu.shape[1], Wo = out_mu.shape[2], t
    if stride < 1 or pad < 0:
        raise ValueError(f"conv2d.forward: stride {stride}, pad {pad}: expected at least 1 and 0")
    if not (B > 0 and shaped(w_mu.shape, O, C, k, k) and shaped(w_var.shape, O, C, k, k)
            and (var is None or shaped(var.shape, B, H, W, C))
            and (b_mu is None) == (b_var is None) and (b_mu is None or b_mu.shape[0] == b_var.shape[0] == O)
            and shaped(out_mu.shape, B, Ho, Wo, O) and shaped(out_var.shape, B, Ho, Wo, O)):
        raise size_error("conv2d.forward", mu=mu, var=var, w_mu=w_mu, w_var=w_var, b_mu=b_mu, b_var=b_var,
                         out_mu=out_mu, out_var=out_var)
    cdef Patches patches = Patches(<float*>&mu[0, 0, 0, 0], B, H, W, C, k, k, stride, pad, pad, Ho, Wo)
    cdef long positions = positions_of(&patches)
    cdef Product multiply_var = variance_product(mixed)
    if <double>positions * O * C * k * k < SERIAL:
        threads = 1
    cdef bint fast = winograd(&patches, O)
    if fast:
        positions = tiles_of(&patches)
    cdef Grid grid = best_grid(positions, O, threads)
    cdef size_t columns = chunk_of(C, k * k) * k * k
    cdef size_t per_thread = columns * ROWS + 3 * lines(columns * (O // grid.column_parts + 16))
    if fast:
        per_thread = lines(winograd_size(C, O))
    cdef float[::1] scratch = workspace(threads * per_thread)
    cdef const float* variance = <const float*>NULL if var is None else &var[0, 0, 0, 0]
    cdef const float* bias_mu = <const float*>NULL if b_mu is None else &b_mu[0]
    cdef const float* bias_var = <const float*>NULL if b_var is None else &b_var[0]
    for t in prange(threads, schedule="static", num_threads=threads, nogil=True):
        forward_tile(multiply_var, patches, variance, &w_mu[0, 0, 0, 0], &w_var[0, 0, 0, 0], bias_mu, bias_var,
                     &out_mu[0, 0, 0, 0], &out_var[0, 0, 0, 0], O,
                     cut(positions, t // grid.column_parts, grid.row_parts),
                     cut(positions, t // grid.column_parts + 1, grid.row_parts),
                     cut(O, t % grid.column_parts, grid.column_parts),
                     cut(O, t % grid.column_parts + 1, grid.column_parts), &scratch[t * per_thread])


cdef void forward_tile(Product multiply_var, Patches patches, const float* var, const float* w_mu, const float* w_var,
                       const float* b_mu, const float* b_var, float* out_mu, float* out_var, int O, long n0, long n1,
                       int o0, int o1, float* block) noexcept nogil:
    if winograd(&patches, O):
        winograd_forward(multiply_var, &patches, var, w_mu, w_var, b_mu, b_var, out_mu, out_var, O, n0, n1, o0, o1,
                         block)
        return
    cdef const float* mu = patches.x
    cdef int C = patches.channels, taps = patches.kernel_height * patches.kernel_width, width = o1 - o0
    cdef int chunk = chunk_of(C, taps), c, c1, columns, rows
    cdef long n
    cdef float* w = block + <long>ROWS * taps * chunk
    cdef float* s = w + lines(<long>width * taps * chunk)
    cdef float* w2s = s + lines(<long>width * taps * chunk)
    for c from 0 <= c < C by chunk:
        c1 = min(c + chunk, C)
        columns = (c1 - c) * taps
        pack_outputs(w_mu, w, block, C, taps, o0, o1, c, c1)
        pack_outputs(w_var, s, block, C, taps, o0, o1, c, c1)
        square_plus(w, s, w2s, <long>width * columns)
        for n from n0 <= n < n1 by ROWS:
            rows = min(ROWS, n1 - n)
            if c == 0:
                fill_rows(out_mu + n * O + o0, O, b_mu + o0 if b_mu else NULL, rows, width)
                fill_rows(out_var + n * O + o0, O, b_var + o0 if b_var else NULL, rows, width)
            patches.x = <float*>mu
            gather(&patches, n, rows, c, c1, block)
            times_panels(product, block, rows, columns, w, width, 1, out_mu + n * O + o0, O)
            square(block, block, <long>rows * columns)
            times_panels(multiply_var, block, rows, columns, s, width, 1, out_var + n * O + o0, O)
            if var:
                patches.x = <float*>var
                gather(&patches, n, rows, c, c1, block)
                times_panels(multiply_var, block, rows, columns, w2s, width, 1, out_var + n * O + o0, O)


cdef void winograd_forward(Product multiply_var, const Patches* p, const float* var, const float* w_mu,
                           const float* w_var, const float* b_mu, const float* b_var, float* out_mu, float* out_var,
                           int O, int t0, int t1, int o0, int o1, float* scratch) noexcept nogil:
    cdef Convolution mean = Convolution(product, p.x, False, w_mu, NULL, MEAN, False, False, b_mu, False, NULL, out_mu)
    cdef Convolution from_mean = Convolution(multiply_var, p.x, True, w_var, NULL, MEAN, False, True, b_var, False,
                                             NULL, out_var)
    cdef Convolution from_var = Convolution(multiply_var, var, False, w_mu, w_var, SQUARE_PLUS, False, True, NULL, True,
                                            NULL, out_var)
    convolve(&mean, p, O, t0, t1, o0, o1, scratch)
    convolve(&from_mean, p, O, t0, t1, o0, o1, scratch)
    if var:
        convolve(&from_var, p, O, t0, t1, o0, o1, scratch)


cdef void pack_outputs(const float* w, float* out, float* block, int C, int taps, int o0, int o1, int c0,
                       int c1) noexcept nogil:
    """w[o0:o1, c0:c1, taps] to panels of outputs, each (taps, channels, outputs).

    By way of `block`: there, unlike in w, the rows of 16 outputs do not share a few cache sets (thrice as fast).
    """
    cdef int first, o, n, i, c, tap, width, panel = panel_width(), chunk = c1 - c0, columns = chunk * taps
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


def backward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] jcb, const float[:, :, :, ::1] delta_mu,
             const float[:, :, :, ::1] delta_var, const float[:, :, :, ::1] w_mu, float[:, :, :, ::1] in_delta_mu,
             float[:, :, :, ::1] in_delta_var, float[:, :, :, ::1] g_w, float[:, :, :, ::1] h_w, float[::1] g_b,
             float[::1] h_b, int stride, int pad, bint accumulate, int threads, bint mixed):
    cdef int B = mu.shape[0], H = mu.shape[1], W = mu.shape[2], C = mu.shape[3], O = w_mu.shape[0], k = w_mu.shape[2]
    cdef int Ho = delta_mu.shape[1], Wo = delta_mu.shape[2], t
    if stride < 1 or pad < 0:
        raise ValueError(f"conv2d.backward: stride {stride}, pad {pad}: expected at least 1 and 0")
    if not (B > 0 and shaped(w_mu.shape, O, C, k, k) and shaped(g_w.shape, O, C, k, k)
            and shaped(h_w.shape, O, C, k, k) and (jcb is None or shaped(jcb.shape, B, H, W, C))
            and shaped(delta_mu.shape, B, Ho, Wo, O) and shaped(delta_var.shape, B, Ho, Wo, O)
            and (in_delta_mu is None) == (in_delta_var is None) and (in_delta_mu is None or (
                shaped(in_delta_mu.shape, B, H, W, C) and shaped(in_delta_var.shape, B, H, W, C)))
            and (g_b is None) == (h_b is None) and (g_b is None or g_b.shape[0] == h_b.shape[0] == O)):
        raise size_error("conv2d.backward", mu=mu, jcb=jcb, delta_mu=delta_mu, delta_var=delta_var, w_mu=w_mu,
                         in_delta_mu=in_delta_mu, in_delta_var=in_delta_var, g_w=g_w, h_w=h_w, g_b=g_b, h_b=h_b)
    cdef Patches patches = Patches(<float*>&mu[0, 0, 0, 0], B, H, W, C, k, k, stride, pad, pad, Ho, Wo)
    cdef Product multiply_var = variance_product(mixed)
    if <double>positions_of(&patches) * O * C * k * k < SERIAL:
        threads = 1
    cdef int slices = weight_slices(threads, C, k * k)
    cdef size_t sums = lines(sums_size(&patches, O, slices, threads))
    cdef size_t per_thread = lines(max(weight_size(&patches, O), state_size(&patches, O, threads)))
    cdef float[::1] scratch = workspace(threads * (sums + per_thread))
    cdef float* totals = &scratch[0]
    cdef float* blocks = totals + threads * sums
    cdef const float* jacobian = <const float*>NULL if jcb is None else &jcb[0, 0, 0, 0]
    cdef float* in_mu = NULL if in_delta_mu is None else &in_delta_mu[0, 0, 0, 0]
    cdef float* in_var = NULL if in_delta_var is None else &in_delta_var[0, 0, 0, 0]
    cdef float* bias_g = NULL if g_b is None else &g_b[0]
    cdef float* bias_h = NULL if h_b is None else &h_b[0]
    with nogil, parallel(num_threads=threads):
        for t in prange(threads, schedule="static"):
            if in_mu:
                state_tile(multiply_var, &patches, &delta_mu[0, 0, 0, 0], &delta_var[0, 0, 0, 0], &w_mu[0, 0, 0, 0],
                           jacobian, in_mu, in_var, O, t, threads, blocks + t * per_thread)
            weight_tile(multiply_var, &patches, &delta_mu[0, 0, 0, 0], &delta_var[0, 0, 0, 0], &g_w[0, 0, 0, 0],
                        &h_w[0, 0, 0, 0], bias_g, bias_h, accumulate, O, t, threads, slices, totals + t * sums,
                        blocks + t * per_thread)
        if slices < threads:
            for t in prange(threads, schedule="static"):
                add_parts(&patches, totals, sums, threads, slices, &g_w[0, 0, 0, 0], &h_w[0, 0, 0, 0], bias_g,
                          bias_h, accumulate, O, cut(O, t, threads), cut(O, t + 1, threads))

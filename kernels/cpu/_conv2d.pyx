# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Moment products of a 2-D convolution: blocks of patches times weights, in OpenMP threads. See conv2d.py.

A block of patches (im2col) is built once, used by every product that needs it while it is in cache, and never
materialised for the batch. Rows of a block run over the positions of all images, so small maps make large products.
"""

from cython.parallel cimport parallel, prange
from libc.string cimport memcpy, memset

from pytagi_ddp.kernels.cpu._blas cimport Grid, add, best_grid, cut, product, square, times_jacobian

from pytagi_ddp.kernels.cpu.workspace import workspace

cdef enum:
    ROWS = 512  # positions per block
    COLUMNS = 512  # patch elements per block
    SERIAL_FLOPS = 1000000


cdef struct Patches:
    # Windows of channels-last images; position (y, x) of image b has its first tap at (y s - top, x s - left).
    const float* x
    int batch, H, W, C
    int kh, kw, stride, top, left
    int out_h, out_w


cdef void im2col(const Patches* p, long first, int rows, int k0, int k1, float* out) noexcept nogil:
    """Elements k0:k1, in the order (kernel row, kernel column, channel), of the patches first:first + rows."""
    cdef int b = first // (p.out_h * p.out_w), y = first // p.out_w % p.out_h, x = first % p.out_w
    cdef int n, r, yy, f0, f1, lo, hi, width = p.kw * p.C, x0
    cdef const float* source
    for n in range(rows):
        x0 = x * p.stride - p.left
        for r in range(k0 // width, (k1 - 1) // width + 1):
            f0 = max(k0 - r * width, 0)
            f1 = min(k1 - r * width, width)
            yy = y * p.stride - p.top + r
            lo = hi = f1
            if 0 <= yy < p.H:
                lo = min(max(f0, -x0 * p.C), f1)
                hi = max(min(f1, (p.W - x0) * p.C), lo)
            source = p.x + ((<long>b * p.H + yy) * p.W + x0) * p.C
            if lo > f0:
                memset(out, 0, (lo - f0) * sizeof(float))
            if hi > lo:
                memcpy(out + lo - f0, source + lo, (hi - lo) * sizeof(float))
            if f1 > hi:
                memset(out + hi - f0, 0, (f1 - hi) * sizeof(float))
            out += f1 - f0
        x += 1
        if x == p.out_w:
            x = 0
            y += 1
            if y == p.out_h:
                y = 0
                b += 1


def forward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] var, const float[:, :, :, ::1] w_mu,
            const float[:, :, :, ::1] w_var, const float[::1] b_mu, const float[::1] b_var,
            float[:, :, :, ::1] out_mu, float[:, :, :, ::1] out_var, int stride, int pad, int threads):
    cdef int O = w_mu.shape[0], C = w_mu.shape[1], k = w_mu.shape[2], K = C * k * k, t, rows, columns
    cdef long positions = out_mu.shape[0] * out_mu.shape[1] * out_mu.shape[2], n0, n1
    if <double>positions * O * K < SERIAL_FLOPS:
        threads = 1
    cdef Grid grid = best_grid(positions, O, threads)
    cdef Patches patches = Patches(&mu[0, 0, 0, 0], mu.shape[0], mu.shape[1], mu.shape[2], C, k, k, stride, pad, pad,
                                   out_mu.shape[1], out_mu.shape[2])
    cdef size_t weights = O * <size_t>K, per_thread = ROWS * COLUMNS
    cdef float[::1] scratch = workspace(3 * weights + threads * per_thread)
    cdef float* w = &scratch[0]
    cdef float* s = w + weights
    cdef float* w2s = s + weights
    cdef const float* bias_mu = NULL if b_mu is None else &b_mu[0]
    cdef const float* bias_var = NULL if b_var is None else &b_var[0]
    cdef const float* variance = NULL if var is None else &var[0, 0, 0, 0]
    with nogil, parallel(num_threads=threads):
        for t in prange(threads, schedule="static"):
            pack_forward(&w_mu[0, 0, 0, 0], &w_var[0, 0, 0, 0], w, s, w2s, C, k * k, cut(O, t, threads),
                         cut(O, t + 1, threads))
        for t in prange(threads, schedule="static"):
            forward_tile(patches, variance, w, s, w2s, bias_mu, bias_var, &out_mu[0, 0, 0, 0], &out_var[0, 0, 0, 0],
                         O, cut(positions, t // grid.column_parts, grid.row_parts),
                         cut(positions, t // grid.column_parts + 1, grid.row_parts),
                         cut(O, t % grid.column_parts, grid.column_parts),
                         cut(O, t % grid.column_parts + 1, grid.column_parts),
                         w2s + weights + t * per_thread)


cdef void pack_forward(const float* w_mu, const float* w_var, float* w, float* s, float* w2s, int C, int taps,
                       int o0, int o1) noexcept nogil:
    """(O, C, taps) to (O, taps, C), and W^2 + S."""
    cdef long at = <long>o0 * taps * C
    cdef int o, c, tap
    for o in range(o0, o1):
        for tap in range(taps):
            for c in range(C):
                w[at] = w_mu[(<long>o * C + c) * taps + tap]
                s[at] = w_var[(<long>o * C + c) * taps + tap]
                w2s[at] = w[at] * w[at] + s[at]
                at += 1


cdef void forward_tile(Patches patches, const float* var, const float* w, const float* s, const float* w2s,
                       const float* b_mu, const float* b_var, float* out_mu, float* out_var, int O, long n0, long n1,
                       int o0, int o1, float* columns) noexcept nogil:
    cdef const float* mu = patches.x
    cdef int K = patches.kh * patches.kw * patches.C, k, f, rows
    cdef long n, row
    for n from n0 <= n < n1 by ROWS:
        rows = min(ROWS, n1 - n)
        for row in range(n, n + rows):
            fill(out_mu + row * O + o0, b_mu, o0, o1)
            fill(out_var + row * O + o0, b_var, o0, o1)
        for f from 0 <= f < K by COLUMNS:
            k = min(COLUMNS, K - f)
            patches.x = mu
            im2col(&patches, n, rows, f, f + k, columns)
            product(False, True, rows, o1 - o0, k, columns, k, w + <long>o0 * K + f, K, 1, out_mu + n * O + o0, O)
            square(columns, columns, <long>rows * k)
            product(False, True, rows, o1 - o0, k, columns, k, s + <long>o0 * K + f, K, 1, out_var + n * O + o0, O)
            if var:
                patches.x = var
                im2col(&patches, n, rows, f, f + k, columns)
                product(False, True, rows, o1 - o0, k, columns, k, w2s + <long>o0 * K + f, K, 1,
                        out_var + n * O + o0, O)


cdef inline void fill(float* out, const float* bias, int first, int last) noexcept nogil:
    if bias:
        memcpy(out, bias + first, (last - first) * sizeof(float))
    else:
        memset(out, 0, (last - first) * sizeof(float))


def backward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] jcb, const float[:, :, :, ::1] delta_mu,
             const float[:, :, :, ::1] delta_var, const float[:, :, :, ::1] w_mu, float[:, :, :, ::1] in_delta_mu,
             float[:, :, :, ::1] in_delta_var, float[:, :, :, ::1] g_w, float[:, :, :, ::1] h_w, float[::1] g_b,
             float[::1] h_b, int stride, int pad, bint accumulate, int threads):
    cdef int O = w_mu.shape[0], C = w_mu.shape[1], k = w_mu.shape[2], K = C * k * k, t, phase
    cdef long positions = delta_mu.shape[0] * delta_mu.shape[1] * delta_mu.shape[2]
    if <double>positions * O * K < SERIAL_FLOPS:
        threads = 1
    cdef Patches patches = Patches(&mu[0, 0, 0, 0], mu.shape[0], mu.shape[1], mu.shape[2], C, k, k, stride, pad, pad,
                                   delta_mu.shape[1], delta_mu.shape[2])
    # Weight deltas are cut along the patches (each thread builds only its slice of them, and there is nothing to
    # add up); only what would leave slices too thin is cut along the positions, into partial sums.
    cdef int slices = threads
    while slices > 1 and (threads % slices or K // slices < 128):
        slices -= 1
    cdef int parts = threads // slices
    cdef size_t weights = O * <size_t>K, per_thread = ROWS * (COLUMNS + 2 * C)
    cdef size_t partial = 2 * (weights + O)
    cdef float[::1] scratch = workspace(2 * weights + parts * partial + threads * per_thread)
    cdef float* w = &scratch[0]
    cdef float* w2 = w + weights
    cdef float* partials = w2 + weights
    cdef float* blocks = partials + parts * partial
    cdef const float* jacobian = NULL if jcb is None else &jcb[0, 0, 0, 0]
    cdef float* in_mu = NULL if in_delta_mu is None else &in_delta_mu[0, 0, 0, 0]
    cdef float* in_var = NULL if in_delta_var is None else &in_delta_var[0, 0, 0, 0]
    cdef float* bias_g = NULL if g_b is None else &g_b[0]
    cdef float* bias_h = NULL if h_b is None else &h_b[0]
    with nogil, parallel(num_threads=threads):
        for t in prange(threads, schedule="static"):
            if in_mu:
                pack_backward(&w_mu[0, 0, 0, 0], w, w2, O, C, k, stride, pad, cut(C, t, threads),
                              cut(C, t + 1, threads))
        for t in prange(threads, schedule="static"):
            if in_mu:
                state_tile(&patches, &delta_mu[0, 0, 0, 0], &delta_var[0, 0, 0, 0], w, w2, jacobian, in_mu, in_var,
                           O, t, threads, blocks + t * per_thread)
            weight_tile(&patches, &delta_mu[0, 0, 0, 0], &delta_var[0, 0, 0, 0],
                        partials + t // slices * partial, O, cut(positions, t // slices, parts),
                        cut(positions, t // slices + 1, parts), cut(K, t % slices, slices),
                        cut(K, t % slices + 1, slices), blocks + t * per_thread)
        for t in prange(threads, schedule="static"):
            unpack(partials, partial, parts, weights, &g_w[0, 0, 0, 0], &h_w[0, 0, 0, 0], bias_g, bias_h, O, C,
                   k * k, cut(O, t, threads), cut(O, t + 1, threads), accumulate)


cdef void pack_backward(const float* w_mu, float* w, float* w2, int O, int C, int k, int stride, int pad, int c0,
                        int c1) noexcept nogil:
    """(O, C, k, k) to, for each phase of the stride, (C, its taps flipped, O); and W^2."""
    cdef int py, px, r, q, rows, columns, o, c, tap
    cdef long at, start = 0
    for py in range(stride):
        rows = taps_of_phase(k, stride, pad, py)
        for px in range(stride):
            columns = taps_of_phase(k, stride, pad, px)
            at = start + <long>c0 * rows * columns * O
            for c in range(c0, c1):
                for r in range(rows - 1, -1, -1):
                    for q in range(columns - 1, -1, -1):
                        tap = ((py + pad) % stride + r * stride) * k + (px + pad) % stride + q * stride
                        for o in range(O):
                            w[at] = w_mu[(<long>o * C + c) * k * k + tap]
                            w2[at] = w[at] * w[at]
                            at += 1
            start += <long>C * rows * columns * O


cdef inline int taps_of_phase(int k, int stride, int pad, int phase) noexcept nogil:
    """How many of k taps reach the pixels whose index is `phase` modulo the stride."""
    return max(0, (k - (phase + pad) % stride + stride - 1) // stride)


cdef void state_tile(const Patches* patches, const float* delta_mu, const float* delta_var, const float* w,
                     const float* w2, const float* jcb, float* in_mu, float* in_var, int O, int tile, int tiles,
                     float* columns) noexcept nogil:
    """Deltas of the input: for the pixels of one phase of the stride, a convolution of the deltas with stride 1."""
    cdef int s = patches.stride, py, px, C = patches.C
    cdef Patches p
    cdef long start = 0
    p.batch, p.H, p.W, p.C, p.stride = patches.batch, patches.out_h, patches.out_w, O, 1
    for py in range(s):
        p.kh = taps_of_phase(patches.kh, s, patches.top, py)
        p.top = p.kh - 1 - (py + patches.top) // s
        p.out_h = (patches.H - py + s - 1) // s
        for px in range(s):
            p.kw = taps_of_phase(patches.kw, s, patches.left, px)
            p.left = p.kw - 1 - (px + patches.left) // s
            p.out_w = (patches.W - px + s - 1) // s
            state_phase(p, patches, delta_mu, delta_var, w + start, w2 + start, jcb, in_mu, in_var, py, px, tile,
                        tiles, columns)
            start += <long>C * p.kh * p.kw * O


cdef void state_phase(Patches p, const Patches* image, const float* delta_mu, const float* delta_var, const float* w,
                      const float* w2, const float* jcb, float* in_mu, float* in_var, int py, int px, int tile,
                      int tiles, float* columns) noexcept nogil:
    cdef int C = image.C, K = p.kh * p.kw * p.C, s = image.stride, f, k, rows, row, b, y, x, width, stored
    cdef long positions = <long>p.batch * p.out_h * p.out_w, n, pixel
    cdef Grid grid = best_grid(positions, C, tiles)
    cdef long n0 = cut(positions, tile // grid.column_parts, grid.row_parts)
    cdef long n1 = cut(positions, tile // grid.column_parts + 1, grid.row_parts)
    cdef int c0 = cut(C, tile % grid.column_parts, grid.column_parts)
    cdef int c1 = cut(C, tile % grid.column_parts + 1, grid.column_parts)
    cdef float* mean = columns + ROWS * COLUMNS
    cdef float* var = mean + ROWS * C
    width = c1 - c0
    stored = width
    if s == 1:
        stored = C  # the pixels are in place
    for n from n0 <= n < n1 by ROWS:
        rows = min(ROWS, n1 - n)
        if s == 1:
            mean = in_mu + n * C + c0
            var = in_var + n * C + c0
        elif K == 0:
            memset(mean, 0, rows * width * sizeof(float))
            memset(var, 0, rows * width * sizeof(float))
        for f from 0 <= f < K by COLUMNS:
            k = min(COLUMNS, K - f)
            p.x = delta_mu
            im2col(&p, n, rows, f, f + k, columns)
            product(False, True, rows, width, k, columns, k, w + <long>c0 * K + f, K, f > 0, mean, stored)
            p.x = delta_var
            im2col(&p, n, rows, f, f + k, columns)
            product(False, True, rows, width, k, columns, k, w2 + <long>c0 * K + f, K, f > 0, var, stored)
        if s == 1 and jcb == NULL:
            continue
        for row in range(rows):
            b = (n + row) // (p.out_h * p.out_w)
            y = (n + row) // p.out_w % p.out_h * s + py
            x = (n + row) % p.out_w * s + px
            pixel = ((<long>b * image.H + y) * image.W + x) * C + c0
            if s > 1:
                memcpy(in_mu + pixel, mean + <long>row * width, width * sizeof(float))
                memcpy(in_var + pixel, var + <long>row * width, width * sizeof(float))
            if jcb:
                times_jacobian(in_mu + pixel, in_var + pixel, jcb + pixel, width)


cdef void weight_tile(const Patches* patches, const float* delta_mu, const float* delta_var, float* partial, int O,
                      long n0, long n1, int k0, int k1, float* columns) noexcept nogil:
    """Columns k0:k1 of the weight sums (O, taps, C) over positions n0:n1; with the first columns, the bias sums."""
    cdef int K = patches.kh * patches.kw * patches.C, f, k, rows
    cdef long n
    cdef float* g = partial
    cdef float* h = partial + <long>O * K
    cdef float* bias = h + <long>O * K
    if k0 == 0:
        sum_rows(delta_mu, bias, n0, n1, O)
        sum_rows(delta_var, bias + O, n0, n1, O)
    if n0 == n1:
        for f in range(O):
            memset(g + <long>f * K + k0, 0, (k1 - k0) * sizeof(float))
            memset(h + <long>f * K + k0, 0, (k1 - k0) * sizeof(float))
    for f from k0 <= f < k1 by COLUMNS:
        k = min(COLUMNS, k1 - f)
        for n from n0 <= n < n1 by ROWS:
            rows = min(ROWS, n1 - n)
            im2col(patches, n, rows, f, f + k, columns)
            product(True, False, O, k, rows, delta_mu + n * O, O, columns, k, n > n0, g + f, K)
            square(columns, columns, <long>rows * k)
            product(True, False, O, k, rows, delta_var + n * O, O, columns, k, n > n0, h + f, K)


cdef void sum_rows(const float* x, float* total, long n0, long n1, int width) noexcept nogil:
    cdef long n
    memset(total, 0, width * sizeof(float))
    for n in range(n0, n1):
        add(x + n * width, total, width)


cdef void unpack(const float* partials, size_t partial, int parts, size_t weights, float* g_w, float* h_w,
                 float* g_b, float* h_b, int O, int C, int taps, int o0, int o1, bint accumulate) noexcept nogil:
    """Adds up the partial sums in a fixed order and brings them from (O, taps, C) to (O, C, taps)."""
    cdef const float* bias = partials + 2 * weights
    cdef int o, part
    for o in range(o0, o1):
        unpack_row(partials + <long>o * taps * C, partial, parts, g_w + <long>o * taps * C, C, taps, accumulate)
        unpack_row(partials + weights + <long>o * taps * C, partial, parts, h_w + <long>o * taps * C, C, taps,
                   accumulate)
        if g_b:
            unpack_row(bias + o, partial, parts, g_b + o, 1, 1, accumulate)
            unpack_row(bias + O + o, partial, parts, h_b + o, 1, 1, accumulate)


cdef inline void unpack_row(const float* x, size_t partial, int parts, float* out, int C, int taps,
                            bint accumulate) noexcept nogil:
    cdef int c, tap, part
    cdef float total
    for c in range(C):
        for tap in range(taps):
            total = x[tap * C + c]
            for part in range(1, parts):
                total += x[part * partial + tap * C + c]
            out[c * taps + tap] = total + (out[c * taps + tap] if accumulate else 0)

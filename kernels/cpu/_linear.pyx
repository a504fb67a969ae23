# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Moment products of a dense layer: tiles of sgemm, one per OpenMP thread. See linear.py for the formulas."""

from cython.parallel cimport parallel, prange
from libc.string cimport memcpy, memset

from pytagi_ddp.kernels.cpu._blas cimport Grid, add, best_grid, cut, product, square, square_plus, times_jacobian

from pytagi_ddp.kernels.cpu.workspace import workspace

cdef enum:
    BLOCK = 512  # edge of the blocks of W^2 and of weight deltas: 1 MB, written and used while in cache
    BATCH_BLOCK = 1024  # rows of squared activations kept at once
    SERIAL_FLOPS = 1000000  # below this, waking the threads costs more than they save


def forward(const float[:, ::1] mu, const float[:, ::1] var, const float[:, ::1] w_mu, const float[:, ::1] w_var,
            const float[::1] b_mu, const float[::1] b_var, float[:, ::1] out_mu, float[:, ::1] out_var, int threads):
    cdef int B = mu.shape[0], I = mu.shape[1], O = w_mu.shape[0], t, b0, b1, o0, o1
    if <double>B * I * O < SERIAL_FLOPS:
        threads = 1
    cdef Grid grid = best_grid(B, O, threads)
    cdef size_t per_thread = BLOCK * (min(B, BATCH_BLOCK) + BLOCK)
    cdef float[::1] scratch = workspace(threads * per_thread)
    cdef const float* bias_mu = NULL if b_mu is None else &b_mu[0]
    cdef const float* bias_var = NULL if b_var is None else &b_var[0]
    cdef const float* variance = NULL if var is None else &var[0, 0]
    for t in prange(threads, schedule="static", num_threads=threads, nogil=True):
        b0 = cut(B, t // grid.column_parts, grid.row_parts)
        b1 = cut(B, t // grid.column_parts + 1, grid.row_parts)
        o0 = cut(O, t % grid.column_parts, grid.column_parts)
        o1 = cut(O, t % grid.column_parts + 1, grid.column_parts)
        forward_tile(&mu[0, 0], variance, &w_mu[0, 0], &w_var[0, 0], bias_mu, bias_var, &out_mu[0, 0], &out_var[0, 0],
                     I, O, b0, b1, o0, o1, &scratch[t * per_thread])


cdef void forward_tile(const float* mu, const float* var, const float* w, const float* s, const float* b_mu,
                       const float* b_var, float* out_mu, float* out_var, long I, long O, int b0, int b1, int o0,
                       int o1, float* scratch) noexcept nogil:
    cdef int b, o, i, n, m, k, row
    cdef float* mu2
    cdef float* w2s = scratch
    for b in range(b0, b1):
        fill(out_mu + b * O + o0, b_mu, o0, o1)
        fill(out_var + b * O + o0, b_var, o0, o1)
    for b from b0 <= b < b1 by BATCH_BLOCK:
        n = min(BATCH_BLOCK, b1 - b)
        for i from 0 <= i < I by BLOCK:
            k = min(BLOCK, I - i)
            mu2 = scratch + BLOCK * BLOCK
            for row in range(n):
                square(mu + (b + row) * I + i, mu2 + row * k, k)
            for o from o0 <= o < o1 by BLOCK:
                m = min(BLOCK, o1 - o)
                product(False, True, n, m, k, mu + b * I + i, I, w + o * I + i, I, 1, out_mu + b * O + o, O)
                product(False, True, n, m, k, mu2, k, s + o * I + i, I, 1, out_var + b * O + o, O)
                if var:
                    for row in range(m):
                        square_plus(w + (o + row) * I + i, s + (o + row) * I + i, w2s + row * k, k)
                    product(False, True, n, m, k, var + b * I + i, I, w2s, k, 1, out_var + b * O + o, O)


cdef inline void fill(float* out, const float* bias, int first, int last) noexcept nogil:
    if bias:
        memcpy(out, bias + first, (last - first) * sizeof(float))
    else:
        memset(out, 0, (last - first) * sizeof(float))


def backward(const float[:, ::1] mu, const float[:, ::1] jcb, const float[:, ::1] delta_mu,
             const float[:, ::1] delta_var, const float[:, ::1] w_mu, float[:, ::1] in_delta_mu,
             float[:, ::1] in_delta_var, float[:, ::1] g_w, float[:, ::1] h_w, float[::1] g_b, float[::1] h_b,
             bint accumulate, int threads):
    cdef int B = mu.shape[0], I = mu.shape[1], O = w_mu.shape[0], t, r0, r1, i0, i1
    if <double>B * I * O < SERIAL_FLOPS:
        threads = 1
    cdef Grid state = best_grid(B, I, threads), weight = best_grid(O, I, threads)
    cdef size_t per_thread = BLOCK * max(BLOCK, min(B, BATCH_BLOCK))
    cdef float[::1] scratch = workspace(threads * per_thread)
    cdef const float* jacobian = NULL if jcb is None else &jcb[0, 0]
    cdef float* in_mu = NULL if in_delta_mu is None else &in_delta_mu[0, 0]
    cdef float* in_var = NULL if in_delta_var is None else &in_delta_var[0, 0]
    cdef float* bias_g = NULL if g_b is None else &g_b[0]
    cdef float* bias_h = NULL if h_b is None else &h_b[0]
    for t in prange(threads, schedule="static", num_threads=threads, nogil=True):
        if in_mu:
            r0 = cut(B, t // state.column_parts, state.row_parts)
            r1 = cut(B, t // state.column_parts + 1, state.row_parts)
            i0 = cut(I, t % state.column_parts, state.column_parts)
            i1 = cut(I, t % state.column_parts + 1, state.column_parts)
            state_tile(&delta_mu[0, 0], &delta_var[0, 0], &w_mu[0, 0], jacobian, in_mu, in_var, I, O, r0, r1, i0, i1,
                       &scratch[t * per_thread])
        r0 = cut(O, t // weight.column_parts, weight.row_parts)
        r1 = cut(O, t // weight.column_parts + 1, weight.row_parts)
        i0 = cut(I, t % weight.column_parts, weight.column_parts)
        i1 = cut(I, t % weight.column_parts + 1, weight.column_parts)
        weight_tile(&mu[0, 0], &delta_mu[0, 0], &delta_var[0, 0], &g_w[0, 0], &h_w[0, 0], accumulate, B, I, O, r0, r1,
                    i0, i1, &scratch[t * per_thread])
        if i0 == 0 and bias_g:
            bias_slice(&delta_mu[0, 0], bias_g, accumulate, B, O, r0, r1)
            bias_slice(&delta_var[0, 0], bias_h, accumulate, B, O, r0, r1)


cdef void state_tile(const float* delta_mu, const float* delta_var, const float* w, const float* jcb, float* in_mu,
                     float* in_var, long I, long O, int b0, int b1, int i0, int i1, float* w2) noexcept nogil:
    cdef int b, o, i, n, m, row
    for i from i0 <= i < i1 by BLOCK:
        n = min(BLOCK, i1 - i)
        for o from 0 <= o < O by BLOCK:
            m = min(BLOCK, O - o)
            product(False, False, b1 - b0, n, m, delta_mu + b0 * O + o, O, w + o * I + i, I, o > 0,
                    in_mu + b0 * I + i, I)
            for row in range(m):
                square(w + (o + row) * I + i, w2 + row * n, n)
            product(False, False, b1 - b0, n, m, delta_var + b0 * O + o, O, w2, n, o > 0, in_var + b0 * I + i, I)
        if jcb:
            for b in range(b0, b1):
                times_jacobian(in_mu + b * I + i, in_var + b * I + i, jcb + b * I + i, n)


cdef void weight_tile(const float* mu, const float* delta_mu, const float* delta_var, float* g, float* h,
                      bint accumulate, int B, long I, long O, int o0, int o1, int i0, int i1,
                      float* mu2) noexcept nogil:
    cdef int b, o, i, n, m, k, row
    cdef float beta
    for i from i0 <= i < i1 by BLOCK:
        n = min(BLOCK, i1 - i)
        for b from 0 <= b < B by BATCH_BLOCK:
            k = min(BATCH_BLOCK, B - b)
            beta = accumulate or b > 0
            for row in range(k):
                square(mu + (b + row) * I + i, mu2 + row * n, n)
            for o from o0 <= o < o1 by BLOCK:
                m = min(BLOCK, o1 - o)
                product(True, False, m, n, k, delta_mu + b * O + o, O, mu + b * I + i, I, beta, g + o * I + i, I)
                product(True, False, m, n, k, delta_var + b * O + o, O, mu2, n, beta, h + o * I + i, I)


cdef void bias_slice(const float* delta, float* total, bint accumulate, int B, long O, int o0,
                     int o1) noexcept nogil:
    cdef int b
    if not accumulate:
        memset(total + o0, 0, (o1 - o0) * sizeof(float))
    for b in range(B):
        add(delta + b * O + o0, total + o0, o1 - o0)

# cython: wraparound=False, cdivision=True
"""Moment products of a dense layer, in OpenMP threads; linear.py calls them, and has the formulas.

The results are divided into tiles, one for each thread. A thread computes its tile in blocks. It copies the rows of a
block of an operand into contiguous memory, unless they are contiguous: rows that are 16 KB apart (4096 inputs) share a
few cache sets, which halves the speed of a product. Squares are computed from the same blocks, while they are in cache.

`forward` and `backward` check the arrays and store their arguments as machine words. `forward_entry` and
`backward_entry` read these and compute, so that _replay.pyx can repeat a call without Python.
"""

from cython.parallel cimport prange
from libc.stdint cimport intptr_t

from pytagi_ddp.kernels.cpu.products._blas cimport (LARGEST, Grid, Product, best_grid, by_amx, copy_rows, cut, even,
                                                    fill_rows, lines, packed, panel_of, panel_width, prefers_columns, product,
                                                    square, square_plus, sum_columns, threads_for, times_jacobian,
                                                    times_panels, variance_product)

from pytagi_ddp.kernels.cpu.runtime._replay cimport issue

from pytagi_ddp.kernels.cpu.runtime.extension import size_error

cdef extern from "few_rows.h" nogil:
    void forward_few "tagi_forward_few"(const float* mu, const float* var, const float* w, const float* s,
                                        const float* b_mu, const float* b_var, float* out_mu, float* out_var,
                                        long rows, long inputs, long outputs)
    void state_few "tagi_state_few"(const float* delta_mu, const float* delta_var, const float* w, const float* jcb,
                                    float* in_mu, float* in_var, long rows, long inputs, long outputs)
    void weight_few "tagi_weight_few"(const float* mu, const float* delta_mu, const float* delta_var, float* g,
                                      float* h, float* g_b, float* h_b, int accumulate, long rows, long inputs,
                                      long outputs)

cdef extern from "small_batch.h" nogil:
    enum: SAMPLES "TAGI_SAMPLES"
    void forward_small "tagi_forward_small"(const float* mu, const float* var, const float* w, const float* s,
                                            const float* b_mu, const float* b_var, float* out_mu, float* out_var,
                                            long rows, long inputs, long outputs, long first, long last,
                                            float* scratch)

cdef extern from "transpose.h" nogil:
    void transpose_matrix "tagi_transpose_matrix"(const float* x, size_t rows, size_t columns, size_t stride,
                                                  float* out)

cdef enum:
    FEW = 2  # number of samples up to which few_rows.h computes products
    LIGHT = 65536  # number of weights that fit into the first caches
    LONG = 4096  # number of inputs up to which small_batch.h computes outputs: those of 16 samples fit into a cache
    MANY = 64  # number of samples from which transposing the weights saves time, if `prefers_columns`
    INPUTS = 800  # inputs of a block, forward
    OUTPUTS = 128  # outputs of a block, forward
    MOST_OUTPUTS = 256  # the same with AMX
    INNER = 576  # outputs of a block in `state_tile`, inputs of a block in `weight_tile`
    BATCH = 512  # samples of a block


cdef bint shaped(const Py_ssize_t* shape, Py_ssize_t rows, Py_ssize_t columns):
    return shape[0] == rows and shape[1] == columns


def forward(const float[:, ::1] mu, const float[:, ::1] var, const float[:, ::1] w_mu, const float[:, ::1] w_var,
            const float[::1] b_mu, const float[::1] b_var, float[:, ::1] out_mu, float[:, ::1] out_var, int threads,
            bint mixed):
    """linear.forward for B samples, I inputs and O outputs; var, and both biases, may be None.

    mu and var are (B, I), weights (O, I), biases (O) and results (B, O), which must not overlap other arrays.
    """
    cdef int B = mu.shape[0], I = mu.shape[1], O = w_mu.shape[0]
    if not (0 < min(B, I, O, threads) and max(B, I, O) < LARGEST and shaped(mu.shape, B, I)
            and shaped(w_mu.shape, O, I) and shaped(w_var.shape, O, I)
            and (var is None or shaped(var.shape, B, I))
            and (b_mu is None) == (b_var is None) and (b_mu is None or b_mu.shape[0] == b_var.shape[0] == O)
            and shaped(out_mu.shape, B, O) and shaped(out_var.shape, B, O)):
        raise size_error("linear.forward", mu=mu, var=var, w_mu=w_mu, w_var=w_var, b_mu=b_mu, b_var=b_var,
                         out_mu=out_mu, out_var=out_var)
    cdef Product multiply_var = variance_product(mixed)
    threads = threads_for(<double>B * I * O, threads)
    cdef const float* bias_mu = <const float*>NULL if b_mu is None else &b_mu[0]
    cdef const float* bias_var = <const float*>NULL if b_var is None else &b_var[0]
    cdef const float* variance = <const float*>NULL if var is None else &var[0, 0]
    cdef intptr_t[13] words = [B, I, O, threads, <intptr_t>multiply_var, <intptr_t>&mu[0, 0], <intptr_t>variance,
                               <intptr_t>&w_mu[0, 0], <intptr_t>&w_var[0, 0], <intptr_t>bias_mu, <intptr_t>bias_var,
                               <intptr_t>&out_mu[0, 0], <intptr_t>&out_var[0, 0]]
    issue(forward_entry, words, 13, threads * forward_scratch(B, I), threads,
          (mu, var, w_mu, w_var, b_mu, b_var, out_mu, out_var))


cdef bint few(long B, long I, long O, Product multiply_var) noexcept nogil:
    """Whether few_rows.h computes the products."""
    return B <= FEW and I * O <= LIGHT and multiply_var == product


cdef bint small(long B, long I, long O, Product multiply_var) noexcept nogil:
    """Whether small_batch.h computes the outputs."""
    return B < MANY and B % SAMPLES == 0 and I <= LONG and multiply_var == product and prefers_columns()


cdef size_t forward_scratch(int B, int I) noexcept nogil:
    """How many float32 of scratch memory each thread needs; small_batch.h needs less."""
    cdef size_t step = even(I, INPUTS)
    return 3 * (lines(step * min(B, BATCH)) + lines(step * MOST_OUTPUTS))


cdef void forward_entry(const intptr_t* words, float* scratch) noexcept nogil:
    """Computes `forward` from its stored arguments."""
    cdef int B = words[0], I = words[1], O = words[2], threads = words[3], t
    cdef size_t per_thread = forward_scratch(B, I)
    if few(B, I, O, <Product>words[4]):
        forward_few(<float*>words[5], <float*>words[6], <float*>words[7], <float*>words[8], <float*>words[9],
                    <float*>words[10], <float*>words[11], <float*>words[12], B, I, O)
    elif threads == 1:  # without a parallel region, whose start takes as long as a small product
        forward_part(words, 0, scratch)
    else:
        for t in prange(threads, schedule="static", num_threads=threads):
            forward_part(words, t, scratch + t * per_thread)


cdef void forward_part(const intptr_t* words, int t, float* scratch) noexcept nogil:
    """The part of thread t."""
    cdef int B = words[0], I = words[1], O = words[2]
    cdef Grid grid = best_grid(B, O, words[3])
    if small(B, I, O, <Product>words[4]):
        forward_small(<float*>words[5], <float*>words[6], <float*>words[7], <float*>words[8], <float*>words[9],
                      <float*>words[10], <float*>words[11], <float*>words[12], B, I, O, cut(O, t, words[3]),
                      cut(O, t + 1, words[3]), scratch)
        return
    forward_tile(<Product>words[4], <float*>words[5], <float*>words[6], <float*>words[7], <float*>words[8],
                 <float*>words[9], <float*>words[10], <float*>words[11], <float*>words[12], I, O,
                 cut(B, t // grid.column_parts, grid.row_parts), cut(B, t // grid.column_parts + 1, grid.row_parts),
                 cut(O, t % grid.column_parts, grid.column_parts),
                 cut(O, t % grid.column_parts + 1, grid.column_parts), B >= MANY and prefers_columns(), scratch)


cdef void forward_tile(Product multiply_var, const float* mu, const float* var, const float* w, const float* s,
                       const float* b_mu, const float* b_var, float* out_mu, float* out_var, long I, long O, int b0,
                       int b1, int o0, int o1, bint transposed, float* scratch) noexcept nogil:
    """Outputs o0:o1 for samples b0:b1. Results start as the bias, and each block of inputs adds to them.

    transposed: weights are transposed while they are copied, if A B is faster than A B^T. AMX reads weights in place.
    """
    cdef int b, i, o, n, k, m, j, block, step = even(I, INPUTS)
    cdef long line
    cdef float* mu2 = scratch
    cdef float* mu_copy = mu2 + lines(<long>step * min(BATCH, b1 - b0))
    cdef float* var_copy = mu_copy + lines(<long>step * min(BATCH, b1 - b0))
    cdef float* w2s = var_copy + lines(<long>step * min(BATCH, b1 - b0))
    cdef float* w_copy = w2s + lines(<long>step * MOST_OUTPUTS)
    cdef float* s_copy = w_copy + lines(<long>step * MOST_OUTPUTS)
    cdef const float* mu_block
    cdef const float* var_block = NULL
    cdef const float* w_block
    cdef const float* s_block
    for b from b0 <= b < b1 by BATCH:
        n = min(BATCH, b1 - b)
        fill_rows(out_mu + b * O + o0, O, b_mu + o0 if b_mu else NULL, n, o1 - o0)
        fill_rows(out_var + b * O + o0, O, b_var + o0 if b_var else NULL, n, o1 - o0)
        for i from 0 <= i < I by step:
            k = min(step, I - i)
            mu_block = packed(mu + b * I + i, I, n, k, mu_copy)
            square(mu_block, mu2, <long>n * k)
            if var:
                var_block = packed(var + b * I + i, I, n, k, var_copy)
            block = MOST_OUTPUTS if by_amx(n, MOST_OUTPUTS, k) else OUTPUTS
            for o from o0 <= o < o1 by block:
                m = min(block, o1 - o)
                if transposed:
                    transpose_panels(w + o * I + i, I, m, k, w_copy)
                    transpose_panels(s + o * I + i, I, m, k, s_copy)
                    times_panels(product, mu_block, n, k, w_copy, m, 1, out_mu + b * O + o, O)
                    times_panels(multiply_var, mu2, n, k, s_copy, m, 1, out_var + b * O + o, O)
                    if var:
                        square_plus(w_copy, s_copy, w2s, <long>m * k)
                        times_panels(multiply_var, var_block, n, k, w2s, m, 1, out_var + b * O + o, O)
                    continue
                if by_amx(n, m, k):
                    line, w_block, s_block = I, w + o * I + i, s + o * I + i
                    for j in range(m if var else 0):
                        square_plus(w_block + j * line, s_block + j * line, w2s + <long>j * k, k)
                else:
                    line, w_block = k, packed(w + o * I + i, I, m, k, w_copy)
                    s_block = packed(s + o * I + i, I, m, k, s_copy)
                    if var:
                        square_plus(w_block, s_block, w2s, <long>m * k)
                product(False, True, n, m, k, mu_block, k, w_block, line, 1, out_mu + b * O + o, O)
                multiply_var(False, True, n, m, k, mu2, k, s_block, line, 1, out_var + b * O + o, O)
                if var:
                    multiply_var(False, True, n, m, k, var_block, k, w2s, k, 1, out_var + b * O + o, O)


cdef void transpose_panels(const float* w, long stride, int m, int k, float* out) noexcept nogil:
    """Copies w (m x k, rows `stride` apart) to panels of its transpose, as `times_panels` reads them."""
    cdef int first, panel = panel_width()
    for first from 0 <= first < m by panel:
        transpose_matrix(w + first * stride, min(panel, m - first), k, stride, out + <long>first * k)


def backward(const float[:, ::1] mu, const float[:, ::1] jcb, const float[:, ::1] delta_mu,
             const float[:, ::1] delta_var, const float[:, ::1] w_mu, float[:, ::1] in_delta_mu,
             float[:, ::1] in_delta_var, float[:, ::1] g_w, float[:, ::1] h_w, float[::1] g_b, float[::1] h_b,
             bint accumulate, int threads, bint mixed):
    """linear.backward for B samples, I inputs and O outputs.

    mu, jcb and in_deltas are (B, I), deltas (B, O), w_mu, g_w and h_w (O, I), g_b and h_b (O). jcb, both in_deltas, and
    both g_b and h_b, may be None. Results must not overlap other arrays.
    """
    cdef int B = mu.shape[0], I = mu.shape[1], O = w_mu.shape[0]
    if not (0 < min(B, I, O, threads) and max(B, I, O) < LARGEST and shaped(mu.shape, B, I)
            and shaped(w_mu.shape, O, I) and shaped(g_w.shape, O, I) and shaped(h_w.shape, O, I)
            and (jcb is None or shaped(jcb.shape, B, I))
            and shaped(delta_mu.shape, B, O) and shaped(delta_var.shape, B, O)
            and (in_delta_mu is None) == (in_delta_var is None)
            and (in_delta_mu is None or shaped(in_delta_mu.shape, B, I) and shaped(in_delta_var.shape, B, I))
            and (g_b is None) == (h_b is None) and (g_b is None or g_b.shape[0] == h_b.shape[0] == O)):
        raise size_error("linear.backward", mu=mu, jcb=jcb, delta_mu=delta_mu, delta_var=delta_var, w_mu=w_mu,
                         in_delta_mu=in_delta_mu, in_delta_var=in_delta_var, g_w=g_w, h_w=h_w, g_b=g_b, h_b=h_b)
    cdef Product multiply_var = variance_product(mixed)
    threads = threads_for(<double>B * I * O, threads)
    cdef const float* jacobian = <const float*>NULL if jcb is None else &jcb[0, 0]
    cdef float* in_mu = NULL if in_delta_mu is None else &in_delta_mu[0, 0]
    cdef float* in_var = NULL if in_delta_var is None else &in_delta_var[0, 0]
    cdef float* bias_g = NULL if g_b is None else &g_b[0]
    cdef float* bias_h = NULL if h_b is None else &h_b[0]
    cdef intptr_t[17] words = [B, I, O, threads, <intptr_t>multiply_var, accumulate, <intptr_t>&mu[0, 0],
                               <intptr_t>jacobian, <intptr_t>&delta_mu[0, 0], <intptr_t>&delta_var[0, 0],
                               <intptr_t>&w_mu[0, 0], <intptr_t>in_mu, <intptr_t>in_var, <intptr_t>&g_w[0, 0],
                               <intptr_t>&h_w[0, 0], <intptr_t>bias_g, <intptr_t>bias_h]
    issue(backward_entry, words, 17, threads * backward_scratch(B, I, O), threads,
          (mu, jcb, delta_mu, delta_var, w_mu, in_delta_mu, in_delta_var, g_w, h_w, g_b, h_b))


cdef size_t backward_scratch(int B, int I, int O) noexcept nogil:
    """How many float32 of scratch memory each thread needs.

    Blocks of a tile with a part of the inputs may be longer than those of all inputs, which are divided evenly.
    """
    cdef size_t rows = min(B, BATCH), outputs = even(O, INNER), inputs = min(I, INNER)
    return max(2 * (lines(outputs * rows) + lines(outputs * panel_width())),
               lines(rows * inputs) + lines(rows * panel_width()))


cdef void backward_entry(const intptr_t* words, float* scratch) noexcept nogil:
    """Computes `backward` from its stored arguments."""
    cdef int B = words[0], I = words[1], O = words[2], threads = words[3], t
    cdef size_t per_thread = backward_scratch(B, I, O)
    if few(B, I, O, <Product>words[4]):
        if words[11]:
            state_few(<float*>words[8], <float*>words[9], <float*>words[10], <float*>words[7], <float*>words[11],
                      <float*>words[12], B, I, O)
        weight_few(<float*>words[6], <float*>words[8], <float*>words[9], <float*>words[13], <float*>words[14],
                   <float*>words[15], <float*>words[16], words[5], B, I, O)
    elif threads == 1:
        backward_part(words, 0, scratch)
    else:
        for t in prange(threads, schedule="static", num_threads=threads):
            backward_part(words, t, scratch + t * per_thread)


cdef void backward_part(const intptr_t* words, int t, float* scratch) noexcept nogil:
    """The part of thread t."""
    cdef int B = words[0], I = words[1], O = words[2], threads = words[3]
    cdef Product multiply_var = <Product>words[4]
    cdef Grid state = best_grid(B, I, threads), weight = best_grid(O, I, threads)
    if words[11]:
        state_tile(multiply_var, <float*>words[8], <float*>words[9], <float*>words[10], <float*>words[7],
                   <float*>words[11], <float*>words[12], I, O, cut(B, t // state.column_parts, state.row_parts),
                   cut(B, t // state.column_parts + 1, state.row_parts),
                   cut(I, t % state.column_parts, state.column_parts),
                   cut(I, t % state.column_parts + 1, state.column_parts), scratch)
    if words[15]:
        sum_columns(<float*>words[8], B, O, <float*>words[15], words[5], t, threads)
        sum_columns(<float*>words[9], B, O, <float*>words[16], words[5], t, threads)
    weight_tile(multiply_var, <float*>words[6], <float*>words[8], <float*>words[9], <float*>words[13],
                <float*>words[14], words[5], B, I, O,
                cut(O, t // weight.column_parts, weight.row_parts),
                cut(O, t // weight.column_parts + 1, weight.row_parts),
                cut(I, t % weight.column_parts, weight.column_parts),
                cut(I, t % weight.column_parts + 1, weight.column_parts), scratch)


cdef void state_tile(Product multiply_var, const float* delta_mu, const float* delta_var, const float* w,
                     const float* jcb, float* in_mu, float* in_var, long I, long O, int b0, int b1, int i0, int i1,
                     float* scratch) noexcept nogil:
    """Deltas of inputs i0:i1 for samples b0:b1."""
    cdef int b, o, i, n, k, m, row, step = even(O, INNER), panel = panel_of(b1 - b0, step)
    cdef float* w_panel = scratch
    cdef float* w2 = w_panel + lines(<long>step * panel)
    cdef float* mu_copy = w2 + lines(<long>step * panel)
    cdef float* var_copy = mu_copy + lines(<long>step * min(BATCH, b1 - b0))
    cdef const float* mu_block
    cdef const float* var_block
    for b from b0 <= b < b1 by BATCH:
        n = min(BATCH, b1 - b)
        for o from 0 <= o < O by step:
            k = min(step, O - o)
            mu_block = packed(delta_mu + b * O + o, O, n, k, mu_copy)
            var_block = packed(delta_var + b * O + o, O, n, k, var_copy)
            for i from i0 <= i < i1 by panel:
                m = min(panel, i1 - i)
                copy_rows(w + o * I + i, I, w_panel, k, m)
                square(w_panel, w2, <long>k * m)
                product(False, False, n, m, k, mu_block, k, w_panel, m, o > 0, in_mu + b * I + i, I)
                multiply_var(False, False, n, m, k, var_block, k, w2, m, o > 0, in_var + b * I + i, I)
                if jcb and o + k == O:
                    for row in range(b, b + n):
                        times_jacobian(in_mu + row * I + i, in_var + row * I + i, jcb + row * I + i, m)


cdef void weight_tile(Product multiply_var, const float* mu, const float* delta_mu, const float* delta_var, float* g,
                      float* h, bint accumulate, int B, long I, long O, int o0, int o1, int i0, int i1,
                      float* scratch) noexcept nogil:
    """The sums over the batch for weights [o0:o1, i0:i1]."""
    cdef int b, i, k, n, step = even(i1 - i0, INNER)
    cdef float beta
    cdef float* columns = scratch
    cdef float* panel = columns + lines(<long>step * min(B, BATCH))
    for i from i0 <= i < i1 by step:
        n = min(step, i1 - i)
        for b from 0 <= b < B by BATCH:
            k = min(BATCH, B - b)
            beta = accumulate or b > 0
            copy_rows(mu + b * I + i, I, columns, k, n)
            add_outer(product, delta_mu + b * O, O, o0, o1, columns, k, n, beta, g + i, I, panel)
            square(columns, columns, <long>k * n)
            add_outer(multiply_var, delta_var + b * O, O, o0, o1, columns, k, n, beta, h + i, I, panel)


cdef void add_outer(Product multiply, const float* delta, long O, int o0, int o1, const float* columns, int k, int n,
                    float beta, float* sums, long stride, float* panel) noexcept nogil:
    """sums[o0:o1] = delta[:, o0:o1]^T columns + beta sums[o0:o1]; columns (k, n), rows of sums `stride` apart."""
    cdef int o, m, limit = panel_of(n, k)
    for o from o0 <= o < o1 by limit:
        m = min(limit, o1 - o)
        multiply(True, False, m, n, k, packed(delta + o, O, k, m, panel), m, columns, n, beta, sums + o * stride,
                 stride)

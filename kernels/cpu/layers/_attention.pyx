# cython: wraparound=False, cdivision=True
"""Moment products of the matrices of attention heads, in OpenMP threads; attention.py calls them, and has the formulas.

Each thread computes a part of the heads, one head after the other. Heads whose products are added to one result form a
group, which one thread computes, so that no two threads write the same result.

A causal matrix is 0 above its diagonal, or not needed there. Products are computed in blocks of 128 rows, and each
block skips the columns beyond the diagonal of its last row.
"""

from cython.parallel cimport prange

from pytagi_ddp.kernels.cpu.products._blas cimport LARGEST, copy_rows, lines, product, square, square_plus, threads_for

from pytagi_ddp.kernels.cpu.runtime.workspace import workspace

cdef extern from "flush.h" nogil:
    size_t flush "tagi_flush"()
    void set_control_word "tagi_set_control_word"(size_t word)

cdef enum:
    FACTOR = 1  # `kernels.tensors.CAUSAL_FACTOR`: the first factor is causal
    RESULT = 2  # `kernels.tensors.CAUSAL_RESULT`: the result is
    ROWS = 128  # rows of a block of the first factor in memory


# A matrix for each head of each sample, as `kernels.tensors.Heads` describes it. Element (i, j) for head h of sample b
# lies at first + b * batch + (h // share) * head + i * row + j.
cdef struct Matrix:
    float* mu
    float* var  # NULL for a variance of 0
    long first, batch, head, row
    int share  # number of heads that share a matrix
    bint transposed  # whether the matrix is the transpose of the memory


cdef Matrix matrix_of(const float[::1] mu, const float[::1] var, tuple place, int batch, int heads, int rows,
                      int columns) except *:
    """The matrices (rows, columns) in flat arrays; place is `Heads.place`. Raises ValueError if they exceed these."""
    cdef Matrix m
    cdef Py_ssize_t size = mu.shape[0] if var is None else min(mu.shape[0], var.shape[0])
    m.mu = <float*>&mu[0]
    m.var = NULL if var is None else <float*>&var[0]
    m.first, m.batch, m.head, m.row, m.share, m.transposed = place
    if m.transposed:
        rows, columns = columns, rows
    if not (0 < min(batch, heads, rows, columns, m.share) and max(batch, heads, rows, columns, m.share) < LARGEST
            and heads % m.share == 0 and min(m.first, m.batch, m.head, m.row) >= 0
            and m.first + (batch - 1) * m.batch + (heads // m.share - 1) * m.head + (rows - 1) * m.row + columns
            <= size):
        raise ValueError(f"attention.multiply: {batch} x {heads} matrices of {rows} x {columns} at {place} do not fit "
                         f"into an array of {size}")
    return m


cdef long start_of(const Matrix* m, long b, int h) noexcept nogil:
    """The index of the first element for head h of sample b."""
    return m.first + b * m.batch + h // m.share * m.head


def multiply(const float[::1] x_mu, const float[::1] x_var, tuple x_place, const float[::1] y_mu,
             const float[::1] y_var, tuple y_place, float[::1] out_mu, float[::1] out_var, tuple out_place, int batch,
             int heads, int rows, int depth, int columns, int causal, int threads):
    """out (rows, columns) = x (rows, depth) y (depth, columns) for each head of each sample: attention.multiply.

    The arrays are whole buffers; the places are those of the matrices in them. The result must not overlap a factor.
    """
    cdef Matrix x = matrix_of(x_mu, x_var, x_place, batch, heads, rows, depth)
    cdef Matrix y = matrix_of(y_mu, y_var, y_place, batch, heads, depth, columns)
    cdef Matrix out = matrix_of(out_mu, out_var, out_place, batch, heads, rows, columns)
    cdef long groups = <long>batch * heads // out.share, t
    threads = threads_for(<double>groups * out.share * rows * depth * columns, threads)
    cdef size_t control
    cdef size_t of_x = lines(<size_t>ROWS * (rows if x.transposed else depth))
    cdef size_t per_thread = of_x + 3 * lines(<size_t>depth * columns)
    cdef float[::1] scratch = workspace(threads * per_thread)
    for t in prange(threads, schedule="static", num_threads=threads, nogil=True):
        control = flush()
        multiply_groups(&x, &y, &out, heads, rows, depth, columns, causal, groups * t // threads,
                        groups * (t + 1) // threads, &scratch[t * per_thread])
        set_control_word(control)


cdef void multiply_groups(const Matrix* x, const Matrix* y, const Matrix* out, int heads, int rows, int depth,
                          int columns, int causal, long first, long last, float* scratch) noexcept nogil:
    """The products of groups first:last. A group has `out.share` heads, whose products are added to one result."""
    cdef long group, share = out.share, h, b
    for group in range(first, last):
        b = group * share // heads
        for h in range(group * share % heads, group * share % heads + share):
            multiply_head(x, y, out, b, h, rows, depth, columns, causal, h % share > 0, scratch)


cdef void multiply_head(const Matrix* x, const Matrix* y, const Matrix* out, long b, int h, int rows, int depth,
                        int columns, int causal, bint more, float* scratch) noexcept nogil:
    """The product for head h of sample b; `more` adds it to the result.

    The second factor is copied, because its rows lie far apart in memory. Blocks of the first factor are rows in
    memory: rows of the result or, if it is transposed, steps of the sum. The last block comes first, because only the
    last block of a transposed causal x contributes to all rows of the result: it writes them, and the others add to
    some of them.
    """
    cdef long at_x = start_of(x, b, h), at_y = start_of(y, b, h), at = start_of(out, b, h)
    cdef long height = columns if y.transposed else depth, width = depth if y.transposed else columns  # of y in memory
    cdef long stored = depth if x.transposed else rows, across = rows if x.transposed else depth  # the same of x
    cdef float* w = scratch
    cdef float* s = w + lines(<size_t>depth * columns)
    cdef float* w2s = s + lines(<size_t>depth * columns)
    cdef float* x2 = w2s + lines(<size_t>depth * columns)
    cdef const float* part
    cdef long i, n, m, k, c, skip
    cdef float beta
    copy_rows(y.mu + at_y, y.row, w, height, width)
    if y.var:
        copy_rows(y.var + at_y, y.row, s, height, width)
        square_plus(w, s, w2s, <size_t>height * width)
    else:
        square(w, w2s, <size_t>height * width)
    for i from (stored - 1) // ROWS * ROWS >= i >= 0 by ROWS:
        n = min(ROWS, stored - i)
        m, k, c, skip = rows, depth, columns, 0
        if x.transposed:  # steps i:i + n of the sum
            k, skip = n, i
            beta = more or i + n < stored
            if causal == FACTOR:
                m = i + n
        else:  # rows i:i + n of the result
            m, beta = n, more
            if causal == FACTOR:
                k = i + n
            elif causal == RESULT:
                c = i + n
        multiply_block(x, y, at_x + i * x.row, at + (0 if x.transposed else i * out.row), out, w, s, w2s, x2, m, k, c,
                       width, skip * (1 if y.transposed else width), across, n, beta)


cdef void multiply_block(const Matrix* x, const Matrix* y, long at_x, long at, const Matrix* out, const float* w,
                         const float* s, const float* w2s, float* x2, int m, int k, int c, int width, long skip,
                         int across, int n, float beta) noexcept nogil:
    """out (m, c) = x (m, k) y (k, c) + beta out, for a block of n rows of x in memory.

    w, s and w2s = w^2 + s are the copy of y, from `skip` on; x2 is memory for the squares of the block.
    """
    cdef bint ta = x.transposed, tb = y.transposed
    cdef long used = m if ta else k, row
    product(ta, tb, m, c, k, x.mu + at_x, x.row, w + skip, width, beta, out.mu + at, out.row)
    if y.var:
        for row in range(n):
            square(x.mu + at_x + row * x.row, x2 + <long>row * across, used)
        product(ta, tb, m, c, k, x2, across, s + skip, width, beta, out.var + at, out.row)
        beta = 1
    if x.var:
        product(ta, tb, m, c, k, x.var + at_x, x.row, w2s + skip, width, beta, out.var + at, out.row)

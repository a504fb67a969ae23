# Row-major single-precision product, and how the tiles of one are shared out.
from scipy.linalg.cython_blas cimport sgemm


cdef extern from "loops.h" nogil:
    void square(const float* x, float* out, size_t n)
    void square_plus(const float* x, const float* y, float* out, size_t n)
    void times_jacobian(float* mean, float* var, const float* jcb, size_t n)
    void add(const float* x, float* total, size_t n)


cdef struct Grid:  # rows x columns of an output, cut into row_parts x column_parts tiles: one per thread
    int row_parts
    int column_parts


cdef inline Grid best_grid(int rows, int columns, int tiles) noexcept nogil:
    """The cut with the smallest tile edges: what a product reads per result."""
    cdef Grid grid = Grid(1, tiles)
    cdef int parts
    cdef double cost, best = rows + <double>columns / tiles
    for parts in range(2, tiles + 1):
        if tiles % parts == 0:
            cost = <double>rows / parts + <double>columns / (tiles // parts)
            if cost < best:
                best = cost
                grid.row_parts, grid.column_parts = parts, tiles // parts
    return grid


cdef inline int cut(int size, int part, int parts) noexcept nogil:
    """Where part `part` of `parts` starts: whole vectors of 16 except at the end."""
    cdef long long at = (<long long>size * part // parts + 8) // 16 * 16
    return size if part == parts or at > size else <int>at


cdef inline void product(bint ta, bint tb, int m, int n, int k, const float* a, int lda, const float* b, int ldb,
                         float beta, float* c, int ldc) noexcept nogil:
    """c (m x n) = op(a) op(b) + beta c. Fortran sees each row-major matrix transposed, so a and b change places."""
    cdef char* flags = b"NT"
    cdef float one = 1
    sgemm(flags + tb, flags + ta, &n, &m, &k, &one, <float*>b, &ldb, <float*>a, &lda, &beta, c, &ldc)

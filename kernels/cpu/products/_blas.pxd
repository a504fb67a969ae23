cdef extern from "loops.h" nogil:
    void square "tagi_square"(const float* x, float* out, size_t n)
    void square_plus "tagi_square_plus"(const float* x, const float* y, float* out, size_t n)
    void times_jacobian "tagi_times_jacobian"(float* mean, float* var, const float* jcb, size_t n)
    void add "tagi_add"(const float* x, float* total, size_t n)
    void copy_run "tagi_copy_run"(const float* x, float* out, size_t n)
    void copy_runs "tagi_copy_runs"(const float* x, size_t step, float* out, size_t stride, size_t n, size_t size)
    void sum_rows "tagi_sum_rows"(const float* x, size_t stride, float* total, size_t rows, size_t width)


cdef enum:
    LARGEST = 1073741824  # bound of all counts of rows, columns, pixels and taps, so that sums of two fit into an int


# The type of `product`, and of the function that multiplies variances.
ctypedef void (*Product)(bint ta, bint tb, int m, int n, int k, const float* a, long lda, const float* b, long ldb,
                         float beta, float* c, long ldc) noexcept nogil


cdef struct Grid:  # the division of rows and columns of a result into tiles, one for each thread
    int row_parts
    int column_parts


cdef int threads_for(double terms, int threads) noexcept nogil
cdef Grid best_grid(long rows, long columns, int tiles) noexcept nogil
cdef long cut(long size, int part, int parts) noexcept nogil
cdef void sum_columns(const float* x, long rows, long columns, float* total, bint accumulate, int part,
                      int parts) noexcept nogil
cdef int even(long size, long limit) noexcept nogil
cdef size_t lines(size_t size) noexcept nogil
cdef bint by_amx(int m, int n, int k) noexcept nogil
cdef bint prefers_columns() noexcept nogil
cdef int panel_width() noexcept nogil
cdef int panel_of(int m, int k) noexcept nogil
cdef void product(bint ta, bint tb, int m, int n, int k, const float* a, long lda, const float* b, long ldb,
                  float beta, float* c, long ldc) noexcept nogil
cdef void copy_rows(const float* x, long stride, float* out, int rows, int width) noexcept nogil
cdef void fill_rows(float* out, long stride, const float* row, int rows, int width) noexcept nogil
cdef Product variance_product(bint mixed) except NULL
cdef void times_panels(Product multiply, const float* a, int m, int k, const float* b, int n, float beta, float* c,
                       long ldc) noexcept nogil
cdef const float* packed(const float* x, long stride, int rows, int width, float* out) noexcept nogil

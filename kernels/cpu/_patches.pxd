cdef enum:
    ROWS = 192  # positions per block of patches
    COLUMNS = 576  # patch elements: with ROWS, 440 KB that stay in the second-level cache
    MOST_COLUMNS = 1152  # of a block with half of the positions, which is as large


cdef struct Patches:
    # Windows of channels-last images. Position (y, x) has its first tap at (y stride - top, x stride - left).
    float* x
    int batch, height, width, channels
    int kernel_height, kernel_width, stride, top, left
    int out_height, out_width


cdef long positions_of(const Patches* p) noexcept nogil
cdef int chunk_of(int channels, int taps) noexcept nogil
cdef int rows_of(int columns) noexcept nogil
cdef void gather(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil
cdef void scatter(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil

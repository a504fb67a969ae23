cdef enum:
    ROWS = 192  # positions of a block of patches
    COLUMNS = 576  # patch elements of a block: with ROWS, 440 KB, which stay in the second-level cache
    MOST_COLUMNS = 1152  # patch elements of a block with half of the positions, which takes as much memory


# The windows of channels-last images x (batch, height, width, channels). The window of output position (y, x), 0 <= y <
# out_height, 0 <= x < out_width, begins at pixel (y * stride - top, x * stride - left).
# Each number fits into an int, and so does each product that `countable` (_conv2d.pyx) names.
cdef struct Patches:
    float* x
    long batch, height, width, channels
    long kernel_height, kernel_width, stride, top, left
    long out_height, out_width


cdef long positions_of(const Patches* p) noexcept nogil
cdef int chunk_of(long channels, long taps) noexcept nogil
cdef int rows_of(int columns) noexcept nogil
cdef void gather(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil
cdef void scatter(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil

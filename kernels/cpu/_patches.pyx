# cython: cdivision=True
"""Patches of channels-last images: the rows that turn a convolution into a product (im2col and its adjoint)."""

from libc.string cimport memset

from pytagi_ddp.kernels.cpu._blas cimport add, copy_run, copy_runs, even


cdef long positions_of(const Patches* p) noexcept nogil:
    return <long>p.batch * p.out_height * p.out_width


cdef int chunk_of(int channels, int taps) noexcept nogil:
    """Channels whose taps, all of them, make a block: all where that can be, as they are copied in one run then."""
    if channels * <long>taps <= MOST_COLUMNS:
        return channels
    return even(channels, max(16, COLUMNS // max(taps, 1) // 16 * 16))


cdef int rows_of(int columns) noexcept nogil:
    """Positions per block."""
    return ROWS if columns <= COLUMNS else ROWS // 2


cdef void gather(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil:
    """block (rows, taps, channels c0:c1) = the patches of positions first:first + rows; zeros off the image."""
    move(p, first, rows, c0, c1, block, False)


cdef void scatter(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil:
    """Adds block (rows, taps, channels c0:c1) to the images, where its patches come from."""
    move(p, first, rows, c0, c1, block, True)


cdef inline void move(const Patches* p, long first, int rows, int c0, int c1, float* block, bint back) noexcept nogil:
    cdef int y = first // p.out_width % p.out_height, x = first % p.out_width, n, r, q, i, line
    cdef int channels = c1 - c0, columns = p.kernel_height * p.kernel_width * channels
    cdef int run = p.kernel_width if channels == p.channels else 1  # taps that lie side by side in the image
    cdef long image = first // (p.out_height * p.out_width) * p.height
    while rows > 0:
        n = min(rows, p.out_width - x)
        for r in range(p.kernel_height):
            line = y * p.stride - p.top + r
            for q from 0 <= q < p.kernel_width by run:
                move_runs(p.x + (image + line) * p.width * p.channels + c0, p.channels, 0 <= line < p.height, p.width,
                          x * p.stride - p.left + q, p.stride, n, run, channels,
                          block + (r * p.kernel_width + q) * channels, columns, back)
        block += n * columns
        rows -= n
        x = 0
        y += 1
        if y == p.out_height:
            y = 0
            image += p.height


cdef inline void move_runs(float* line, long pixel, bint inside, int width, int start, int stride, int n, int run,
                           int channels, float* block, long columns, bint back) noexcept nogil:
    """The same taps of n neighbouring positions; the first of them starts at pixel `start` of the line."""
    cdef int lo, hi, m
    while n > 0:
        m = 1
        lo = 0 if inside else run
        hi = run
        if inside and not 0 <= start <= width - run:
            lo = min(max(0, -start), run)
            hi = max(min(run, width - start), lo)
        if back:
            add(block + lo * channels, line + (start + lo) * pixel, (hi - lo) * channels)
        elif hi - lo == run:
            m = min(n, (width - run - start) // stride + 1)
            copy_runs(line + start * pixel, stride * pixel, block, columns, m, run * channels)
        else:
            memset(block, 0, lo * channels * sizeof(float))
            copy_run(line + (start + lo) * pixel, block + lo * channels, (hi - lo) * channels)
            memset(block + hi * channels, 0, (run - hi) * channels * sizeof(float))
        n -= m
        start += m * stride
        block += m * columns

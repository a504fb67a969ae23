# cython: cdivision=True
"""Patches of channels-last images: the matrix that turns a convolution into a product (im2col), and its adjoint.

A patch is the window of pixels that one output position of a convolution depends on, as a row of the matrix. The files
_conv2d_*.pyx build such rows for a block of positions and a chunk of channels at a time.
"""

from libc.string cimport memset

from pytagi_ddp.kernels.cpu.products._blas cimport add, copy_run, copy_runs, even


cdef long positions_of(const Patches* p) noexcept nogil:
    """Output positions of the whole batch."""
    return <long>p.batch * p.out_height * p.out_width


cdef int chunk_of(long channels, long taps) noexcept nogil:
    """Channels of a chunk, whose taps are the columns of a block.

    These are all channels if they fit: then the taps of a line of a window are contiguous, and are copied as one run.
    """
    if channels * taps <= MOST_COLUMNS:
        return channels
    return even(channels, max(16, COLUMNS // max(taps, 1) // 16 * 16))


cdef int rows_of(int columns) noexcept nogil:
    """Positions of a block of so many columns."""
    return ROWS if columns <= COLUMNS else ROWS // 2


cdef void gather(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil:
    """block (rows, taps, channels c0:c1) = the patches of positions first:first + rows, with zeros outside the
    image."""
    move(p, first, rows, c0, c1, block, False)


cdef void scatter(const Patches* p, long first, int rows, int c0, int c1, float* block) noexcept nogil:
    """Adds a block (rows, taps, channels c0:c1) to the pixels from which `gather` copies."""
    move(p, first, rows, c0, c1, block, True)


cdef inline void move(const Patches* p, long first, int rows, int c0, int c1, float* block, bint back) noexcept nogil:
    """`gather`, or `scatter` if `back`: line by line of positions, and for each tap or run of neighbouring taps."""
    cdef long y = first // p.out_width % p.out_height, x = first % p.out_width, n, r, q, line
    cdef long channels = c1 - c0, columns = p.kernel_height * p.kernel_width * channels
    cdef long run = p.kernel_width if channels == p.channels else 1  # taps that are contiguous in the image
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


cdef inline void move_runs(float* line, long pixel, bint inside, long width, long start, long stride, long n, long run,
                           long channels, float* block, long columns, bint back) noexcept nogil:
    """Copies or adds a run of `run` taps for n neighbouring positions of a line.

    The run of the first position begins at pixel `start` of the line, that of the next one `stride` pixels further.
    lo:hi are the taps inside the image. Runs that are wholly inside are copied several at a time.
    """
    cdef long lo, hi, m
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

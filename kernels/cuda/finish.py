"""The last step of a product: bias, Jacobian or accumulation, and the sum over the parts of a split product."""

from pytagi_ddp.kernels.cuda.compile import device, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.gather import ZERO, i32
from pytagi_ddp.kernels.cuda.intrinsics import divide

THREADS = 256


@device
def finish_forward(mean, variance, element, column, extra, bias_mu, bias_var, out_mu, out_var):
    """extra: add the bias of the column."""
    if extra:
        mean += bias_mu[column]
        variance += bias_var[column]
    out_mu[element] = mean
    out_var[element] = variance


@device
def finish_state(mean, variance, element, extra, jcb, out_mu, out_var):
    """extra: times the Jacobian of the element, squared for the variance."""
    if extra:
        j = jcb[element]
        mean *= j
        variance *= j * j
    out_mu[element] = mean
    out_var[element] = variance


@device
def finish_sum(mean, variance, element, extra, g, h):
    """extra: add to what is there."""
    if extra:
        mean += g[element]
        variance += h[element]
    g[element] = mean
    h[element] = variance


@device
def parameter_place(row, taps, channels):
    """Rows of PARAMETERS are (tap, input channel), kept as (column, input channel, tap).

    Returns the place in column 0 and the distance between columns.
    """
    tap, channel = divide(row, channels)
    return i32(i32(channel * taps) + tap), i32(channels * taps)


@device
def sum_parts(parts, element, size, count):
    """Sums of both moments over the parts of a split product, in their order; parts: (count, 2, size)."""
    mean, variance = ZERO, ZERO
    o = element
    for _ in range(count):
        mean += parts[o]
        variance += parts[i32(o + size)]
        o = i32(o + i32(size + size))
    return mean, variance


@kernel(floats, int32, int32, int32, int32, floats, floats, floats, floats, threads=THREADS)
def sum_forward(parts, size, count, columns, extra, bias_mu, bias_var, out_mu, out_var):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        _, column = divide(i, columns)
        finish_forward(mean, variance, i, column, extra, bias_mu, bias_var, out_mu, out_var)


@kernel(floats, int32, int32, int32, floats, floats, floats, threads=THREADS)
def sum_state(parts, size, count, extra, jcb, out_mu, out_var):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        finish_state(mean, variance, i, extra, jcb, out_mu, out_var)


@kernel(floats, int32, int32, int32, int32, int32, int32, floats, floats, floats, floats, threads=THREADS)
def sum_parameters(parts, size, count, rows, taps, channels, extra, g_b, h_b, g_w, h_w):
    i = i32(thread_index())
    if i < size:
        mean, variance = sum_parts(parts, i, size, count)
        column, row = divide(i, rows)
        if row < i32(taps * channels):
            place, apart = parameter_place(row, taps, channels)
            finish_sum(mean, variance, i32(place + i32(column * apart)), extra, g_w, h_w)
        else:
            finish_sum(mean, variance, column, extra, g_b, h_b)

"""The last step of a product: bias, Jacobian or accumulation, and the sum over the parts of a split product."""

from pytagi_ddp.kernels.cuda.compile import device, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.gather import ZERO, divide, i32

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
def finish_parameters(mean, variance, row, column, taps, channels, extra, g_b, h_b, g_w, h_w):
    """Rows are (tap, input channel), stored as (column, input channel, tap); the last row is the bias.

    extra: add to what is there.
    """
    tap, channel = divide(row, channels)
    if tap < taps:
        element = i32(i32(i32(i32(column * channels) + channel) * taps) + tap)
        if extra:
            mean += g_w[element]
            variance += h_w[element]
        g_w[element] = mean
        h_w[element] = variance
    else:
        if extra:
            mean += g_b[column]
            variance += h_b[column]
        g_b[column] = mean
        h_b[column] = variance


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
        finish_parameters(mean, variance, row, column, taps, channels, extra, g_b, h_b, g_w, h_w)

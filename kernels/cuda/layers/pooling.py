"""Pooling of channels-last images (batch, height, width, channels).

pad: rows and columns of zeros at the top and left; taps outside the image are skipped. Backward returns the deltas of
the input without its Jacobian; each input pixel gathers from the windows that cover it, row by row, without atomics.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import blocks, device, float32, floats, int32, ints, kernel, thread_index
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.formulas.bounds import displaces
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS = 256
ZERO, ONE = np.float32(0), np.float32(1)
i32 = np.int32


@device
def _first_window(pixel, kernel_size, stride, pad):
    """The first window along a side that covers `pixel`."""
    return divide(i32(max(pixel + pad - kernel_size + stride, 0)), stride)[0]


@device
def _end_window(pixel, stride, pad, windows):
    """One past the last window along a side that covers `pixel`."""
    return min(divide(i32(pixel + pad), stride)[0] + 1, windows)


@device
def _unravel(i, rows, columns, channels):
    """(image, row, column, channel) of an element, by 32-bit divisions, because 64-bit ones are subroutine calls."""
    pixel, channel = divide(i32(i), channels)
    line, column = divide(pixel, columns)
    image, row = divide(line, rows)
    return image, row, column, channel


@kernel(*[floats] * 4, *[int32] * 9, threads=THREADS, min_blocks=4)
def _average_forward(mu, var, out_mu, out_var, n, height, width, channels, rows, columns, kernel_size, stride, pad):
    i = thread_index()
    if i < n:
        b, y, x, c = _unravel(i, rows, columns, channels)
        scale = ONE / float32(kernel_size * kernel_size)
        m, s = ZERO, ZERO
        for r in range(max(y * stride - pad, 0), min(y * stride - pad + kernel_size, height)):
            for q in range(max(x * stride - pad, 0), min(x * stride - pad + kernel_size, width)):
                o = ((b * height + r) * width + q) * channels + c
                m += scale * mu[o]
                s += scale * scale * var[o]
        out_mu[i], out_var[i] = m, s


@kernel(*[floats] * 4, *[int32] * 9, threads=THREADS, min_blocks=4)
def _average_backward(
    delta_mu, delta_var, in_delta_mu, in_delta_var, n, height, width, channels, rows, columns, kernel_size, stride, pad
):
    i = thread_index()
    if i < n:
        b, r, q, c = _unravel(i, height, width, channels)
        scale = ONE / float32(kernel_size * kernel_size)
        dm, ds = ZERO, ZERO
        for y in range(_first_window(r, kernel_size, stride, pad), _end_window(r, stride, pad, rows)):
            for x in range(_first_window(q, kernel_size, stride, pad), _end_window(q, stride, pad, columns)):
                o = ((b * rows + y) * columns + x) * channels + c
                dm += scale * delta_mu[o]
                ds += scale * scale * delta_var[o]
        in_delta_mu[i], in_delta_var[i] = dm, ds


@kernel(*[floats] * 4, ints, *[int32] * 9, threads=THREADS, min_blocks=4)
def _max_forward(mu, var, out_mu, out_var, winner, n, height, width, channels, rows, columns, kernel_size, stride, pad):
    i = thread_index()
    if i < n:
        b, y, x, c = _unravel(i, rows, columns, channels)
        top, left = max(y * stride - pad, 0), max(x * stride - pad, 0)
        place = top * width + left
        best = mu[(b * height * width + place) * channels + c]
        for r in range(top, min(y * stride - pad + kernel_size, height)):
            for q in range(left, min(x * stride - pad + kernel_size, width)):
                m = mu[((b * height + r) * width + q) * channels + c]
                if displaces(m, best):
                    best = m
                    place = r * width + q
        winner[i] = place
        out_mu[i] = best
        out_var[i] = var[(b * height * width + place) * channels + c]


@kernel(*[floats] * 2, ints, *[floats] * 2, *[int32] * 9, threads=THREADS, min_blocks=4)
def _max_backward(
    delta_mu, delta_var, winner, into_mu, into_var, n, height, width, channels, rows, columns, kernel_size, stride, pad
):
    i = thread_index()
    if i < n:
        b, r, q, c = _unravel(i, height, width, channels)
        dm, ds = ZERO, ZERO
        for y in range(_first_window(r, kernel_size, stride, pad), _end_window(r, stride, pad, rows)):
            for x in range(_first_window(q, kernel_size, stride, pad), _end_window(q, stride, pad, columns)):
                o = ((b * rows + y) * columns + x) * channels + c
                if winner[o] == r * width + q:
                    dm += delta_mu[o]
                    ds += delta_var[o]
        into_mu[i], into_var[i] = dm, ds


def _sizes(image, windows) -> tuple[int, ...]:
    """Height, width and channels of the image, rows and columns of its windows."""
    return (*image.shape[1:], *windows.shape[1:3])


def average_forward(x: State, out: State, kernel_size: int, stride: int, pad: int) -> None:
    """m = sum m / k^2, s = sum s / k^4: padding counts as zeros."""
    n, sizes = out.mu.size, _sizes(x.mu, out.mu)
    arrays = x.mu, x.var, out.mu, out.var
    _average_forward.launch(blocks(n, THREADS), *arrays, n, *sizes, kernel_size, stride, pad)


def average_backward(delta: Delta, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """dm = sum dm / k^2, ds = sum ds / k^4 over the windows of a pixel."""
    n, sizes = in_delta.mu.size, _sizes(in_delta.mu, delta.mu)
    arrays = delta.mu, delta.var, in_delta.mu, in_delta.var
    _average_backward.launch(blocks(n, THREADS), *arrays, n, *sizes, kernel_size, stride, pad)


def max_forward(x: State, out: State, winner: Array, kernel_size: int, stride: int, pad: int) -> None:
    """Selects the unit with the largest mean (the first, row by row); winner: its pixel, row * width + column.

    A mean that is NaN counts as the largest; of several such means, the last one is selected.
    """
    n, sizes = out.mu.size, _sizes(x.mu, out.mu)
    arrays = x.mu, x.var, out.mu, out.var, winner
    _max_forward.launch(blocks(n, THREADS), *arrays, n, *sizes, kernel_size, stride, pad)


def max_backward(delta: Delta, winner: Array, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """Adds the deltas of each window to its winner."""
    n, sizes = in_delta.mu.size, _sizes(in_delta.mu, delta.mu)
    arrays = delta.mu, delta.var, winner, in_delta.mu, in_delta.var
    _max_backward.launch(blocks(n, THREADS), *arrays, n, *sizes, kernel_size, stride, pad)

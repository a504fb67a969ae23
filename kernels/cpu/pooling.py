"""Pooling of channels-last images (batch, height, width, channels).

pad: rows and columns of zeros at the top and left; taps beyond the image are skipped. Backward gives the deltas of
the input without its Jacobian.
"""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import PARALLEL_MIN, flushed, loop
from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads
from pytagi_ddp.kernels.formulas.bounds import displaces
from pytagi_ddp.kernels.tensors import Array, Delta, State

ZERO = np.float32(0)
_average = load("_pooling").average
call = load("_replay").call


def _starts_inside(n) -> bool:
    """Whether each window starts in the image, where it begins to look for the largest mean."""
    return n.s > 0 and n.p >= 0 and (n.y - 1) * n.s - n.p < n.h and (n.x - 1) * n.s - n.p < n.w


@loop("bhwc bhwc byxc byxc byxc _ =s =p", _starts_inside)
def _max_forward(mu, var, out_mu, out_var, winner, kernel_size, stride, pad):
    batch, height, width, channels = mu.shape
    for b in prange(batch):
        for y in range(out_mu.shape[1]):
            for x in range(out_mu.shape[2]):
                top, left = max(y * stride - pad, 0), max(x * stride - pad, 0)
                for c in range(channels):
                    winner[b, y, x, c] = top * width + left
                    out_mu[b, y, x, c] = mu[b, top, left, c]
                    out_var[b, y, x, c] = var[b, top, left, c]
                for r in range(top, min(y * stride - pad + kernel_size, height)):
                    for q in range(left, min(x * stride - pad + kernel_size, width)):
                        for c in range(channels):
                            if displaces(mu[b, r, q, c], out_mu[b, y, x, c]):
                                winner[b, y, x, c] = r * width + q
                                out_mu[b, y, x, c] = mu[b, r, q, c]
                                out_var[b, y, x, c] = var[b, r, q, c]


@loop("byxc byxc byxc bhwc bhwc")
def _max_backward(delta_mu, delta_var, winner, in_delta_mu, in_delta_var):
    batch, height, width, channels = in_delta_mu.shape
    for b in prange(batch):
        in_delta_mu[b] = ZERO
        in_delta_var[b] = ZERO
        for y in range(delta_mu.shape[1]):
            for x in range(delta_mu.shape[2]):
                for c in range(channels):
                    pixel = winner[b, y, x, c]
                    if 0 <= pixel < height * width:  # whatever the numbers are, nothing is written beside the image
                        r, q = pixel // width, pixel % width
                        in_delta_mu[b, r, q, c] += delta_mu[b, y, x, c]
                        in_delta_var[b, r, q, c] += delta_var[b, y, x, c]


def average_forward(x: State, out: State, kernel_size: int, stride: int, pad: int) -> None:
    """m = sum m / k^2, s = sum s / k^4: padding counts as zeros."""
    _run_average(x, out, kernel_size, stride, pad, False)


def average_backward(delta: Delta, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """dm = sum dm / k^2, ds = sum ds / k^4 over the windows of a pixel."""
    _run_average(delta, in_delta, kernel_size, stride, pad, True)


def _run_average(x: State | Delta, out: State | Delta, kernel_size: int, stride: int, pad: int, back: bool) -> None:
    threads = get_threads() if max(x.mu.size, out.mu.size) >= PARALLEL_MIN else 1
    arguments = x.mu, x.var, out.mu, out.var, kernel_size, stride, pad, back, threads
    call(flushed, _average, threads, arguments)


def max_forward(x: State, out: State, winner: Array, kernel_size: int, stride: int, pad: int) -> None:
    """Passes on the unit with the largest mean (the first, row by row); winner: its pixel, row * width + column.

    A mean that is NaN counts as the largest, of several the last.
    """
    _max_forward(x.mu, x.var, out.mu, out.var, winner, kernel_size, stride, pad)


def max_backward(delta: Delta, winner: Array, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """The deltas of a window go to its winner. Here they are scattered; a device that gathers needs the window too."""
    _max_backward(delta.mu, delta.var, winner, in_delta.mu, in_delta.var)

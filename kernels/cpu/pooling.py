"""Pooling of channels-last images (batch, height, width, channels).

pad: rows and columns of zeros at the top and left; taps beyond the image are skipped. Backward gives the deltas of
the input without its Jacobian.
"""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop

ZERO, ONE = np.float32(0), np.float32(1)


@loop
def average_forward(mu, var, out_mu, out_var, kernel_size, stride, pad):
    """m = sum m / k^2, s = sum s / k^4: padding counts as zeros."""
    batch, height, width, channels = mu.shape
    scale = ONE / np.float32(kernel_size * kernel_size)
    for b in prange(batch):
        for y in range(out_mu.shape[1]):
            for x in range(out_mu.shape[2]):
                for c in range(channels):
                    out_mu[b, y, x, c] = ZERO
                    out_var[b, y, x, c] = ZERO
                for r in range(max(y * stride - pad, 0), min(y * stride - pad + kernel_size, height)):
                    for q in range(max(x * stride - pad, 0), min(x * stride - pad + kernel_size, width)):
                        for c in range(channels):
                            out_mu[b, y, x, c] += scale * mu[b, r, q, c]
                            out_var[b, y, x, c] += scale * scale * var[b, r, q, c]


@loop
def average_backward(delta_mu, delta_var, in_delta_mu, in_delta_var, kernel_size, stride, pad):
    batch, height, width, channels = in_delta_mu.shape
    scale = ONE / np.float32(kernel_size * kernel_size)
    for b in prange(batch):
        in_delta_mu[b] = ZERO
        in_delta_var[b] = ZERO
        for y in range(delta_mu.shape[1]):
            for x in range(delta_mu.shape[2]):
                for r in range(max(y * stride - pad, 0), min(y * stride - pad + kernel_size, height)):
                    for q in range(max(x * stride - pad, 0), min(x * stride - pad + kernel_size, width)):
                        for c in range(channels):
                            in_delta_mu[b, r, q, c] += scale * delta_mu[b, y, x, c]
                            in_delta_var[b, r, q, c] += scale * scale * delta_var[b, y, x, c]


@loop
def max_forward(mu, var, out_mu, out_var, winner, kernel_size, stride, pad):
    """Passes on the unit with the largest mean (the first, row by row); winner: its pixel, row * width + column."""
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
                            if mu[b, r, q, c] > out_mu[b, y, x, c]:
                                winner[b, y, x, c] = r * width + q
                                out_mu[b, y, x, c] = mu[b, r, q, c]
                                out_var[b, y, x, c] = var[b, r, q, c]


@loop
def max_backward(delta_mu, delta_var, winner, in_delta_mu, in_delta_var, kernel_size, stride, pad):
    """Scatters along `winner`; a device that gathers needs the window too."""
    batch, _, width, channels = in_delta_mu.shape
    for b in prange(batch):
        in_delta_mu[b] = ZERO
        in_delta_var[b] = ZERO
        for y in range(delta_mu.shape[1]):
            for x in range(delta_mu.shape[2]):
                for c in range(channels):
                    r, q = winner[b, y, x, c] // width, winner[b, y, x, c] % width
                    in_delta_mu[b, r, q, c] += delta_mu[b, y, x, c]
                    in_delta_var[b, r, q, c] += delta_var[b, y, x, c]

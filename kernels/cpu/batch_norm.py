"""Batch normalisation of a (rows, features) array: rows are samples, or samples x pixels of a channels-last image."""

import math

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop
from pytagi_ddp.kernels.formulas.normalize import normalized_moments

ROWS = 128  # rows of one partial sum: float32 sums stay accurate, and do not depend on the number of threads
ZERO, ONE = np.float32(0), np.float32(1)


def partial_shape(rows: int, features: int) -> tuple[int, int, int]:
    """Shape of the scratch array that `moments` and `backward` need."""
    return (2, -(-rows // ROWS), features)


@loop
def moments(mu, var, partial, mean, m2):
    """mean = sum m / rows; m2 = sum (m - mean)^2 + sum s, for each feature (two passes)."""
    rows, features = mu.shape
    blocks = (rows + ROWS - 1) // ROWS
    for k in prange(blocks):
        for c in range(features):
            partial[0, k, c] = ZERO
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                partial[0, k, c] += mu[i, c]
    for c in range(features):
        total = ZERO
        for k in range(blocks):
            total += partial[0, k, c]
        mean[c] = total / np.float32(rows)
    for k in prange(blocks):
        for c in range(features):
            partial[0, k, c] = ZERO
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                d = mu[i, c] - mean[c]
                partial[0, k, c] += d * d + var[i, c]
    for c in range(features):
        total = ZERO
        for k in range(blocks):
            total += partial[0, k, c]
        m2[c] = total


@loop
def rescale(square, denominator, eps, r):
    """r = 1/sqrt(square/denominator + eps)."""
    for c in range(square.size):
        r[c] = ONE / math.sqrt(square[c] / denominator + eps)


@loop
def pool_moments(mean, m2, rows, shift, count, total, total_square):
    """Adds a batch to sums about `shift`, which is the same on every rank: so sums of ranks are sums of batches."""
    n = np.float32(rows)
    count[0] += n
    for c in range(mean.size):
        d = mean[c] - shift[c]
        total[c] += n * d
        total_square[c] += m2[c] + n * d * d


@loop
def pooled_statistics(shift, count, total, total_square, mean, var):
    """Mean and variance of the batch whose sums are those of `pool_moments`, added over ranks; var = 0 of one value."""
    n = count[0]
    for c in range(mean.size):
        d = total[c] / n
        mean[c] = shift[c] + d
        var[c] = max(total_square[c] - total[c] * d, ZERO) / max(n - ONE, ONE)


@loop
def update_running(running_mean, running_var, momentum, count, total, total_square):
    """running = momentum * running + (1 - momentum) * pooled batch; then clears the sums. Nothing if they are empty."""
    n = count[0]
    if n > ONE:
        for c in range(running_mean.size):
            d = total[c] / n
            var = (total_square[c] - total[c] * d) / (n - ONE)
            running_mean[c] += (ONE - momentum) * d
            running_var[c] = momentum * running_var[c] + (ONE - momentum) * var
    count[0] = ZERO
    for c in range(running_mean.size):
        total[c] = ZERO
        total_square[c] = ZERO


@loop
def forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    rows, features = mu.shape
    for k in prange((rows + ROWS - 1) // ROWS):
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                out_mu[i, c], out_var[i, c] = normalized_moments(
                    mu[i, c], var[i, c], mean[c], r[c], w_mu[c], w_var[c], b_mu[c], b_var[c]
                )


@loop
def backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, accumulate, g_w, h_w, g_b, h_b):
    """Batch sums for w and b; then the deltas, in place, become those of the input (without its Jacobian)."""
    rows, features = mu.shape
    blocks = (rows + ROWS - 1) // ROWS
    for k in prange(blocks):
        for c in range(features):
            partial[0, k, c] = ZERO
            partial[1, k, c] = ZERO
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                t = r[c] * (mu[i, c] - mean[c])
                partial[0, k, c] += t * delta_mu[i, c]
                partial[1, k, c] += t * t * delta_var[i, c]
    for c in range(features):
        g, h = (g_w[c], h_w[c]) if accumulate else (ZERO, ZERO)
        for k in range(blocks):
            g += partial[0, k, c]
            h += partial[1, k, c]
        g_w[c], h_w[c] = g, h
    for k in prange(blocks):
        for c in range(features):
            partial[0, k, c] = ZERO
            partial[1, k, c] = ZERO
        for i in range(k * ROWS, min(rows, (k + 1) * ROWS)):
            for c in range(features):
                slope = r[c] * w_mu[c]
                partial[0, k, c] += delta_mu[i, c]
                partial[1, k, c] += delta_var[i, c]
                delta_mu[i, c] *= slope
                delta_var[i, c] *= slope * slope
    for c in range(g_b.size):
        g, h = (g_b[c], h_b[c]) if accumulate else (ZERO, ZERO)
        for k in range(blocks):
            g += partial[0, k, c]
            h += partial[1, k, c]
        g_b[c], h_b[c] = g, h

"""Layer normalisation of (batch, positions, features): statistics per sample, affine map per feature."""

import math

import numpy as np

from pytagi_ddp.kernels.cuda.columns import (
    LANES,
    THREADS,
    WIDTH,
    add_partials,
    column,
    lane,
    lanes_sum,
    merge_threads,
)
from pytagi_ddp.kernels.cuda.compile import blocks, cuda, float32, floats, int32, kernel
from pytagi_ddp.kernels.formulas.normalize import normalized_moments

POSITIONS = 8 * LANES  # of one block of threads in the forward pass
ZERO, ONE = np.float32(0), np.float32(1)


@kernel(floats, floats, floats, floats, float32, int32, threads=THREADS)
def _moments(mu, var, mean, r, eps, units):
    """One block per sample; Welford in each thread, then a tree."""
    counts = cuda.shared.array(THREADS, float32)
    means = cuda.shared.array(THREADS, float32)
    squares = cuda.shared.array(THREADS, float32)
    start = cuda.blockIdx.x * units
    n, a, s = ZERO, ZERO, ZERO
    for i in range(start + cuda.threadIdx.x, start + units, THREADS):
        n += ONE
        d = mu[i] - a
        a += d / n
        s += d * (mu[i] - a) + var[i]
    n, a, s = merge_threads(n, a, s, counts, means, squares, 1)
    if cuda.threadIdx.x == 0:
        mean[cuda.blockIdx.x] = a
        r[cuda.blockIdx.x] = ONE / math.sqrt(s / (n - ONE) + eps)


@kernel(*[floats] * 10, int32, int32, threads=THREADS)
def _forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var, positions, features):
    c = column()
    b = cuda.blockIdx.x
    if c < features:
        first = cuda.blockIdx.z * POSITIONS
        for p in range(first + lane(), min(positions, first + POSITIONS), LANES):
            i = (b * positions + p) * features + c
            out_mu[i], out_var[i] = normalized_moments(
                mu[i], var[i], mean[b], r[b], w_mu[c], w_var[c], b_mu[c], b_var[c]
            )


@kernel(*[floats] * 7, int32, int32, int32, threads=THREADS)
def _backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, batch, positions, features):
    scratch = cuda.shared.array(THREADS, float32)
    c = column()
    b = cuda.blockIdx.x
    gw, hw, gb, hb = ZERO, ZERO, ZERO, ZERO
    if c < features:
        scale, centre = r[b], mean[b]
        slope = scale * w_mu[c]
        for p in range(lane(), positions, LANES):
            i = (b * positions + p) * features + c
            dm, ds = delta_mu[i], delta_var[i]
            t = scale * (mu[i] - centre)
            gw += t * dm
            hw += t * t * ds
            gb += dm
            hb += ds
            delta_mu[i] = slope * dm
            delta_var[i] = slope * slope * ds
    gw = lanes_sum(gw, scratch)
    hw = lanes_sum(hw, scratch)
    gb = lanes_sum(gb, scratch)
    hb = lanes_sum(hb, scratch)
    if c < features and lane() == 0:
        i = b * features + c
        plane = batch * features
        partial[i], partial[plane + i], partial[2 * plane + i], partial[3 * plane + i] = gw, hw, gb, hb


def moments(mu, var, eps, mean, r):
    """Per sample: mean over all positions and features, r = 1/sqrt(variance + eps) with n - 1 in the denominator."""
    batch, positions, features = mu.shape
    _moments.launch(batch, mu, var, mean, r, eps, positions * features)


def forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    batch, positions, features = mu.shape
    grid = (batch, blocks(features, WIDTH), blocks(positions, POSITIONS))
    _forward.launch(grid, mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var, positions, features)


def backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, accumulate, g_w, h_w, g_b, h_b):
    """Batch sums for w and b (partial: (4, batch, features) scratch); the deltas become those of the input."""
    grid = (mu.shape[0], blocks(mu.shape[2], WIDTH))
    _backward.launch(grid, mu, mean, r, w_mu, delta_mu, delta_var, partial, *mu.shape)
    add_partials(partial, accumulate, g_w, h_w, g_b, h_b)

"""Layer normalisation of (batch, positions, features): statistics per sample, affine map per feature."""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop
from pytagi_ddp.kernels.formulas.normalize import (
    input_deltas,
    normalized_moments,
    reciprocal_deviation,
    weight_summands,
)
from pytagi_ddp.kernels.tensors import Array, Delta, State, Tensor

ZERO, ONE = np.float32(0), np.float32(1)


@loop
def _moments(mu, var, eps, mean, r):
    batch, positions, features = mu.shape
    n = np.float32(positions * features)
    for b in prange(batch):
        total = ZERO
        for p in range(positions):
            part = ZERO
            for c in range(features):
                part += mu[b, p, c]
            total += part
        m = total / n
        total = ZERO
        for p in range(positions):
            part = ZERO
            for c in range(features):
                d = mu[b, p, c] - m
                part += d * d + var[b, p, c]
            total += part
        mean[b] = m
        r[b] = reciprocal_deviation(total, n - ONE, eps)


@loop
def _forward(mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    batch, positions, features = mu.shape
    for b in prange(batch):
        for p in range(positions):
            for c in range(features):
                out_mu[b, p, c], out_var[b, p, c] = normalized_moments(
                    mu[b, p, c], var[b, p, c], mean[b], r[b], w_mu[c], w_var[c], b_mu[c], b_var[c]
                )


@loop
def _backward(mu, mean, r, w_mu, delta_mu, delta_var, partial, accumulate, g_w, h_w, g_b, h_b):
    batch, positions, features = mu.shape
    for b in prange(batch):
        for j in range(4):
            for c in range(features):
                partial[j, b, c] = ZERO
        for p in range(positions):
            for c in range(features):
                dm, ds = delta_mu[b, p, c], delta_var[b, p, c]
                gi, hi = weight_summands(mu[b, p, c], mean[b], r[b], dm, ds)
                partial[0, b, c] += gi
                partial[1, b, c] += hi
                partial[2, b, c] += dm
                partial[3, b, c] += ds
                delta_mu[b, p, c], delta_var[b, p, c] = input_deltas(r[b], w_mu[c], dm, ds)
    for c in range(features):
        g, h = (g_w[c], h_w[c]) if accumulate else (ZERO, ZERO)
        for b in range(batch):
            g += partial[0, b, c]
            h += partial[1, b, c]
        g_w[c], h_w[c] = g, h
    for c in range(g_b.size):
        g, h = (g_b[c], h_b[c]) if accumulate else (ZERO, ZERO)
        for b in range(batch):
            g += partial[2, b, c]
            h += partial[3, b, c]
        g_b[c], h_b[c] = g, h


def moments(x: State, eps: float, mean: Array, r: Array) -> None:
    """Per sample: mean over all positions and features, r = 1/sqrt(variance + eps) with n - 1 in the denominator."""
    _moments(x.mu, x.var, np.float32(eps), mean, r)


def forward(x: State, mean: Array, r: Array, weights: Tensor, bias: Tensor, out: State) -> None:
    """out = r (x - mean) w + b."""
    _forward(x.mu, x.var, mean, r, weights.mu, weights.var, bias.mu, bias.var, out.mu, out.var)


def backward(
    x: State,
    delta: Delta,
    mean: Array,
    r: Array,
    weights: Tensor,
    bias: Tensor,
    partial: Array,
    accumulate: bool,
) -> None:
    """Batch sums for w and b (partial: (4, batch, features) scratch); the deltas become those of the input."""
    sums = weights.delta_mu_sum, weights.delta_var_sum, bias.delta_mu_sum, bias.delta_var_sum
    _backward(x.mu, mean, r, weights.mu, delta.mu, delta.var, partial, accumulate, *sums)

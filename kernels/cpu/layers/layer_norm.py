"""Norms of (batch, positions, features): statistics per sample, affine map per feature."""

from functools import partial

import numpy as np

from pytagi_ddp.kernels.cpu.layers.columns import add_partials
from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH, inner, loop, portion
from pytagi_ddp.kernels.formulas.normalize import (
    input_deltas,
    normalized_moments,
    reciprocal_deviation,
    weight_summands,
)
from pytagi_ddp.kernels.tensors import Array, Delta, State, Tensor

ZERO, ONE = np.float32(0), np.float32(1)
summing = partial(inner, fastmath=FASTMATH | {"reassoc"})  # sums only vectorise if they may be reordered
PART = 64  # numbers of a partial sum, and partial sums of a larger one: long float32 sums lose digits


@summing
def _sum(x, var, mean, squares):
    """The sum of x - mean, or with `squares` that of (x - mean)^2 + var."""
    total = middle = ZERO
    for first in range(0, x.size, PART):
        part, some, v = ZERO, x[first : first + PART], var[first : first + PART]
        for i in range(some.size):
            d = some[i] - mean
            part += d * d + v[i] if squares else d
        middle += part
        if (first + PART) % (PART * PART) == 0:
            total, middle = total + middle, ZERO
    return total + middle


@loop("bn bn _ b b")
def _moments(thread, threads, mu, var, eps, mean, r):
    batch, n = mu.shape
    base, share = portion(batch, thread, threads)
    for each in range(share):
        b = base + each
        mean[b] = _sum(mu[b], var[b], ZERO, False) / np.float32(n)
        mean[b] += _sum(mu[b], var[b], mean[b], False) / np.float32(n)  # what the first sum lost of a large mean
        r[b] = reciprocal_deviation(_sum(mu[b], var[b], mean[b], True), np.float32(n) - ONE, eps)


@loop("bn bn _ b b")
def _mean_squares(thread, threads, mu, var, eps, mean, r):
    batch, n = mu.shape
    base, share = portion(batch, thread, threads)
    for each in range(share):
        b = base + each
        mean[b] = ZERO
        r[b] = reciprocal_deviation(_sum(mu[b], var[b], ZERO, True), np.float32(n), eps)


@loop("bpf bpf b b f f f f bpf bpf")
def _forward(thread, threads, mu, var, mean, r, w_mu, w_var, b_mu, b_var, out_mu, out_var):
    batch, positions, features = mu.shape
    base, share = portion(batch, thread, threads)
    for each in range(share):
        b = base + each
        for p in range(positions):
            for c in range(features):
                out_mu[b, p, c], out_var[b, p, c] = normalized_moments(
                    mu[b, p, c], var[b, p, c], mean[b], r[b], w_mu[c], w_var[c], b_mu[c], b_var[c]
                )


@loop("bpf b b f bpf bpf 4bf")
def _backward(thread, threads, mu, mean, r, w_mu, delta_mu, delta_var, partial):
    batch, positions, features = mu.shape
    base, share = portion(batch, thread, threads)
    for each in range(share):
        b = base + each
        for j in range(4):
            for c in range(features):
                partial[j, b, c] = ZERO
        for p in range(positions):
            for c in range(features):
                dm, ds = delta_mu[b, p, c], delta_var[b, p, c]
                g, h = weight_summands(mu[b, p, c], mean[b], r[b], dm, ds)
                partial[0, b, c] += g
                partial[1, b, c] += h
                partial[2, b, c] += dm
                partial[3, b, c] += ds
                delta_mu[b, p, c], delta_var[b, p, c] = input_deltas(r[b], w_mu[c], dm, ds)


def _rows(x: State, samples: int) -> tuple[Array, Array]:
    return x.mu.reshape(samples, -1), x.var.reshape(samples, -1)


def moments(x: State, eps: float, mean: Array, r: Array) -> None:
    """Per sample: mean over all positions and features, r = 1/sqrt(variance + eps) with n - 1 in the denominator."""
    _moments(*_rows(x, mean.size), np.float32(eps), mean, r)


def mean_squares(x: State, eps: float, mean: Array, r: Array) -> None:
    """Per sample: mean 0, r = 1/sqrt(E[a^2] + eps) with the mean of a^2 over all positions and features."""
    _mean_squares(*_rows(x, mean.size), np.float32(eps), mean, r)


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
    """Batch sums for w and b (partial: (4, batch, features) scratch); `delta` becomes the deltas of the input."""
    _backward(x.mu, mean, r, weights.mu, delta.mu, delta.var, partial)
    add_partials(partial, accumulate, weights, bias)

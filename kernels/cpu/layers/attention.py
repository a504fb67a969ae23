"""Scaled dot-product attention with moments: products of the matrices of heads, Remax over rows of scores, rotations.

A product is out = x y for each head of each sample, over `Heads` (see `kernels.tensors`):

    mean = sum x y                  var = sum x_var (y^2 + y_var) + x^2 y_var

If a factor has no variance (in the backward pass), var = sum x_var y^2, or sum x^2 y_var. If several heads share a
matrix of the result, their products are added.
"""

from functools import partial

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH, loop, portion
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.formulas.activation import mixture_relu_moments
from pytagi_ddp.kernels.formulas.attention import rotated, score_deltas, share_slopes
from pytagi_ddp.kernels.formulas.softmax import remax_mean, remax_var
from pytagi_ddp.kernels.tensors import Array, Delta, Heads, State

_attention = load("layers._attention")
call = load("runtime._replay").call
ZERO = np.float32(0)
# Loops over a row of scores only vectorise if sums may be reordered and arrays share no memory.
row_loop = partial(loop, fastmath=FASTMATH | {"reassoc"}, apart=True)


@row_loop("rk rk rk rk _ _")
def _remax(thread, threads, mu, var, d, c, scale, causal):
    rows, steps = mu.shape
    base, share = portion(rows, thread, threads)
    for each in range(share):
        row = base + each
        n = row % steps + 1 if causal else steps
        total, total_var, norm = ZERO, ZERO, ZERO
        for k in range(n):
            mu[row, k], var[row, k], c[row, k] = mixture_relu_moments(scale * mu[row, k], scale * scale * var[row, k])
            total += mu[row, k]
            total_var += var[row, k]
        for k in range(n):
            d[row, k] = remax_mean(mu[row, k], var[row, k], total, total_var)
            norm += d[row, k]
        for k in range(n):
            a = d[row, k] / norm
            m, s, cdf = mu[row, k], var[row, k], c[row, k]
            mu[row, k], var[row, k] = a, remax_var(a, m, s, total, total_var)
            d[row, k], c[row, k] = share_slopes(a, m, s, cdf, total)
        for k in range(n, steps):
            mu[row, k], var[row, k], d[row, k], c[row, k] = ZERO, ZERO, ZERO, ZERO


@row_loop("rk rk rk rk rk _ _")
def _remax_backward(thread, threads, delta_mu, delta_var, mu, d, c, scale, causal):
    rows, steps = mu.shape
    base, share = portion(rows, thread, threads)
    for each in range(share):
        row = base + each
        n = row % steps + 1 if causal else steps
        sum_mu, sum_var = ZERO, ZERO
        for k in range(n):
            a = mu[row, k]
            sum_mu += a * delta_mu[row, k]
            sum_var += a * a * delta_var[row, k]
        for k in range(n):
            dm, ds = score_deltas(
                mu[row, k], d[row, k], c[row, k], delta_mu[row, k], delta_var[row, k], sum_mu, sum_var
            )
            delta_mu[row, k], delta_var[row, k] = scale * dm, scale * scale * ds
        for k in range(n, steps):
            delta_mu[row, k], delta_var[row, k] = ZERO, ZERO


@loop("rn rn ts =h _", lambda n: n.t > 0 and 0 <= n.h * n.s <= n.n)
def _rotate(thread, threads, mu, var, table, heads, direction):
    rows = mu.shape[0]
    steps, size = table.shape
    half = size // 2
    base, share = portion(rows, thread, threads)
    for each in range(share):
        row = base + each
        t = row % steps
        for h in range(heads):
            for k in range(half):
                i = h * size + 2 * k
                mu[row, i], mu[row, i + 1], var[row, i], var[row, i + 1] = rotated(
                    mu[row, i],
                    mu[row, i + 1],
                    var[row, i],
                    var[row, i + 1],
                    table[t, k],
                    direction * table[t, half + k],
                )


def multiply(
    x: Heads, y: Heads, out: Heads, batch: int, heads: int, rows: int, depth: int, columns: int, causal: int
) -> None:
    """out (rows, columns) = x (rows, depth) y (depth, columns) for each head of each sample.

    causal: ALL; CAUSAL_FACTOR if x is 0 above its diagonal; CAUSAL_RESULT if out is not needed above its diagonal.
    """
    places = x, y, out
    arrays = (
        (p.units.mu.reshape(-1), None if p.units.var is None else p.units.var.reshape(-1), p.place) for p in places
    )
    arguments = (argument for three in arrays for argument in three)
    call(_attention.multiply, *arguments, batch, heads, rows, depth, columns, causal, get_threads())


def remax(scores: State, slopes: Delta, scale: float, causal: bool) -> None:
    """Scores (rows, time steps), times `scale`, become shares of their row; slopes = (D, c) of the Jacobian.

    causal: row t of each head has shares of the first t + 1 time steps only; its others are 0.
    """
    _remax(scores.mu, scores.var, slopes.mu, slopes.var, np.float32(scale), causal)


def remax_backward(delta: Delta, shares: Array, slopes: Delta, scale: float, causal: bool) -> None:
    """Replaces the deltas of the shares by those of the scores before the factor `scale`."""
    _remax_backward(delta.mu, delta.var, shares, slopes.mu, slopes.var, np.float32(scale), causal)


def rotate(units: Delta | State, table: Array, heads: int, inverse: bool) -> None:
    """Rotates pairs of units (batch * time steps, units) of the first `heads` heads by the angle of their step, in
    place.

    table (time steps, units of a head): cosines, then sines. inverse: rotates in the other direction, for deltas.
    """
    _rotate(units.mu, units.var, table, heads, np.float32(-1 if inverse else 1))

"""Piecewise-linear encoding, see `formulas.encoding`.

Inputs are (rows, inputs), outputs and their deltas (rows, units). The first units are the bins of all inputs, one input
after the other. `first` has the number of the first bin of each input, then the number of all bins, as float32. `edges`
are the edges of the bins, one more than bins for each input: bin k of input i is between edges[k + i] and
edges[k + i + 1], with the outputs ends[k, 0] and ends[k, 1] there. The last units belong to single numbers, which
follow the edges: unit k of input sources[k] (as float32) is ends[k, 1] where the input is edges[k + inputs], and
ends[k, 0] elsewhere.
"""

from typing import Any

from numba import prange

from pytagi_ddp.kernels.cpu.runtime.compile import loop
from pytagi_ddp.kernels.formulas.activation import ZERO
from pytagi_ddp.kernels.formulas.encoding import bin_moments, place_in_bin, value_unit
from pytagi_ddp.kernels.tensors import Array, Delta, State


def _edges_fit(n: Any) -> bool:
    return n.f == n.i + 1 and n.e == n.k + n.i


@loop("rk rk ri f e k2", _edges_fit)
def _place(out_mu, out_jcb, mu, first, edges, ends):
    for r in prange(mu.shape[0]):
        for i in range(mu.shape[1]):
            start, stop = int(first[i]), min(int(first[i + 1]), out_mu.shape[1])
            for k in range(start, stop):
                low, high = edges[k + i], edges[k + i + 1]
                out_mu[r, k], out_jcb[r, k] = place_in_bin(
                    mu[r, i], low, high, ends[k, 0], ends[k, 1], k == start, k == stop - 1
                )


@loop("rk rk rk ri ri f e k2", _edges_fit)
def _moments(out_mu, out_var, out_jcb, mu, var, first, edges, ends):
    for r in prange(mu.shape[0]):
        for i in range(mu.shape[1]):
            start, stop = int(first[i]), min(int(first[i + 1]), out_mu.shape[1])
            for k in range(start, stop):
                low, high = edges[k + i], edges[k + i + 1]
                out_mu[r, k], out_var[r, k], out_jcb[r, k] = bin_moments(
                    mu[r, i], var[r, i], low, high, ends[k, 0], ends[k, 1], k == start, k == stop - 1
                )


@loop("rk rk ri f e k2 k", _edges_fit)
def _mark(out_mu, out_jcb, mu, first, edges, ends, sources):
    inputs = mu.shape[1]
    for r in prange(mu.shape[0]):
        for k in range(int(first[inputs]), out_mu.shape[1]):
            m = mu[r, int(sources[k])]
            out_mu[r, k], out_jcb[r, k] = value_unit(m, ZERO, edges[k + inputs], ends[k, 0], ends[k, 1]), ZERO


@loop("rk rk rk ri ri f e k2 k", _edges_fit)
def _mark_moments(out_mu, out_var, out_jcb, mu, var, first, edges, ends, sources):
    inputs = mu.shape[1]
    for r in prange(mu.shape[0]):
        for k in range(int(first[inputs]), out_mu.shape[1]):
            i = int(sources[k])
            out_mu[r, k] = value_unit(mu[r, i], var[r, i], edges[k + inputs], ends[k, 0], ends[k, 1])
            out_var[r, k], out_jcb[r, k] = ZERO, ZERO


@loop("rk rk ri ri f", lambda n: n.f == n.i + 1)
def _backward(delta_mu, delta_var, into_mu, into_var, first):
    for r in prange(delta_mu.shape[0]):
        for i in range(into_mu.shape[1]):
            a, b = into_mu.dtype.type(0), into_mu.dtype.type(0)
            for k in range(int(first[i]), min(int(first[i + 1]), delta_mu.shape[1])):
                a += delta_mu[r, k]
                b += delta_var[r, k]
            into_mu[r, i], into_var[r, i] = a, b


def forward(x: State, first: Array, edges: Array, ends: Array, out: State) -> None:
    """Moments and Jacobian of all bins; of an input without variances, values and slopes, and `out.var` is not used."""
    if x.var is None:
        _place(out.mu, out.jcb, x.mu, first, edges, ends)
    else:
        _moments(*out, x.mu, x.var, first, edges, ends)


def mark(x: State, first: Array, edges: Array, ends: Array, sources: Array, out: State) -> None:
    """Writes the units of single numbers, as `forward` does those of the bins."""
    if x.var is None:
        _mark(out.mu, out.jcb, x.mu, first, edges, ends, sources)
    else:
        _mark_moments(*out, x.mu, x.var, first, edges, ends, sources)


def backward(delta: Delta, first: Array, into: Delta) -> None:
    """into = the sums of the deltas of each input's bins."""
    _backward(delta.mu, delta.var, into.mu, into.var, first)

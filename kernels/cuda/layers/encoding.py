"""Piecewise-linear encoding. Same functions, arguments and formulas as `kernels.cpu.encoding`."""

from pytagi_ddp.kernels.cuda.products.work import ZERO, i32
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.runtime.geometry import block_size
from pytagi_ddp.kernels.formulas.encoding import bin_moments, place_in_bin, value_unit
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS = block_size(128)


@kernel(*[floats] * 6, int32, int32, int32, threads=THREADS)
def _place(mu, first, edges, ends, out_mu, out_jcb, n, inputs, bins):
    at = i32(thread_index())
    if at < n:
        i = at % inputs
        start, stop, row = i32(first[i]), i32(first[i + 1]), at // inputs * bins
        for k in range(start, stop):
            low, high = edges[k + i], edges[k + i + 1]
            out_mu[row + k], out_jcb[row + k] = place_in_bin(
                mu[at], low, high, ends[2 * k], ends[2 * k + 1], k == start, k == stop - 1
            )


@kernel(*[floats] * 8, int32, int32, int32, threads=THREADS)
def _moments(mu, var, first, edges, ends, out_mu, out_var, out_jcb, n, inputs, bins):
    at = i32(thread_index())
    if at < n:
        i = at % inputs
        start, stop, row = i32(first[i]), i32(first[i + 1]), at // inputs * bins
        for k in range(start, stop):
            low, high = edges[k + i], edges[k + i + 1]
            out_mu[row + k], out_var[row + k], out_jcb[row + k] = bin_moments(
                mu[at], var[at], low, high, ends[2 * k], ends[2 * k + 1], k == start, k == stop - 1
            )


@kernel(*[floats] * 7, int32, int32, int32, threads=THREADS)
def _mark(mu, first, edges, ends, sources, out_mu, out_jcb, n, inputs, units):
    at = i32(thread_index())
    if at < n:
        k = at % units
        if k >= i32(first[inputs]):
            m = mu[at // units * inputs + i32(sources[k])]
            out_mu[at] = value_unit(m, ZERO, edges[k + inputs], ends[2 * k], ends[2 * k + 1])
            out_jcb[at] = ZERO


@kernel(*[floats] * 9, int32, int32, int32, threads=THREADS)
def _mark_moments(mu, var, first, edges, ends, sources, out_mu, out_var, out_jcb, n, inputs, units):
    at = i32(thread_index())
    if at < n:
        k = at % units
        if k >= i32(first[inputs]):
            i = at // units * inputs + i32(sources[k])
            out_mu[at] = value_unit(mu[i], var[i], edges[k + inputs], ends[2 * k], ends[2 * k + 1])
            out_var[at], out_jcb[at] = ZERO, ZERO


@kernel(floats, floats, floats, floats, floats, int32, int32, int32, threads=THREADS)
def _backward(delta_mu, delta_var, first, into_mu, into_var, n, inputs, bins):
    at = i32(thread_index())
    if at < n:
        i = at % inputs
        row = at // inputs * bins
        a, b = ZERO, ZERO
        for k in range(i32(first[i]), i32(first[i + 1])):
            a += delta_mu[row + k]
            b += delta_var[row + k]
        into_mu[at], into_var[at] = a, b


def forward(x: State, first: Array, edges: Array, ends: Array, out: State) -> None:
    """Moments and Jacobian of all bins; of an input without variances, values and slopes, and `out.var` is not used."""
    n, inputs, bins = x.mu.size, x.mu.shape[1], out.mu.shape[1]
    if x.var is None:
        _place.launch(blocks(n, THREADS), x.mu, first, edges, ends, out.mu, out.jcb, n, inputs, bins)
    else:
        _moments.launch(blocks(n, THREADS), x.mu, x.var, first, edges, ends, *out, n, inputs, bins)


def mark(x: State, first: Array, edges: Array, ends: Array, sources: Array, out: State) -> None:
    """Writes the units of single numbers, as `forward` does those of the bins."""
    n, inputs, units = out.mu.size, x.mu.shape[1], out.mu.shape[1]
    known = first, edges, ends, sources
    if x.var is None:
        _mark.launch(blocks(n, THREADS), x.mu, *known, out.mu, out.jcb, n, inputs, units)
    else:
        _mark_moments.launch(blocks(n, THREADS), x.mu, x.var, *known, *out, n, inputs, units)


def backward(delta: Delta, first: Array, into: Delta) -> None:
    """into = the sums of the deltas of each input's bins."""
    n, inputs, bins = into.mu.size, into.mu.shape[1], delta.mu.shape[1]
    arrays = delta.mu, delta.var, first, into.mu, into.var
    _backward.launch(blocks(n, THREADS), *arrays, n, inputs, bins)

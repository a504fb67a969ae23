"""Piecewise-linear encoding. Same functions, arguments and formulas as `kernels.cpu.encoding`."""

from pytagi_ddp.kernels.cuda.products.work import ZERO, i32
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.formulas.encoding import bin_moments, place_in_bin, value_unit
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS = 128


@kernel(*[floats] * 5, int32, int32, int32, threads=THREADS)
def _place(mu, first, units, out_mu, out_jcb, n, inputs, count):
    at = i32(thread_index())
    if at < n:
        k = at % count
        m = mu[at // count * inputs + i32(units[k])]
        low, high, bottom = units[count + k], units[2 * count + k], units[3 * count + k]
        top, least, most = units[4 * count + k], units[5 * count + k], units[6 * count + k]
        if k < i32(first[inputs]):
            out_mu[at], out_jcb[at] = place_in_bin(m, low, high, bottom, top, least, most)
        else:
            out_mu[at], out_jcb[at] = value_unit(m, ZERO, low, bottom, top), ZERO


@kernel(*[floats] * 7, int32, int32, int32, threads=THREADS)
def _moments(mu, var, first, units, out_mu, out_var, out_jcb, n, inputs, count):
    at = i32(thread_index())
    if at < n:
        k = at % count
        i = at // count * inputs + i32(units[k])
        low, high, bottom = units[count + k], units[2 * count + k], units[3 * count + k]
        top, least, most = units[4 * count + k], units[5 * count + k], units[6 * count + k]
        if k < i32(first[inputs]):
            out_mu[at], out_var[at], out_jcb[at] = bin_moments(mu[i], var[i], low, high, bottom, top, least, most)
        else:
            out_mu[at], out_var[at], out_jcb[at] = value_unit(mu[i], var[i], low, bottom, top), ZERO, ZERO


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


def forward(x: State, first: Array, units: Array, out: State) -> None:
    """Moments and Jacobian of all units; for inputs without variances, values and slopes, without `out.var`."""
    n, *sizes = out.mu.size, x.mu.shape[1], out.mu.shape[1]
    if x.var is None:
        _place.launch(blocks(n, THREADS), x.mu, first, units, out.mu, out.jcb, n, *sizes)
    else:
        _moments.launch(blocks(n, THREADS), x.mu, x.var, first, units, *out, n, *sizes)


def backward(delta: Delta, first: Array, into: Delta) -> None:
    """into = the sums of the deltas of each input's bins."""
    n, inputs, bins = into.mu.size, into.mu.shape[1], delta.mu.shape[1]
    arrays = delta.mu, delta.var, first, into.mu, into.var
    _backward.launch(blocks(n, THREADS), *arrays, n, inputs, bins)

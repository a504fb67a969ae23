"""Piecewise-linear encoding, see `formulas.encoding`.

Inputs are (rows, inputs), outputs and their deltas (rows, units). The first units are the bins of all inputs, one input
after the other; the last ones belong to single numbers. `first` has the number of the first bin of each input, then the
number of all bins, as float32. `units` has a column of constants for each unit: its input, low, high, bottom, top,
least and most; low is also the number of a unit of a single number.
"""

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas.activation import ZERO
from pytagi_ddp.kernels.formulas.encoding import bin_moments, place_in_bin, value_unit
from pytagi_ddp.kernels.tensors import Array, Delta, State


@loop("rk rk ri f 7k", lambda n: n.f == n.i + 1, apart=True)
def _place(thread, threads, out_mu, out_jcb, mu, first, units):
    source, low, high, bottom, top = units[0], units[1], units[2], units[3], units[4]
    least, most, bins = units[5], units[6], min(int(first[mu.shape[1]]), out_mu.shape[1])
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        r = base + each
        z, value, slope = mu[r], out_mu[r], out_jcb[r]
        for k in range(bins):
            m = z[np.uint32(source[k])]
            value[k], slope[k] = place_in_bin(m, low[k], high[k], bottom[k], top[k], least[k], most[k])
        for k in range(np.uint32(bins), np.uint32(value.size)):  # unsigned, or it would not be vectorised
            value[k], slope[k] = value_unit(z[np.uint32(source[k])], ZERO, low[k], bottom[k], top[k]), ZERO


@loop("rk rk rk ri ri f 7k", lambda n: n.f == n.i + 1, apart=True)
def _moments(thread, threads, out_mu, out_var, out_jcb, mu, var, first, units):
    source, low, high, bottom, top = units[0], units[1], units[2], units[3], units[4]
    least, most, bins = units[5], units[6], min(int(first[mu.shape[1]]), out_mu.shape[1])
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        r = base + each
        for k in range(out_mu.shape[1]):
            i = np.uint32(source[k])
            m, s = mu[r, i], var[r, i]
            if k < bins:
                out_mu[r, k], out_var[r, k], out_jcb[r, k] = bin_moments(
                    m, s, low[k], high[k], bottom[k], top[k], least[k], most[k]
                )
            else:
                out_mu[r, k] = value_unit(m, s, low[k], bottom[k], top[k])
                out_var[r, k], out_jcb[r, k] = ZERO, ZERO


@loop("rk rk ri ri f", lambda n: n.f == n.i + 1)
def _backward(thread, threads, delta_mu, delta_var, into_mu, into_var, first):
    base, share = portion(delta_mu.shape[0], thread, threads)
    for each in range(share):
        r = base + each
        for i in range(into_mu.shape[1]):
            a, b = into_mu.dtype.type(0), into_mu.dtype.type(0)
            for k in range(int(first[i]), min(int(first[i + 1]), delta_mu.shape[1])):
                a += delta_mu[r, k]
                b += delta_var[r, k]
            into_mu[r, i], into_var[r, i] = a, b


def forward(x: State, first: Array, units: Array, out: State) -> None:
    """Moments and Jacobian of all units; for inputs without variances, values and slopes, without `out.var`."""
    if x.var is None:
        _place(out.mu, out.jcb, x.mu, first, units)
    else:
        _moments(*out, x.mu, x.var, first, units)


def backward(delta: Delta, first: Array, into: Delta) -> None:
    """into = the sums of the deltas of each input's bins."""
    _backward(delta.mu, delta.var, into.mu, into.var, first)

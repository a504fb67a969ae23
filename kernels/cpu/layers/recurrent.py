"""LSTM: moments forward in time, and deltas backward in time.

Blocks of a fixed number of samples are computed independently, each on one thread, so that the data of a time step stay
in the caches. Loops that read the weights once compute products of a few rows; BLAS computes larger ones. The forward
pass writes `kept` for the backward pass, in the order of time steps.
"""

from ctypes import CFUNCTYPE, c_float, c_int, c_int64
from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pytagi_ddp.kernels.cpu.layers import linear
from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH, inner, loop, portion
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.formulas.lstm import (
    cell_deltas,
    cell_moments,
    input_deltas,
    input_slopes,
    mended_variance,
    posterior,
    smoother_gain,
    smoothing,
)
from pytagi_ddp.kernels.tensors import NO_DELTA, NO_TENSOR, Array, Delta, LSTMSaved, Record, State, Tensor, cut

address_of_product = load("products._blas").address_of_product
ROWS = 16  # samples of a block
FEW = 3  # largest number of rows that are multiplied without BLAS
NOTHING = np.empty(0, np.float32)
SIZE = 4  # bytes of a number
ZERO, TWO = np.float32(0), np.float32(2)
# Loops over the inputs of a unit only vectorise if sums may be reordered. `apart`: no two arguments share memory.
loop = partial(loop, fastmath=FASTMATH | {"reassoc"}, apart=True)
row = partial(inner, fastmath=FASTMATH | {"reassoc"}, apart=True)


@intrinsic
def _call(typing, function, ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """Calls `product` of _blas.pyx; function, a, b and c are addresses."""
    word, number = ir.IntType(64), ir.FloatType()
    kinds = [ir.IntType(32)] * 5 + [word] * 4 + [number] + [word] * 2

    def generate(context, builder, signature, args):
        target = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        builder.call(target, [builder.trunc(value, kinds[0]) for value in args[1:6]] + list(args[6:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10, types.float32, *[types.int64] * 2), generate


if numba.config.DISABLE_JIT:  # loops run in Python, which cannot call an intrinsic
    _PRODUCT = CFUNCTYPE(None, *[c_int] * 5, *[c_int64] * 4, c_float, *[c_int64] * 2)

    def _call(function, *arguments):
        """The same from Python."""
        _PRODUCT(function)(*arguments)


@row
def _product(function, transposed, m, n, k, a, a_first, lda, b, b_first, ldb, beta, c, c_first, ldc):
    """c (m x n) = a b + beta c, or a b^T + beta c; flat arrays, each with its first element and distance of rows."""
    a, b, c = a.ctypes.data + SIZE * a_first, b.ctypes.data + SIZE * b_first, c.ctypes.data + SIZE * c_first
    _call(function, 0, transposed, m, n, k, a, lda, b, ldb, beta, c, ldc)


# Functions write the rows, because in a parallel loop the compiler would reorder `x[:] = y` and calls.
@row
def _fill(out):
    for z in range(out.size):
        out[z] = ZERO


@row
def _copy(a, out):
    for z in range(out.size):
        out[z] = a[z]


@row
def _multiply(a, b, out):
    for z in range(out.size):
        out[z] = a[z] * b[z]


@row
def _twice(a, b, c, out):
    for z in range(out.size):
        out[z] = TWO * a[z] * b[z] * c[z]


@row
def _scale(slope, mu, var, out_mu, out_var):
    """Deltas multiplied by a slope."""
    for j in range(slope.size):
        out_mu[j] = slope[j] * mu[j]
        out_var[j] = slope[j] * slope[j] * var[j]


@row
def _gates_of_row(mu, var, w_mu, w_var, inputs, outputs, gates):
    """Moments of the gates and their covariances, added to `gates`."""
    for j in range(outputs):
        f, i, c, o = w_mu[j], w_mu[outputs + j], w_mu[2 * outputs + j], w_mu[3 * outputs + j]
        v_f, v_i, v_c, v_o = w_var[j], w_var[outputs + j], w_var[2 * outputs + j], w_var[3 * outputs + j]
        z_f, z_i, z_c, z_o, s_f, s_i, s_c, s_o, ic = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
        for z in range(mu.size):
            m, s = mu[z], var[z]
            z_f += f[z] * m
            z_i += i[z] * m
            z_c += c[z] * m
            z_o += o[z] * m
            s_f += s * f[z] * f[z] + (s + m * m) * v_f[z]
            s_i += s * i[z] * i[z] + (s + m * m) * v_i[z]
            s_c += s * c[z] * c[z] + (s + m * m) * v_c[z]
            s_o += s * o[z] * o[z] + (s + m * m) * v_o[z]
            ic += s * i[z] * c[z]
        fo, io, co = ZERO, ZERO, ZERO
        for z in range(inputs):
            fo += var[z] * f[z] * o[z]
            io += var[z] * i[z] * o[z]
            co += var[z] * c[z] * o[z]
        for k, value in enumerate((z_f, z_i, z_c, z_o, s_f, s_i, s_c, s_o, ic, fo, io, co)):
            gates[k * outputs + j] += value


@row
def _cell_of_row(gates, h_mu, h_var, c_mu, c_var, k_f, k_i, k_c, k_o, h_c, kept):
    n = h_mu.size
    for j in range(n):
        h_mu[j], h_var[j], c_mu[j], c_var[j], k_f[j], k_i[j], k_c[j], k_o[j], h_c[j], kept[j] = cell_moments(
            gates[j], gates[4 * n + j], gates[n + j], gates[5 * n + j], gates[2 * n + j], gates[6 * n + j],
            gates[3 * n + j], gates[7 * n + j], gates[8 * n + j], gates[9 * n + j], gates[10 * n + j],
            gates[11 * n + j], c_mu[j], c_var[j],
        )  # fmt: skip


@row
def _cell_deltas_of_row(h_c, d_mu, d_var, q_mu, q_var, e_mu, e_var):
    for j in range(h_c.size):
        e_mu[j], e_var[j] = cell_deltas(h_c[j], d_mu[j], d_var[j], q_mu[j], q_var[j])


@row
def _inputs_of_unit(w, j, slopes, deltas, begin, end, mu, var):
    """Adds the contribution of unit j to the deltas of inputs begin to end - 1 of the gates."""
    n = w.shape[0] // 4
    f, i, c, o = w[j], w[n + j], w[2 * n + j], w[3 * n + j]
    e, d, v, u = deltas
    for z in range(begin, end):
        dm, ds = input_deltas(slopes, f[z], i[z], c[z], o[z], e, d, v, u)
        mu[z] += dm
        var[z] += ds


@loop("gw gw pw mi", lambda n: n.g % 4 == 0 and (4 * n.p, 4 * n.m) == (5 * n.g, 3 * n.g) and n.w >= n.i)
def _forward_products(thread, threads, w_mu, w_var, w_squares, w_pairs):
    """Products of the weights, for all blocks of samples."""
    outputs = w_mu.shape[0] // 4
    base, share = portion(outputs, thread, threads)
    for each in range(share):
        j = base + each
        for k in range(j, 4 * outputs, outputs):
            for z in range(w_mu.shape[1]):
                w_squares[k, z] = w_mu[k, z] * w_mu[k, z] + w_var[k, z]
        f, i, c, o = w_mu[j], w_mu[outputs + j], w_mu[2 * outputs + j], w_mu[3 * outputs + j]
        _multiply(i, c, w_squares[4 * outputs + j])
        _multiply(f, o, w_pairs[j])
        _multiply(i, o, w_pairs[outputs + j])
        _multiply(c, o, w_pairs[2 * outputs + j])


@loop("gw pw", lambda n: n.g % 4 == 0 and 2 * n.p == 5 * n.g)
def _backward_products(thread, threads, w_mu, w_pairs):
    outputs = w_mu.shape[0] // 4
    base, share = portion(outputs, thread, threads)
    for each in range(share):
        j = base + each
        f, i, c, o = w_mu[j], w_mu[outputs + j], w_mu[2 * outputs + j], w_mu[3 * outputs + j]
        _multiply(f, f, w_pairs[j])
        _multiply(i, i, w_pairs[outputs + j])
        _multiply(c, c, w_pairs[2 * outputs + j])
        _multiply(f, i, w_pairs[3 * outputs + j])
        _multiply(f, c, w_pairs[4 * outputs + j])
        _multiply(i, c, w_pairs[5 * outputs + j])
        _multiply(f, o, w_pairs[6 * outputs + j])
        _multiply(i, o, w_pairs[7 * outputs + j])
        _multiply(c, o, w_pairs[8 * outputs + j])
        _multiply(o, o, w_pairs[9 * outputs + j])


def _forward_fits(n: Any) -> bool:
    gates = n.g == 4 * n.o and n.w == n.i + n.o and n.h in (0, n.g)
    memory = {n.s, n.e} <= {0, 2 * n.o}
    return gates and memory and n.q in (1, n.t) and (n.p, n.m, n.z) == (5 * n.o, 3 * n.o, 12 * n.o)


@loop("bqo bqo bti bti gw gw h h s s e e tbw tbw tbo tbo tbo tbo tbo tbo pw mi bw bz bo bo bo bo _", _forward_fits)
def _forward(
    thread, threads,
    out_mu, out_var, x_mu, x_var, w_mu, w_var, b_mu, b_var, start_mu, start_var, end_mu, end_var,
    joined_mu, joined_var, k_f, k_i, k_c, k_o, h_c, keep, w_squares, w_pairs, squares, gates, c_mu, c_var, h_mu, h_var,
    product,
):  # fmt: skip
    batch, steps, inputs = x_mu.shape
    outputs = c_mu.shape[1]
    width, four, nine = inputs + outputs, 4 * outputs, 9 * outputs
    base, share = portion((batch + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        part = base + each
        first = part * ROWS
        last = min(batch, first + ROWS)
        rows = last - first
        for b in range(first, last):
            for j in range(outputs):
                h_mu[b, j] = start_mu[j] if start_mu.size else ZERO
                h_var[b, j] = start_var[j] if start_mu.size else ZERO
                c_mu[b, j] = start_mu[outputs + j] if start_mu.size else ZERO
                c_var[b, j] = start_var[outputs + j] if start_mu.size else ZERO
        for t in range(steps):
            for b in range(first, last):
                _copy(x_mu[b, t], joined_mu[t, b, :inputs])
                _copy(h_mu[b], joined_mu[t, b, inputs:])
                _copy(x_var[b, t], joined_var[t, b, :inputs])
                _copy(h_var[b], joined_var[t, b, inputs:])
                _fill(gates[b])
                if b_mu.size:
                    _copy(b_mu, gates[b, :four])
                    _copy(b_var, gates[b, four : 2 * four])
            if rows > FEW:
                at, to = (t * batch + first) * width, first * 12 * outputs
                for b in range(first, last):
                    _multiply(joined_mu[t, b], joined_mu[t, b], squares[b])
                _product(
                    product, True, rows, four, width, joined_mu, at, width, w_mu, 0, width, 1,
                    gates, to, 12 * outputs,
                )  # fmt: skip
                _product(
                    product, True, rows, 5 * outputs, width, joined_var, at, width, w_squares, 0, width, 1,
                    gates, to + four, 12 * outputs,
                )  # fmt: skip
                _product(
                    product, True, rows, four, width, squares, first * width, width, w_var, 0, width, 1,
                    gates, to + four, 12 * outputs,
                )  # fmt: skip
                _product(
                    product, True, rows, 3 * outputs, inputs, joined_var, at, width, w_pairs, 0, inputs, 0,
                    gates, to + nine, 12 * outputs,
                )  # fmt: skip
            else:
                for b in range(first, last):
                    _gates_of_row(joined_mu[t, b], joined_var[t, b], w_mu, w_var, inputs, outputs, gates[b])
            for b in range(first, last):
                _cell_of_row(
                    gates[b], h_mu[b], h_var[b], c_mu[b], c_var[b],
                    k_f[t, b], k_i[t, b], k_c[t, b], k_o[t, b], h_c[t, b], keep[t, b],
                )  # fmt: skip
                if out_mu.shape[1] == steps or t == steps - 1:
                    at = t if out_mu.shape[1] == steps else 0
                    _copy(h_mu[b], out_mu[b, at])
                    _copy(h_var[b], out_var[b, at])
        if end_mu.size and part == 0:  # only one thread, for any batch size
            _copy(h_mu[first], end_mu[:outputs])
            _copy(c_mu[first], end_mu[outputs:])
            _copy(h_var[first], end_var[:outputs])
            _copy(c_var[first], end_var[outputs:])


def _backward_fits(n: Any) -> bool:
    none, whole = (0, 0, 0), (n.b, n.t, n.w - n.o)
    to_input = (n.A, n.B, n.C) in (none, whole) and (n.D, n.E, n.F) in (none, whole)
    return to_input and n.w >= n.o and n.q in (1, n.t) and (n.g, n.p) == (4 * n.o, 10 * n.o)


@loop("bqo bqo ABC ABC DEF gw tbo tbo tbo tbo tbo tbo _ tbg tbg pw bp bo bo bo bo bo bo bw bw _", _backward_fits)
def _backward(
    thread, threads,
    delta_mu, delta_var, in_mu, in_var, jcb, w_mu, k_f, k_i, k_c, k_o, h_c, keep, cell_path,
    g_mu, g_var, w_pairs, pairs, d_mu, d_var, e_mu, e_var, q_mu, q_var, joined_mu, joined_var, product,
):  # fmt: skip
    steps, batch, outputs = k_f.shape
    width, four, nine, ten = w_mu.shape[1], 4 * outputs, 9 * outputs, 10 * outputs
    inputs = width - outputs
    begin = 0 if in_mu.size else inputs
    base, share = portion((batch + ROWS - 1) // ROWS, thread, threads)
    for each in range(share):
        part = base + each
        first = part * ROWS
        last = min(batch, first + ROWS)
        rows = last - first
        for b in range(first, last):
            _fill(d_mu[b])
            _fill(d_var[b])
            _fill(q_mu[b])
            _fill(q_var[b])
        for back in range(steps):
            t = steps - 1 - back
            observed = delta_mu.shape[1] == steps or back == 0
            row = t if delta_mu.shape[1] == steps else 0
            for b in range(first, last):
                if observed:
                    for j in range(outputs):
                        d_mu[b, j] += delta_mu[b, row, j]
                        d_var[b, j] += delta_var[b, row, j]
                _cell_deltas_of_row(h_c[t, b], d_mu[b], d_var[b], q_mu[b], q_var[b], e_mu[b], e_var[b])
                m, s = g_mu[t, b], g_var[t, b]
                _scale(k_f[t, b], e_mu[b], e_var[b], m[:outputs], s[:outputs])
                _scale(k_i[t, b], e_mu[b], e_var[b], m[outputs : 2 * outputs], s[outputs : 2 * outputs])
                _scale(k_c[t, b], e_mu[b], e_var[b], m[2 * outputs : 3 * outputs], s[2 * outputs : 3 * outputs])
                _scale(k_o[t, b], d_mu[b], d_var[b], m[3 * outputs :], s[3 * outputs :])
            end = width if t > 0 else inputs
            if begin < end and rows > FEW:
                for b in range(first, last):
                    p, f, i, c, e = pairs[b], k_f[t, b], k_i[t, b], k_c[t, b], e_var[b]
                    _copy(g_var[t, b, : 3 * outputs], p[: 3 * outputs])
                    _twice(f, i, e, p[3 * outputs : four])
                    _twice(f, c, e, p[four : 5 * outputs])
                    _twice(i, c, e, p[5 * outputs : 6 * outputs])
                    h = p[9 * outputs :]
                    _multiply(h_c[t, b], k_o[t, b], h)
                    _twice(f, h, d_var[b], p[6 * outputs : 7 * outputs])
                    _twice(i, h, d_var[b], p[7 * outputs : 8 * outputs])
                    _twice(c, h, d_var[b], p[8 * outputs : nine])
                    _copy(g_var[t, b, 3 * outputs :], h)
                at = first * width + begin
                _product(
                    product, False, rows, end - begin, four, g_mu, (t * batch + first) * four, four,
                    w_mu, begin, width, 0, joined_mu, at, width,
                )  # fmt: skip
                _product(
                    product, False, rows, end - begin, ten, pairs, first * ten, ten,
                    w_pairs, begin, width, 0, joined_var, at, width,
                )  # fmt: skip
            elif begin < end:
                for b in range(first, last):
                    mean, variance = joined_mu[b], joined_var[b]
                    _fill(mean)
                    _fill(variance)
                    for j in range(outputs):
                        slopes = k_f[t, b, j], k_i[t, b, j], k_c[t, b, j], k_o[t, b, j], h_c[t, b, j]
                        deltas = e_mu[b, j], d_mu[b, j], d_var[b, j], q_var[b, j]
                        _inputs_of_unit(w_mu, j, slopes, deltas, begin, end, mean, variance)
            for b in range(first, last):
                if cell_path:
                    _scale(keep[t, b], e_mu[b], e_var[b], q_mu[b], q_var[b])
                if t > 0:
                    _copy(joined_mu[b, inputs:], d_mu[b])
                    _copy(joined_var[b, inputs:], d_var[b])
                if in_mu.size:
                    for z in range(inputs):
                        slope = jcb[b, t, z] if jcb.size else np.float32(1)
                        in_mu[b, t, z] = slope * joined_mu[b, z]
                        in_var[b, t, z] = slope * slope * joined_var[b, z]


@loop("m m o o o", lambda n: n.m == 2 * n.o)
def _posterior(mu, var, delta_mu, delta_var, h_c):
    for j in range(h_c.size):
        mu[j], var[j] = posterior(mu[j], var[j], np.float32(1), delta_mu[j], delta_var[j])
        c = h_c.size + j
        mu[c], var[c] = posterior(mu[c], var[c], h_c[j], delta_mu[j], delta_var[j])


@loop("oo o w gw o o o o o o o", lambda n: n.g == 4 * n.o and n.w >= n.o)
def _record(thread, threads, cov_h, cov_c, var, w, k_f, k_i, k_c, k_o, h_c, kept, var_before):
    n = cov_c.size
    first = w.shape[1] - n
    base, share = portion(n, thread, threads)
    for each in range(share):
        p = base + each
        cov_c[p] = var_before[p] * kept[p]
        for j in range(n):
            slopes = k_f[j], k_i[j], k_c[j], k_o[j], h_c[j]
            z = first + p
            _, _, to_h = input_slopes(slopes, w[j, z], w[n + j, z], w[2 * n + j, z], w[3 * n + j, z])
            cov_h[p, j] = var[z] * to_h


@loop("too to to to to to to to to to")
def _smooth(
    cov_h, cov_c, prior_mu_h, prior_var_h, prior_mu_c, prior_var_c, mu_h, var_h, mu_c, var_c
):  # fmt: skip
    steps, n = mu_h.shape
    for back in range(1, steps):
        t = steps - 1 - back
        after = t + 1
        for p in range(n):
            gain = smoother_gain(cov_c[after, p], prior_var_c[after, p])
            dm, ds = smoothing(gain, mu_c[after, p], var_c[after, p], prior_mu_c[after, p], prior_var_c[after, p])
            mu_c[t, p] += dm
            var_c[t, p] = mended_variance(var_c[t, p] + ds)
            m, s = ZERO, ZERO
            for j in range(n):
                gain = smoother_gain(cov_h[after, p, j], prior_var_h[after, j])
                dm, ds = smoothing(gain, mu_h[after, j], var_h[after, j], prior_mu_h[after, j], prior_var_h[after, j])
                m += dm
                s += ds
            mu_h[t, p] += m
            var_h[t, p] = mended_variance(var_h[t, p] + s)


def scratch_size(batch: int, inputs: int, outputs: int) -> int:
    """Size of the scratch memory of `forward`, and of `backward`, in numbers."""
    width = inputs + outputs
    forward_size = outputs * (5 * width + 3 * inputs) + batch * (width + 16 * outputs)
    backward_size = 10 * outputs * width + batch * (2 * width + 16 * outputs)
    return max(forward_size, backward_size)


def _or_none(array: Array | None, shape: tuple[int, ...] = (0,)) -> Array:
    """`array`, or an empty one for None, because the loop would be compiled again for None."""
    return NOTHING.reshape(shape) if array is None else array


def forward(
    x: State,
    weights: Tensor,
    bias: Tensor | None,
    start: State,
    end: State,
    kept: LSTMSaved,
    scratch: Array,
    out: State,
) -> None:
    """Hidden states of all time steps, or of the last one.

    Args:
        x: (batch, steps, inputs). out: (batch, steps or 1, outputs).
        weights: (4 outputs, inputs + outputs), bias: (4 outputs,): gates forget, input, candidate, output.
        start, end: moments of the hidden and the cell state of one sample, (2 outputs,), before and after. NO_STATE:
            every sample starts from zeros, and its last state is not kept.
        kept: gets the values for `backward`.
        scratch: of size `scratch_size`.

    Source: `formulas.lstm`.
    """
    batch, _, inputs = x.mu.shape
    outputs = out.mu.shape[2]
    width, rows = inputs + outputs, (batch, outputs)
    b = (bias or NO_TENSOR)[:2]
    parts = cut(
        scratch, (5 * outputs, width), (3 * outputs, inputs), (batch, width), (batch, 12 * outputs), *[rows] * 4
    )
    arguments = (*weights[:2], *map(_or_none, (*b, *start[:2], *end[:2])), *kept, *parts)
    if min(batch, ROWS) > FEW:
        _forward_products(*weights[:2], *parts[:2])
    _forward(out.mu, out.var, x.mu, x.var, *arguments, address_of_product())


def backward(
    jcb: Array | None,
    delta: Delta,
    weights: Tensor,
    bias: Tensor | None,
    kept: LSTMSaved,
    scratch: Array,
    gates: Delta,
    in_delta: Delta | None,
    cell_path: bool,
    accumulate: bool,
) -> None:
    """Deltas of the input, and the batch sums of the parameters.

    Args:
        jcb: Jacobian of the input, or None. delta: deltas of the output of `forward`.
        gates: (steps, batch, 4 outputs) each; gets the deltas of the gates before their activation.
        in_delta: (batch, steps, inputs), or None to skip them.
        cell_path: whether deltas are also propagated to earlier time steps through the cell state.
        accumulate: adds to the batch sums instead of overwriting them.
    """
    steps, batch, outputs = kept.f.shape
    width, rows = kept.mu.shape[2], (batch, outputs)
    to_input = (_or_none(a, (0, 0, 0)) for a in (*(in_delta or NO_DELTA)[:2], jcb))
    parts = cut(scratch, (10 * outputs, width), (batch, 10 * outputs), *[rows] * 6, (batch, width), (batch, width))
    if min(batch, ROWS) > FEW:
        _backward_products(weights.mu, parts[0])
    _backward(
        delta.mu, delta.var, *to_input, weights.mu, *kept[2:], cell_path, gates.mu, gates.var, *parts,
        address_of_product(),
    )  # fmt: skip
    n = steps * batch
    joined, of_gates = State(kept.mu.reshape(n, width), None), gates.reshape(n, 4 * outputs)
    linear.backward(joined, of_gates, weights, bias, None, accumulate)


def update_memory(memory: State, delta: Delta, kept: LSTMSaved) -> None:
    """The posterior of the hidden and the cell state of one sample, from the deltas of its last hidden state."""
    _posterior(memory.mu, memory.var, delta.mu.reshape(-1), delta.var.reshape(-1), kept.h.reshape(-1))


def record(kept: LSTMSaved, weights: Tensor, var_before: Array, cov_c: Array, cov_h: Array) -> None:
    """Covariances between the states before and after a pass of one time step, see `Record`.

    var_before: variances of the cell state before the pass.
    """
    _record(cov_h, cov_c, kept.var[0, 0], weights.mu, *(k[0, 0] for k in kept[2:]), var_before)


def smooth(record: Record) -> None:
    """Conditions the posterior on the observations of all time steps (Rauch, Tung & Striebel 1965)."""
    _smooth(record.cov_h, record.cov_c, *record.prior, *record.posterior)

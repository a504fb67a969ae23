"""LSTM: moments forward in time, and deltas backward in time. Functions and arguments of `kernels.cpu.recurrent`.

In the forward pass, at each time step, one product computes the moments of all gates, and one thread per unit does the
rest. In the backward pass, one thread per unit computes the deltas of its gates, and one thread per input of the gates
those of the layer's inputs and of the previous hidden state.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.layers import linear
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, kernel, optional, thread_index
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
from pytagi_ddp.kernels.tensors import Array, Delta, LSTMSaved, Record, State, Tensor, cut

THREADS = 128
ZERO, ONE = np.float32(0), np.float32(1)


@kernel(floats, floats, floats, floats, int32, int32, int32, int32, threads=THREADS)
def _take_inputs(x_mu, x_var, mu, var, batch, steps, inputs, width):
    """Copies the inputs of all time steps to the inputs of the gates."""
    i = thread_index()
    if i < batch * steps * inputs:
        z, row = i % inputs, i // inputs
        b, t = row // steps, row % steps
        k = (t * batch + b) * width + z
        mu[k] = x_mu[i]
        var[k] = x_var[i]


@kernel(*[floats] * 6, *[int32] * 5, threads=THREADS)
def _begin(mu, var, c_mu, c_var, start_mu, start_var, batch, inputs, outputs, width, given):
    """Sets hidden and cell states before the first time step: to start_mu, start_var if `given`, else to zeros."""
    i = thread_index()
    if i < batch * outputs:
        j = i % outputs
        k = (i // outputs) * width + inputs + j
        h_mu, h_var, mean, variance = ZERO, ZERO, ZERO, ZERO
        if given:
            h_mu, h_var, mean, variance = start_mu[j], start_var[j], start_mu[outputs + j], start_var[outputs + j]
        mu[k], var[k], c_mu[i], c_var[i] = h_mu, h_var, mean, variance


@kernel(*[floats] * 16, *[int32] * 8, threads=THREADS)
def _cell(
    var, z_mu, z_var, w, c_mu, c_var, k_f, k_i, k_c, k_o, h_c, kept, next_mu, next_var, out_mu, out_var,
    batch, inputs, outputs, width, stride, offset, goes_on, given,
):  # fmt: skip
    """One time step of every unit, from the moments of its gates.

    var: variances of the inputs of the gates.
    goes_on: whether there is a next time step, whose input, in next_mu and next_var, is the hidden state.
    given: whether the hidden state is an output of the layer; that of sample b begins at b stride + offset.
    """
    i = thread_index()
    if i < batch * outputs:
        j, b = i % outputs, i // outputs
        row, gate, of_f = b * width, outputs * width, j * width
        ic, fo, io, co = ZERO, ZERO, ZERO, ZERO
        for z in range(width):
            s, w_i, w_c = var[row + z], w[of_f + gate + z], w[of_f + 2 * gate + z]
            ic += s * w_i * w_c
            if z < inputs:
                s_o = s * w[of_f + 3 * gate + z]
                fo += s_o * w[of_f + z]
                io += s_o * w_i
                co += s_o * w_c
        z_f = b * 4 * outputs + j
        z_i, z_c, z_o = z_f + outputs, z_f + 2 * outputs, z_f + 3 * outputs
        h_mu, h_var, c_mu[i], c_var[i], k_f[i], k_i[i], k_c[i], k_o[i], h_c[i], kept[i] = cell_moments(
            z_mu[z_f], z_var[z_f], z_mu[z_i], z_var[z_i], z_mu[z_c], z_var[z_c], z_mu[z_o], z_var[z_o],
            ic, fo, io, co, c_mu[i], c_var[i],
        )  # fmt: skip
        if goes_on:
            next_mu[row + inputs + j] = h_mu
            next_var[row + inputs + j] = h_var
        if given:
            out_mu[b * stride + offset + j] = h_mu
            out_var[b * stride + offset + j] = h_var


@kernel(*[floats] * 6, int32, threads=THREADS)
def _end(h_mu, h_var, c_mu, c_var, end_mu, end_var, outputs):
    """Copies the states of one sample after the last time step to `end`."""
    j = thread_index()
    if j < outputs:
        end_mu[j], end_var[j] = h_mu[j], h_var[j]
        end_mu[outputs + j], end_var[outputs + j] = c_mu[j], c_var[j]


@kernel(*[floats] * 18, *[int32] * 7, threads=THREADS)
def _gate_deltas(
    delta_mu, delta_var, later_mu, later_var, k_f, k_i, k_c, k_o, h_c, kept, g_mu, g_var,
    d_mu, d_var, e_mu, u_var, q_mu, q_var, batch, outputs, stride, offset, observed, last, cell_path,
):  # fmt: skip
    """Deltas of the gates of every unit at one time step, and those of its cell state at the step before (q).

    Args:
        delta_mu, delta_var: deltas of the output, if it is `observed`; that of sample b begins at b stride + offset.
        later_mu, later_var: deltas of the hidden state, from the next time step. last: there is no next one.
        d_mu, d_var, e_mu, u_var: receive arguments of `input_deltas`: deltas of h and of C, and those of C from the
            next time step.
    """
    i = thread_index()
    if i < batch * outputs:
        j, b = i % outputs, i // outputs
        dm, ds, later_dm, later_ds = ZERO, ZERO, ZERO, ZERO
        if not last:
            dm, ds, later_dm, later_ds = later_mu[i], later_var[i], q_mu[i], q_var[i]
        if observed:
            dm += delta_mu[b * stride + offset + j]
            ds += delta_var[b * stride + offset + j]
        cell_dm, cell_ds = cell_deltas(h_c[i], dm, ds, later_dm, later_ds)
        g = b * 4 * outputs + j
        g_mu[g], g_var[g] = k_f[i] * cell_dm, k_f[i] * k_f[i] * cell_ds
        g += outputs
        g_mu[g], g_var[g] = k_i[i] * cell_dm, k_i[i] * k_i[i] * cell_ds
        g += outputs
        g_mu[g], g_var[g] = k_c[i] * cell_dm, k_c[i] * k_c[i] * cell_ds
        g += outputs
        g_mu[g], g_var[g] = k_o[i] * dm, k_o[i] * k_o[i] * ds
        d_mu[i], d_var[i], e_mu[i], u_var[i] = dm, ds, cell_dm, later_ds
        k = kept[i] if cell_path else ZERO
        q_mu[i], q_var[i] = k * cell_dm, k * k * cell_ds


@kernel(
    *[floats] * 10, optional(floats), *[floats] * 4, *[int32] * 8, threads=THREADS
)  # fmt: skip
def _input_deltas(
    w, k_f, k_i, k_c, k_o, h_c, d_mu, d_var, e_mu, u_var, jcb, in_mu, in_var, later_mu, later_var,
    batch, inputs, outputs, width, begin, count, stride, offset,
):  # fmt: skip
    """Deltas of inputs begin, begin + 1, ... of the gates: layer inputs, or the previous hidden state (later_)."""
    i = thread_index()
    if i < batch * count:
        z, b = begin + i % count, i // count
        dm, ds = ZERO, ZERO
        gate = outputs * width
        for j in range(outputs):
            n, k = b * outputs + j, j * width + z
            slopes = k_f[n], k_i[n], k_c[n], k_o[n], h_c[n]
            more_dm, more_ds = input_deltas(
                slopes, w[k], w[k + gate], w[k + 2 * gate], w[k + 3 * gate], e_mu[n], d_mu[n], d_var[n], u_var[n]
            )
            dm += more_dm
            ds += more_ds
        if z < inputs:
            k = b * stride + offset + z
            slope = ONE
            if jcb is not None:
                slope = jcb[k]
            in_mu[k] = slope * dm
            in_var[k] = slope * slope * ds
        else:
            k = b * outputs + z - inputs
            later_mu[k] = dm
            later_var[k] = ds


@kernel(*[floats] * 5, int32, threads=THREADS)
def _posterior(mu, var, delta_mu, delta_var, h_c, outputs):
    j = thread_index()
    if j < outputs:
        c = outputs + j
        mu[j], var[j] = posterior(mu[j], var[j], ONE, delta_mu[j], delta_var[j])
        mu[c], var[c] = posterior(mu[c], var[c], h_c[j], delta_mu[j], delta_var[j])


@kernel(*[floats] * 11, int32, int32, threads=THREADS)
def _record(var, w, k_f, k_i, k_c, k_o, h_c, kept, var_before, cov_c, cov_h, inputs, outputs):
    i = thread_index()
    if i < outputs * outputs:
        p, j = i // outputs, i % outputs
        width = inputs + outputs
        gate, k = outputs * width, j * width + inputs + p
        slopes = k_f[j], k_i[j], k_c[j], k_o[j], h_c[j]
        _, _, to_h = input_slopes(slopes, w[k], w[k + gate], w[k + 2 * gate], w[k + 3 * gate])
        cov_h[i] = var[inputs + p] * to_h
        if j == 0:
            cov_c[p] = var_before[p] * kept[p]


@kernel(*[floats] * 14, int32, threads=THREADS)
def _smooth(
    cov_h, cov_c, prior_mu_h, prior_var_h, prior_mu_c, prior_var_c, next_mu_h, next_var_h, next_mu_c, next_var_c,
    mu_h, var_h, mu_c, var_c, outputs,
):  # fmt: skip
    """Smooths one time step, given covariances, priors and smoothed moments of the next: the first ten arguments."""
    p = thread_index()
    if p < outputs:
        gain = smoother_gain(cov_c[p], prior_var_c[p])
        dm, ds = smoothing(gain, next_mu_c[p], next_var_c[p], prior_mu_c[p], prior_var_c[p])
        mu_c[p] += dm
        var_c[p] = mended_variance(var_c[p] + ds)
        m, s = ZERO, ZERO
        for j in range(outputs):
            gain = smoother_gain(cov_h[p * outputs + j], prior_var_h[j])
            dm, ds = smoothing(gain, next_mu_h[j], next_var_h[j], prior_mu_h[j], prior_var_h[j])
            m += dm
            s += ds
        mu_h[p] += m
        var_h[p] = mended_variance(var_h[p] + s)


def scratch_size(batch: int, inputs: int, outputs: int) -> int:
    """Size of the scratch memory of `forward`, and of `backward`, in numbers."""
    return 10 * batch * outputs


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
    """Hidden states of all time steps, or of the last one; see `kernels.cpu.recurrent.forward`."""
    (batch, steps, inputs), (_, given, outputs) = x.mu.shape, out.mu.shape
    width, n = inputs + outputs, batch * outputs
    sizes = batch, inputs, outputs, width
    *z, c_mu, c_var = cut(scratch, *[(batch, 4 * outputs)] * 2, *[(batch, outputs)] * 2)
    gates = State(*z)
    _take_inputs.launch(blocks(x.mu.size, THREADS), *x[:2], kept.mu, kept.var, batch, steps, inputs, width)
    before = (c_mu, c_var) if start.mu is None else start[:2]
    _begin.launch(blocks(n, THREADS), kept.mu, kept.var, c_mu, c_var, *before, *sizes, start.mu is not None)
    for t in range(steps):
        linear.forward(State(kept.mu[t], kept.var[t]), weights, bias, gates)
        after, row = min(t + 1, steps - 1), t if given == steps else 0
        _cell.launch(
            blocks(n, THREADS), kept.var[t], *gates[:2], weights.mu, c_mu, c_var, *(k[t] for k in kept[2:]),
            kept.mu[after], kept.var[after], *out[:2], *sizes, given * outputs, row * outputs,
            t + 1 < steps, given == steps or t + 1 == steps,
        )  # fmt: skip
    if end.mu is not None:
        _end.launch(blocks(outputs, THREADS), *out[:2], c_mu, c_var, *end[:2], outputs)


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
    """Deltas of the input, and the batch sums of the parameters; see `kernels.cpu.recurrent.backward`."""
    (steps, batch, outputs), given = kept.f.shape, delta.mu.shape[1]
    width = kept.mu.shape[2]
    inputs = width - outputs
    *later, q_mu, q_var, d_mu, d_var, e_mu, u_var = cut(scratch, *[(batch, outputs)] * 8)
    into = delta[:2] if in_delta is None else in_delta[:2]  # not written to if in_delta is None
    begin = inputs if in_delta is None else 0
    for t in reversed(range(steps)):
        last, row = t + 1 == steps, t if given == steps else 0
        slopes = [k[t] for k in kept[2:]]
        _gate_deltas.launch(
            blocks(batch * outputs, THREADS), *delta[:2], *later, *slopes, gates.mu[t], gates.var[t], d_mu, d_var,
            e_mu, u_var, q_mu, q_var, batch, outputs, given * outputs, row * outputs, given == steps or last, last,
            cell_path,
        )  # fmt: skip
        count = (width if t else inputs) - begin
        if count:
            _input_deltas.launch(
                blocks(batch * count, THREADS), weights.mu, *slopes[:5], d_mu, d_var, e_mu, u_var, jcb, *into, *later,
                batch, inputs, outputs, width, begin, count, steps * inputs, t * inputs,
            )  # fmt: skip
    rows = steps * batch
    joined, of_gates = State(kept.mu.reshape(rows, width), None), gates.reshape(rows, 4 * outputs)
    linear.backward(joined, of_gates, weights, bias, None, accumulate)


def update_memory(memory: State, delta: Delta, kept: LSTMSaved) -> None:
    """The posterior of the hidden and the cell state of one sample, from the deltas of its last hidden state."""
    outputs = kept.f.shape[2]
    _posterior.launch(blocks(outputs, THREADS), *memory[:2], *delta[:2], kept.h, outputs)


def record(kept: LSTMSaved, weights: Tensor, var_before: Array, cov_c: Array, cov_h: Array) -> None:
    """Covariances between the states before and after a pass of one time step, see `Record`."""
    outputs = cov_c.shape[0]
    inputs = kept.mu.shape[2] - outputs
    slopes = kept[2:]
    _record.launch(
        blocks(outputs * outputs, THREADS), kept.var, weights.mu, *slopes, var_before, cov_c, cov_h, inputs, outputs
    )


def smooth(record: Record) -> None:
    """Conditions the posterior on the observations of all time steps; see `kernels.cpu.recurrent.smooth`."""
    steps, outputs = record.cov_c.shape
    for t in reversed(range(steps - 1)):
        after = record.cov_h[t + 1], record.cov_c[t + 1], *(a[t + 1] for a in (*record.prior, *record.posterior))
        _smooth.launch(blocks(outputs, THREADS), *after, *(a[t] for a in record.posterior), outputs)

"""Recurrent layer with long short-term memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytagi_ddp.kernels.tensors import NO_STATE, LSTMSaved
from pytagi_ddp.nn.core.init import gaussian_prior
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.pytagi_view import SizesView, either_order
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed, Switch
from pytagi_ddp.nn.core.state import Delta, Shape, State
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.validate import as_bools, as_integers

GATES = 4


class LSTM(SizesView, BaseLayer):
    """Long short-term memory: reads a sequence, (time steps, features) per sample, and returns its hidden states.

        f, i, o = sigmoid(W x + b), c = tanh(W x + b)       gates, each with its own W and b; x = [input, h before]
        C = f C before + i c                                h = o tanh(C)

    with the moments of `Linear`, of linearised activations (those of f, i, o and tanh(C) with variances that their
    ranges allow) and of products of Gaussians. The moments include the covariance of i with c due to x, and that of o
    with tanh(C) due to the input alone, without h before. They treat gates and earlier states as independent, and so
    the uses of a weight at different time steps. Deltas are propagated through h and C to the gates, the inputs and the
    earlier time steps. Batch sums are over samples and time steps; the cap (`Sequential.step`) counts samples.

    Every sequence begins with h = C = 0, with one exception: a layer of one time step that is called with one sample
    continues from the previous call. It keeps the moments of h and C after each forward pass, in training and
    evaluation (`predict` restores the earlier ones), and a backward pass updates them by the observation. A call with
    another number of samples sets them to 0. `Sequential.get_lstm_states` returns these moments.

    The weights are a matrix (4 output_size, input_size + output_size): rows for the units of the gates f, i, c and o,
    in this order, and columns for the inputs and then for h of the previous step. Biases are in the order of the rows.

    Args:
        input_size: features of a time step.
        output_size: hidden units.
        last_timestep: whether the output is the hidden state of the last time step only: (output_size,) instead of
            (seq_len, output_size) per sample.
        seq_len: time steps.
        bias: with biases or without.
        gain_weight, gain_bias, init_method: of the prior, as in `Linear`.
        cell_path: whether deltas are also propagated to earlier time steps through C, as the chain rule requires. False
            leaves this path out, as pytagi does; the errors of the deltas of the weights are then as large as the
            deltas.
        recurrent: False treats each time step as a separate sequence that begins at 0, as pytagi 0.2.1 does with more
            than one time step.

    Raises:
        ValueError: sizes below 1, unknown `init_method`, `last_timestep` without `recurrent`, or (in a network) an
            input of another size. TypeError: sizes that are not integers.

    pytagi's arguments may be given in either order: as here, or (input_size, output_size, seq_len, bias, ...) where the
    third is a number.

    Source: Vuong, Nguyen & Goulet (2024), arXiv:2401.16174; the path through C is ours.
    """

    _setting_names = ("input_size", "output_size", "last_timestep", "seq_len", "bias", "cell_path", "recurrent")
    replayable = True
    needs_variances = False
    last_timestep, seq_len, bias, recurrent = Fixed(), Fixed(), Fixed(), Fixed()
    cell_path = Switch()
    parameters: Parameters

    @either_order(2, "seq_len", "bias", "gain_weight", "gain_bias", "init_method")
    def __init__(
        self,
        input_size: int,
        output_size: int,
        last_timestep: bool | int = False,  # an int is seq_len
        seq_len: int = 1,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
        *,
        cell_path: bool = True,
        recurrent: bool = True,
    ):
        super().__init__()
        sizes = {"input_size": input_size, "output_size": output_size, "seq_len": seq_len}
        input_size, output_size, seq_len = as_integers(self.name, 1, **sizes)
        self.cell_path = cell_path
        self.last_timestep, self.bias, self.recurrent = as_bools(
            self.name, last_timestep=last_timestep, bias=bias, recurrent=recurrent
        )
        if last_timestep and not recurrent:
            raise ValueError(f"{self.name} without recurrence has no last time step: all of them are alike")
        self._sizes = int(input_size), int(output_size)
        self.seq_len = int(seq_len)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        self.init_weight_bias()

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior."""
        inputs, outputs = self._sizes
        prior = gaussian_prior(
            GATES * outputs * (inputs + outputs),
            GATES * outputs if self.bias else 0,
            inputs + outputs,
            outputs,
            self.gain_weight,
            self.gain_bias,
            self.init_method,
            GATES,
        )
        self._set_prior(prior, (GATES * outputs, inputs + outputs))

    @property
    def carries(self) -> bool:
        """Whether h and C are carried from call to call, in calls with one sample."""
        return self.seq_len == 1 and self.recurrent

    def default_input_shape(self) -> Shape:
        return Shape.of_sequence(self.seq_len, self.input_size)

    def input_shape(self, shape: Shape) -> Shape:
        expected = self.default_input_shape()
        if shape.size != expected.size or shape.steps not in (1, self.seq_len):
            raise ValueError(
                f"{self.get_layer_info()} with seq_len={self.seq_len} needs an input of {expected} (time steps x "
                f"features), the layer before gives {shape}"
            )
        return shape.ordered(channels_last=False)

    def infer_output(self, shape: Shape) -> Shape:
        return Shape.of_sequence(1 if self.last_timestep else self.seq_len, self.output_size)

    def state_tensors(self) -> tuple[TensorSpec, ...]:
        if not self.carries:
            return ()
        n = 2 * self.output_size  # h, then C
        return TensorSpec("mu", n, "carried"), TensorSpec("var", n, "carried", variance=True)

    def get_memory(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(mu_h, var_h, mu_c, var_c): moments of h and C at the start of the next call; copies."""
        n = self.output_size
        if not self.carries:
            zeros = np.zeros((4, n), np.float32)
            return zeros[0], zeros[1], zeros[2], zeros[3]
        mu, var = (self.kernels.array.to_host(self.state[name]) for name in ("mu", "var"))
        return mu[:n], var[:n], mu[n:], var[n:]

    def set_memory(self, state: Sequence[np.ndarray]) -> None:
        """Sets the moments, as `get_memory` returns them."""
        if self.carries:
            for name, h, c in zip(("mu", "var"), state[:2], state[2:], strict=True):
                self.kernels.array.copy(np.concatenate([h, c]), self.state[name])
            if self._owner is not None:
                self._owner.arena.keep_state()

    def _sequences(self, batch: int) -> tuple[int, int]:
        """(number of sequences, time steps of each)."""
        return (batch, self.seq_len) if self.recurrent else (batch * self.seq_len, 1)

    def _saved_tensors(self, saved: Saved, batch: int) -> LSTMSaved:
        rows, steps = self._sequences(batch)
        memory = saved.buffer("kept", rows * steps, LSTMSaved.size(*self._sizes))
        return LSTMSaved.cut(memory.reshape(-1), steps, rows, *self._sizes)

    def _work(self, saved: Saved, rows: int) -> Any:
        return saved.scratch("work", (self.kernels.recurrent.scratch_size(rows, *self._sizes),))

    def forward(self, state: State, saved: Saved) -> State:
        batch, (inputs, outputs) = state.batch, self._sizes
        rows, steps = self._sequences(batch)
        saved.input, out = state, saved.output(batch)
        saved.tensors = self._saved_tensors(saved, batch)
        start = end = NO_STATE
        carried = self.carries and batch == 1
        if carried:
            start = State(saved.carried("mu"), saved.carried("var"))
            end = State(*saved.scratch("end", (2, 2 * outputs)))
        elif self.carries and not saved.recomputed:
            for values in self.state.values():
                self.kernels.array.clear(values)
        self.kernels.recurrent.forward(
            saved.with_variance(state).reshape(rows, steps, inputs),
            self.parameters.w,
            self.parameters.b,
            start,
            end,
            saved.tensors,
            self._work(saved, rows),
            out.reshape(rows, -1, outputs),
        )
        if carried:
            saved.carry("mu", end.mu)
            saved.carry("var", end.var)
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        batch, (inputs, outputs), pool = saved.input.batch, self._sizes, saved.pool
        rows, steps = self._sequences(batch)
        jcb = saved.input.jcb
        into = pool.take(batch, self.in_shape.size) if saved.needs_input else None
        gates = saved.scratch("gates", (2, steps, rows, GATES * outputs))
        by_step = delta.reshape(rows, -1, outputs)
        self.kernels.recurrent.backward(
            None if jcb is None else jcb.reshape(rows, steps, inputs),
            by_step,
            self.parameters.w,
            self.parameters.b,
            saved.tensors,
            self._work(saved, rows),
            Delta(*gates),
            into and into.reshape(rows, steps, inputs),
            self.cell_path,
            saved.accumulate,
        )
        if self.carries and batch == 1:
            memory = State(self.state["mu"], self.state["var"])
            for prior, values in zip(saved.scratch("end", (2, 2 * outputs)), memory[:2], strict=True):
                self.kernels.array.copy(prior, values)  # an earlier backward pass may have updated it
            self.kernels.recurrent.update_memory(memory, by_step, saved.tensors)
        pool.give(delta)
        return into


TLSTM = LSTM  # later versions of pytagi call it so if it propagates deltas through time

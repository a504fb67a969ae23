"""The stage of this rank, and its passes of micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.pipeline.messages import ReceiveQueue, SendQueue
from pytagi_ddp.distributed.pipeline.schedule import Action, Span, Timeline
from pytagi_ddp.kernels.tensors import Array, State
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.sequential import Sequential

PASSES = (
    "forward_backward()",
    "forward() in training mode",
    "forward() in evaluation mode",
    "predict()",
    "update_bn()",
)
Observe = Callable[[BaseHiddenStates, slice, BaseDeltaStates], None]


class Stage:
    """Runs the actions of a schedule: receives the input of a micro-batch, computes, and sends the result.

    States are sent forward as (mean, variance), with the Jacobian if the stage ends with an activation; deltas are sent
    back as (mean, variance). Each pass begins with a message through all stages, with its kind and number of samples.

    Args:
        net: the layers of this stage. group: the ranks of the stages, in order.
        taken: number of arrays of a state that is received.
        in_flight: the largest number of forward passes that wait for their backward passes.
        recompute: whether to keep only the input of a forward pass, and to run it again before its backward pass.
    """

    def __init__(self, net: Sequential, group: Communicator, taken: int, in_flight: int, recompute: bool):
        self.net, self.group = net, group
        self.is_first, self.is_last = group.rank == 0, group.rank == group.world_size - 1
        self.given = 3 if net.layers[-1].gives_jacobian else 2
        self.outputs, self.deltas = BaseHiddenStates(), BaseDeltaStates()  # of the last stage, for the whole batch
        self.outputs.elsewhere = not self.is_last
        self.outputs.arrange(net.out_shape)
        self.timeline: Timeline = []  # the actions since `begin`, in seconds of `time.perf_counter`
        self._observed = BaseDeltaStates()
        self.rows: list[slice] = []
        self._taken, self._in_flight, self._recompute = taken, in_flight, recompute
        self._cut_short = ""  # the reason of an interrupted pass
        self._held: int | None = None  # the micro-batch whose forward pass ran last, with `recompute`
        self._inputs: dict[int, BaseHiddenStates] = {}
        self._x: np.ndarray | None = None
        self._var_x: np.ndarray | None = None
        array, rank = net.kernels.array, group.rank
        self._header = np.zeros(3, np.int64)
        self._outgoing: list[SendQueue] = []
        if not self.is_first:
            self._states = ReceiveQueue(group, rank - 1, "states", in_flight, array)
            self._away = SendQueue(group, rank - 1, "deltas", 2, array)
            self._outgoing.append(self._away)
        if not self.is_last:
            self._on = SendQueue(group, rank + 1, "states", in_flight, array)
            self._back = ReceiveQueue(group, rank + 1, "deltas", 1, array)
            self._outgoing.append(self._on)

    def begin(
        self,
        kind: str,
        x: np.ndarray | None,
        var_x: np.ndarray | None,
        cut: Callable[[int], list[slice]],
        waiting: int,
    ) -> list[slice]:
        """Sends the kind of the pass to the next stages. Returns the rows of the micro-batches.

        Args:
            kind: one of `PASSES`. x, var_x: the batch, (samples, inputs), on the first stage.
            cut: returns the rows of the micro-batches for a number of samples.
            waiting: number of samples whose deltas wait, to which those of this batch will be added.
        """
        self._check(kind)
        header = self._header
        if self.is_first:
            assert x is not None
            header[:] = PASSES.index(kind), len(x), waiting
        else:
            self.group.receive(header, self.group.rank - 1)
            if (theirs := PASSES[int(header[0])]) != kind:
                self._cut_short = f"{theirs} of the stage in front of it"
                raise RuntimeError(
                    f"stage {self.group.rank} is in {kind}, the stage in front of it in {theirs}: all ranks of a "
                    "pipeline have to call the same methods in the same order"
                )
            if header[2] != waiting:
                self._cut_short = "other deltas in the stage in front of it"
                raise RuntimeError(
                    f"stage {self.group.rank} has deltas of {waiting} samples to add to, the stage in front of it of "
                    f"{header[2]}: what leaves no_sync() by an exception has to do so on all ranks of a pipeline"
                )
        if not self.is_last:
            self.group.send(header, self.group.rank + 1)
        samples = int(header[1])
        self._x, self._var_x, self._held = x, var_x, None
        self.timeline, self.rows = [], cut(samples)
        if self.is_last:
            self._make_room(samples)
        return self.rows

    def _make_room(self, samples: int) -> None:
        """Allocates memory for the outputs of the batch, and for their deltas."""
        net, out = self.net, (samples, self.net.out_shape.size)
        if self.outputs.state.mu.shape != out or self.outputs.device != net.device:
            empty = net.kernels.array.empty
            last = net.layers[-1]
            jcb = empty(out) if last.gives_jacobian else None
            self.outputs.hold(State(empty(out), empty(out), jcb), net.device, getattr(last, "positive_noise", False))
        self.deltas.move(net.device)
        self.deltas.set_size(samples * out[1], max(1, samples))
        self.deltas.outdated = True

    def _check(self, kind: str) -> None:
        if self._cut_short:
            raise RuntimeError(
                f"stage {self.group.rank} cannot go on with {kind}: a pass was cut short by {self._cut_short}, and the "
                "stages are out of step since; end the job and start it again"
            )

    def run(self, actions: Sequence[Action], observe: Observe | None = None) -> None:
        """Runs the actions, and returns when all messages have been sent.

        Args:
            observe: the function by which the last stage fills the deltas at its outputs, see `PipelineSequential`.
        """
        self._check("backward()")
        try:
            self._run(actions, observe)
        except BaseException as error:
            self._cut_short = repr(error) if self.group.world_size > 1 else ""
            raise

    def _run(self, actions: Sequence[Action], observe: Observe | None) -> None:
        for k, action in enumerate(actions):
            if k == 0:
                self._ask(action)
            message = self._take(action)
            if k + 1 < len(actions):
                self._ask(actions[k + 1])
            start = time.perf_counter()
            result = self._forward(action, message) if action.kind == "F" else self._backward(action, message)
            if action.kind == "F" and self.is_last:
                self._observe(self.rows[action.micro_batch], observe)
            self.timeline.append(Span(action, start, time.perf_counter()))
            if result is not None:
                (self._on if action.kind == "F" else self._away).send(*result)
        for messages in self._outgoing:
            messages.finish()
        self.net.passes.use(0)

    # -- one action ---------------------------------------------------------------------------------------------

    def _ask(self, action: Action) -> None:
        rows = self.rows[action.micro_batch]
        batch = rows.stop - rows.start
        if action.kind == "F" and not self.is_first:
            self._states.ask((self._taken, batch, self.net.in_shape.size))
        if action.kind == "B" and not self.is_last:
            self._back.ask((2, batch, self.net.out_shape.size))

    def _take(self, action: Action) -> Array | None:
        if action.kind == "F":
            return None if self.is_first else self._states.take()
        return None if self.is_last else self._back.take()

    def _forward(self, action: Action, message: Array | None) -> tuple[Array, ...] | None:
        """A forward pass; returns the arrays for the next stage, or None on the last one."""
        m = action.micro_batch
        if message is not None:
            self._inputs[m % self._in_flight] = given = BaseHiddenStates()
            given.hold(State(*message), self.net.device)
        self._use_frame(m)
        out = self._pass(m)
        arrays = tuple(a for a in out if a is not None)
        if len(arrays) != self.given:
            raise RuntimeError(
                f"{self.net.layers[-1].get_layer_info()} gives {len(arrays)} arrays instead of {self.given}: set its "
                "gives_jacobian to whether its forward() gives a Jacobian"
            )
        if self.is_last:
            rows = self.rows[m]
            for source, target in zip(arrays, self.outputs.state, strict=False):
                self.net.kernels.array.copy(source, target[rows])
            return None
        return arrays

    def _use_frame(self, m: int) -> None:
        """Selects the saved activations of micro-batch `m` in training; passes without a backward pass use number 0."""
        if self.net.training:
            self.net.passes.use(1 if self._recompute else 1 + m % self._in_flight)

    def _pass(self, m: int) -> State:
        if self.is_first:
            assert self._x is not None
            rows = self.rows[m]
            self.net(self._x[rows], None if self._var_x is None else self._var_x[rows])
        else:
            self.net(self._inputs[m % self._in_flight])
        self._held = m
        return self.net.output_z_buffer.state

    def _observe(self, rows: slice, observe: Observe | None) -> None:
        if observe is None:
            return
        net, states, deltas = self.net, BaseHiddenStates(), self._observed
        part = State(*(None if a is None else a[rows] for a in self.outputs.state))
        states.hold(part, net.device, self.outputs.positive_noise)
        states.arrange(net.out_shape)
        deltas.move(net.device)
        deltas.set_size(states.size, states.block_size)
        deltas.outdated = True
        observe(states, rows, deltas)
        if (deltas.block_size, deltas.size) != (states.block_size, states.size):
            raise ValueError(
                f"observe has left deltas of {deltas.block_size} x {deltas.actual_size} units, the micro-batch has "
                f"{states.block_size} x {states.actual_size}"
            )
        if deltas.outdated:
            raise ValueError(
                "observe has left the deltas of an earlier micro-batch: fill them for each, as OutputUpdater.update() "
                "does, or call reset_zeros() where nothing was observed"
            )
        for source, target in zip(deltas.arrays, self.deltas.arrays, strict=True):
            net.kernels.array.copy(source, target[rows])

    def _backward(self, action: Action, message: Array | None) -> tuple[Array, ...] | None:
        """A backward pass; returns the arrays for the previous stage, or None on the first one."""
        net, m = self.net, action.micro_batch
        self._use_frame(m)
        if self._recompute and self._held != m:
            self._run_again(m)
        given = [a[self.rows[m]] for a in self.deltas.arrays] if message is None else list(message)
        at_output = net.input_delta_z_buffer
        at_output.set_size(given[0].size, len(given[0]))
        for source, target in zip(given, at_output.arrays, strict=True):
            net.kernels.array.copy(source, target)
        if not self.is_first:
            net.input_state_update = True
        net.backward()
        return None if self.is_first else net.output_delta_z_buffer.arrays

    def _run_again(self, m: int) -> None:
        """Repeats the forward pass without changing running statistics."""
        self._pass(m)
        self.net.arena.undo_pass()

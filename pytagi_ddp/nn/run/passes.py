"""The passes of a training step, which are recorded once and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.kernels.one_thread import one_thread
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.arena import ParameterArena
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.hooks import Direction, LeafHooks
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.saved import Buffers, Pass, PassMemory, Saved
from pytagi_ddp.nn.core.state import Array, Delta, State
from pytagi_ddp.nn.core.step import Change, Lost, Step
from pytagi_ddp.nn.layers.chain import Chain
from pytagi_ddp.nn.run.evidence import EvidenceSchedule
from pytagi_ddp.nn.run.memory import pass_bytes, refuse_too_large
from pytagi_ddp.nn.run.network_input import NetworkInput


class Passes(Step):
    """Forward passes, backward passes and steps of a network, and the state of its training step.

    It is the attribute `passes` of a network, for wrappers and tools; programs call the methods of the network.
    Wrappers read the attributes of `Step`, and change them by its methods.

    Args:
        net: the network, which calls `attach` first.

    Attributes:
        one_thread: a lock: inside the context, only the calling thread may use the network.
        hooks: those of the network. While there are any, passes are not replayed (`LeafHooks` has exceptions).
        of_one_mode: False if some layer may be in another mode than the network.
        schedule: the `EvidenceSchedule` of the network's steps, or None.
        new_schedule: whether it, or a setting of it, is new since ranks have compared schedules.
        frame: the saved activations in use, see `use`.
        last: batch size, mode, input and context of the last forward pass with these saved activations.
        memory: buffers of the passes; replaced when settings or the device change.
        express: fast path of the public calls for the common case, see `kernels.protocol.Graphs`.
    """

    def __init__(self, net: Network):
        self._net: Callable[[], Any] = ref(net)  # weak, so that deleting a network frees its memory
        self.one_thread = one_thread()
        self.hooks = LeafHooks()
        self.of_one_mode = True
        self.schedule: EvidenceSchedule | None = None
        self.new_schedule = False
        self.last: Any = None
        self._walks = False  # whether a call goes through the layers

    @property
    def evaluated(self) -> bool:
        """Whether the last forward pass was in evaluation mode, as those of `predict` are."""
        return self.last is not None and not self.last[1]

    def attach(self, chain: Chain, arena: ParameterArena, kernels: Kernels) -> None:
        """Attaches new layers, a new parameter buffer or a new device; pending batch sums are kept."""
        self._chain, self._arena, self._kernels = chain, arena, kernels
        self._fits: dict[bool, int] = {}  # the largest batch known to fit into memory, by `training`
        self._replayable = all(part.replayable for layer in chain.layers for _, part in layer.named_layers(""))
        self._checks_input = any(hasattr(leaf, "check_input") for leaf in arena.leaves)
        self._recorders = [leaf for leaf in arena.leaves if hasattr(leaf, "after_backward")]
        self._graphs = kernels.graph.Graphs(kernels.array)
        self.express = self._graphs.express
        self.express.one_thread = self.one_thread
        self.went_back = False
        self.frame = self._newest = 0  # numbers of the saved activations in use, and of the last forward pass
        self._frames: dict[int, tuple] = {}  # batch, last, buffers and input of those not in use
        self._input = self._new_input()
        if self.schedule is not None:
            arena.cut_steps(self.schedule.prior_factor)
        self.invalidate(Change.OPERATIONS)

    def _new_input(self) -> NetworkInput:
        net: Network = self._net()
        return NetworkInput(net.in_shape, self._kernels.array, net.device, [*net.layers[0]._input_checks()])

    def invalidate(self, change: Change) -> None:
        """Drops the recordings and results that `change` makes invalid (`change.lost`)."""
        lost = change.lost
        with self.one_thread:
            if Lost.STEP_PARTS in lost:
                self._arena.cut_steps()
            if Lost.ONE_MODE in lost:
                self.of_one_mode = False
            if Lost.BACKWARD in lost:
                self.batch = None
                for frame, (_, *rest) in self._frames.items():
                    self._frames[frame] = None, *rest
            if Lost.RECORDINGS in lost:
                self._graphs.clear()
            if Lost.MEMORY in lost:
                self.last = None
                self._frames.clear()
                self.memory = PassMemory(self._kernels)
                self._buffers: Buffers = {}  # of the frame in use

    # -- forward ----------------------------------------------------------------------------------------------

    def check_input(self, mu_x: ArrayLike, var_x: ArrayLike | None = None) -> None:
        """Raises the error that `forward` of the network would raise for this input."""
        self._input.moments(mu_x, var_x, self._net().missing_inputs)

    def forward(self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None) -> State:
        """`Sequential.forward` without copies of its result; to be called inside `one_thread`.

        Where `mu_x` is the buffer of another network, that buffer must not change until the backward pass.
        """
        net: Network = self._net()
        if mu_x is net.output_z_buffer:
            raise ValueError("a network cannot read its own output_z_buffer, which it writes to: pass get_outputs()")
        training = net.training
        state = self._input.state(mu_x, var_x, net.missing_inputs)
        self.batch, self.went_back = None, False  # if a layer raises an error, buffers have parts of two batches
        if not state.batch:
            out = self._no_outputs()
        else:
            if state.batch > self._fits.get(training, 0):
                self._check_memory(state, training)
            self.last, self._newest = None, self.frame  # contexts of the last pass may have memory that this one uses
            walk = partial(self._walk_forward, state, training)
            out, saved = self._run("forward", (state.batch, training), state, walk)
            self.last = (state.batch, training, state, saved)
            # The fast path copies the input to the network's memory, and only checks that values are finite.
            if not (isinstance(mu_x, BaseHiddenStates) or self._checks_input):
                self.express.offer_forward(self._graphs.plan, self.last, state, out)
        net.output_z_buffer.hold(out, net.device, getattr(net.layers[-1], "positive_noise", False))
        deltas = net.input_delta_z_buffer
        deltas.set_size(out.mu.size, out.batch)
        deltas.outdated = out.batch > 0
        if training:
            self.batch = out.batch
            self.one_thread.went_forward()
        return out

    def _no_outputs(self) -> State:
        """The output for a batch without samples, for which no layer is called."""
        mu, var = (self._kernels.array.empty((0, self._net().out_shape.size)) for _ in range(2))
        return State(mu, var)

    def forward_only(self, mu_x: ArrayLike | BaseHiddenStates) -> State:
        """A forward pass without replay, from which no backward pass can follow; `output_z_buffer` is emptied."""
        with self.one_thread:
            net: Network = self._net()
            state = self._input.state(mu_x, missing=net.missing_inputs)
            net.output_z_buffer.set_size(0, 1)  # its memory is written to
            self.batch = self.last = None
            self._graphs.clear()
            if not state.batch:
                return self._no_outputs()
            return self._walked(lambda: self._walk_forward(state, net.training)[0])

    def _walk_forward(self, state: State, training: bool) -> tuple[State, Saved]:
        self.memory.pool.reserve(state.batch * self._chain.widest)
        saved = Saved(None, Pass(self.memory, self._buffers, training, self.hooks))
        self._arena.begin_pass()
        try:
            return self._chain.forward(state, saved), saved
        except BaseException:
            with held_back():
                self._arena.undo_pass()
            raise

    def _check_memory(self, state: State, training: bool) -> None:
        """Raises MemoryError if the device has less free memory than passes of this batch size will take."""
        array = self._kernels.array
        watched = any(leaf.on_moments is not None for leaf in self._arena.running)
        if array.free_bytes() is not None and not (watched or self._is_more_than_kernels()):
            self.invalidate(Change.OUT_OF_MEMORY)

            def needed(batch: int) -> int:
                rows = State(*(None if a is None else a[:batch] for a in state[:2]))
                return pass_bytes(self._chain, self._kernels, rows, training)

            refuse_too_large(needed, state.batch, array.free_bytes() or 0)
        self._fits[training] = state.batch

    # -- backward ---------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """`Sequential.backward`, through the layers or replayed."""
        with self.one_thread:
            self.one_thread.goes_on()
            net: Network = self._net()
            batch = self.batch
            if batch is None or not net.training:
                raise RuntimeError(
                    "backward() needs a forward pass in training mode before it, and training mode itself (see "
                    "train()); no step, and no other change of parameters, settings or modes, may come between them"
                )
            if self.average is not None:
                raise RuntimeError(
                    "backward() would overwrite the deltas of all ranks: call step() first, which applies them"
                )
            if self.accumulating and self.lost:
                raise RuntimeError(
                    "backward() after one that was cut short, with which the accumulated deltas are lost: call "
                    "drop_deltas(), and begin with the first batch of the step again"
                )
            source, end = net.input_delta_z_buffer, None
            source.check(batch, net.out_shape.size)
            if not batch:
                net.output_delta_z_buffer.set_size(0, 0)
                if not self.adds:
                    self.forget()
                    if net.trainer is None:  # else an exchange between ranks clears them
                        self._arena.drop_sums()
                return
            source.move(net.device)
            if net.input_state_update:
                end = net.output_delta_z_buffer
                end.set_size(batch * net.in_shape.size, batch)
            before = self.begin()
            self._pass_backward(batch, source, end, accumulate=before > 0 and self._arena.keeps_sums)
            self.passed(before + batch)

    def _pass_backward(self, batch: int, start: BaseDeltaStates, end: BaseDeltaStates | None, accumulate: bool) -> None:
        """From the deltas `start` at the output to the deltas `end` at the input, or None if these are not needed."""
        self.memory.pool.reserve(batch * self._chain.widest)
        repeated, self.went_back = self.went_back, True
        again = repeated and self._chain.recomputes
        saved = self.last[3]
        key = (batch, end is not None, accumulate, again)
        first, last = start.arrays, end.arrays if end else None
        memory = (*self.last[2], *first, *(last or ()))  # the input may be in another network's memory
        walk = partial(self._walk_backward, saved, first, last, accumulate, again)
        name = "backward, adding" if accumulate else "backward"
        self._run(name, key, memory, walk)
        for leaf in self._recorders:
            leaf.after_backward(saved.find(leaf), batch, repeated)
        if not (self._recorders or self._chain.recomputes):  # Express can do neither
            end_memory = end.memory if end else None
            self.express.offer_backward(self._graphs.plan, self.last, key[1:3], start.memory, end_memory)

    def _walk_backward(
        self, saved: Saved, start: tuple[Array, Array], end: tuple[Array, Array] | None, accumulate: bool, again: bool
    ) -> None:
        pool, blocks = self.memory.pool, self.memory.blocks
        # Unless other passes have used this memory since, it has the activations of the block that ran last.
        blocks.holder = None if again or self._newest != self.frame else self._chain.last_recomputed(saved)
        delta = Delta(*start, memory=start)
        pool.share(delta)  # the user may read them again
        if not self._chain.spares_deltas:
            delta = pool.own_copy(delta)
        self._arena.begin_pass(backward=True)
        try:
            into = self._chain.backward(delta, saved.ask(end is not None, accumulate))
        except BaseException:
            with held_back():
                self._arena.undo_pass(backward=True)
            raise
        if into is not None and end is not None:
            self._kernels.array.copy(into.mu, end[0])
            self._kernels.array.copy(into.var, end[1])
            pool.give(into)

    # -- step -------------------------------------------------------------------------------------------------

    def step(self, ranks: int = 1) -> None:
        """`Sequential.step`, also of a network that belongs to a `DDPSequential` or the like.

        Args:
            ranks: number of ranks that make such steps, each with its own deltas, before their posteriors are merged.
                The pull of a `schedule` then counts once in the merged posterior.
        """
        if not self.went_back:
            self.refuse_unread(self._net().input_delta_z_buffer)
        self.one_thread.goes_on()
        samples, average, schedule, rate = self.samples, self.average, self.schedule, 0.0
        if samples is None:
            raise RuntimeError(
                "step() after a backward pass, or an accumulation, that was cut short: its deltas are of parts of a "
                "batch; run forward, the output update and backward again"
            )
        self.stepped()
        if schedule is not None:
            self._arena.check()  # raises the error of the previous step; there is no step then
            rate = schedule.rate_among(ranks) if samples or average is not None else 0.0
        made = schedule.made if schedule is not None and samples else None
        all_finite = self.express.step(self, samples, rate, made) if average is None else None
        if all_finite is None:
            self._walk_step(samples, average, rate)
        elif not all_finite:
            self._arena.finish()

    def _walk_step(self, samples: int, average: bool | None, rate: float) -> None:
        with held_back(), self.one_thread:  # parameters and schedule change, or neither
            self.one_thread.stepped()
            self.invalidate(Change.PARAMETERS)
            if average is not None:
                self._arena.step_pooled(average, rate)
                if self.schedule is not None:  # the samples of all ranks are next to the deltas
                    samples_of_all = self._kernels.array.snapshot(self._arena.tail[:1])
                    self.schedule.moves_on(samples_of_all, self._arena.unchecked)
                return
            self._arena.step(samples, rate=rate, run=partial(self._run, "step", (), ()))
            if self.schedule is not None and samples:
                self.schedule.moves_on(None, self._arena.unchecked)
            if not self._frames:  # Express knows nothing of frames
                self.express.offer_step(self._graphs.plan, *self._arena.step_memory)

    def refuse_unread(self, deltas: BaseDeltaStates) -> None:
        """Raises RuntimeError if `deltas`, at the output, belong to the last batch and no backward pass has read them.

        There is no error if earlier batch sums wait for a step, which a backward pass would replace.
        """
        waits = self.batch and not self.went_back and self.average is None
        if waits and (self.accumulating or not self.waiting):
            deltas.refuse_step()

    def use_schedule(self, schedule: EvidenceSchedule | None) -> None:
        """Assigns `Sequential.schedule`."""
        if self.schedule is not None:
            self.schedule.serve(None)
        self.new_schedule |= schedule is not self.schedule
        self.schedule = schedule
        if schedule is not None:
            schedule.serve(self._net())
        factor = 0.0 if schedule is None else schedule.prior_factor
        if self._arena.prior_factor != factor:
            self._arena.cut_steps(factor)
            self.invalidate(Change.CALLS)

    # -- wrappers ---------------------------------------------------------------------------------------------

    def use(self, frame: int) -> None:
        """Switches between the saved activations of several forward passes; `backward` uses those in use.

            for k, x in enumerate(micro_batches, 1):
                net.passes.use(k)
                net(x)
            for k, deltas in enumerate(output_deltas, 1):
                net.passes.use(k)
                net.set_delta_z(*deltas)
                net.backward()

        Each number has its own memory for the input and for the values that layers save. The buffers of outputs and
        deltas are shared: they have the values of the last call.

        Args:
            frame: any number, for the saved activations of a pass. It is 0 at the start; only passes of 0 are recorded.

        Raises:
            RuntimeError: a frame other than 0, in a network with layers that carry a memory from call to call.
        """
        with self.one_thread:
            if frame and self._arena.carried.size:
                raise RuntimeError(
                    "passes.use(): layers of this network carry a memory from call to call (an LSTM with seq_len=1), "
                    "and a backward pass would work with the memory of the last forward pass instead of its own "
                    "frame's; use seq_len > 1, or one forward pass at a time"
                )
            if frame == self.frame:
                return
            self._graphs.clear()
            self._frames[self.frame] = self.batch, self.last, self._buffers, self._input
            new = self._frames.pop(frame, None) or (None, None, {}, self._new_input())
            self.batch, self.last, self._buffers, self._input = new
            self.frame = frame

    def visits(self, direction: Direction) -> list[tuple[BaseLayer, Direction]]:
        """The calls of hooks for leaves with parameters, in the order in which a pass makes them."""
        return [(leaf, way) for leaf, way in self._chain.visits(direction) if leaf.parameters is not None]

    def saved_of(self, layer: Any) -> Saved | None:
        """The context of `layer` in the last forward pass, or None."""
        return self.last and self.last[3].find(layer)

    def buffer_bytes(self, layer: Any) -> int:
        """Bytes that a layer uses for the last batch: outputs, Jacobians, scratch memory; not the parameters."""
        return sum(buffer.nbytes for buffer in self._buffers.get(layer, {}).values())

    @property
    def bytes_between(self) -> int:
        """Bytes of the input, of values outside the layers that compute, and of the memory that layers share."""
        between = sum(self.buffer_bytes(layer) for layer in self._buffers if not layer._is_leaf)
        return self._input.nbytes + self.memory.nbytes + between

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Training or evaluation mode inside the block; restores the earlier modes, also of frozen layers."""
        net: Network = self._net()
        before, frozen = net.training, [layer for _, layer in net.named_layers() if layer.training != net.training]
        try:
            net.train(training)
            yield
        finally:
            net._set_training(before)
            for layer in frozen:
                layer._training = not before
            if frozen:
                self.invalidate(Change.MODES)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode inside the block; afterwards the modes, and what layers carry, are as before."""
        array, carried = self._kernels.array, self._arena.carried
        before = array.snapshot(carried)
        try:
            with self.in_mode(training=False):
                yield
        finally:
            array.copy(np.asarray(before), carried)  # from a GPU it is an `Arrival`

    # -- recording and replaying ------------------------------------------------------------------------------

    def _run(self, name: str, key: tuple, memory: tuple, function: Callable[[], Any]) -> Any:
        """`function()`, or a replay of it if hooks, ranks and layers only call kernels."""
        try:
            if self._is_more_than_kernels():
                self._graphs.clear()
                return self._walked(function)
            return self._graphs.run(name, key, memory, function)
        except MemoryError as error:
            self.invalidate(Change.OUT_OF_MEMORY)
            raise MemoryError(
                f"{error or 'out of memory'}, in {name}. Parameters are as they were, and memory for passes is free "
                "again: go on with forward, of a smaller batch or with checkpoint_blocks=True"
            ) from error

    def _walked(self, function: Callable[[], Any]) -> Any:
        """`function()`, which goes through the layers: a second pass inside it would overwrite its buffers.

        Raises:
            RuntimeError: there is a pass already.
        """
        if self._walks:
            raise RuntimeError("a pass or step of a network from one of its own hooks: use a copy of it there")
        try:
            self._walks = True  # in the block, and without a call: no interrupt leaves it set
            return function()
        finally:
            self._walks = False

    def _is_more_than_kernels(self) -> bool:
        """Whether passes do more than call kernels (hooks, ranks, layers), or use other saved activations than 0."""
        meets_others = any(leaf.reduce_sums is not None for leaf in self._arena.running)
        hooks = bool(self.hooks) and not (self.hooks.of_parameters and self._kernels.graph.keeps_calls)
        return hooks or meets_others or not self._replayable or self.frame != 0

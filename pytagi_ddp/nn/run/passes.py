"""The passes of a training step: walks through the layers that are recorded once and then replayed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.arena import ParameterArena
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates
from pytagi_ddp.nn.core.hooks import LeafHooks
from pytagi_ddp.nn.core.saved import Buffers, Pass, PassMemory, Saved
from pytagi_ddp.nn.core.state import Array, Delta, State
from pytagi_ddp.nn.layers.chain import Chain
from pytagi_ddp.nn.run.memory import pass_bytes, refuse_too_large

NO_SAMPLES = -1  # stands for the batch size of a forward pass without samples


class Passes:
    """Forward passes, backward passes and steps of a network on one device.

    Args:
        chain, arena, kernels: the network's.
        hooks: its hooks. While there are any, passes are walked through and not replayed (`LeafHooks` has exceptions).

    Attributes:
        batch: samples of the forward pass that `backward` would continue; 0: there is none. `NO_SAMPLES`: there is one,
            of a batch without samples, whose backward pass does nothing.
        went_back: whether there has been a backward pass from that forward pass already.
        frame: the frame in use, see `use`.
        last: batch size, mode, input and context of the last forward pass in this frame.
        memory: what passes work in, until they work differently or on another device.
        express: what serves the public calls in their common case, see `kernels.protocol.Express`.
    """

    def __init__(self, chain: Chain, arena: ParameterArena, kernels: Kernels, hooks: LeafHooks):
        self._chain, self._arena, self._hooks, self._copy = chain, arena, hooks, kernels.array.copy
        self._kernels = kernels
        self._fits: dict[bool, int] = {}  # the largest batch that is known to fit into memory, by `training`
        self._replayable = all(part.replayable for layer in chain.layers for _, part in layer.named_layers(""))
        self._checks_input = any(hasattr(leaf, "check_input") for leaf in arena.leaves)
        self._recorders = [leaf for leaf in arena.leaves if hasattr(leaf, "after_backward")]
        self._graphs = kernels.graph.Graphs(kernels.array)
        self.express = self._graphs.express
        self.batch = 0
        self.went_back = False
        self.last: Any = None
        self.frame = 0
        self._frames: dict[int, tuple] = {}  # batch, last and buffers of the frames that are not in use
        self._walks: FrameType | None = None  # the call that walks through the layers
        self._newest = 0  # the frame of the last forward pass
        self.memory = PassMemory(kernels)
        self._buffers: Buffers = {}  # of the frame in use

    def forward(self, state: State, training: bool, own: bool) -> State:
        """The output for an input, whose memory must not change until the backward pass.

        Args:
            own: whether the input lies in the network's own memory, where the next input may replace it.
        """
        self.batch, self.went_back = 0, False  # if a layer raises, buffers hold parts of two batches: no backward pass
        if state.batch > self._fits.get(training, 0):
            self._check_memory(state, training)
        self.last, self._newest = None, self.frame  # contexts of the last pass may hold memory that this one replaces
        walk = partial(self._walk_forward, state, training)
        out, saved = self._run("forward", (state.batch, training), state, walk)
        self.last = (state.batch, training, state, saved)
        if own and not self._checks_input:  # Express itself checks only that values are finite
            self.express.offer_forward(self._graphs.plan, self.last, state, out)
        if training:
            self.batch = out.batch
        return out

    def forward_nothing(self, training: bool) -> None:
        """To be called in the place of `forward` for a batch without samples, which the layers do not see."""
        self.batch, self.went_back = NO_SAMPLES if training else 0, False

    def forward_only(self, state: State, training: bool) -> State:
        """A forward pass for its own sake: no backward pass can follow."""
        self.batch, self.last = 0, None
        self.forget()
        with self._walking():
            return self._walk_forward(state, training)[0]

    def backward(self, start: BaseDeltaStates, end: BaseDeltaStates | None, accumulate: bool) -> None:
        """From the deltas `start` at the output to the deltas `end` at the input, if these are asked for."""
        batch = self.batch  # kept, as a hook that changes parameters during the pass sets it to 0
        self.memory.pool.reserve(batch * self._chain.widest)
        repeated, self.went_back = self.went_back, True
        again = repeated and self._chain.recomputes
        saved = self.last[3]
        key = (batch, end is not None, accumulate, again)
        first, last = start.arrays, end.arrays if end else None
        memory = (*self.last[2], *first, *(last or ()))  # the input lies elsewhere where another network gives it
        walk = partial(self._walk_backward, saved, first, last, accumulate, again)
        name = "backward, adding" if accumulate else "backward"
        self._run(name, key, memory, walk)
        for leaf in self._recorders:
            leaf.after_backward(saved.find(leaf), batch, repeated)
        if not (self._recorders or self._chain.recomputes):  # Express can do neither
            end_memory = end.memory if end else None
            self.express.offer_backward(self._graphs.plan, self.last, key[1:3], start.memory, end_memory)

    def step(self, samples: int, rate: float) -> None:
        """`ParameterArena.step`."""
        self._arena.step(samples, rate=rate, run=partial(self._run, "step", (), ()))
        if not self._frames:  # Express knows nothing of frames
            self.express.offer_step(self._graphs.plan, *self._arena.step_memory)

    def use(self, frame: int) -> None:
        """Changes to a frame. A frame holds what a forward pass has left for its backward pass.

        Forward passes in other frames stay as they are, and can be continued when their frame is used again. Frame 0 is
        that of an ordinary network; in other frames, passes are walked through and not replayed.
        """
        if frame == self.frame:
            return
        self.forget()
        self._frames[self.frame] = self.batch, self.last, self._buffers
        self.batch, self.last, self._buffers = self._frames.pop(frame, (0, None, {}))
        self.frame = frame

    def end_ways_back(self) -> None:
        """Refuses backward passes from all forward passes so far, as parameters, settings or mode have changed."""
        self.batch = 0
        if self._frames:
            self._frames = {frame: (0, *rest) for frame, (_, *rest) in self._frames.items()}

    def drop_memory(self) -> None:
        """Forgets all passes so far and their memory, as layers are about to work differently, or memory is short."""
        self.batch, self.last = 0, None
        self._frames.clear()
        self.forget()
        self.memory, self._buffers = PassMemory(self._kernels), {}

    def forget(self) -> None:
        """Drops what is recorded; call when layers change what they call."""
        self._graphs.clear()

    def buffer_bytes(self, layer: Any) -> int:
        """Size of what `layer` keeps for a batch: outputs, Jacobians, scratch; not the parameters."""
        return sum(buffer.nbytes for buffer in self._buffers.get(layer, {}).values())

    @property
    def bytes_between(self) -> int:
        """Size of what no layer that computes keeps, and of the memory that layers use in turn."""
        return self.memory.nbytes + sum(self.buffer_bytes(layer) for layer in self._buffers if not layer._is_leaf)

    def _run(self, name: str, key: tuple, memory: tuple, function: Callable[[], Any]) -> Any:
        """`function()`, or a replay of it unless hooks, ranks or layers do more than call kernels."""
        try:
            if self._is_more_than_kernels():
                with self._walking():
                    self.forget()
                    return function()
            return self._graphs.run(name, key, memory, function)
        except MemoryError as error:
            self.drop_memory()
            raise MemoryError(
                f"{error or 'out of memory'}, in {name}. Parameters are as they were, and memory for passes is free "
                "again: go on with forward, of a smaller batch or with checkpoint_blocks=True"
            ) from error

    @contextmanager
    def _walking(self) -> Iterator[None]:
        """Guards a walk through the layers: a second walk inside the first would overwrite its buffers.

        Raises:
            RuntimeError: there is a walk already.
        """
        caller = sys._getframe(2)  # an interrupt may leave `_walks` behind: it counts while it is running
        frame: FrameType | None = caller
        while frame is not None and self._walks is not None:
            if frame is self._walks:
                raise RuntimeError("a pass or step of a network from one of its own hooks: use a copy of it there")
            frame = frame.f_back
        self._walks = caller
        try:
            yield
        finally:
            self._walks = None

    def _is_more_than_kernels(self) -> bool:
        """Whether passes call hooks, other ranks or layers that do more than call kernels, or are of another frame."""
        meets_others = any(leaf.reduce_sums is not None for leaf in self._arena.running)
        hooks = bool(self._hooks) and not (self._hooks.of_parameters and self._kernels.graph.keeps_calls)
        return hooks or meets_others or not self._replayable or self.frame != 0

    def _check_memory(self, state: State, training: bool) -> None:
        """Raises MemoryError if the device has less free memory than passes of this batch size will take."""
        array = self._kernels.array
        watched = any(leaf.on_moments is not None for leaf in self._arena.running)
        if array.free_bytes() is not None and not (watched or self._is_more_than_kernels()):
            self.drop_memory()

            def needed(batch: int) -> int:
                rows = State(*(None if a is None else a[:batch] for a in state[:2]))
                return pass_bytes(self._chain, self._kernels, rows, training)

            refuse_too_large(needed, state.batch, array.free_bytes() or 0)
        self._fits[training] = state.batch

    def _walk_forward(self, state: State, training: bool) -> tuple[State, Saved]:
        self.memory.pool.reserve(state.batch * self._chain.widest)
        saved = Saved(None, Pass(self.memory, self._buffers, training, self._hooks))
        return self._chain.forward(state, saved), saved

    def _walk_backward(
        self,
        saved: Saved,
        start: tuple[Array, Array],
        end: tuple[Array, Array] | None,
        accumulate: bool,
        again: bool,
    ) -> None:
        pool, blocks = self.memory.pool, self.memory.blocks
        # Unless other passes have used that memory since, it holds the activations of the block that was run last.
        blocks.holder = None if again or self._newest != self.frame else self._chain.last_recomputed(saved)
        delta = Delta(*start, memory=start)
        pool.share(delta)  # with whoever has written them, and may read them again
        if not self._chain.spares_deltas:
            delta = pool.own_copy(delta)
        into = self._chain.backward(delta, saved.ask(end is not None, accumulate))
        if into is not None and end is not None:
            self._copy(into.mu, end[0])
            self._copy(into.var, end[1])
            pool.give(into)

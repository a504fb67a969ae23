"""Reduction of the deltas in parts (buckets), while the backward pass still computes those of earlier layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.exchange import EveryStep, Options
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_integers


class Buckets(EveryStep):
    """Deltas are added in parts of about equal size, divided between layers, from the last layer on.

    `backward` starts the reduction of each part as soon as its deltas are complete. `step` starts the reductions of the
    remaining parts and of the counters, and waits for all. The order is the same on every rank, also without a backward
    pass.

    `DDPConfig.buckets` is the number of parts; there may be fewer, because a layer is not divided.
    """

    option = "buckets > 1"

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        self.reduce = self._finish
        count = options.config.buckets
        means: dict[BaseLayer, list[TensorSpec]] = {}
        for spec in model.arena.tensors:
            if spec.kind == "learned" and not spec.variance:  # a variance has the position of its mean
                means.setdefault(model.arena.leaves[spec.leaf], []).append(spec)
        self._parts: list[list[TensorSpec]] = []  # last first
        part: list[TensorSpec] = []
        for layer in reversed(model.layers):
            part = [spec for leaf in layer.leaves() for spec in means.get(leaf, ())] + part
            if part and (sum(map(len, part)) >= model.num_parameters / count or not part[0].begin):
                self._parts.append(part)
                part = []
        self._background = ExitStack()
        self._handles: list[Handle] = []
        self._started = 0
        self._done: set[BaseLayer] = set()  # leaves whose deltas are complete
        communicator.at_end(self._abandon)

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        as_integers("DDPConfig", 1, buckets=options.config.buckets)
        return options.config.buckets > 1

    def __len__(self) -> int:
        return len(self._parts)

    def backward(self, last: bool) -> None:
        """The backward pass. It starts the reductions if it is the `last` one before the step; no other may follow."""
        self._collect_alone()
        if self._started:
            self.model.input_delta_z_buffer.outdated = True  # the batch is dropped: step() needs no backward pass
            raise RuntimeError(
                "a second backward() before step(), while the deltas of the first are being reduced: put every "
                "backward() of a step except the last one into no_sync()"
            )
        if not last:
            self.model.backward()
            return
        with held_back():
            if self.sync is not None:  # before the first bucket, as on a rank without a batch
                self.sync.end_passes()
            self._done = set()
            with self.model.add_hook(after=self._after):
                self.model.backward()

    def _after(self, leaf: BaseLayer, direction: str) -> None:
        if direction == "forward":  # a block is recomputed, or a replayed pass runs again: its deltas follow
            return
        self._done.add(leaf)
        while self._started < len(self._parts):
            leaves = self.model.arena.leaves
            if not {leaves[spec.leaf] for spec in self._parts[self._started]} <= self._done:
                return
            self._start()

    def step(self, stop: bool, now: bool = False) -> None:
        if self._started and not self.model.passes.waiting and self.communicator.world_size > 1:
            raise RuntimeError("backward() failed while a part of its deltas was being reduced: end the job")
        super().step(stop, now)

    def deltas_dropped(self) -> None:
        self._collect_alone()
        if self._started:
            raise RuntimeError(
                "the parameters cannot be replaced between backward() and step() with buckets: call step() on every "
                "rank first"
            )

    def barrier(self, call: str) -> None:
        if call == "update_bn" and self.model.passes.waiting:
            raise RuntimeError(
                "update_bn() between backward() and step(), with buckets: call step() on every rank first"
            )
        super().barrier(call)

    def _start(self) -> None:
        if not self._started:
            self._background.enter_context(self.communicator.in_background())
        part = self._parts[self._started]
        self._started += 1
        rows = (row[part[0].begin : part[-1].end] for row in self.model.arena.delta)
        self._handles += map(self.communicator.start_all_reduce, rows)

    def _finish(self) -> None:
        """Starts the remaining reductions, and waits for all; collective."""
        while self._started < len(self._parts):
            self._start()
        waits: list[Callable[[], None]] = [partial(self.communicator.all_reduce, self.model.arena.tail)]
        waits += [handle.wait for handle in self._collect()]
        problem = None
        for wait in waits:
            try:
                wait()
            except NonFiniteError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _collect_alone(self) -> None:
        """On a single rank, ends reductions without a step; no other rank waits for them."""
        for handle in self._collect() if self._started and self.communicator.world_size == 1 else ():
            handle.wait()

    def _abandon(self) -> None:
        """Ends reductions that no step has ended before the end of the program, on all ranks."""
        for handle in self._collect():
            handle.wait()

    def _collect(self) -> list[Handle]:
        """Returns the handles of all started parts, and resets the state for the first part."""
        self._background.close()
        handles, self._handles, self._started = self._handles, [], 0
        return handles

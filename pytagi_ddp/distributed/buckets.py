"""Reduction of the deltas in parts, while the backward pass still computes those of earlier layers."""

from __future__ import annotations

from contextlib import ExitStack

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.sequential import Sequential


class Buckets:
    """The delta buffer in parts of about equal size, cut between layers of the network, from the last layer on.

    `passed` starts the reduction of every part whose deltas are complete; `finish` that of the others and of the tail,
    and waits for all. The order is the same on every rank, whether or not it ran a backward pass.

    Args:
        communicator: of all ranks.
        model: this rank's replica.
        count: parts; there may be fewer, since a layer is not cut.
    """

    def __init__(self, communicator: Communicator, model: Sequential, count: int):
        self._communicator, self._model = communicator, model
        self._parts: list[tuple[BaseLayer, slice]] = []  # last layer first: where a part begins, and its parameters
        stop = begin = model.num_parameters
        target = begin / count
        for layer in reversed(model.layers):
            begin -= sum(leaf.num_weights + leaf.num_biases for leaf in layer.leaves())
            if stop - begin >= target or (begin == 0 and stop > 0):
                self._parts.append((layer, slice(begin, stop)))
                stop = begin
        self._background = ExitStack()
        self._handles: list[Handle] = []
        self._started = 0

    def __len__(self) -> int:
        return len(self._parts)

    def check(self, backward: bool) -> None:
        """Raises where a call would meet deltas that are on their way; before each `backward`, and before a step.

        Raises:
            RuntimeError: a second backward pass before the step, or a step after a pass that failed.
        """
        if self._started and backward:
            raise RuntimeError(
                "a second backward() before step(), while the deltas of the first are on their way: put all but the "
                "last one of a step into no_sync()"
            )
        if self._started and not self._model._samples:
            raise RuntimeError("backward() failed with a part of its deltas on their way: the ranks cannot go on")

    def passed(self, layer: BaseLayer) -> None:
        """Tells that `layer` and all after it have their deltas."""
        if self._started < len(self._parts) and self._parts[self._started][0] is layer:
            self._start()

    def _start(self) -> None:
        if not self._started:
            self._background.enter_context(self._communicator.in_background())
        part = self._parts[self._started][1]
        self._started += 1
        self._handles += [self._communicator.start_all_reduce(row[part]) for row in self._model.arena.delta]

    def finish(self) -> None:
        """Reduces what is left, and waits for all of it; collective."""
        while self._started < len(self._parts):
            self._start()
        self._background.close()
        handles, self._handles, self._started = self._handles, [], 0
        self._communicator.all_reduce(self._model.arena.tail)
        for handle in handles:
            handle.wait()

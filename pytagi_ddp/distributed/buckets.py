"""Reduction of the deltas in parts, while the backward pass still computes those of earlier layers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.handle import Handle
from pytagi_ddp.nn.arena import ParameterArena
from pytagi_ddp.nn.layer import BaseLayer


class Buckets:
    """The delta buffer in parts of about equal size, cut between layers of the network, from the last layer on.

    `passed` starts the reduction of every part whose deltas are complete; `finish` that of the others and of the tail,
    and waits for all. The order is the same on every rank, whether or not it ran a backward pass.

    Args:
        communicator: of all ranks.
        arena: of the network.
        layers: of the network, in forward order.
        count: parts; there may be fewer, since a layer is not cut.
    """

    def __init__(self, communicator: Communicator, arena: ParameterArena, layers: Sequence[BaseLayer], count: int):
        self._communicator, self._arena, self._last = communicator, arena, layers[-1]
        self._parts: list[tuple[BaseLayer, slice]] = []  # last layer first: where a part begins, and its parameters
        stop = begin = arena.num_parameters
        target = begin / count
        for layer in reversed(layers):
            begin -= sum(leaf.num_weights + leaf.num_biases for leaf in layer.leaves())
            if stop - begin >= target or (begin == 0 and stop > 0):
                self._parts.append((layer, slice(begin, stop)))
                stop = begin
        self._background = ExitStack()
        self._handles: list[Handle] = []
        self._started = 0

    def __len__(self) -> int:
        return len(self._parts)

    def passed(self, layer: BaseLayer) -> None:
        """Tells that `layer` and all after it have their deltas.

        Raises:
            RuntimeError: a second backward pass, while deltas of the first are being reduced.
        """
        if self._started and layer is self._last:
            raise RuntimeError("a second backward() before step(): its deltas are on their way; use no_sync()")
        if self._started < len(self._parts) and self._parts[self._started][0] is layer:
            self._start()

    def _start(self) -> None:
        if not self._started:
            self._background.enter_context(self._communicator.in_background())
        part = self._parts[self._started][1]
        self._started += 1
        self._handles += [self._communicator.start_all_reduce(row[part]) for row in self._arena.delta]

    def finish(self) -> None:
        """Reduces what is left, and waits for all of it; collective."""
        while self._started < len(self._parts):
            self._start()
        self._background.close()
        handles, self._handles, self._started = self._handles, [], 0
        self._communicator.all_reduce(self._arena.tail)
        for handle in handles:
            handle.wait()

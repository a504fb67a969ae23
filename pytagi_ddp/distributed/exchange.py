"""How the deltas of all ranks come together: one object for each way, with the same verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_parameters
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.arena import HEADER
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


def pool_statistics(model: Sequential, pool: bool = True) -> None:
    """Lets the running statistics of `model` wait for the sums of all ranks, which come with `exchange_deltas`.

    With `pool=False`, they move with each forward pass again, by this rank's batch.
    """
    for leaf in model.arena.running:
        leaf.pool_at_step, leaf.reduce_sums = pool, None
    model.forget_graphs()


def exchange_deltas(
    communicator: Communicator,
    model: Sequential,
    average: bool,
    vote: bool = False,
    reduce: Callable[[], None] | None = None,
) -> Array:
    """Adds the deltas, samples and sums of statistics of all ranks; the next `model.step()` applies them. Collective.

    A rank without samples since its last step contributes zeros.

    Args:
        communicator: of all ranks. model: this rank's replica.
        average: what the step makes of the sums, see `DDPSequential`.
        vote: this rank's, of which the sum comes back; `EveryStep` has ranks ask all to stop by it.
        reduce: how the arena's buffer is added over ranks; None: one all-reduce.

    Returns:
        (samples, ranks that had any, votes), of all ranks.

    Raises:
        RuntimeError: the deltas of all ranks are there already, and no step has applied them.
        NonFiniteError: with ``PYTAGI_DDP_DEBUG=1``, sums that are not finite; names the layer.
    """
    if model.pending.average is not None:
        raise RuntimeError("the deltas of all ranks are there already: call model.step() before the next exchange")
    arena, array = model.arena, model.kernels.array
    samples = model.pending.waiting
    if not samples:
        array.clear(arena.buffer)
    header = arena.tail[:HEADER]
    array.copy(np.array([samples, samples > 0, vote], np.float32), header)
    try:
        communicator.all_reduce(arena.buffer) if reduce is None else reduce()
    except NonFiniteError as error:
        model.pending.stepped()  # the sums are of all ranks by now, and of no use: a step that is lost
        array.clear(arena.buffer)
        if reduce is None and error.index < 2 * arena.num_parameters:
            layer = arena.leaf_at(error.index % arena.num_parameters)
            raise NonFiniteError(f"{error}: a delta of {layer}", error.index) from error
        raise
    model.pending.exchanged(average)
    for leaf in arena.running:
        leaf.update_running()
    return array.snapshot(header)


class Exchange(ABC):
    """A way of training on many ranks: what happens around the passes of a `DDPSequential`, and in its `step`.

    Attributes:
        pooled: (samples, ranks that had any, ranks that ask to stop) of the last exchange; None before the first.
        steps: steps that only this rank knows of.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self.communicator, self.model = communicator, model
        self.pooled: Array | None = None
        self.steps = 0

    def before_forward(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before each forward pass."""

    def around_forward(self) -> AbstractContextManager[None]:
        """Goes around each forward pass."""
        return nullcontext()

    def backward(self, last: bool) -> None:
        """The backward pass; `last`: no other comes before the step."""
        self.model.backward()

    @abstractmethod
    def step(self, stop: bool) -> None:
        """Applies what waits, with that of all ranks where it is time; collective.

        Args:
            stop: whether this rank asks all to stop.
        """

    def meet(self, stop: bool) -> None:
        """`step` that exchanges in any case."""
        self.step(stop)

    def merge(self, stop: bool) -> None:
        """Makes one posterior of those of all ranks.

        Raises:
            RuntimeError: replicas never differ, so that there is nothing to merge.
        """
        raise RuntimeError("merge() is for DDPSequential(..., every=k, merge=...); here step() adds the deltas of all")

    @abstractmethod
    def before_statistics(self) -> None:
        """To be called before passes that only take statistics.

        Raises:
            RuntimeError: they cannot be taken now; says what to do first.
        """

    def after_statistics(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called after them, on every rank, before their sums are added."""

    def before_barrier(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before ranks wait for each other outside of steps, on every rank."""

    def before_forgetting(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before the variances of this rank's parameters change, on every rank."""

    def after_forgetting(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called after it, on every rank."""

    def deltas_dropped(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called when the deltas that wait on this rank are to be forgotten, before they are.

        Raises:
            RuntimeError: they are on their way to other ranks.
        """

    def parameters_changed(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called when all ranks have been given other parameters."""


class CollectivePasses(Protocol):
    """Passes in which ranks meet, of which they may run different numbers."""

    def end_passes(self) -> None:
        """Takes part in the passes of other ranks until none runs one; collective, once before each exchange."""

    def begin_passes(self) -> None:
        """After an exchange: passes may follow."""


class EveryStep(Exchange):
    """Deltas are added in every step.

    Args:
        communicator: of all ranks. model: this rank's replica.
        average: what the step makes of the sums, see `DDPSequential`.
        reduce: how the buffer is added; None: one all-reduce. Looked up in each step: `to_device` makes another arena.
        sync: what meets ranks within passes, or None.
    """

    def __init__(
        self,
        communicator: Communicator,
        model: Sequential,
        average: bool,
        reduce: Callable[[], None] | None = None,
        sync: CollectivePasses | None = None,
    ):
        super().__init__(communicator, model)
        self._average, self._reduce, self._sync = average, reduce, sync

    def before_forward(self) -> None:
        self._apply()

    def around_forward(self) -> AbstractContextManager[None]:
        return nullcontext() if self._sync is None else held_back()

    def step(self, stop: bool) -> None:
        self._apply()
        if self._sync is not None:
            self._sync.end_passes()
        self.pooled = exchange_deltas(self.communicator, self.model, self._average, stop, self._reduce)
        self._apply()
        if self.communicator.debug:
            self._compare()

    def _compare(self) -> None:
        compare_parameters(self.communicator, self.model)

    def _apply(self) -> None:
        """Applies the deltas of all ranks, if they are there: those of this step, or of one that went no further."""
        if self.model.pending.average is not None:
            if self._sync is not None:
                self._sync.begin_passes()
            self.model.step()

    def before_forgetting(self) -> None:
        self._apply()

    def before_statistics(self) -> None:
        """Ranks may have run different numbers of passes."""
        if self._sync is not None:
            self._sync.end_passes()
            self._sync.begin_passes()

    after_statistics = before_barrier = before_statistics

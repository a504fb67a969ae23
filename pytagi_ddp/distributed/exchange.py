"""How the deltas of all ranks are combined: one class for each way, with the same methods."""

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
    """Lets the running statistics of `model` be updated by `exchange_deltas`, from the sums of all ranks.

    With `pool=False`, each forward pass updates them again, from this rank's batch.
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
        average: how the step aggregates, see `DDPSequential`.
        vote: this rank's vote; the votes of all ranks are added. In `EveryStep` it is a request to stop.
        reduce: adds the arena's buffer over all ranks; None: one all-reduce.

    Returns:
        (samples, ranks that had any, votes), summed over all ranks.

    Raises:
        RuntimeError: the deltas of all ranks are there already, and no step has applied them yet.
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
        model.pending.stepped()  # the sums cannot be used: this step is lost
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
        steps: steps that this rank has taken alone since the last exchange.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self.communicator, self.model = communicator, model
        self.pooled: Array | None = None
        self.steps = 0

    def before_forward(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before each forward pass."""

    def around_forward(self) -> AbstractContextManager[None]:
        """A context in which each forward pass runs."""
        return nullcontext()

    def backward(self, last: bool) -> None:
        """The backward pass; `last`: whether it is the last one before the step."""
        self.model.backward()

    @abstractmethod
    def step(self, stop: bool) -> None:
        """Applies the deltas that wait, those of all ranks if they are exchanged now; collective.

        Args:
            stop: whether this rank asks all to stop.
        """

    def meet(self, stop: bool) -> None:
        """`step`, but with an exchange in any case."""
        self.step(stop)

    def merge(self, stop: bool) -> None:
        """Merges the posteriors of all ranks into one.

        Raises:
            RuntimeError: replicas never differ, so that there is nothing to merge.
        """
        raise RuntimeError("merge() is for DDPSequential(..., every=k, merge=...); here step() adds the deltas of all")

    @abstractmethod
    def before_statistics(self) -> None:
        """To be called before the passes of `update_bn`, which only take statistics.

        Raises:
            RuntimeError: statistics cannot be taken now; says what to do first.
        """

    def after_statistics(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called after those passes, on every rank, before their sums are added."""

    def before_barrier(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before ranks wait for each other outside of steps, on every rank."""

    def before_forgetting(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before the variances of this rank's parameters change, on every rank."""

    def after_forgetting(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called after that change, on every rank."""

    def deltas_dropped(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called before the deltas that wait on this rank are dropped.

        Raises:
            RuntimeError: they are on their way to other ranks.
        """

    def parameters_changed(self) -> None:  # noqa: B027 - nothing to do in most ways
        """To be called when all ranks have been given other parameters."""


class CollectivePasses(Protocol):
    """Passes in which ranks communicate; ranks may run different numbers of them."""

    def end_passes(self) -> None:
        """Takes part in the passes of other ranks until none runs one; collective, once before each exchange."""

    def begin_passes(self) -> None:
        """To be called after an exchange: passes may follow."""


class EveryStep(Exchange):
    """Deltas are added in every step.

    Args:
        communicator: of all ranks. model: this rank's replica.
        average: how the step aggregates, see `DDPSequential`.
        reduce: adds the arena's buffer over all ranks; None: one all-reduce. It must look the arena up in each call, as
            `to_device` makes another one.
        sync: the object through which ranks communicate within passes, or None.
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
        """Applies the deltas of all ranks, if they are there: from this step, or from one that was interrupted."""
        if self.model.pending.average is not None:
            if self._sync is not None:
                self._sync.begin_passes()
            self.model.step_alone()

    def before_forgetting(self) -> None:
        self._apply()

    def before_statistics(self) -> None:
        """Lets a rank take part in the passes of others first, as ranks may have run different numbers of them."""
        if self._sync is not None:
            self._sync.end_passes()
            self._sync.begin_passes()

    after_statistics = before_barrier = before_statistics

"""Strategies by which ranks exchange what they have learnt: one class for each, in a file of its own.

A strategy is a subclass of `Exchange`. It says which options select it, and what `step` does. `DDPConfig.strategies`
lists all of them. `EveryStep`, in this file, is the default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_arguments, compare_replicas
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.arena import HEADER
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.sequential import Sequential


def pool_statistics(model: Sequential, pool: bool = True) -> None:
    """Makes `exchange_deltas` update the running statistics of `model`, from the sums of all ranks.

    With `pool=False`, each forward pass updates them again, from this rank's batch.
    """
    for leaf in model.arena.running:
        leaf.pool_at_step, leaf.reduce_sums = pool, None
    model.passes.invalidate(Change.CALLS)


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
        vote: summed over ranks in the same all-reduce; in `EveryStep` it is a request to stop.
        reduce: adds the arena's buffer over all ranks; None: one all-reduce.

    Returns:
        The reduced counters: (samples, ranks with samples, votes, new schedules), summed over all ranks. They are a
        `snapshot`, which is read without `to_host`.

    Raises:
        ValueError: ranks have different `EvidenceSchedule`s, of which one is new since the last exchange.
    """
    if model.passes.average is not None:
        raise RuntimeError("the deltas of all ranks are there already: call model.step() before the next exchange")
    arena, array = model.arena, model.kernels.array
    samples = model.passes.waiting
    if not samples:
        array.clear(arena.buffer)
    counters = arena.tail[:HEADER]
    array.copy(np.array([samples, samples > 0, vote, model.passes.new_schedule], np.float32), counters)
    try:
        communicator.all_reduce(arena.buffer) if reduce is None else reduce()
    except NonFiniteError as error:
        model.passes.stepped()  # the sums cannot be used: this step is lost
        array.clear(arena.buffer)
        if reduce is None and error.index < 2 * arena.num_parameters:
            layer = arena.leaf_at(error.index % arena.num_parameters)
            raise NonFiniteError(f"{error}: a delta of {layer}", error.index) from error
        raise
    model.passes.exchanged(average)
    for leaf in arena.running:
        leaf.update_running()
    pooled = array.snapshot(counters)
    if model.passes.new_schedule and communicator.world_size > 1:
        _compare_schedules(communicator, model, pooled)
    return pooled


def _compare_schedules(communicator: Communicator, model: Sequential, pooled: Array) -> None:
    """Raises ValueError if ranks have different schedules. Those with a new one call it, after they are counted.

    If all ranks have one, it is collective; otherwise the others do not wait for it.
    """
    ranks, have = communicator.world_size, round(float(pooled[3]))
    if have < ranks:
        raise ValueError(
            f"the EvidenceSchedule, or a setting of it, is new on {have} of {ranks} ranks, also on rank "
            f"{communicator.rank}: make the same one on every rank, with the same steps_per_epoch (the largest, if "
            "ranks have different numbers of batches)"
        )
    state = None if model.schedule is None else model.schedule.state_dict()
    compare_arguments(communicator, "step()", {"the EvidenceSchedule": state})
    model.passes.new_schedule = False


class Options(NamedTuple):
    """The options that select a strategy: a `DDPConfig`, the device of the network, arguments of `DDPSequential`."""

    config: Any
    device: str = "cpu"
    average: bool = True
    every: int = 1
    merge: str | None = None
    sync_batch_norm: bool = False
    max_wait: float | None = None


class Exchange(ABC):
    """A strategy of training on many ranks: what a `DDPSequential` does around its passes, and in its `step`.

    In a step, `forward` and `backward` run once for each micro-batch, on this rank. Then all ranks call `step`. If an
    error interrupts a step after its exchange, `finish_step` runs before anything else that needs parameters. All
    methods but `step` have defaults.

    Args:
        communicator: of all ranks. model: this rank's replica. options: all of them; the strategy's own are valid.

    Attributes:
        option: the options that select the strategy, in words; empty for the default. merges: whether replicas differ
            between exchanges, so that `DDPSequential.merge` has something to do.
        pooled: the reduced counters of the last exchange (samples, ranks with samples, ranks that ask to stop, ranks
            with a new schedule); None before the first.
        steps: local steps of this rank since the last exchange.
    """

    option: ClassVar[str] = ""
    merges: ClassVar[bool] = False

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        self.communicator, self.model, self.average = communicator, model, options.average
        self.pooled: Array | None = None
        self.steps = 0

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        """Whether the options select this strategy.

        Raises:
            TypeError: one of its own options is not of its type. ValueError: one is out of range, or excludes another.
        """
        return False

    def forward(self) -> AbstractContextManager[None]:
        """The context in which a forward pass runs; called before each."""
        return nullcontext()

    def backward(self, last: bool) -> None:
        """The backward pass; `last`: whether it is the last one before the step."""
        self.model.backward()

    @abstractmethod
    def step(self, stop: bool, now: bool = False) -> None:
        """Applies the pending deltas: those of all ranks if this step exchanges them; collective.

        Args:
            stop: whether this rank asks all to stop.
            now: whether to exchange in any case, also between the steps that do.
        """

    def joined(self) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called at the end of `join`, after the last step of all ranks; collective."""

    def finish_step(self) -> None:
        """Ends a step whose deltas were exchanged already (`passes.at` is REDUCED)."""
        self.model.passes.step()

    def barrier(self, call: str) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Synchronizes the ranks in a collective method `call` other than a step.

        `call` is "barrier", "forget_evidence" or "update_bn". The last one calls it before its passes and after them.

        Raises:
            RuntimeError: `call` is not possible now; the message says what to do first.
        """

    def deltas_dropped(self) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called before pending deltas of this rank are dropped.

        Raises:
            RuntimeError: they are being sent to other ranks.
        """

    def parameters_changed(self) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called after all ranks have got new parameters."""


class EveryStep(Exchange):
    """The default strategy: deltas are added in every step, by one all-reduce of the arena's buffer.

    Attributes:
        reduce: adds that buffer over all ranks in another way; None: one all-reduce. It has to look the arena up in
            each call, since `to_device` makes a new one.
        sync: adds the statistics of BatchNorm2d over ranks in forward passes; None without `sync_batch_norm`.
    """

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        self.reduce: Callable[[], None] | None = None
        pool_statistics(model, not options.sync_batch_norm)
        self.sync = SyncBatchNorm(communicator, model) if options.sync_batch_norm else None

    def forward(self) -> AbstractContextManager[None]:
        return nullcontext() if self.sync is None else held_back()

    def step(self, stop: bool, now: bool = False) -> None:
        if self.sync is not None:
            self.sync.end_passes()
        self.pooled = exchange_deltas(self.communicator, self.model, self.average, stop, self.reduce)
        self.finish_step()
        if self.communicator.debug:
            compare_replicas(self.communicator, self.model, "step()")

    def finish_step(self) -> None:
        if self.sync is not None:
            self.sync.begin_passes()
        self.model.passes.step()

    def barrier(self, call: str) -> None:
        """Takes part in the passes of other ranks first: ranks may have run different numbers of them."""
        if self.sync is not None:
            self.sync.end_passes()
            self.sync.begin_passes()


class SyncBatchNorm:
    """Makes every BatchNorm2d of a network add counts, sums and sums of squares over ranks in its forward pass.

    Batches may have different sizes, and ranks may run different numbers of passes between two exchanges. The k-th
    passes of all ranks share their statistics. In `end_passes` a rank that runs fewer takes part with empty batches.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self._communicator, self._model = communicator, model
        self._norms = model.arena.running
        self._ended = False
        for norm in self._norms:
            norm.reduce_sums = self._all_reduce

    def _all_reduce(self, sums: Array) -> None:
        if self._ended and self._communicator.world_size > 1:
            raise RuntimeError(
                "a forward pass in training mode between backward() and step(): with buckets and sync_batch_norm, the "
                "other ranks no longer take part in it"
            )
        self._communicator.all_reduce(sums)

    def end_passes(self) -> None:
        """Takes part in the forward passes of other ranks until no rank runs one; collective, once per exchange.

        The sums of the first BatchNorm2d tell whether some rank runs a pass: if none does, their count is 0.
        """
        ended, self._ended = self._ended, True
        if ended or self._communicator.world_size == 1:
            return
        array = self._model.kernels.array
        while self._norms:
            for norm in self._norms:
                array.clear(norm.shared_sums)
                self._communicator.all_reduce(norm.shared_sums)
                if norm is self._norms[0] and not array.to_host(norm.shared_sums)[0] > 0:
                    return
                norm.update_running()

    def begin_passes(self) -> None:
        """Call it after an exchange: forward passes may follow."""
        self._ended = False

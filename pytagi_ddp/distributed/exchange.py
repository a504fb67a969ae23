"""How ranks exchange what they have learnt: one class for each strategy, each in a file of its own.

A strategy is a subclass of `Exchange` that says which options ask for it, and what `step` does. `config.STRATEGIES`
lists them; `EveryStep`, which is here, is the one that needs no option.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_parameters
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.arena import HEADER
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.sequential import Sequential


def pool_statistics(model: Sequential, pool: bool = True) -> None:
    """Lets the running statistics of `model` be updated by `exchange_deltas`, from the sums of all ranks.

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
        vote: this rank's vote; the votes of all ranks are added. In `EveryStep` it is a request to stop.
        reduce: adds the arena's buffer over all ranks; None: one all-reduce.

    Returns:
        (samples, ranks that had any, votes), summed over all ranks.

    Raises:
        RuntimeError: the deltas of all ranks are there already, and no step has applied them yet.
        NonFiniteError: with ``PYTAGI_DDP_DEBUG=1``, sums that are not finite; names the layer.
    """
    if model.passes.average is not None:
        raise RuntimeError("the deltas of all ranks are there already: call model.step() before the next exchange")
    arena, array = model.arena, model.kernels.array
    samples = model.passes.waiting
    if not samples:
        array.clear(arena.buffer)
    header = arena.tail[:HEADER]
    array.copy(np.array([samples, samples > 0, vote], np.float32), header)
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
    return array.snapshot(header)


class Options(NamedTuple):
    """What decides on a strategy.

    Attributes:
        config: a `DDPConfig`. device: of the network.
        average, every, merge, sync_batch_norm: as in `DDPSequential`.
    """

    config: Any
    device: str = "cpu"
    average: bool = True
    every: int = 1
    merge: str | None = None
    sync_batch_norm: bool = False


def check_count(name: str, value: Any) -> None:
    """Raises unless an option is a whole number, 1 or more."""
    if not isinstance(value, Integral):
        raise TypeError(f"{name} takes whole numbers, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


class Exchange(ABC):
    """A strategy of training on many ranks: what happens around the passes of a `DDPSequential`, and in its `step`.

    In a step, `forward` and `backward` run once for each micro-batch, on this rank alone; then all ranks call `step`.
    An error may keep a step from ending after its exchange: then `finish_step` runs before anything else that needs
    parameters. All but `step` have defaults.

    Args:
        communicator: of all ranks. model: this rank's replica. options: all of them; the strategy's own are valid.

    Attributes:
        option: the options that ask for the strategy, in words; empty for the default. merges: whether replicas differ
            between exchanges, so that `DDPSequential.merge` has something to do.
        pooled: (samples, ranks that had any, ranks that ask to stop) of the last exchange; None before the first.
        steps: steps that this rank has taken alone since the last exchange.
    """

    option: ClassVar[str] = ""
    merges: ClassVar[bool] = False

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        self.communicator, self.model, self.average = communicator, model, options.average
        self.pooled: Array | None = None
        self.steps = 0

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        """Whether the options ask for this strategy.

        Raises:
            TypeError: one of its own options is not of its type. ValueError: one is out of range, or excludes another.
        """
        return False

    def forward(self) -> AbstractContextManager[None]:
        """Called before each forward pass; returns the context in which it runs."""
        return nullcontext()

    def backward(self, last: bool) -> None:
        """The backward pass; `last`: whether it is the last one before the step."""
        self.model.backward()

    @abstractmethod
    def step(self, stop: bool, now: bool = False) -> None:
        """Applies the deltas that wait: those of all ranks if they are exchanged now; collective.

        Args:
            stop: whether this rank asks all to stop.
            now: exchange in any case, also where other steps have to come first.
        """

    def finish_step(self) -> None:
        """Ends a step whose deltas are those of all ranks already (`passes.at` is REDUCED)."""
        self.model.passes.step()

    def meet(self, call: str) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called on every rank where ranks come together outside of a step, in the method `call`.

        That is "barrier", "forget_evidence", and "update_bn", which calls it before its passes and after them.

        Raises:
            RuntimeError: this cannot be done now; says what to do first.
        """

    def deltas_dropped(self) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called before the deltas that wait on this rank are dropped.

        Raises:
            RuntimeError: they are on their way to other ranks.
        """

    def parameters_changed(self) -> None:  # noqa: B027 - in most strategies there is nothing to do
        """Called when all ranks have been given other parameters."""


class EveryStep(Exchange):
    """The default strategy: deltas are added in every step, by one all-reduce of the arena's buffer.

    Attributes:
        reduce: adds that buffer over all ranks in another way; None: one all-reduce. It must look the arena up in each
            call, as `to_device` makes another one.
        sync: what adds the statistics of BatchNorm2d over ranks in forward passes, or None.
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
            compare_parameters(self.communicator, self.model)

    def finish_step(self) -> None:
        if self.sync is not None:
            self.sync.begin_passes()
        self.model.passes.step()

    def meet(self, call: str) -> None:
        """Lets a rank take part in the passes of others first, as ranks may have run different numbers of them."""
        if self.sync is not None:
            self.sync.end_passes()
            self.sync.begin_passes()


class SyncBatchNorm:
    """Lets every BatchNorm2d of a network add counts, sums and sums of squares over ranks in its forward pass.

    Batches may have different sizes, and ranks may run different numbers of passes between two exchanges: the k-th
    passes of all ranks belong together, and in `end_passes` a rank that runs fewer takes part with empty batches.

    Args:
        communicator: of all ranks. model: this rank's replica.
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
        """Takes part in the forward passes of others until no rank runs one; collective, once before each exchange.

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
        """To be called after an exchange: forward passes may follow."""
        self._ended = False

"""The deltas of all ranks, added into every replica."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.nn.arena import HEADER
from pytagi_ddp.nn.batch_norm import BatchNorm2d
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


def batch_norms(model: Sequential) -> list[BatchNorm2d]:
    """The layers whose statistics ranks share, in forward order."""
    return [leaf for leaf in model.arena.leaves if isinstance(leaf, BatchNorm2d)]


def pool_statistics(model: Sequential, pool: bool = True) -> None:
    """Lets the running statistics of `model` wait for the sums of all ranks, which come with `exchange_deltas`.

    With `pool=False`, they move with each forward pass again, by this rank's batch.
    """
    for norm in batch_norms(model):
        norm.pool_at_step, norm.reduce_sums = pool, None
    model.forget_graphs()


def exchange_deltas(
    communicator: Communicator,
    model: Sequential,
    average: bool,
    stop: bool = False,
    reduce: Callable[[], None] | None = None,
) -> Array:
    """Adds the deltas, samples and BatchNorm sums of all ranks; the next `model.step()` applies them. Collective.

    A rank without samples since its last step contributes zeros.

    Args:
        communicator: of all ranks. model: this rank's replica.
        average: what the step makes of the sums, see `DDPSequential`.
        stop: whether this rank asks all to stop.
        reduce: how the arena's buffer is added over ranks; None: one all-reduce.

    Returns:
        (samples, ranks that had any, ranks that ask to stop), of all ranks.

    Raises:
        RuntimeError: the deltas of all ranks are there already, and no step has applied them.
        NonFiniteError: with ``PYTAGI_DDP_DEBUG=1``, sums that are not finite; names the layer.
    """
    if model._pooled_average is not None:
        raise RuntimeError("the deltas of all ranks are there already: call model.step() before the next exchange")
    arena, array = model.arena, model.kernels.array
    samples = model._samples
    if not samples:
        array.clear(arena.buffer)
    header = arena.tail[:HEADER]
    array.copy(np.array([samples, samples > 0, stop], np.float32), header)
    try:
        communicator.all_reduce(arena.buffer) if reduce is None else reduce()
    except NonFiniteError as error:
        if reduce is None and error.index < 2 * arena.num_parameters:
            layer = arena.leaf_at(error.index % arena.num_parameters)
            raise NonFiniteError(f"{error}: a delta of {layer}", error.index) from error
        raise
    model._samples, model._accumulate, model._pooled_average = 0, False, average
    for norm in batch_norms(model):
        norm.update_running()
    return array.snapshot(header)

"""Data-parallel training for loops of one's own: `DDPSequential.step` in two halves."""

from __future__ import annotations

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend
from pytagi_ddp.distributed.exchange import exchange_deltas
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.validate import as_bools


def all_reduce_deltas(backend: Backend, model: Sequential, average: bool = True) -> int:
    """Replaces the deltas of `model` by those of all ranks; `model.step()` then is the step of `DDPSequential`.

    With n_r samples on rank r since the last exchange, n their sum, and R_a the ranks that have any:

        average=False:  sum over ranks, cap factor c(n).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)).

    Parameters come out with the same bits as `DDPSequential`'s, on every rank. One all-reduce; every rank must call it,
    and `model.step()`, equally often, whether or not it had a batch. On a GPU it waits for the result. `update_bn` of
    the model takes this rank's batches alone: `synchronize` it behind that, if training goes on.

    Args:
        backend: name given to `initialize`, or a communicator.
        model: this rank's replica, made equal by `synchronize(backend, model)` before the first pass.
        average: see `DDPSequential` for what the two mean.

    Returns:
        n, the samples of all ranks; 0 when no rank had any, and then the step changes nothing.

    Raises:
        TypeError: no `Sequential` (a `DDPSequential` does all this in its `step`), or an `average` that is neither True
            nor False.
        RuntimeError: BatchNorm layers that still move their running statistics on their own; `synchronize` the model
            first. Or other ranks gave another `average`: on every rank alike, and the deltas are dropped.
    """
    if not isinstance(model, Sequential):
        raise TypeError(f"all_reduce_deltas works on a Sequential, not on {type(model).__name__}")
    (average,) = as_bools("all_reduce_deltas", average=average)
    if not all(leaf.pool_at_step for leaf in model.arena.running):
        raise RuntimeError(
            "the BatchNorm layers of this network take their running statistics from this rank alone; call "
            "synchronize(backend, model) before the first forward pass"
        )
    communicator = get_distributed_backend(backend)
    pooled = exchange_deltas(communicator, model, average, vote=average)
    samples, _, averaging = model.kernels.array.to_host(pooled).tolist()
    if averaging not in (0, communicator.world_size):
        model.drop_deltas()
        model.step()  # of none, so that the next exchange may come
        raise RuntimeError(
            f"all_reduce_deltas with average=True on {averaging:.0f} of {communicator.world_size} ranks: each would "
            "take another step; give the same on all of them"
        )
    return round(samples)

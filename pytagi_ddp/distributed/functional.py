"""Data-parallel training in a loop of your own: `DDPSequential.step` in two halves."""

from __future__ import annotations

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend
from pytagi_ddp.distributed.exchange import exchange_deltas
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.validate import as_bools


def all_reduce_deltas(backend: Backend, model: Sequential, average: bool = True) -> int:
    """Replaces the deltas of `model` by those of all ranks; the next `model.step()` is then that of `DDPSequential`.

    With n_r samples on rank r since the last exchange, n their sum, and R_a the ranks that have any:

        average=False:  sum over ranks, cap factor c(n).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)).

    Parameters get the same bits as with `DDPSequential`, on every rank. It takes one all-reduce. Every rank must call
    this function and `model.step()` equally often, whether or not it had a batch. On a GPU it waits for the result.
    `update_bn` of the model uses this rank's batches alone: call `synchronize` after it, if training goes on.

    Args:
        backend: name given to `initialize`, or a communicator.
        model: this rank's replica, made equal by `synchronize(backend, model)` before the first pass.
        average: see `DDPSequential` for what the two mean.

    Returns:
        n, the number of samples on all ranks; if it is 0, the step changes nothing.

    Raises:
        TypeError: no `Sequential` (a `DDPSequential` does all this in its `step`), or an `average` that is neither True
            nor False.
        RuntimeError: BatchNorm layers still update their running statistics from this rank alone; `synchronize` the
            model first. Or some ranks gave another `average`; raised on every rank, and the deltas are dropped.
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
        model.step_alone()  # without deltas, so that the next exchange is allowed
        raise RuntimeError(
            f"all_reduce_deltas with average=True on {averaging:.0f} of {communicator.world_size} ranks: each would "
            "take another step; give the same on all of them"
        )
    return round(samples)

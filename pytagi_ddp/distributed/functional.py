"""Collectives as functions, and their names in Lux and FluxMPI.

A collective calls the method of `Communicator` with the same name, and raises its errors. ``backend`` is the name given
to `initialize`, or a communicator. Arrays are NumPy arrays or, on a GPU, CuPy arrays, and change in place.
`all_reduce_deltas` is for data-parallel training in your own loop.
"""

from __future__ import annotations

import numpy as np

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend, world_size
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.exchange import exchange_deltas
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_bools


def barrier(backend: Backend = "auto", timeout: float | None = None) -> None:
    """Returns when every rank has called it; raises CollectiveTimeoutError after `timeout` seconds."""
    get_distributed_backend(backend).barrier(timeout)


def all_reduce(backend: Backend, array: np.ndarray, op: str = "sum") -> np.ndarray:
    """Combines `array` over all ranks by "sum", "mean", "max", "min" or "prod", in place; returns it."""
    get_distributed_backend(backend).all_reduce(array, op)
    return array


def broadcast(backend: Backend, array: np.ndarray, root: int = 0) -> np.ndarray:
    """Replaces `array` by that of rank `root`, in place; returns it."""
    get_distributed_backend(backend).broadcast(array, root)
    return array


def reduce(backend: Backend, array: np.ndarray, op: str = "sum", root: int = 0) -> np.ndarray:
    """Combines `array` over all ranks into that of rank `root`, in place; returns it. Other ranks' do not change."""
    get_distributed_backend(backend).reduce(array, op, root)
    return array


def start_all_reduce(backend: Backend, array: np.ndarray, op: str = "sum") -> Handle:
    """Starts `all_reduce`; `array` must not be used until the handle's `wait` returns or its `test` is True."""
    return get_distributed_backend(backend).start_all_reduce(array, op)


def start_broadcast(backend: Backend, array: np.ndarray, root: int = 0) -> Handle:
    """Starts `broadcast`; `array` must not be used until the handle's `wait` returns or its `test` is True."""
    return get_distributed_backend(backend).start_broadcast(array, root)


def all_reduce_deltas(backend: Backend, model: Sequential, average: bool = True) -> int:
    """Replaces the deltas of `model` by those of all ranks. The next `model.step()` is then that of `DDPSequential`.

    With n_r samples on rank r since the last exchange, n their sum, and R_a the ranks that have any:

        average=False:  sum over ranks, cap factor c(n).
        average=True:   sum / R_a, cap factor c(ceil(n / R_a)).

    Parameters get the same bits as with `DDPSequential`, on every rank. It takes one all-reduce; on a GPU it waits for
    the result. Every rank must call this function and `model.step()` equally often, also without a batch. `update_bn`
    of the model uses only this rank's batches: call `synchronize` after it, if training continues.

    Args:
        backend: name given to `initialize`, or a communicator.
        model: this rank's replica, made equal by `synchronize(backend, model)` before the first pass.
        average: aggregation of the deltas, see `DDPSequential`.

    Returns:
        n, the number of samples on all ranks; if it is 0, the step changes nothing.

    Raises:
        TypeError: not a `Sequential` (`DDPSequential.step` calls this itself), or an `average` that is neither True nor
            False.
        RuntimeError: BatchNorm layers update their running statistics from this rank alone: `synchronize` the model
            first. Or ranks gave different `average`; raised on every rank, and the deltas are dropped.
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
    samples, _, averaging, _ = np.asarray(pooled).tolist()
    if averaging not in (0, communicator.world_size):
        model.drop_deltas()
        model.passes.step()  # without deltas, so that the next exchange is allowed
        raise RuntimeError(
            f"all_reduce_deltas with average=True on {averaging:.0f} of {communicator.world_size} ranks: each would "
            "take another step; give the same on all of them"
        )
    return round(samples)


# Second names: those of Lux's DistributedUtils and of FluxMPI (docs/distributed.md).
total_workers = world_size
allreduce = all_reduce
bcast = broadcast
iallreduce = start_all_reduce
ibcast = start_broadcast
allreduce_deltas = all_reduce_deltas

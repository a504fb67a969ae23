"""Collectives by name, for programs that hold no communicator.

Each calls the method of `Communicator` with the same name, whose docstring says what is raised. ``backend`` is the name
given to `initialize`, or a communicator. Arrays are NumPy arrays or, on a GPU, CuPy arrays, and change in place.
"""

from __future__ import annotations

import numpy as np

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend
from pytagi_ddp.distributed.engine.handle import Handle


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
    """Combines `array` over all ranks into that of rank `root`, in place; returns it. Other ranks' stay unchanged."""
    get_distributed_backend(backend).reduce(array, op, root)
    return array


def start_all_reduce(backend: Backend, array: np.ndarray, op: str = "sum") -> Handle:
    """Starts `all_reduce`; `array` must not be used until the handle's `wait` returns or its `test` is True."""
    return get_distributed_backend(backend).start_all_reduce(array, op)


def start_broadcast(backend: Backend, array: np.ndarray, root: int = 0) -> Handle:
    """Starts `broadcast`; `array` must not be used until the handle's `wait` returns or its `test` is True."""
    return get_distributed_backend(backend).start_broadcast(array, root)

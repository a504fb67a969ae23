"""The communicators that `initialize` made in this process, or in a thread that is a rank, by the name of a backend."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pytagi_ddp.distributed.communicator import (
    Communicator,
    Ranks,
    as_communicator,
    create_communicator,
    resolve_backend,
)

Backend = str | Ranks

_initialized: dict[str, Communicator] = {}
_of_rank: ContextVar[dict[str, Communicator] | None] = ContextVar("communicators", default=None)


def use_own_communicators() -> None:
    """From now on, `initialize` makes separate communicators in this thread, which is a rank."""
    _of_rank.set({})


def _known() -> dict[str, Communicator]:
    own = _of_rank.get()
    return _initialized if own is None else own


def initialize(backend: str = "auto", **options: Any) -> Communicator:
    """Connects this process to the others, once; later calls without options return the same communicator.

    Args:
        backend: "auto", "mpi", "nccl", "serial" or "threads". "auto" means "threads" in a rank of `run_threads`, MPI
            if a launcher has started several ranks, otherwise serial.
        options: those of `create_communicator`: timeout (seconds), rank, world_size, device_ids, cuda_aware_mpi.

    Raises:
        RuntimeError: options for a backend that is already initialised: close its communicator first.
        ValueError, LaunchError: as in `create_communicator`.
    """
    name = resolve_backend(backend)
    if not is_initialized(name):
        _known()[name] = create_communicator(backend, **options)
    elif options:
        raise RuntimeError(
            f"backend {name!r} is initialised already, so {', '.join(options)} would have no effect; close() the "
            "communicator first, or leave the options out"
        )
    return _known()[name]


def is_initialized(backend: str | None = None) -> bool:
    """Whether a backend, or (None) any, is initialised, and its communicator is not closed."""
    names = list(_known()) if backend is None else [resolve_backend(backend)]
    return any(name in _known() and not _known()[name].closed for name in names)


def get_distributed_backend(backend: Backend = "auto") -> Communicator:
    """Returns the communicator of an initialised backend; a communicator is returned unchanged.

    For a communicator of mpi4py, such as `MPI.COMM_WORLD`, it returns one of the same ranks; the first call is
    collective.

    Raises:
        RuntimeError: the backend is not initialised. ValueError: unknown name; a communicator of mpi4py that is freed.
        TypeError: neither a name nor a communicator.
    """
    if not isinstance(backend, str):
        return as_communicator(backend)
    if not is_initialized(backend):
        raise RuntimeError(f"backend {backend!r} is not initialised: call initialize({backend!r}) first, on every rank")
    return _known()[resolve_backend(backend)]


def rank(backend: Backend = "auto") -> int:
    """Returns the index of this process among all ranks."""
    return get_distributed_backend(backend).rank


def local_rank(backend: Backend = "auto") -> int:
    """Returns the index of this process among the ranks on its node: those that share its memory."""
    return get_distributed_backend(backend).local_rank


def world_size(backend: Backend = "auto") -> int:
    """Returns the number of ranks."""
    return get_distributed_backend(backend).world_size

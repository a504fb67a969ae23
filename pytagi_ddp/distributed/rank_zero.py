"""Code that only one rank runs, or one rank before the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, overload

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend, is_initialized
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.child_process import has_joined, launcher_of_rank
from pytagi_ddp.distributed.engine.launcher import Launch
from pytagi_ddp.distributed.engine.threads import current_member

P = ParamSpec("P")
T = TypeVar("T")


@overload
def rank_zero_only(function: Callable[P, T], *, backend: Backend = "auto") -> Callable[P, T | None]: ...
@overload
def rank_zero_only(
    function: None = None, *, backend: Backend = "auto"
) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
def rank_zero_only(function: Callable | None = None, *, backend: Backend = "auto") -> Callable:
    """Makes a function run on rank 0 only; the other ranks return None at once. It must not call collectives.

    Use it as ``@rank_zero_only`` or ``@rank_zero_only(backend="nccl")``. Before `initialize`, the rank is that of the
    launcher or of `run_threads`. A program that a rank starts is not a rank, and counts as rank 0.
    """
    if function is None:
        return functools.partial(rank_zero_only, backend=backend)

    @functools.wraps(function)
    def on_rank_zero(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if _rank(backend) == 0 else None

    return on_rank_zero


def rank_zero_print(*values: Any, backend: Backend = "auto", **options: Any) -> None:
    """`print` on rank 0; nothing elsewhere."""
    if _rank(backend) == 0:
        print(*values, **options)


@contextmanager
def rank_zero_first(backend: Backend = "auto", timeout: float | None = None) -> Iterator[None]:
    """Rank 0 runs the body first, then all other ranks: for example, rank 0 downloads files that the others read.

    Every rank has to use it, and the body must not call collectives.

    Args:
        backend: name given to `initialize`, or a communicator.
        timeout: seconds that rank 0 may take; None: the communicator's.

    Raises:
        RuntimeError: the body raised an error on rank 0. The other ranks do not run the body, and raise this with the
            text of the error.
    """
    communicator = get_distributed_backend(backend)
    if communicator.rank == 0:
        try:
            yield
        except BaseException as error:
            with suppress(Exception):  # the error of the body is more important than one of this collective
                _tell(communicator, f"{type(error).__name__}: {error}", timeout)
            raise
        _tell(communicator, None, timeout)
    else:
        problem = _tell(communicator, None, timeout)
        if problem is not None:
            raise RuntimeError(
                f"rank 0 failed in rank_zero_first, so rank {communicator.rank} did not start: {problem}"
            )
        yield


def _tell(communicator: Communicator, problem: str | None, timeout: float | None) -> str | None:
    communicator.barrier(timeout)
    return communicator.broadcast_object(problem)


def _rank(backend: Backend) -> int:
    return place_among_ranks(backend)[0]


def place_among_ranks(backend: Backend = "auto") -> tuple[int, int | None]:
    """(rank, number of ranks); before `initialize`, those of the launcher or of `run_threads`. None: unknown."""
    if not isinstance(backend, str) or is_initialized(backend):
        communicator = get_distributed_backend(backend)
        return communicator.rank, communicator.world_size
    if (thread := current_member()) is not None:
        return thread.rank, thread.world.world_size
    launch = launcher_of_rank()
    return (0, 1) if launch is None else (launch.rank, launch.world_size)


def launch_of_rank_alone() -> Launch | None:
    """The launch of several processes, if this one is among them, and neither a thread's rank nor connected to them."""
    launch = launcher_of_rank()
    connected = current_member() is not None or is_initialized() or has_joined()
    return None if connected or launch is None or launch.world_size == 1 else launch

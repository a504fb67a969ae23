"""What only one rank does, or one before the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, overload

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend, is_initialized
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.offspring import launcher_of_rank
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
    """Makes a function run on rank 0 alone; the other ranks return None at once. Nothing in it may be collective.

    As ``@rank_zero_only`` or ``@rank_zero_only(backend="nccl")``. Before `initialize` the launcher says what rank this
    is, or `run_threads` does. A program that a rank starts is alone, and so its rank 0.
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
    """Rank 0 runs the body, then all other ranks at once: the first downloads, the others find the files.

    Every rank has to come here, and nothing in the body may be collective.

    Args:
        backend: name given to `initialize`, or a communicator.
        timeout: seconds that rank 0 may take; None: the communicator's.

    Raises:
        RuntimeError: on the other ranks, which do not run the body, when it raised on rank 0; carries that error's
            text.
    """
    communicator = get_distributed_backend(backend)
    if communicator.rank == 0:
        try:
            yield
        except BaseException as error:
            with suppress(Exception):  # this error matters more than what the others' end does to the collectives
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
    if isinstance(backend, Communicator) or is_initialized(backend):
        return get_distributed_backend(backend).rank
    place = current_member() or launcher_of_rank()
    return 0 if place is None else place.rank

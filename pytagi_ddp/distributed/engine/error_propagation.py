"""Error propagation: an error of one rank is raised on all ranks, which would otherwise wait for it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from pytagi_ddp.distributed.engine.debug import CollectiveMismatchError
from pytagi_ddp.distributed.engine.errors import FOLLOWED

Result = TypeVar("Result")


class Ranks(Protocol):
    """The methods of a `Communicator` for Python objects."""

    rank: int

    def all_gather_object(self, obj: Any, name: str = ...) -> list: ...
    def broadcast_object(self, obj: Any, root: int = 0) -> Any: ...


OUT_OF_STEP = (*FOLLOWED, CollectiveMismatchError)  # after these, ranks cannot exchange errors


def raise_on_all_ranks(communicator: Ranks, problem: Exception | None, call: str = "an exchange of errors") -> None:
    """Raises the error of the first rank that has one, on every rank; collective. `call` is its name in messages."""
    if isinstance(problem, OUT_OF_STEP):
        raise problem
    for rank, theirs in enumerate(communicator.all_gather_object(_portable(problem), call)):
        if theirs is not None:
            raise theirs if problem is None or rank != communicator.rank else problem  # its own has a traceback


def _portable(problem: Exception | None) -> Exception | None:
    """`problem`, or a RuntimeError with its text if it cannot be pickled for other ranks."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # its class may raise any error there
        return RuntimeError(f"{type(problem).__name__}: {problem}")
    return problem


@contextmanager
def errors_of_all_ranks(communicator: Ranks, call: str = "an exchange of errors") -> Iterator[None]:
    """At the end of the block, every rank raises the error of the first rank that failed in it; collective.

    In the block, ranks may communicate only where none of them can fail, except by errors of communication.
    """
    problem = None
    try:
        yield
    except Exception as error:
        problem = error
    raise_on_all_ranks(communicator, problem, call)


def on_rank_0(communicator: Ranks, work: Callable[[], Result]) -> Result:
    """Calls `work` on rank 0, and returns its result, or raises its error, on every rank. Collective."""
    result = None
    with errors_of_all_ranks(communicator):
        if communicator.rank == 0:
            result = work()
    return communicator.broadcast_object(result)

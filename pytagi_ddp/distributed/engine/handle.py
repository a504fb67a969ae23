"""Handles of collectives that run in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.base import CommunicatorBase


class Work(Protocol):
    """A collective of an engine."""

    def test(self) -> bool:
        """Whether it is done; never blocks."""

    def wait(self) -> None:
        """Returns when it is done."""

    def wait_until(self, deadline: float) -> bool:
        """Waits until it is done, or until `time.monotonic()` is `deadline`; returns whether it is done."""


class FinishedWork:
    """A collective that was done when it was started."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def wait_until(self, deadline: float) -> bool:
        return True


class Handle:
    """A collective in progress, from `Communicator.start_all_reduce` or another `start_...` method.

    Its arrays must be neither read nor changed until it is done. Call `wait`, or `test` until it returns True; if a
    handle is deleted before that, the next collective raises an error, and so does the end of the program. Any number
    of handles may be in flight. They run in the order in which they were started, so that waiting for one also waits
    for those before it. Ranks may wait for handles in different orders.

    Attributes:
        what: name and size, for messages.
    """

    def __init__(
        self,
        communicator: CommunicatorBase,
        what: str,
        buffer: Any,
        work: Work,
        reduction: bool = False,
        source: Any = None,
        everywhere: bool = True,
    ):
        self.what = what
        self._communicator = communicator
        self._buffer, self._source = buffer, source
        self._work = work
        self._reduction, self._everywhere = reduction, everywhere
        self._settled = False  # whether it is done or has raised an error

    def test(self) -> bool:
        """Advances the communication without blocking, and returns whether it is done.

        Raises:
            RankLeftError, CollectiveTimeoutError: as `wait`; at most 1 s between two calls counts as waiting.
        """
        return self._drive(self._work.test)

    def wait(self) -> None:
        """Returns when it is done. For arrays on a GPU, it returns at once, and work queued there later runs after it.

        Raises:
            RankLeftError, CollectiveTimeoutError: as the blocking form.
        """
        self._drive(self._work.wait)

    def wait_until(self, deadline: float) -> bool:
        """`wait`, but no longer than until `time.monotonic()` is `deadline`; returns whether it is done."""
        return self._drive(lambda: self._work.wait_until(deadline))

    def _drive(self, call: Callable[[], bool | None]) -> bool:
        if self._settled and self._work.test():
            return True
        if self._communicator._forked:
            raise RuntimeError(f"{self.what}: {self._communicator._forked}")
        start = time.perf_counter()
        try:
            done = call() is not False
        except BaseException:
            self._settled = True
            raise
        if self._reduction:
            self._communicator.reduce_seconds += time.perf_counter() - start
        self._settled = done
        # Not if each rank has a part of the result: one rank would raise alone, and the others would wait for it.
        if done and self._reduction and self._everywhere and self._communicator.debug:
            debug.check_finite(self.what, self._buffer)
        return done

    def __del__(self) -> None:
        if not getattr(self, "_settled", True):
            self._communicator.report_dropped(self.what)

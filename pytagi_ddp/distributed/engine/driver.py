"""The progress of all operations of a rank, in all its groups."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

BACKGROUND_SECONDS = 5e-4  # at 1 Gbit/s 60 kB arrive in that time, which fits the buffers of a socket


class Started(Protocol):
    """An operation of a queue; `what` and `short` name it in messages, with its size and without."""

    @property
    def what(self) -> str: ...
    @property
    def short(self) -> str: ...


class Queue(Protocol):
    """Operations that run one after the other."""

    @property
    def first(self) -> Started | None:
        """The operation under way, if any."""

    def take_on(self, polls: int) -> None:
        """Advances the queue without waiting, polling each piece `polls` times."""


class Driver:
    """Advances all queues of a rank, whichever of them it waits in.

    So a rank that waits in one group, or for one message, does not delay ranks that wait for it in another group.

    Args:
        rank: for messages.
        with_ranks: whether other ranks are threads of this process, so that waiting must release Python's lock.

    Attributes:
        yield_core: gives the core to others for a moment.
        broken: the error that interrupted an operation; no other operation can follow. broken_in: that operation.
        busy: the queues with operations under way.
        unclaimed: operations for whose end nobody has waited yet.
    """

    def __init__(self, rank: int, with_ranks: bool = False):
        self.yield_core: Callable[[], object] = partial(time.sleep, 0)  # without Python's lock
        if not with_ranks and hasattr(os, "sched_yield"):
            self.yield_core = os.sched_yield  # faster, but Python does not let go of its lock in it
        self.broken: BaseException | None = None
        self.broken_in = ""
        self.busy: dict[Queue, None] = {}
        self.unclaimed: dict[Started, None] = {}
        self.lock = threading.Lock()  # of what `advance` changes
        self._rank, self._ended = rank, ""

    @property
    def forgotten(self) -> Started | None:
        """The first operation that nobody has waited for."""
        return next(iter(self.unclaimed), None)

    def end(self, reason: str) -> None:
        """Refuses all further operations, with `reason`."""
        self._ended = reason

    def advance(self, queue: Queue, polls: int = 1) -> None:
        """Advances all queues as far as possible without waiting, polling each piece of `queue` `polls` times."""
        with self.lock:
            if self.broken is not None:  # in the other thread: what failed must not look as if it had ended
                self.check(self.broken_in)
            if queue in self.busy:
                self._take_on(queue, polls)
            for other in list(self.busy):
                if other is not queue:
                    self._take_on(other, 1)

    def _take_on(self, queue: Queue, polls: int) -> None:
        try:
            queue.take_on(polls)
        except BaseException as error:
            self.break_off(error, queue)
            raise

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Lets a thread drive what is under way while the body computes; MPI must allow calls from several threads.

        MPI moves data only when it is called. The thread calls it once in `BACKGROUND_SECONDS` and sleeps in between,
        so that it takes almost no time from the body; kernels do not hold Python's lock. An error in the thread is
        raised by the next call that waits, tests or starts.
        """
        stop = threading.Event()

        def drive() -> None:
            with suppress(Exception):  # it is kept in `broken`
                while not stop.wait(BACKGROUND_SECONDS):
                    for queue in list(self.busy)[:1]:
                        self.advance(queue)

        thread = threading.Thread(target=drive, name="pytagi_ddp-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def check(self, name: str) -> None:
        """Raises if `name` cannot go on."""
        if self._ended:
            raise RuntimeError(f"{name}: {self._ended}")
        if self.broken is not None:
            raise RuntimeError(
                f"rank {self._rank} cannot go on with {name}: {self.broken_in} was cut short by {self.broken!r}, and "
                "the ranks are out of step since; end the job and start it again"
            ) from self.broken

    def break_off(self, error: BaseException, queue: Queue) -> None:
        """Notes the error that has interrupted `queue`, if it is the first one."""
        if self.broken is None:
            first = queue.first
            self.broken, self.broken_in = error, "a collective" if first is None else first.short

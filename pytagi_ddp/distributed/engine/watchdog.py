"""Watches operations on a GPU, and ends them if they fail or take too long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pytagi_ddp.distributed.engine.errors import late

POLL_SECONDS = 0.01


class Progress(Protocol):
    """An operation that ends, such as a CUDA event."""

    done: bool


class Watchdog(threading.Thread):
    """A thread that polls each operation until it is done.

    The host queues a collective and continues, or waits in a call of CUDA that signals do not interrupt, so it cannot
    detect failures. If an operation fails or is late, the thread calls `abort`, keeps the error in `error`, and ends
    with it, which ends the job (`pytagi_ddp.distributed.engine.abort`).

    Args:
        timeout: seconds from `watch` that an operation may take.
        check: raises an error if the engine has one. abort: ends all operations of the engine.
    """

    def __init__(self, rank: int, timeout: float, check: Callable[[], None], abort: Callable[[], None]):
        super().__init__(name="pytagi_ddp NCCL watchdog", daemon=True)
        self.error: BaseException | None = None
        self._rank, self._timeout, self._check, self._abort = rank, timeout, check, abort
        self._pending: deque[tuple[str, Progress, float]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.start()

    def watch(self, what: str, progress: Progress) -> None:
        """Watches one more operation; RuntimeError if an earlier one has failed."""
        if self.error is not None:
            raise RuntimeError(
                f"rank {self._rank} cannot go on with {what}: an earlier operation failed; end the job and start again"
            ) from self.error
        with self._changed:
            self._pending.append((what, progress, time.monotonic()))
            self._changed.notify()

    def stop(self) -> None:
        """Stops watching; returns when the thread has ended, so that the engine can be freed."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._stopped)
                if self._stopped:
                    return
                what, progress, start = self._pending[0]
            try:
                self._poll(what, progress, start)
            except BaseException as error:
                self.error = error
                self._abort()
                raise
            self._pending.popleft()

    def _poll(self, what: str, progress: Progress, start: float) -> None:
        while not progress.done and not self._stopped:
            self._check()
            waited = time.monotonic() - start
            if waited > self._timeout:
                raise late(self._rank, waited, what)
            time.sleep(POLL_SECONDS)

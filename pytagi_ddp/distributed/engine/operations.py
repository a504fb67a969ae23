"""The collectives that a rank has started, in order, and how it waits for them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pytagi_ddp.interrupts import answer

# A rank that waits first polls without pause: a few times in a row, in which a small collective ends if all ranks are
# there; then letting others have the core, for as long as it takes if they are nearly there, or, once the first piece
# has shown that everyone is, until a piece is late. Then it sleeps, longer each time.
POLLS = 64
SPIN_SECONDS = 1e-3
SPIN_SECONDS_UNDERWAY = 2e-2
SLEEP_SECONDS = 50e-6
SLEEP_LIMIT = 1e-3

BACKGROUND_SECONDS = 5e-4  # at 1 Gbit/s 60 kB arrive in that time, which fits the buffers of a socket

# A rank that polls now and then is not waiting between two polls, but working: of such a pause no more counts.
POLL_GAP_SECONDS = 1.0


class Operation:
    """A collective that this rank has started.

    Attributes:
        what: name, number and size, for messages. short: without the size.
        done: whether it has ended here.
        timeout: seconds that one piece of it may take.
    """

    __slots__ = ("_name", "_nbytes", "_queue", "done", "number", "pieces", "request", "requests", "timeout")

    def __init__(self, queue: Operations, name: str, number: int, nbytes: int, requests: Iterator, timeout: float):
        self.done = False
        self.timeout = timeout
        self.requests = requests
        self.request: Any = None  # the piece under way
        self.pieces = 0  # started so far
        self.number = number
        self._queue, self._name, self._nbytes = queue, name, nbytes

    @property
    def short(self) -> str:
        return f"{self._name} #{self.number}"

    @property
    def what(self) -> str:
        return f"{self.short} ({self._nbytes / 1e6:.3g} MB)"

    def test(self) -> bool:
        """Takes the collectives as far as they go without waiting, and says whether this one is done."""
        return self._queue.test(self)

    def wait(self) -> None:
        """Returns when this one, and with it all that were started before it, is done."""
        self._queue.wait(self)


class Operations:
    """Collectives run in the order in which they were started, one piece under way at a time.

    So any number of them may be in flight, the ranks may ask for them in different orders and at different times, and
    the k-th that ends is the k-th that was started, on every rank.

    Args:
        rank: for messages.
        check_peers: raises if another rank has left or given up; given what this rank waits in.
        raise_timeout: raises; given what this rank waited in and how long.

    Attributes:
        completed: collectives that have ended on this rank.
        broken: what cut a collective short, after which no other can follow. broken_in: the collective.
    """

    def __init__(self, rank: int, check_peers: Callable[[str], None], raise_timeout: Callable[[str, float], None]):
        self.completed = 0
        self.broken: BaseException | None = None
        self.broken_in = ""
        self._ended = ""
        self._rank, self._check_peers, self._raise_timeout = rank, check_peers, raise_timeout
        self._started = 0
        self._pending: deque[Operation] = deque()  # keeps the buffers that MPI may still write into
        self._unclaimed: dict[int, Operation] = {}  # whose end nobody has asked for
        self._progress = 0  # pieces that have ended
        self._polled = (0, 0.0, 0.0)  # progress at the last poll, its time, and the seconds polled without any
        self._lock = threading.Lock()  # of what `_advance` changes

    @property
    def unclaimed(self) -> Operation | None:
        """The first that nobody has waited for."""
        return next(iter(self._unclaimed.values()), None)

    def start(self, name: str, nbytes: int, requests: Iterator, timeout: float) -> Operation:
        """Starts a collective, or lets it follow those that are under way.

        Args:
            name: what it is called in messages.
            nbytes: size of the data, for messages.
            requests: posts one non-blocking piece each time it is advanced.
            timeout: seconds that a piece may take.

        Raises:
            RuntimeError: an earlier collective was cut short.
        """
        self._check(name)
        self._started += 1
        operation = Operation(self, name, self._started, nbytes, requests, timeout)
        self._pending.append(operation)
        self._unclaimed[operation.number] = operation
        try:
            self._advance()
        except BaseException as error:
            self._break(error)
            raise
        return operation

    def test(self, operation: Operation) -> bool:
        if not operation.done:
            self._check(operation.what)
            try:
                self._advance()
                if not operation.done:
                    self._poll(operation)
                    return False
            except BaseException as error:
                self._break(error)
                raise
        self._unclaimed.pop(operation.number, None)
        return True

    def wait(self, operation: Operation) -> None:
        self._unclaimed.pop(operation.number, None)
        if operation.done:
            return
        self._check(operation.what)
        try:
            self._finish(operation)
        except BaseException as error:
            self._break(error)
            raise

    def end(self, reason: str) -> None:
        """Lets no collective start or go on any more."""
        self._ended = reason

    def _finish(self, operation: Operation) -> None:
        self._advance(POLLS)
        seen = -1
        while not operation.done:
            now = time.monotonic()
            if seen != self._progress:
                seen, start, pause = self._progress, now, SLEEP_SECONDS
                spin = SPIN_SECONDS if self._first(operation).pieces == 1 else SPIN_SECONDS_UNDERWAY
            waited = now - start
            if waited < spin:
                _yield_core()
            else:
                what = self._first(operation).what
                self._check_peers(what)
                if waited > operation.timeout:
                    self._raise_timeout(what, waited)
                time.sleep(pause)  # Python runs the handlers of signals here, and between any two lines
                answer()
                pause = min(1.5 * pause, SLEEP_LIMIT)
            self._advance()

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Lets a thread drive what is under way while the body computes; MPI must allow calls from several threads.

        MPI moves data only when it is called. The thread does so once in `BACKGROUND_SECONDS` and sleeps in between: it
        takes next to nothing from the body, and kernels do not hold Python's lock. What goes wrong in it is raised by
        the next call that waits, tests or starts.
        """
        stop = threading.Event()

        def drive() -> None:
            with suppress(Exception):  # `_advance` keeps it in `broken`
                while not stop.wait(BACKGROUND_SECONDS):
                    self._advance()

        thread = threading.Thread(target=drive, name="pytagi_ddp-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _advance(self, polls: int = 1) -> None:
        """Takes the collectives as far as they go without waiting, polling each piece so many times."""
        with self._lock:
            if self.broken is not None:  # in the other thread: what failed must not look as if it had ended
                self._check(self.broken_in)
            try:
                self._advance_locked(polls)
            except BaseException as error:
                self._break(error)
                raise

    def _first(self, operation: Operation) -> Operation:
        """The one under way; `operation` if the other thread has just ended the last one."""
        with suppress(IndexError):
            return self._pending[0]
        return operation

    def _advance_locked(self, polls: int) -> None:
        while self._pending:
            first = self._pending[0]
            while first.request is None or first.request.Test() or (polls > 1 and _ends(first.request, polls)):
                self._progress += 1
                first.request = next(first.requests, None)
                if first.request is None:
                    self._pending.popleft()
                    self.completed += 1
                    first.done = True
                    break
                first.pieces += 1
            else:
                return

    def _poll(self, operation: Operation) -> None:
        what = self._first(operation).what
        self._check_peers(what)
        progress, last, polled = self._polled
        now = time.monotonic()
        polled = polled + min(now - last, POLL_GAP_SECONDS) if progress == self._progress else 0.0
        self._polled = (self._progress, now, polled)
        if polled > operation.timeout:
            self._raise_timeout(what, polled)

    def _check(self, name: str) -> None:
        if self._ended:
            raise RuntimeError(f"{name}: {self._ended}")
        if self.broken is not None:
            raise RuntimeError(
                f"rank {self._rank} cannot go on with {name}: {self.broken_in} was cut short by {self.broken!r}, and "
                "the ranks are out of step since; end the job and start it again"
            ) from self.broken

    def _break(self, error: BaseException) -> None:
        if self.broken is None:
            self.broken, self.broken_in = error, self._pending[0].short if self._pending else "a collective"


def _ends(request: Any, polls: int) -> bool:
    test = request.Test
    for _ in range(polls):  # noqa: SIM110 - `any` of a generator takes twice as long
        if test():
            return True
    return False


def _yield_core() -> None:
    os.sched_yield() if hasattr(os, "sched_yield") else time.sleep(0)

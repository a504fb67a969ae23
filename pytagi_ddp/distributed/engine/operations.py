"""Queues of collectives and messages that a rank has started, and how it waits for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pytagi_ddp.distributed.engine.driver import Driver
from pytagi_ddp.interrupts import answer

# How a rank waits. It first polls `POLLS` times in a row, within which a small collective ends if all ranks are there.
# Then it polls and yields the core in between: for `SPIN_SECONDS`, or, after the first piece has shown that all ranks
# are there, for `SPIN_SECONDS_UNDERWAY` after each piece. Then it sleeps between polls, longer each time.
POLLS = 64
SPIN_SECONDS = 1e-3
SPIN_SECONDS_UNDERWAY = 2e-2
SLEEP_SECONDS = 50e-6
SLEEP_LIMIT = 1e-3

# A rank that calls `test` now and then works in between: of the time between two calls, no more than this counts.
POLL_GAP_SECONDS = 1.0


class Operation:
    """A collective, or a message, that this rank has started.

    Attributes:
        what: name, number, ranks and size, for messages. short: the same without the size.
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
        return f"{self._name} #{self.number}{self._queue.label}"

    @property
    def what(self) -> str:
        return f"{self.short} ({self._nbytes / 1e6:.3g} MB)"

    def test(self) -> bool:
        """Advances the operations as far as possible without waiting, and returns whether this one is done."""
        return self._queue.test(self)

    def wait(self) -> None:
        """Returns when this one, and with it all that were started before it, is done."""
        self._queue.wait(self)


class Operations:
    """A queue of operations, which run one after the other in the order in which they were started.

    Any number of collectives may be in flight, and ranks may wait for them in different orders and at different times;
    on every rank the k-th that ends is the k-th that was started. A group has a queue of collectives, with one piece
    under way at a time. For each other rank it has two queues of messages, to it and from it; all of these are given to
    MPI at once, since MPI keeps their order.

    Args:
        rank: for messages.
        check_peers: raises if another rank has left or given up; given what this rank waits in.
        raise_timeout: raises; given what this rank waited in and how long.
        driver: of the rank.
        at_once: start each operation at once, even if another is under way.
        label: names the ranks, for messages.

    Attributes:
        completed: number of operations that have ended on this rank.
    """

    def __init__(
        self,
        rank: int,
        check_peers: Callable[[str], None],
        raise_timeout: Callable[[str, float], None],
        driver: Driver,
        at_once: bool = False,
        label: str = "",
    ):
        self.completed = 0
        self.driver = driver
        self.label = label
        self._check_peers, self._raise_timeout = check_peers, raise_timeout
        self._at_once = at_once
        self._started = 0
        self._pending: deque[Operation] = deque()  # keeps the buffers that MPI may still write into
        self._progress = 0  # pieces that have ended
        self._polled = (0, 0.0, 0.0)  # progress at the last poll, its time, and the seconds polled without any

    @property
    def first(self) -> Operation | None:
        """The operation under way, if any."""
        with suppress(IndexError):
            return self._pending[0]
        return None

    def start(self, name: str, nbytes: int, requests: Iterator, timeout: float) -> Operation:
        """Starts an operation, or lets it follow those that are under way.

        Args:
            name: what it is called in messages.
            nbytes: size of the data, for messages.
            requests: posts one non-blocking piece each time it is advanced.
            timeout: seconds that a piece may take.

        Raises:
            RuntimeError: an earlier operation of this rank was cut short.
        """
        driver = self.driver
        driver.check(name)
        self._started += 1
        operation = Operation(self, name, self._started, nbytes, requests, timeout)
        driver.unclaimed[operation] = None
        try:
            with driver.lock:
                self._pending.append(operation)
                driver.busy[self] = None
                if self._at_once:
                    self._post_next(operation)
            driver.advance(self)
        except BaseException as error:
            driver.break_off(error, self)
            raise
        return operation

    def test(self, operation: Operation) -> bool:
        driver = self.driver
        if not operation.done:
            driver.check(operation.what)
            try:
                driver.advance(self)
                if not operation.done:
                    self._poll(operation)
                    return False
            except BaseException as error:
                driver.break_off(error, self)
                raise
        driver.unclaimed.pop(operation, None)
        return True

    def wait(self, operation: Operation) -> None:
        driver = self.driver
        driver.unclaimed.pop(operation, None)
        if operation.done:
            return
        driver.check(operation.what)
        try:
            self._finish(operation)
        except BaseException as error:
            driver.break_off(error, self)
            raise

    def take_on(self, polls: int) -> None:
        """Advances the queue without waiting, polling each piece `polls` times; called by the driver."""
        while self._pending:
            first = self._pending[0]
            while first.request is None or first.request.Test() or (polls > 1 and _ends(first.request, polls)):
                self._progress += 1
                self._post_next(first)
                if first.request is None:
                    self._pending.popleft()
                    self.completed += 1
                    first.done = True
                    break
            else:
                return
        self.driver.busy.pop(self, None)

    def _post_next(self, operation: Operation) -> None:
        operation.request = next(operation.requests, None)
        operation.pieces += operation.request is not None

    def _finish(self, operation: Operation) -> None:
        self.driver.advance(self, POLLS)
        seen = -1
        while not operation.done:
            now = time.monotonic()
            if seen != self._progress:
                seen, start, pause = self._progress, now, SLEEP_SECONDS
                spin = SPIN_SECONDS if (self.first or operation).pieces == 1 else SPIN_SECONDS_UNDERWAY
            waited = now - start
            if waited < spin:
                self.driver.yield_core()
            else:
                what = (self.first or operation).what  # the other thread may just have ended the last one
                self._check_peers(what)
                if waited > operation.timeout:
                    self._raise_timeout(what, waited)
                time.sleep(pause)  # Python runs the handlers of signals here, and between any two lines
                answer()
                pause = min(1.5 * pause, SLEEP_LIMIT)
            self.driver.advance(self)

    def _poll(self, operation: Operation) -> None:
        what = (self.first or operation).what
        self._check_peers(what)
        progress, last, polled = self._polled
        now = time.monotonic()
        polled = polled + min(now - last, POLL_GAP_SECONDS) if progress == self._progress else 0.0
        self._polled = (self._progress, now, polled)
        if polled > operation.timeout:
            self._raise_timeout(what, polled)


def _ends(request: Any, polls: int) -> bool:
    test = request.Test
    for _ in range(polls):  # noqa: SIM110 - `any` of a generator takes twice as long
        if test():
            return True
    return False

"""The collectives and messages of a rank, the queues in which they run, and how a rank waits."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakMethod

from pytagi_ddp.interrupts import answer

# How a rank waits. It first polls `POLLS` times in a row, in which time a small collective ends if all ranks have
# arrived. Then it polls and yields the core in between: for `SPIN_SECONDS`, or, after the first piece has shown that
# all ranks have arrived, for `SPIN_SECONDS_UNDERWAY` after each piece. Then it sleeps between polls, longer each time.
POLLS = 64
SPIN_SECONDS = 1e-3
SPIN_SECONDS_UNDERWAY = 2e-2
SLEEP_SECONDS = 50e-6
SLEEP_LIMIT = 1e-3

# Between two calls of `test`, a rank may compute. So at most this part of the time counts as waiting.
POLL_GAP_SECONDS = 1.0

BACKGROUND_SECONDS = 5e-4  # at 1 Gbit/s 60 kB arrive in that time, which fit the buffers of a socket


class Operation:
    """A collective or message that this rank has started.

    Attributes:
        what: name, number, ranks and size, for messages. short: the same without the size.
    """

    __slots__ = ("_name", "_nbytes", "_queue", "done", "number", "pieces", "request", "requests", "timeout")

    def __init__(self, queue: Queue, name: str, number: int, nbytes: int, requests: Iterator, timeout: float):
        self.done = False
        self.timeout = timeout
        self.requests = requests
        self.request: Any = None  # the piece in progress
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
        """Returns when this operation, and all that were started before it, are done."""
        self._queue.wait(self)

    def wait_until(self, deadline: float) -> bool:
        """`wait`, but no longer than until `time.monotonic()` is `deadline`; returns whether it is done."""
        return self.test() or self._queue.wait(self, deadline)


class Operations:
    """All operations of a rank, in its queues. Waiting in one queue advances all of them.

    So a rank that waits in one group does not delay ranks that wait for it in another group.

    Args:
        with_ranks: whether other ranks are threads of this process, so that waiting must release Python's lock.
    """

    def __init__(self, rank: int, with_ranks: bool = False):
        self.yield_core: Callable[[], object] = partial(time.sleep, 0)  # releases Python's lock
        if not with_ranks and hasattr(os, "sched_yield"):
            self.yield_core = os.sched_yield  # faster, but does not release Python's lock
        self.broken: BaseException | None = None  # the error that interrupted an operation: no other can follow
        self.broken_in = ""  # the operation
        self.busy: dict[Queue, None] = {}  # with operations in progress
        self.unclaimed: dict[Operation, None] = {}  # nobody has waited for them yet
        self.waited = 0.0  # seconds
        self.lock = threading.Lock()  # for the state that `advance` changes
        self._at_end: list[WeakMethod] = []
        self._rank = rank

    @property
    def forgotten(self) -> Operation | None:
        """The first operation that nobody has waited for."""
        return next(iter(self.unclaimed), None)

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls a method that waits for operations before the program ends, unless its object was deleted."""
        self._at_end.append(WeakMethod(call))

    def finish(self) -> None:
        """Makes the calls of `at_end`; not on a rank with an interrupted operation, which would wait forever."""
        while self._at_end and self.broken is None:
            if (call := self._at_end.pop()()) is not None:
                call()

    def advance(self, queue: Queue, polls: int = 1) -> None:
        """Advances all queues as far as possible without waiting, polling each piece of `queue` `polls` times."""
        with self.lock:
            if self.broken is not None:  # in the other thread: a failed operation must not count as done
                self.check(self.broken_in)
            advanced = queue
            try:
                if queue in self.busy:
                    queue.take_on(polls)
                for advanced in list(self.busy):
                    if advanced is not queue:
                        advanced.take_on(1)
            except BaseException as error:
                self.break_off(error, advanced)
                raise

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Lets a thread advance operations while the body computes; MPI must allow calls from several threads.

        MPI transfers data only when it is called. The thread calls it once in `BACKGROUND_SECONDS` and sleeps in
        between, so that it takes almost no time; kernels do not hold Python's lock. The next call that waits, tests or
        starts raises errors of the thread.
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
        """Raises an error if `name` cannot run."""
        if self.broken is not None:
            raise RuntimeError(
                f"rank {self._rank} cannot go on with {name}: {self.broken_in} was cut short by {self.broken!r}, and "
                "the ranks are out of step since; end the job and start it again"
            ) from self.broken

    def break_off(self, error: BaseException, queue: Queue) -> None:
        """Stores the error that has interrupted `queue`, if it is the first one."""
        if self.broken is None:
            first = queue.first
            self.broken, self.broken_in = error, "a collective" if first is None else first.short


class Queue:
    """A queue of operations, which run one after the other in the order in which they were started.

    Any number of collectives may be in flight, and ranks may wait for them in different orders and at different times;
    on every rank the k-th that ends is the k-th that was started. A group has one queue of collectives, with one piece
    in progress at a time. For each other rank it has two queues of messages, to it and from it; these are all passed to
    MPI at once, because MPI keeps their order.

    Args:
        check_peers: raises an error if another rank has left or timed out; its argument is the operation that this rank
            waits in.
        raise_timeout: raises the error of a time-out; its arguments are the operation and the time.
        at_once: start each operation at once, even if another is under way.
        label: names the ranks, for messages.
    """

    def __init__(
        self,
        check_peers: Callable[[str], None],
        raise_timeout: Callable[[str, float], None],
        operations: Operations,
        at_once: bool = False,
        label: str = "",
    ):
        self.completed = 0  # operations that have ended on this rank
        self.operations = operations
        self.label = label
        self._check_peers, self._raise_timeout = check_peers, raise_timeout
        self._at_once = at_once
        self._started = 0
        self._pending: deque[Operation] = deque()  # keeps buffers alive that MPI may still write into
        self._progress = 0  # pieces that have ended
        self._polled = (0, 0.0, 0.0)  # progress at the last poll, its time, and seconds without progress

    @property
    def first(self) -> Operation | None:
        """The operation in progress, if any."""
        with suppress(IndexError):
            return self._pending[0]
        return None

    def start(self, name: str, nbytes: int, requests: Iterator, timeout: float) -> Operation:
        """Starts an operation, after those in progress; RuntimeError if one of this rank was cut short.

        Args:
            name, nbytes: for messages.
            requests: iterator that starts one non-blocking piece in each step.
            timeout: seconds that a piece may take.
        """
        operations = self.operations
        if operations.broken is not None:
            operations.check(name)
        self._started += 1
        operation = Operation(self, name, self._started, nbytes, requests, timeout)
        operations.unclaimed[operation] = None
        try:
            with operations.lock:
                self._pending.append(operation)
                operations.busy[self] = None
                if self._at_once:
                    operation.request = next(requests, None)
                    operation.pieces = 1
            operations.advance(self)
        except BaseException as error:
            operations.break_off(error, self)
            raise
        return operation

    def test(self, operation: Operation) -> bool:
        operations = self.operations
        if not operation.done:
            operations.check(operation.what)
            try:
                operations.advance(self)
                if not operation.done:
                    self._poll(operation)
                    return False
            except BaseException as error:
                operations.break_off(error, self)
                raise
        operations.unclaimed.pop(operation, None)
        return True

    def wait(self, operation: Operation, deadline: float = math.inf) -> bool:
        operations = self.operations
        operations.unclaimed.pop(operation, None)
        if operation.done:
            return True
        if operations.broken is not None:
            operations.check(operation.what)
        start = time.monotonic()
        try:
            self._finish(operation, deadline)
        except BaseException as error:
            operations.break_off(error, self)
            raise
        operations.waited += time.monotonic() - start
        if not operation.done:
            operations.unclaimed[operation] = None
        return operation.done

    def take_on(self, polls: int) -> None:
        """Advances the queue without waiting, polling each piece `polls` times; called by `Operations.advance`."""
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
        self.operations.busy.pop(self, None)

    def _finish(self, operation: Operation, deadline: float) -> None:
        self.operations.advance(self, POLLS)
        seen = -1
        while not operation.done:
            now = time.monotonic()
            if now >= deadline:
                return
            if seen != self._progress:
                seen, start, pause = self._progress, now, SLEEP_SECONDS
                spin = SPIN_SECONDS if (self.first or operation).pieces == 1 else SPIN_SECONDS_UNDERWAY
            waited = now - start
            if waited < spin:
                self.operations.yield_core()
            else:
                what = (self.first or operation).what  # the other thread may have ended the last one
                self._check_peers(what)
                if waited > operation.timeout:
                    self._raise_timeout(what, waited)
                time.sleep(pause)  # Python runs signal handlers here
                answer()
                pause = min(1.5 * pause, SLEEP_LIMIT)
            self.operations.advance(self)

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

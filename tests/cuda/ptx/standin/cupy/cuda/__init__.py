"""Devices, streams, events and graphs. Work is done only when somebody waits for it, so that a missing wait shows.

A collective (`nccl`) has to go on without that, so it makes a thread do the work that comes before it. `order` knows
which work on several streams comes before which, and which lacks an event between.
"""

import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from weakref import WeakValueDictionary

from tests.cuda.ptx.machine import Memory

from . import function, memory, nccl, order

__all__ = ["Device", "Event", "Stream", "function", "get_current_stream", "memory", "nccl", "runtime"]

CAPABILITY = "80"
MEMORY = 1 << 33
devices = 1  # how many there are; tests of several change it
identity = 0  # which physical GPU this process has
streams: "WeakValueDictionary[int, Stream]" = WeakValueDictionary()  # by their handles
_handles = itertools.count(1)
_thread = threading.local()
_working = threading.RLock()  # one thread at a time does the work of streams


def current() -> int:
    return getattr(_thread, "device", 0)


class Device:
    compute_capability = CAPABILITY

    def __init__(self, index: int = 0):
        self.id = index
        self._before: list[int] = []

    def use(self):
        _thread.device = self.id
        return self

    def __enter__(self):
        self._before.append(current())
        return self.use()

    def __exit__(self, *_):
        _thread.device = self._before.pop()


class Pool:
    """The memory of all devices: nothing is kept of what is gone."""

    def __init__(self) -> None:
        self._used: Counter[int] = Counter()

    def take(self, taken: Memory) -> None:
        """Counts memory of the current device for as long as it is there."""
        taken.device = current()
        self._used[taken.device] += taken.size
        weakref.finalize(taken, self._used.subtract, {taken.device: taken.size})

    def used_bytes(self) -> int:
        return self._used[current()]

    def free_bytes(self) -> int:
        return 0

    def get_limit(self) -> int:
        return 0

    def free_all_blocks(self) -> None:
        pass


pool = Pool()


class runtime:
    class CUDARuntimeError(RuntimeError):
        pass

    @staticmethod
    def getDevice() -> int:
        return current()

    @staticmethod
    def getDeviceCount() -> int:
        return devices

    @staticmethod
    def getDeviceProperties(index: int) -> dict:
        return dict(name=b"PTX on the CPU", major=8, minor=0, totalGlobalMem=MEMORY, multiProcessorCount=108)

    @staticmethod
    def driverGetVersion() -> int:
        return 13000

    runtimeGetVersion = driverGetVersion

    @staticmethod
    def memGetInfo() -> tuple[int, int]:
        return MEMORY - pool.used_bytes(), MEMORY


class Stream:
    """Work in order.

    Attributes:
        queued, done: how much work.
        behind: the work of other streams that what is queued from now on comes after, see `order`.
    """

    def __init__(self, null: bool = False, non_blocking: bool = False):
        self.ptr = next(_handles)
        self.queued = self.done = 0
        self.behind: order.Clock = {}
        self._waiting: deque[tuple[Callable, order.Clock]] = deque()
        self._captured: list[Callable] | None = None
        streams[self.ptr] = self

    def queue(self, work: Callable) -> None:
        if self._captured is None:
            self._waiting.append((work, self.behind))
            self.queued += 1
        else:
            self._captured.append(work)

    def advance(self, until: int) -> None:
        """Does what was queued first, up to this number."""
        with _working:
            while self.done < until:
                work, behind = self._waiting.popleft()
                try:
                    order.do(work, order.Place(self.ptr, self.done + 1, behind))
                finally:
                    self.done += 1

    @property
    def next_behind(self) -> order.Clock:
        """What the work comes after that is done next."""
        waiting = [*self._waiting][:1]
        return waiting[0][1] if waiting else self.behind

    def synchronize(self) -> None:
        if self._captured is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
        self.advance(self.queued)
        _host_has_seen(order.together(self.behind, {self.ptr: self.queued}))

    def wait_event(self, event: "Event") -> None:
        self.behind = order.together(self.behind, event.after)
        self.queue(event.await_)

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> "Graph":
        graph, self._captured = Graph(self._captured), None
        return graph

    def __enter__(self):
        self._before = get_current_stream()
        _streams()[current()] = self
        return self

    def __exit__(self, *_):
        _streams()[current()] = self._before


def _host_has_seen(after: "order.Clock") -> None:
    """What is queued anywhere from now on comes after work that the host has waited for."""
    if len(streams) > 1:
        for stream in list(streams.values()):
            stream.behind = order.together(stream.behind, after)


class Graph:
    def __init__(self, work: list[Callable]):
        self._work = work

    def launch(self) -> None:
        for work in self._work:
            get_current_stream().queue(work)


class Event:
    """A place in a stream; after: the work that it comes after, see `order`."""

    def __init__(self, disable_timing: bool = False):
        self._stream: Stream | None = None
        self._place = 0
        self.after: order.Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or get_current_stream()
        self._place = self._stream.queued
        self.after = order.together(self._stream.behind, {self._stream.ptr: self._place})

    @property
    def done(self) -> bool:
        return self._stream is None or self._stream.done >= self._place

    def await_(self) -> None:
        if self._stream is not None:
            self._stream.advance(self._place)

    def synchronize(self) -> None:
        self.await_()
        _host_has_seen(self.after)


_defaults: dict[int, Stream] = {}


def _streams() -> dict[int, Stream]:
    """Of this thread, by device: those that are not the default."""
    return _thread.__dict__.setdefault("streams", {})


def get_current_stream() -> Stream:
    return _streams().get(current()) or _defaults.setdefault(current(), Stream())

"""Devices, streams, events and graphs. Work is done when somebody waits for it, so that no result comes too early."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable

from tests.cuda.ptx.machine import Memory

from . import function, memory, nccl

__all__ = ["Device", "Event", "Stream", "function", "get_current_stream", "memory", "nccl", "runtime"]

CAPABILITY = "80"
MEMORY = 1 << 33
devices = 1  # how many there are; tests of several change it
_thread = threading.local()


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
    """Work in order."""

    def __init__(self, null: bool = False, non_blocking: bool = False):
        self.ptr = id(self)
        self.queued = self.done = 0
        self._waiting: list[Callable] = []
        self._captured: list[Callable] | None = None

    def queue(self, work: Callable) -> None:
        if self._captured is None:
            self.queued += 1
            self._waiting.append(work)
        else:
            self._captured.append(work)

    def advance(self, until: int) -> None:
        """Does what was queued first, up to this number."""
        while self.done < until:
            work = self._waiting.pop(0)
            self.done += 1
            work()

    def synchronize(self) -> None:
        if self._captured is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
        self.advance(self.queued)

    def wait_event(self, event: "Event") -> None:
        self.queue(event.synchronize)

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


class Graph:
    def __init__(self, work: list[Callable]):
        self._work = work

    def launch(self) -> None:
        for work in self._work:
            get_current_stream().queue(work)


class Event:
    """A place in a stream."""

    def __init__(self, disable_timing: bool = False):
        self._stream: Stream | None = None
        self._place = 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or get_current_stream()
        self._place = self._stream.queued

    @property
    def done(self) -> bool:
        return self._stream is None or self._stream.done >= self._place

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.advance(self._place)


_defaults: dict[int, Stream] = {}


def _streams() -> dict[int, Stream]:
    """Of this thread, by device: those that are not the default."""
    return _thread.__dict__.setdefault("streams", {})


def get_current_stream() -> Stream:
    return _streams().get(current()) or _defaults.setdefault(current(), Stream())

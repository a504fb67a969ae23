"""Devices, streams, events and graphs. Work is done when somebody waits for it, so that no result comes too early."""

import threading
from collections.abc import Callable
from contextlib import contextmanager

from . import function, nccl

__all__ = ["Device", "Event", "Stream", "function", "get_current_stream", "nccl", "runtime", "using_allocator"]

CAPABILITY = "80"
MEMORY = 1 << 33
allocator: Callable | None = None
_thread = threading.local()


class Device:
    compute_capability = CAPABILITY

    def __init__(self, index: int = 0):
        self.id = index

    def use(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class runtime:
    class CUDARuntimeError(RuntimeError):
        pass

    @staticmethod
    def getDevice() -> int:
        return 0

    @staticmethod
    def getDeviceCount() -> int:
        return 1

    @staticmethod
    def getDeviceProperties(index: int) -> dict:
        return dict(name=b"PTX on the CPU", major=8, minor=0, totalGlobalMem=MEMORY, multiProcessorCount=108)

    @staticmethod
    def memGetInfo() -> tuple[int, int]:
        return MEMORY, MEMORY


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
        _thread.stream = self
        return self

    def __exit__(self, *_):
        _thread.stream = self._before


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


default = Stream()


def get_current_stream() -> Stream:
    return getattr(_thread, "stream", default)


@contextmanager
def using_allocator(use: Callable):
    global allocator
    before, allocator = allocator, use
    try:
        yield
    finally:
        allocator = before

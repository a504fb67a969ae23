"""Arrays on a GPU: CuPy, float32 unless another dtype is given. The only file with CuPy.

A model on GPU i uses `arrays(i)`, which has the functions of `kernels.cpu.array`. All work is queued on CuPy's current
stream of that GPU; the host waits only if it returns a NumPy array. Memory of transfers is pinned.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.arrival import Arrival
from pytagi_ddp.kernels.cuda.runtime.recorder import queue, refuse_host_transfer

if find_spec("cupy") is not None:
    import cupy
    import cupyx
else:  # kernels compile without CuPy
    cupy = None

TO_HOST, TO_DEVICE = "a copy to the host", "a copy from the host"
WORD = 8  # bytes of the largest argument of a kernel


def nccl() -> ModuleType:
    """CuPy's binding of NCCL; its attribute `available` is True if the library was found."""
    return import_module("cupy.cuda.nccl")


def current_device() -> int:
    """Index of the GPU that this thread uses."""
    return cupy.cuda.runtime.getDevice()


def device_of(array) -> int:
    """Index of the GPU that holds `array`."""
    return array.data.device_id


def on_device(index: int) -> AbstractContextManager:
    """Makes GPU `index` the current one of this thread, for CuPy and for every launch."""
    return nullcontext() if current_device() == index else cupy.cuda.Device(index)


def compute_capability(index: int) -> tuple[int, int]:
    """(major, minor) of GPU `index`."""
    digits = cupy.cuda.Device(index).compute_capability  # "90", "120"
    return int(digits[:-1]), int(digits[-1])


def address(array) -> int:
    """Address of the first byte of `array`."""
    return array.data.ptr


class Packed(tuple):
    """Arguments of a launch in a form that CuPy does not check: pointers to the values in `words`."""

    words: np.ndarray


class Function:
    """The kernel `name` of a cubin, on GPU `index`: callable as (grid, block, arguments) from any device."""

    def __init__(self, index: int, cubin: bytes, name: str):
        with on_device(index):
            module = cupy.cuda.function.Module()
            module.load(cubin)
            self._function = module.get_function(name)
        self._index, self.__name__ = index, name

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: list) -> None:
        with on_device(self._index):
            self._function(grid, block, arguments)

    def prepare(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: list) -> tuple[Callable, tuple]:
        """The same launch as (function, arguments), to be called while its GPU is current and its arrays exist."""
        words = b"".join(
            a.tobytes().ljust(WORD, b"\0") if isinstance(a, np.generic) else address(a).to_bytes(WORD, sys.byteorder)
            for a in arguments
        )
        memory = np.frombuffer(words, np.uint64)
        packed = Packed(cupy.cuda.function.CPointer(memory.ctypes.data + i) for i in range(0, len(words), WORD))
        packed.words = memory
        return self._function, (grid, block, packed)


def pinned(size: int, dtype=np.float32) -> np.ndarray:
    """Uninitialised host memory that the GPU can access directly."""
    return cupyx.empty_pinned(size, dtype)


class SideStream:
    """A second stream of GPU `index`, in addition to the current one."""

    def __init__(self, index: int):
        self._index = index
        with on_device(index):
            self._stream = cupy.cuda.Stream(non_blocking=True)

    def run(self, function: Callable[[int], None]):
        """Calls `function` with the stream's handle, to queue work that runs after all that is queued so far.

        Returns an event that marks the end of that work. Work queued later runs concurrently with it, except after
        `join`.
        """
        refuse_host_transfer("work on a second stream")
        with on_device(self._index):
            ready, done = _event(), _event()
            ready.record(cupy.cuda.get_current_stream())
            self._stream.wait_event(ready)
            function(self._stream.ptr)
            done.record(self._stream)
        return done

    def join(self, done) -> None:
        """Makes all work that is queued later wait for an event of `run`."""
        with on_device(self._index):
            cupy.cuda.get_current_stream().wait_event(done)

    def synchronize(self) -> None:
        self._stream.synchronize()


def _event():
    return cupy.cuda.Event(disable_timing=True)


class Arrays:
    """Arrays of GPU `index`; see `kernels.protocol.ArrayFunctions`."""

    asynchronous = True  # kernels return before they are done

    def __init__(self, index: int):
        self.index = index
        self._in_flight: deque = deque()  # (event, pinned memory), kept until the copy is done
        self._lock = threading.Lock()

    def empty(self, shape, dtype=np.float32):
        with on_device(self.index):
            return cupy.empty(shape, dtype)

    def zeros(self, shape, dtype=np.float32):
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def place(self, source: np.ndarray, into=None):
        """Copies the host array `source` to this GPU: into the memory of `into` if it fits, else into new memory."""
        if into is None or into.size < source.size or into.dtype != source.dtype:
            into = self.empty(source.size, source.dtype)
        placed = into.reshape(-1)[: source.size].reshape(source.shape)
        self.copy(source, placed)
        return placed

    def visible(self, array) -> np.ndarray:
        """The array for the user: a read-only copy on the host."""
        copy = self.to_host(array)
        copy.flags.writeable = False
        return copy

    def clear(self, array) -> None:
        """array[...] = 0, for a contiguous array."""
        if array.size:
            with on_device(self.index):
                queue(_fill_zero, array)

    def copy(self, source, out) -> None:
        """out[...] = source, from host or GPU memory; waits only if `out` is on the host. Both contiguous."""
        if out.size == 0:
            return
        with on_device(self.index):
            if isinstance(out, np.ndarray):
                source.data.copy_to_host_async(out.ctypes.data, out.nbytes)
                self.synchronize()
            elif isinstance(source, np.ndarray):
                self._send(source, out)
            else:
                queue(_copy_on_device, source, out)

    def synchronize(self) -> None:
        """Waits until everything on the current stream is done."""
        refuse_host_transfer("a wait for the device")
        with on_device(self.index):
            cupy.cuda.get_current_stream().synchronize()

    def to_host(self, array) -> np.ndarray:
        """A NumPy copy of `array`; waits until the work queued so far is done."""
        if isinstance(array, np.ndarray):
            return array.copy()
        refuse_host_transfer(TO_HOST)
        with on_device(self.index):
            return array.get()

    def snapshot(self, array) -> Arrival:
        """A flat copy for the user, which later work does not change; the host does not wait for it."""
        if array.size == 0:
            return Arrival(np.empty(0, array.dtype), None)
        refuse_host_transfer(TO_HOST)
        with on_device(self.index):
            values = pinned(array.size, array.dtype)
            array.data.copy_to_host_async(values.ctypes.data, array.nbytes)
            return Arrival(values, self._done(values).synchronize)

    def address(self, array) -> int:
        """Address of the first byte of `array`."""
        return address(array)

    def free_bytes(self) -> int:
        """Free bytes for new arrays: free memory of the GPU, and of CuPy's pool."""
        with on_device(self.index):
            pool = cupy.get_default_memory_pool()
            free = cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
            return min(free, pool.get_limit() - pool.used_bytes()) if pool.get_limit() else free

    def _send(self, source: np.ndarray, out) -> None:
        refuse_host_transfer(TO_DEVICE)
        values = pinned(out.size, out.dtype)
        np.copyto(values, source.reshape(-1), casting="same_kind")
        out.data.copy_from_host_async(values.ctypes.data, out.nbytes)
        self._done(values)

    def _done(self, values: np.ndarray):
        """An event that marks the end of the copy just queued; the pinned memory `values` is kept until then."""
        event = _event()
        event.record()
        with self._lock:
            self._in_flight.append((event, values))
            while self._in_flight and self._in_flight[0][0].done:
                self._in_flight.popleft()
        return event


def _fill_zero(array) -> None:
    array.data.memset_async(0, array.nbytes)


def _copy_on_device(source, out) -> None:
    out.data.copy_from_device_async(source.data, out.nbytes)


@cache
def arrays(index: int) -> Arrays:
    """The arrays of GPU `index`."""
    return Arrays(index)

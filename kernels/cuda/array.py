"""Arrays on a GPU: CuPy, float32 unless another dtype is given; NumPy in the simulator. The only file with CuPy.

A model on GPU i uses `arrays(i)`, which has the functions of `kernels.cpu.array`. Everything is queued on CuPy's
current stream of that GPU; the host waits only where a NumPy array is handed out. Memory of transfers is pinned.
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
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cuda.arrival import Arrival
from pytagi_ddp.kernels.cuda.compile import SIMULATOR
from pytagi_ddp.kernels.cuda.recorder import meets_host, queue

if not SIMULATOR and find_spec("cupy") is not None:
    import cupy
    import cupyx
else:  # kernels compile without CuPy, and run without it in the simulator
    cupy = None

TO_HOST, TO_DEVICE = "a copy to the host", "a copy from the host"
WORD = 8  # bytes of the largest argument of a kernel


def nccl() -> ModuleType:
    """CuPy's binding of NCCL; its `available` says whether the library was found."""
    return import_module("cupy.cuda.nccl")


def current_device() -> int:
    """Index of the GPU that this thread uses."""
    return 0 if SIMULATOR else cupy.cuda.runtime.getDevice()


def device_of(array) -> int:
    """Index of the GPU that holds `array`."""
    return 0 if SIMULATOR else array.data.device_id


def on_device(index: int) -> AbstractContextManager:
    """Makes GPU `index` the current one of this thread, for CuPy and for every launch."""
    return nullcontext() if SIMULATOR or current_device() == index else cupy.cuda.Device(index)


def compute_capability(index: int) -> tuple[int, int]:
    """(major, minor) of GPU `index`; (0, 0) in the simulator, which has none of the special instructions."""
    digits = "00" if SIMULATOR else cupy.cuda.Device(index).compute_capability  # "90", "120"
    return int(digits[:-1]), int(digits[-1])


def address(array) -> int:
    """Address of the first byte of `array`."""
    return array.ctypes.data if SIMULATOR else array.data.ptr


class Packed(tuple):
    """Arguments of a launch in the form that CuPy passes on unchecked: pointers to the values, which are in `words`."""

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
        """The same launch as (function, arguments), for use while its GPU is current and its arrays are alive."""
        words = b"".join(
            a.tobytes().ljust(WORD, b"\0") if isinstance(a, np.generic) else address(a).to_bytes(WORD, sys.byteorder)
            for a in arguments
        )
        memory = np.frombuffer(words, np.uint64)
        packed = Packed(cupy.cuda.function.CPointer(memory.ctypes.data + i) for i in range(0, len(words), WORD))
        packed.words = memory
        return self._function, (grid, block, packed)


def pinned(size: int, dtype=np.float32) -> np.ndarray:
    """Uninitialised host memory that the GPU can read and write by itself."""
    return np.empty(size, dtype) if SIMULATOR else cupyx.empty_pinned(size, dtype)


class SideStream:
    """A stream beside the current one of GPU `index`."""

    def __init__(self, index: int):
        self._index = index
        with on_device(index):
            self._stream = cupy.cuda.Stream(non_blocking=True)

    def run(self, function: Callable[[int], None]):
        """Calls `function` with the stream's handle, to queue work that runs after all that is queued so far.

        Returns an event that marks the end of that work. Work queued later runs beside it, except after `join`.
        """
        meets_host("work on a second stream")
        with on_device(self._index):
            ready, done = _event(), _event()
            ready.record(cupy.cuda.get_current_stream())
            self._stream.wait_event(ready)
            function(self._stream.ptr)
            done.record(self._stream)
        return done

    def join(self, done) -> None:
        """Makes all work that is queued from now on wait for an event of `run`."""
        with on_device(self._index):
            cupy.cuda.get_current_stream().wait_event(done)

    def synchronize(self) -> None:
        self._stream.synchronize()


def _event():
    return cupy.cuda.Event(disable_timing=True)


class Arrays:
    """Arrays of GPU `index`."""

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
        meets_host("a wait for the device")
        with on_device(self.index):
            cupy.cuda.get_current_stream().synchronize()

    def place(self, source: np.ndarray, into=None):
        """Copies the host array `source` to this GPU: into the memory of `into` if it fits, else into new memory."""
        return _place(self, source, into)

    def to_host(self, array) -> np.ndarray:
        """A NumPy copy of `array`; waits until the work queued so far is done."""
        if isinstance(array, np.ndarray):
            return array.copy()
        meets_host(TO_HOST)
        with on_device(self.index):
            return array.get()

    def visible(self, array) -> np.ndarray:
        """The array that users are shown: a read-only copy of `array` on the host."""
        return _read_only(self.to_host(array))

    def snapshot(self, array) -> Arrival:
        """A flat copy for the user, which later work does not change; it is made while the host goes on."""
        if array.size == 0:
            return Arrival(np.empty(0, array.dtype), None)
        meets_host(TO_HOST)
        with on_device(self.index):
            values = pinned(array.size, array.dtype)
            array.data.copy_to_host_async(values.ctypes.data, array.nbytes)
            return Arrival(values, self._done(values).synchronize)

    def address(self, array) -> int:
        """Address of the first byte of `array`."""
        return address(array)

    def free_bytes(self) -> int:
        """Bytes left for new arrays: free memory of the GPU, and memory of freed arrays that CuPy keeps in its pool."""
        with on_device(self.index):
            pool = cupy.get_default_memory_pool()
            free = cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
            return min(free, pool.get_limit() - pool.used_bytes()) if pool.get_limit() else free

    def _send(self, source: np.ndarray, out) -> None:
        meets_host(TO_DEVICE)
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


def _read_only(copy: np.ndarray) -> np.ndarray:
    """Makes a host copy read-only, as changes to it would not reach the GPU."""
    copy.flags.writeable = False
    return copy


def _fill_zero(array) -> None:
    array.data.memset_async(0, array.nbytes)


def _copy_on_device(source, out) -> None:
    out.data.copy_from_device_async(source.data, out.nbytes)


def _simulated_copy(source: np.ndarray, out: np.ndarray) -> None:
    """A copy on the device, as a separate function because `benchmarks.gpu_launches` replaces it."""
    _copy_reshaped(source, out)


def _copy_reshaped(source: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out.view(np.ndarray), source.view(np.ndarray).reshape(out.shape))


class SimulatedArray(np.ndarray):
    """A device array of the simulator: arithmetic and functions of NumPy are refused, as there are none on a GPU."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        raise TypeError(f"np.{ufunc.__name__} of an array on a device: use a kernel, or read the array first")

    def __array_function__(self, function, types, arguments, options):
        raise TypeError(f"np.{function.__name__} of an array on a device: use a kernel, or read the array first")


class SimulatedArrays:
    """The same as `Arrays` for the simulator."""

    asynchronous = True

    def __init__(self, index: int):
        self.index = index

    def empty(self, shape, dtype=np.float32) -> SimulatedArray:
        unwritten = np.nan if dtype == np.float32 else -(1 << 30)
        return np.full(shape, unwritten, dtype).view(SimulatedArray)

    def zeros(self, shape, dtype=np.float32) -> SimulatedArray:
        array = self.empty(shape, dtype)
        self.clear(array)
        return array

    def clear(self, array: SimulatedArray) -> None:
        queue(array.fill, 0)

    def copy(self, source: np.ndarray, out: np.ndarray) -> None:
        if isinstance(source, SimulatedArray) and isinstance(out, SimulatedArray):
            queue(_simulated_copy, source, out)
        else:
            meets_host(TO_DEVICE if isinstance(out, SimulatedArray) else TO_HOST)
            _copy_reshaped(source, out)

    def synchronize(self) -> None:
        meets_host("a wait for the device")

    def place(self, source: np.ndarray, into: SimulatedArray | None = None) -> SimulatedArray:
        return _place(self, source, into)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        meets_host(TO_HOST)
        return np.array(array.view(np.ndarray))

    def visible(self, array: np.ndarray) -> np.ndarray:
        return _read_only(self.to_host(array))

    def snapshot(self, array: SimulatedArray) -> Arrival:
        return Arrival(self.to_host(array).reshape(-1), None)

    def address(self, array: np.ndarray) -> int:
        return address(array)

    def free_bytes(self) -> None:
        """Not limited."""


def _place(device: Arrays | SimulatedArrays, source: np.ndarray, into):
    if into is None or into.size < source.size or into.dtype != source.dtype:
        into = device.empty(source.size, source.dtype)
    placed = into.reshape(-1)[: source.size].reshape(source.shape)
    device.copy(source, placed)
    return placed


@cache
def arrays(index: int) -> Arrays | SimulatedArrays:
    """The arrays of GPU `index`."""
    return (SimulatedArrays if SIMULATOR else Arrays)(index)


_workspaces, _tickets = threading.local(), threading.local()


def workspace(size: int, like):
    """At least `size` float32 of scratch memory on the GPU of `like`, uninitialised.

    Each thread has one workspace per GPU, which grows when needed. A kernel may use it until the next kernel asks for
    it. (A captured graph keeps the memory that it was recorded with.)
    """
    held: dict[Any, Any] = _workspaces.__dict__
    index = device_of(like)
    if index not in held or held[index].size < size:
        held.pop(index, None)  # frees the old one before asking for more
        held[index] = arrays(index).empty(size)
    return held[index]


def tickets(size: int, like):
    """At least `size` int32 on the GPU of `like`, all of them 0; the blocks of a kernel must leave them 0.

    One array for each thread and GPU: kernels that run one after the other share it.
    """
    held: dict[Any, Any] = _tickets.__dict__
    index = device_of(like)
    if index not in held or held[index].size < size:
        held[index] = arrays(index).zeros(max(size, 1024), np.int32)
    return held[index]

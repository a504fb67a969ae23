"""The part of CuPy that pytagi_ddp uses, on `tests.cuda.ptx.machine`: memory, streams, events, graphs and launches."""

from collections.abc import Callable

import numpy as np

from tests.cuda.ptx.machine import Memory, Piece

from . import cuda

__version__ = "0.ptx"
NAN = np.float32(np.nan).view(np.uint32)
nan_is_unwritten = False  # an array sent from the host that is nothing but NaN: tests of kernels mark results so


class _Pointer:
    """`array.data`: where an array begins, and copies from there."""

    def __init__(self, piece: Piece):
        self._piece = piece
        self.device_id = piece.memory.device
        self.ptr = piece.memory.address + piece.offset

    def _queue(self, work: Callable[[], None]) -> None:
        cuda.get_current_stream().queue(work)

    def _first(self, size: int) -> Piece:
        assert size <= self._piece.size, "a copy beyond the end of an array"
        return self._piece._replace(size=size)

    def copy_to_host_async(self, address: int, size: int) -> None:
        piece = self._first(size)

        def work():
            _host(address, size)[:] = piece.bytes
            cuda.order.touch((piece, False))

        self._queue(work)

    def copy_from_host_async(self, address: int, size: int) -> None:
        piece = self._first(size)

        def work():
            piece.bytes[:] = _host(address, size)
            piece.written[:] = not (nan_is_unwritten and (piece.bytes.view(np.uint32) == NAN).all())
            cuda.order.touch((piece, True))

        self._queue(work)

    def copy_from_device_async(self, other: "_Pointer", size: int) -> None:
        target, source = self._first(size), other._first(size)

        def work():
            target.bytes[:] = source.bytes.copy()
            target.written[:] = source.written.copy()
            cuda.order.touch((source, False), (target, True))

        self._queue(work)

    def memset_async(self, value: int, size: int) -> None:
        piece = self._first(size)

        def work():
            piece.bytes[:] = value
            piece.written[:] = 1
            cuda.order.touch((piece, True))

        self._queue(work)


def _host(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * size).from_address(address))


class _Flags:
    c_contiguous = True


class ndarray:
    """A C-contiguous array on the device: bytes are in `piece`, and a view of NumPy's knows the sizes."""

    flags = _Flags()

    def __init__(self, memory: Memory, layout: np.ndarray):
        self._memory, self._layout = memory, layout
        self.shape, self.dtype, self.size = layout.shape, layout.dtype, layout.size
        self.nbytes, self.ndim, self.itemsize, self.strides = (
            layout.nbytes,
            layout.ndim,
            layout.itemsize,
            layout.strides,
        )

    @property
    def piece(self) -> Piece:
        return Piece(self._memory, self._layout.ctypes.data - self._memory.address if self.size else 0, self.nbytes)

    @property
    def data(self) -> _Pointer:
        return _Pointer(self.piece)

    @property
    def __cuda_array_interface__(self) -> dict:
        return dict(shape=self.shape, typestr=self.dtype.str, data=(self.data.ptr, False), version=3, strides=None)

    def _like(self, layout) -> "ndarray":
        if not isinstance(layout, np.ndarray) or not layout.flags.c_contiguous:
            raise NotImplementedError("a part of a device array that is not contiguous")
        return ndarray(self._memory, layout)

    def reshape(self, *shape) -> "ndarray":
        return self._like(self._layout.reshape(*shape))

    def ravel(self) -> "ndarray":
        return self.reshape(-1)

    def __getitem__(self, key) -> "ndarray":
        return self._like(self._layout[key])

    def __len__(self) -> int:
        return len(self._layout)

    def view(self, dtype) -> "ndarray":
        return self._like(self._layout.view(dtype))

    def get(self) -> np.ndarray:
        values = np.empty(self.shape, self.dtype)
        if values.size:
            self.data.copy_to_host_async(values.ctypes.data, values.nbytes)
        cuda.get_current_stream().synchronize()
        return values

    def __array__(self, *arguments, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")


def empty(shape, dtype=np.float32) -> ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size > cuda.runtime.memGetInfo()[0]:
        raise cuda.memory.OutOfMemoryError(f"Out of memory allocating {size} bytes")
    memory = Memory(size)
    cuda.pool.take(memory)
    return ndarray(memory, memory.data.view(dtype).reshape(shape))


def get_default_memory_pool() -> "cuda.Pool":
    return cuda.pool

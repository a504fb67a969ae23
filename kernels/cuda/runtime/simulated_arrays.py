"""Arrays of the simulator: as those of a GPU (`array`), in host memory."""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.arrival import Arrival
from pytagi_ddp.kernels.cuda.runtime.device_arrays import TO_DEVICE, TO_HOST, DeviceArrays
from pytagi_ddp.kernels.cuda.runtime.recorder import queue, refuse_host_transfer


class SimulatedArray(np.ndarray):
    """A device array of the simulator: arithmetic and functions of NumPy raise an error, as on a GPU."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        raise TypeError(f"np.{ufunc.__name__} of an array on a device: use a kernel, or read the array first")

    def __array_function__(self, function, types, arguments, options):
        raise TypeError(f"np.{function.__name__} of an array on a device: use a kernel, or read the array first")


class SimulatedArrays(DeviceArrays):
    def empty(self, shape, dtype=np.float32) -> SimulatedArray:
        unwritten = np.nan if dtype == np.float32 else -(1 << 30)
        return np.full(shape, unwritten, dtype).view(SimulatedArray)

    def clear(self, array: SimulatedArray) -> None:
        queue(array.fill, 0)

    def copy(self, source: np.ndarray, out: np.ndarray) -> None:
        if isinstance(source, SimulatedArray) and isinstance(out, SimulatedArray):
            queue(_copy_on_device, source, out)
        else:
            refuse_host_transfer(TO_DEVICE if isinstance(out, SimulatedArray) else TO_HOST)
            _copy_reshaped(source, out)

    def synchronize(self) -> None:
        refuse_host_transfer("a wait for the device")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        refuse_host_transfer(TO_HOST)
        return np.array(array.view(np.ndarray))

    def snapshot(self, array: SimulatedArray) -> Arrival:
        return Arrival(self.to_host(array).reshape(-1), None)

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def free_bytes(self) -> None:
        """Not limited."""


def _copy_on_device(source: np.ndarray, out: np.ndarray) -> None:
    """A separate function, because `benchmarks.gpu_launches` replaces it."""
    _copy_reshaped(source, out)


def _copy_reshaped(source: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out.view(np.ndarray), source.view(np.ndarray).reshape(out.shape))

"""Passing arrays of a GPU to MPI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Staging:
    """Copies arrays of a GPU to pinned host memory and back, or passes them to an MPI that can read GPU memory.

    Whether it can (`cuda_aware`) cannot be detected: an MPI that does not accept GPU memory crashes.
    """

    def __init__(self, cuda_aware: bool = False):
        self.cuda_aware = cuda_aware
        self._memory: np.ndarray | None = None

    @contextmanager
    def for_mpi(self, buffer: Any, reads: bool = True, writes: bool = True) -> Iterator[Any]:
        """An array by which MPI reads (`reads`) and changes (`writes`) `buffer` inside the block."""
        if self.cuda_aware and not isinstance(buffer, np.ndarray) and buffer.size:
            from pytagi_ddp.kernels.cuda.runtime import array  # here, because CuPy is loaded only where a GPU is used

            array.arrays(array.device_of(buffer)).synchronize()  # MPI does not use streams
            yield buffer
        else:
            with self.on_host(buffer, reads, writes) as host:
                yield host

    @contextmanager
    def on_host(self, buffer: Any, reads: bool = True, writes: bool = True) -> Iterator[np.ndarray]:
        """The same in host memory, for reductions by this library."""
        if isinstance(buffer, np.ndarray) or buffer.size == 0:
            yield buffer
            return
        from pytagi_ddp.kernels.cuda.runtime import array  # here, because CuPy is loaded only where a GPU is used

        if self._memory is None or self._memory.size < buffer.nbytes:
            self._memory = array.pinned(buffer.nbytes, np.uint8)
        host = self._memory[: buffer.nbytes].view(buffer.dtype).reshape(buffer.shape)
        if reads:
            copy(buffer, host)
        yield host
        if writes:
            copy(host, buffer)


def copy(source: Any, out: Any) -> None:
    """out[...] = source, flat; each in host memory or on a GPU, both contiguous."""
    device = source if isinstance(out, np.ndarray) else out
    if isinstance(device, np.ndarray):
        np.copyto(out.reshape(-1), source.reshape(-1))
        return
    from pytagi_ddp.kernels.cuda.runtime import array  # here, because CuPy is loaded only where a GPU is used

    array.arrays(array.device_of(device)).copy(source, out)

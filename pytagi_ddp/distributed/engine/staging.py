"""How arrays of a GPU go through MPI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np


class Staging:
    """Brings arrays of a GPU to pinned host memory and back, or hands them to an MPI that can read them there.

    Args:
        cuda_aware: the MPI library takes pointers to GPU memory. Nothing can be asked for that safely: an MPI that does
            not crashes, so the user has to say it.
    """

    def __init__(self, cuda_aware: bool = False):
        self.cuda_aware = cuda_aware
        self._memory: np.ndarray | None = None

    @contextmanager
    def for_mpi(self, buffer: Any) -> Iterator[Any]:
        """`buffer` as MPI may read and change it while the body runs."""
        if isinstance(buffer, np.ndarray) or buffer.size == 0:
            yield buffer
            return
        from pytagi_ddp.kernels.cuda import array  # here, because CuPy is loaded only where a GPU is used

        device = array.arrays(array.device_of(buffer))
        if self.cuda_aware:
            device.synchronize()  # MPI knows nothing of streams
            yield buffer
            return
        host = self._pinned(array, buffer.nbytes).view(buffer.dtype).reshape(buffer.shape)
        device.copy(buffer, host)
        yield host
        device.copy(host, buffer)

    def _pinned(self, array: ModuleType, nbytes: int) -> np.ndarray:
        if self._memory is None or self._memory.size < nbytes:
            self._memory = array.pinned(nbytes, np.uint8)
        return self._memory[:nbytes]

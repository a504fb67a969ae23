"""The base of arrays on a GPU (`array`) and in the simulator (`simulated_arrays`)."""

from typing import Any

import numpy as np

TO_HOST, TO_DEVICE = "a copy to the host", "a copy from the host"


class DeviceArrays:
    """Arrays of GPU `index`; see `kernels.protocol.ArrayFunctions`."""

    asynchronous = True  # kernels return before they are done
    empty: Any
    clear: Any
    copy: Any
    to_host: Any

    def __init__(self, index: int):
        self.index = index

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

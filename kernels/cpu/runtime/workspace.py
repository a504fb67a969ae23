"""Scratch memory of the products: one array per calling thread, grown when needed and then reused."""

import threading

import numpy as np

ALIGNMENT = 16  # float32: a cache line, which is also the widest vector
_local = threading.local()


def workspace(size: int) -> np.ndarray:
    """At least `size` float32, uninitialised. In one thread, every call returns the same memory until it must grow.

    All layers share it, because a product uses it only while it runs. It starts at a cache line.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < size:
        _local.buffer = buffer = None  # frees the old one before asking for more
        memory = np.empty(size + ALIGNMENT, np.float32)
        start = -memory.ctypes.data // memory.itemsize % ALIGNMENT
        _local.buffer = buffer = memory[start : start + size]
    return buffer

"""Scratch memory of the products: one array per calling thread, grown when needed and then reused."""

import threading

import numpy as np

_local = threading.local()


def workspace(size: int) -> np.ndarray:
    """At least `size` float32, uninitialised; every call of one thread returns the same memory until it must grow.

    A product uses it only while it runs, so linear and convolution layers of all shapes share it.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.size < size:
        _local.buffer = buffer = None  # frees the old one before asking for more
        _local.buffer = buffer = np.empty(size, np.float32)
    return buffer

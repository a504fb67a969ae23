"""Arrays of this device: NumPy, float32 unless said otherwise."""

import numpy as np


def empty(shape, dtype=np.float32):
    return np.empty(shape, dtype)


def zeros(shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def to_host(array):
    """A NumPy copy of `array`."""
    return np.array(array)


def copy(source, out):
    """out[...] = source, from host or device memory."""
    np.copyto(out, source)

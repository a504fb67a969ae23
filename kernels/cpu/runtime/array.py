"""Arrays of the CPU: NumPy, float32 unless another dtype is given."""

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import threads_in_force

_replay = load("runtime._replay")

asynchronous = False  # kernels are done when they return


def empty(shape, dtype=np.float32):
    _replay.count_allocation()
    return np.empty(shape, dtype)


def zeros(shape, dtype=np.float32):
    _replay.count_allocation()
    return np.zeros(shape, dtype)


def to_host(array):
    """A NumPy copy of `array`."""
    return np.array(array)


def copy(source, out):
    """out[...] = source, from host or device memory."""
    _replay.copy(source, out, threads_in_force())


def clear(array):
    """array[...] = 0"""
    _replay.clear(array)


def visible(array):
    """The array for the user: `array` itself, to read and to change (on a GPU: a copy)."""
    return array


def snapshot(array):
    """A flat copy for the user, which later work does not change (on a GPU: copied while the host continues)."""
    return array.flatten()


def address(array):
    """The address of `array`."""
    return _replay.address(array)


def synchronize():
    """Returns when all kernels are done: on a CPU, at once."""


def place(source, into=None):
    """The host array `source` in memory that kernels can read: itself (on a GPU: a copy, in the memory of `into`)."""
    return source


def free_bytes():
    """Free memory for new arrays: None, not limited here (on a GPU: a number of bytes)."""

"""Scratch memory of kernels: an array for each thread and GPU, grown when needed and then reused."""

import threading
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.array import arrays, device_of

_workspaces, _tickets = threading.local(), threading.local()


def workspace(size: int, like):
    """At least `size` float32 of scratch memory on the GPU of `like`, uninitialised.

    A kernel may use it until the next one asks for it. A captured graph keeps the memory that it was recorded with.
    """
    held: dict[Any, Any] = _workspaces.__dict__
    index = device_of(like)
    if index not in held or held[index].size < size:
        held.pop(index, None)  # frees the old one before asking for more
        held[index] = arrays(index).empty(size)
    return held[index]


def tickets(size: int, like):
    """At least `size` int32 on the GPU of `like`, all of them 0; the blocks of a kernel must leave them 0.

    Kernels that run one after the other share it.
    """
    held: dict[Any, Any] = _tickets.__dict__
    index = device_of(like)
    if index not in held or held[index].size < size:
        held[index] = arrays(index).zeros(max(size, 1024), np.int32)
    return held[index]

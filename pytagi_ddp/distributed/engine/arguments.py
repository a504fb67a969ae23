"""Checks of what is given to a collective."""

from __future__ import annotations

from typing import Any

import numpy as np

REDUCIBLE = (np.float32, np.float64, np.int64)
OPS = ("sum", "mean", "max", "min", "prod")


def check_buffer(name: str, buffer: Any) -> None:
    """Raises unless a collective can work in place on `buffer`."""
    on_device = not isinstance(buffer, np.ndarray)
    if (on_device and not hasattr(buffer, "__cuda_array_interface__")) or buffer.dtype.hasobject:
        raise TypeError(f"{name} works in place on a NumPy or CuPy array of numbers, not on {_kind(buffer)}")
    flags = buffer.flags
    if not (flags.c_contiguous and (on_device or flags.writeable)):
        problem = "read-only" if flags.c_contiguous else f"not contiguous (strides {buffer.strides})"
        raise ValueError(f"{name} works in place on a contiguous, writable array; this one {buffer.shape} is {problem}")


def check_reducible(name: str, buffer: Any, op: str) -> None:
    """Raises unless `name` can combine the numbers of `buffer` by `op`."""
    check_buffer(name, buffer)
    if buffer.dtype.type not in REDUCIBLE:
        names = ", ".join(np.dtype(kind).name for kind in REDUCIBLE)
        raise TypeError(f"{name} combines {names}, not {buffer.dtype}")
    if op not in OPS:
        raise ValueError(f"{name}: unknown op {op!r}; known are {', '.join(map(repr, OPS))}")
    if op == "mean" and buffer.dtype.kind != "f":
        raise TypeError(f"{name}: the mean of {buffer.dtype} is no {buffer.dtype}; take op='sum', or float64")


def check_exchange(name: str, send: Any, receive: Any, send_blocks: int, receive_blocks: int) -> None:
    """Raises unless `send` is made of equal blocks that fit into those of `receive`, both in host memory."""
    for array in (send, receive):
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"{name} takes NumPy arrays, in host memory, of numbers, not {_kind(array)}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} takes contiguous arrays; one of {array.shape} has strides {array.strides}")
    if send.dtype != receive.dtype:
        raise TypeError(f"{name}: sends {send.dtype} and receives {receive.dtype}")
    if send.size % send_blocks or receive.size * send_blocks != send.size * receive_blocks:
        raise ValueError(
            f"{name}: {send.size} values to send in {send_blocks} equal blocks do not fit into {receive.size} values "
            f"of {receive_blocks} blocks"
        )
    if not receive.flags.writeable or np.may_share_memory(send, receive):
        raise ValueError(f"{name} writes into receive, which must be writable and apart from send")


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__

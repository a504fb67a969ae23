"""Checks of the arguments of collectives."""

from __future__ import annotations

from typing import Any

import numpy as np

REDUCIBLE = (np.float32, np.float64, np.int64)
OPS = ("sum", "mean", "max", "min", "prod")


def check_buffer(name: str, buffer: Any) -> None:
    """Raises an error unless a collective can work in place on `buffer`."""
    on_device = not isinstance(buffer, np.ndarray)
    if (on_device and not hasattr(buffer, "__cuda_array_interface__")) or buffer.dtype.hasobject:
        raise TypeError(f"{name} works in place on a NumPy or CuPy array of numbers, not on {_kind(buffer)}")
    flags = buffer.flags
    if not (flags.c_contiguous and (on_device or flags.writeable)):
        problem = "read-only" if flags.c_contiguous else f"not contiguous (strides {buffer.strides})"
        raise ValueError(f"{name} works in place on a contiguous, writable array; this one {buffer.shape} is {problem}")


def check_sent(name: str, array: Any) -> None:
    """Raises an error unless `array` can be sent."""
    if not (isinstance(array, np.ndarray) or on_gpu(array)) or array.dtype.hasobject:
        raise TypeError(f"{name} takes a NumPy or CuPy array of numbers, not {_kind(array)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} takes a contiguous array; this one {array.shape} has strides {array.strides}")


def check_reducible(name: str, buffer: Any, op: str) -> None:
    """Raises an error unless `name` can combine the numbers of `buffer` by `op`."""
    if type(buffer) is np.ndarray and op == "sum" and buffer.dtype.type in REDUCIBLE:
        flags = buffer.flags
        if flags.c_contiguous and flags.writeable:
            return  # the case of a step, kept fast
    check_buffer(name, buffer)
    check_op(name, buffer, op)


def check_op(name: str, array: Any, op: str) -> None:
    """Raises an error unless `name` can combine numbers of the dtype of `array` by `op`."""
    if array.dtype.type not in REDUCIBLE:
        names = ", ".join(np.dtype(kind).name for kind in REDUCIBLE)
        raise TypeError(f"{name} combines {names}, not {array.dtype}")
    if op not in OPS:
        raise ValueError(f"{name}: unknown op {op!r}; known are {', '.join(map(repr, OPS))}")
    if op == "mean" and array.dtype.kind != "f":
        raise TypeError(f"{name}: the mean of {array.dtype} is not {array.dtype}; take op='sum', or float64")


def check_exchange(
    name: str, send: Any, receive: Any, send_blocks: int, receive_blocks: int, own: int | None = None
) -> None:
    """Raises an error unless the blocks of `send` and `receive` have equal sizes.

    Args:
        own: if given, both arrays may be on a GPU, and the array of one block may be block `own` of the other array.
    """
    kinds = "NumPy arrays, in host memory, of numbers" if own is None else "NumPy or CuPy arrays of numbers"
    for array in (send, receive):
        if not (isinstance(array, np.ndarray) or (own is not None and on_gpu(array))) or array.dtype.hasobject:
            raise TypeError(f"{name} takes {kinds}, not {_kind(array)}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} takes contiguous arrays; one of {array.shape} has strides {array.strides}")
    if on_gpu(send) != on_gpu(receive):
        raise TypeError(f"{name}: one array is on a GPU, the other in host memory")
    if send.dtype != receive.dtype:
        raise TypeError(f"{name}: sends {send.dtype} and receives {receive.dtype}")
    if send.size % send_blocks or receive.size * send_blocks != send.size * receive_blocks:
        raise ValueError(
            f"{name}: {send.size} values to send in {send_blocks} equal blocks do not fit into {receive.size} values "
            f"of {receive_blocks} blocks"
        )
    block, whole = (send, receive) if send_blocks == 1 else (receive, send)
    shared = _overlap(send, receive) and (own is None or not is_block(block, whole, own))
    if not (on_gpu(receive) or receive.flags.writeable) or shared:
        besides = "" if own is None else f", or this rank's block ({own}) of the larger of them"
        raise ValueError(f"{name} writes into receive, which must be writable and apart from send{besides}")


def on_gpu(array: Any) -> bool:
    """Whether `array` is in the memory of a GPU, judging by its `__cuda_array_interface__`."""
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def bytes_of(array: Any) -> Any:
    """The memory of a contiguous `array` as a flat array of bytes."""
    return array.reshape(-1).view(np.uint8)


def is_block(block: Any, whole: Any, index: int) -> bool:
    """Whether `block` is the memory of block number `index` of `whole`, which consists of blocks of this size."""
    return _address(block) == _address(whole) + index * block.nbytes


def _overlap(a: Any, b: Any) -> bool:
    """Whether two contiguous arrays share memory."""
    return bool(a.nbytes and b.nbytes) and _address(a) < _address(b) + b.nbytes and _address(b) < _address(a) + a.nbytes


def _address(array: Any) -> int:
    interface = array.__array_interface__ if isinstance(array, np.ndarray) else array.__cuda_array_interface__
    return interface["data"][0]


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__

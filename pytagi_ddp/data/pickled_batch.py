"""Reads the pickled dictionaries of CIFAR-10 without Python's pickle.

A pickle is a program that can create any object. Running it is not safe for untrusted files, even if it may only call
NumPy: an array whose type is changed afterwards can use bytes of the file as addresses. This module interprets only the
instructions that Python 2 used for these files. They create dictionaries, lists, tuples, numbers, bytes, and `_Call`, a
description of a call that is not made. Any other instruction raises an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.files import read_file

MAX_STEPS = 200_000  # instructions; 10,000 labels and names take 30,000
RECONSTRUCT = (b"numpy.core.multiarray _reconstruct", b"numpy._core.multiarray _reconstruct")


class _Name(NamedTuple):
    """A name that a file would call."""

    text: bytes


@dataclass
class _Call:
    """A description of a call, and of the state of its result."""

    function: Any
    arguments: Any
    state: Any = None


def read_batch(path: Path, max_bytes: int) -> tuple[np.ndarray, list[int]]:
    """Pixels and labels of a pickled batch.

    Args:
        path: the file. max_bytes: largest number of bytes to read.

    Returns:
        uint8 array of two axes, and integers.

    Raises:
        ValueError: a truncated, corrupt or foreign file.
        OSError: the file does not exist, or is not a regular file.
    """
    data = read_file(path, max_bytes)
    try:
        content = _notes(data)
        if not isinstance(content, dict):
            raise ValueError("no dictionary")
        labels = content.get(b"labels")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError("no list of integers under the key 'labels'")
        return _array(content.get(b"data")), labels
    except (ValueError, TypeError, IndexError, KeyError, struct.error, RecursionError) as error:
        raise ValueError(
            f"{path}: {len(data)} bytes that are not a batch as Python 2 has pickled it: {error}; "
            "fetch the file again, or the archive of binary files"
        ) from error


def _array(note: Any) -> np.ndarray:
    """The array of a call _reconstruct(ndarray, (0,), b"b") with its state."""
    try:
        (version, shape, dtype, is_fortran, values) = note.state
        names = note.function.text, note.arguments[0].text, dtype.function.text
        kind, (rows, columns) = dtype.arguments[0], shape
    except (AttributeError, TypeError, ValueError, IndexError):
        raise ValueError("no array under the key 'data'") from None
    if names[0] not in RECONSTRUCT or names[1:] != (b"numpy ndarray", b"numpy dtype"):
        raise ValueError("no array under the key 'data'")
    if version != 1 or kind != b"u1" or not isinstance(values, bytes):
        raise ValueError("no uint8 array under the key 'data'")
    if type(rows) is not int or type(columns) is not int or rows < 0 or rows * columns != len(values):
        raise ValueError(f"an array of {len(values)} bytes that has another size")
    return np.frombuffer(values, np.uint8).reshape((rows, columns), order="F" if is_fortran else "C")


def _notes(data: bytes) -> Any:
    """The content of the stack at the end of a pickle."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def add(items: list[Any]) -> None:
        if not isinstance(stack[-1], list):
            raise ValueError("items of what is not a list")
        stack[-1].extend(items)

    def enter(items: list[Any]) -> None:
        if not isinstance(stack[-1], dict) or not all(isinstance(key, bytes) for key in items[::2]):
            raise ValueError("entries of what is not a dictionary with names")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))

    for code, value in _instructions(data):
        if code in "KMJTUN\x88\x89c}])":  # a value
            stack.append(value)
        elif code == "(":
            marks.append(len(stack))
        elif code in "qr":
            memo[value] = stack[-1]
        elif code in "hj":
            stack.append(memo[value])
        elif code in "\x85\x86\x87":
            count = ord(code) - 0x84
            stack[-count:] = [tuple(stack[len(stack) - count :])]
        elif code == "t":
            stack.append(tuple(since_mark()))
        elif code == "e":
            add(since_mark())
        elif code == "a":
            add([stack.pop()])
        elif code == "u":
            enter(since_mark())
        elif code == "s":
            item = stack.pop()
            enter([stack.pop(), item])
        elif code == "R":
            arguments = stack.pop()
            stack[-1] = _Call(stack[-1], arguments)
        elif code == "b":
            state = stack.pop()
            if not isinstance(stack[-1], _Call) or stack[-1].state is not None:
                raise ValueError("a state of what has none")
            stack[-1].state = state
        elif code == ".":
            return stack.pop()
    raise ValueError("it has no end")


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    """(code, value) of each instruction of protocol 2 that such files have, up to the end of the data.

    Raises:
        ValueError: another instruction, or too many. struct.error: the data end within one.
    """
    if data[:2] != b"\x80\x02":
        raise ValueError("it does not begin as pickles of protocol 2 do")
    constants = {"N": None, "\x88": True, "\x89": False, ")": ()}
    numbers = {"K": "<B", "q": "<B", "h": "<B", "M": "<H", "J": "<i", "r": "<I", "j": "<I"}
    position = 2
    for _ in range(MAX_STEPS):
        if position >= len(data):
            return
        code, position = chr(data[position]), position + 1
        value: Any = None
        if code in constants:
            value = constants[code]
        elif code == "}":
            value = {}
        elif code == "]":
            value = []
        elif code in numbers:
            (value,) = struct.unpack_from(numbers[code], data, position)
            position += struct.calcsize(numbers[code])
        elif code in "TU":  # bytes, after their number
            (length,) = struct.unpack_from("<I" if code == "T" else "<B", data, position)
            position += (4 if code == "T" else 1) + length
            value = data[position - length : position]
            if position > len(data):
                raise ValueError("it ends too soon")
        elif code == "c":  # two lines: module and name
            end = data.index(b"\n", data.index(b"\n", position) + 1)
            value, position = _Name(data[position:end].replace(b"\n", b" ")), end + 1
        elif code not in "(\x85\x86\x87teausRb.":
            raise ValueError(f"instruction {data[position - 1]:#04x} at byte {position - 1} is not allowed")
        yield code, value
    raise ValueError(f"more than {MAX_STEPS} instructions")

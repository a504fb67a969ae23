"""Reads the pickled dictionaries of CIFAR-10 without Python's pickle.

A pickle is a program that can create any object. Running it is not safe for untrusted files, even if it may only call
NumPy: an array whose type is changed afterwards can use bytes of the file as addresses. This module interprets only the
instructions that Python 2 used for these files. They create dictionaries, lists, tuples, numbers, bytes, and `_Call`, a
description of a call that is not made. Any other instruction raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pickletools import genops
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.files import read_file

MAX_STEPS = 200_000  # instructions; 10,000 labels and names take 30,000
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")


class _Name(NamedTuple):
    """A name that a file would call: module and name."""

    text: str


@dataclass
class _Call:
    """A description of a call, and of the state of its result."""

    function: Any
    arguments: Any
    state: Any = None


def read_batch(path: Path, max_bytes: int) -> tuple[np.ndarray, list[int]]:
    """Pixels, uint8 of two axes, and labels of a pickled batch of at most `max_bytes`.

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
    except (ValueError, TypeError, IndexError, KeyError, RecursionError, DeprecationWarning) as error:
        # A DeprecationWarning, where it is an error, is of a name with a backslash.
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
    if names[0] not in RECONSTRUCT or names[1:] != ("numpy ndarray", "numpy dtype"):
        raise ValueError("no array under the key 'data'")
    if version != 1 or kind != b"u1" or not isinstance(values, bytes):
        raise ValueError("no uint8 array under the key 'data'")
    if type(rows) is not int or type(columns) is not int or rows < 0 or rows * columns != len(values):
        raise ValueError(f"an array of {len(values)} bytes that has another size")
    return np.frombuffer(values, np.uint8).reshape((rows, columns), order="F" if is_fortran else "C")


def _notes(data: bytes) -> Any:
    """The content of the stack at the end of a pickle.

    Raises:
        ValueError: another instruction than those of protocol 2 that such files have, too many, or no end.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    constants = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}

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

    if data[:2] != b"\x80\x02":
        raise ValueError("it does not begin as pickles of protocol 2 do")
    value: Any
    for number, (opcode, value, position) in enumerate(genops(data)):
        if number > MAX_STEPS:
            raise ValueError(f"more than {MAX_STEPS} instructions")
        match opcode.name:
            case "PROTO" if number == 0:
                pass
            case "BININT" | "BININT1" | "BININT2":
                stack.append(value)
            case "BINSTRING" | "SHORT_BINSTRING":
                stack.append(value.encode("latin-1"))
            case "GLOBAL":
                stack.append(_Name(value))
            case name if name in constants:
                stack.append(constants[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[len(stack) - count :])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPENDS":
                add(since_mark())
            case "APPEND":
                add([stack.pop()])
            case "SETITEMS":
                enter(since_mark())
            case "SETITEM":
                item = stack.pop()
                enter([stack.pop(), item])
            case "REDUCE":
                arguments = stack.pop()
                stack[-1] = _Call(stack[-1], arguments)
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], _Call) or stack[-1].state is not None:
                    raise ValueError("a state of what has none")
                stack[-1].state = state
            case "STOP":
                return stack.pop()
            case _:
                raise ValueError(f"instruction {opcode.name} at byte {position} is not allowed")
    raise ValueError("it has no end")

"""The checks of ``PYTAGI_DDP_DEBUG=1``: ranks compare each collective before they run it, and check its result.

They cost one small collective before each one, and a pass over each reduced array after it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

HEADING_BYTES = 256


class CollectiveMismatchError(RuntimeError):
    """Ranks have called different collectives, or the same one with different arguments."""


class NonFiniteError(FloatingPointError):
    """A reduced array contains NaN or infinity.

    Attributes:
        index: index of the first such value in the flat array.
    """

    def __init__(self, message: str, index: int):
        super().__init__(message)
        self.index = index

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.index)


def is_asked_for() -> bool:
    """Whether the environment variable ``PYTAGI_DDP_DEBUG`` is set to anything but "" or "0"."""
    return os.environ.get("PYTAGI_DDP_DEBUG", "") not in ("", "0")


def fingerprint(name: str, arrays: Sequence, details: dict[str, Any]) -> dict[str, Any]:
    """Values that must be equal on every rank: the name, then dtype, shape and bytes of each array, then `details`."""
    parts: dict[str, Any] = {"collective": name}
    for label, array in zip(("", " received"), arrays, strict=False):
        parts[f"dtype{label}"] = str(array.dtype)
        parts[f"shape{label}"] = tuple(array.shape)
        parts[f"bytes{label}"] = array.nbytes
    return parts | details


def compare(number: int, everyone: Sequence[dict[str, Any]]) -> None:
    """Raises CollectiveMismatchError with the first difference between fingerprints of ranks, on every rank."""
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        for part in [*first, *(part for part in theirs if part not in first)]:
            a, b = first.get(part, "absent"), theirs.get(part, "absent")
            if a != b:
                raise CollectiveMismatchError(
                    f"collective #{number} of this communicator differs between ranks 0 and {rank}: {part} is {a!r} on "
                    f"rank 0 and {b!r} on rank {rank}. Rank 0: {_spell(first)}; rank {rank}: {_spell(theirs)}"
                )


def compare_names(names: Sequence[str]) -> None:
    """Raises CollectiveMismatchError with the first rank that is in another call than rank 0, on every rank."""
    for rank, name in enumerate(names):
        if name != names[0]:
            raise CollectiveMismatchError(
                f"ranks 0 and {rank} are in different calls: rank 0 in {names[0]}, rank {rank} in {name}. Every rank "
                "has to make the same collective calls in the same order"
            )


def heading(array: Any) -> np.ndarray:
    """The heading of a message: dtype and shape of the array that is sent or received."""
    text = f"{array.dtype} of shape {tuple(array.shape)}".encode()[:HEADING_BYTES]
    return np.frombuffer(text.ljust(HEADING_BYTES), np.uint8)


def compare_headings(came: np.ndarray, array: Any, peer: int, rank: int) -> None:
    """Raises CollectiveMismatchError if the heading of a message is not that of `array`, which receives it."""
    mine, theirs = (bytes(text).decode(errors="replace").rstrip() for text in (heading(array), came))
    if mine != theirs:
        raise CollectiveMismatchError(f"rank {peer} sends {theirs} to rank {rank}, which receives {mine}")


def other_length(peer: int, came: int | str, rank: int, nbytes: int) -> CollectiveMismatchError:
    """The error of a message with another length than the array that receives it."""
    return CollectiveMismatchError(f"rank {peer} sends {came} bytes to rank {rank}, which receives {nbytes} bytes")


def check_finite(name: str, buffer: Any) -> None:
    """Raises NonFiniteError, with the index, if a reduced array of floats contains NaN or infinity."""
    if buffer.dtype.kind != "f":
        return
    finite = np.isfinite(buffer.reshape(-1))  # CuPy's, for its arrays
    if not finite.all():
        index = int(finite.argmin())
        bad = buffer.size - int(finite.sum())
        raise NonFiniteError(
            f"after {name}: {bad} of {buffer.size} values are not finite, the first is {buffer.reshape(-1)[index]} at "
            f"flat index {index}, in an array of shape {tuple(buffer.shape)}",
            index,
        )


def _spell(parts: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in parts.items())

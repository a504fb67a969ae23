"""Maxima and minima of floats with the same bits on every rank, NaN included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def comparable(data: np.ndarray, op: str, keep: bool = False) -> Iterator[np.ndarray]:
    """Inside the block, `data` can be combined by `op`: for "max" and "min", floats appear as integers of equal order.

    MPI's results of comparing NaN, or -0 and 0, depend on the order of the comparisons, so that ranks would disagree.
    As sign-magnitude integers, floats have a single order: -0 is below 0, and NaN, whose bits are made equal on all
    ranks, is beyond the infinity that the op looks for. So NaN on any rank gives NaN, as with `numpy.maximum`.

    Args:
        data: array of numbers; changed inside the block, and changed back at its end.
        op: of `Communicator.all_reduce`.
        keep: yield a copy instead, so that `data` stays as it is.
    """
    if op not in ("max", "min") or data.dtype.kind != "f":
        yield data
        return
    if keep:
        data = data.copy()
    data[np.isnan(data)] = np.copysign(np.nan, 1 if op == "max" else -1)
    bits = data.view(f"i{data.itemsize}")
    _turn(bits)
    yield bits
    _turn(bits)


def _turn(bits: np.ndarray) -> None:
    """Converts sign-magnitude numbers to two's complement, or back."""
    bits ^= (bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max

"""Maxima and minima of floats with the same bits on every rank, NaN included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def comparable(data: np.ndarray, op: str, keep: bool = False) -> Iterator[np.ndarray]:
    """`data` as MPI may combine it by `op`, in place: floats to compare appear as integers in the same order.

    What MPI makes of comparisons with NaN, or of -0 and 0, depends on the order in which it meets them, so ranks would
    disagree. As sign-magnitude integers, floats have one order: -0 below 0, and NaN, which every rank's is made the
    same, beyond the infinity that the op looks for. So NaN on any rank gives NaN, as `numpy.maximum` does.

    Args:
        data: array of numbers; changed, and changed back when the body has ended.
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
    """Sign-magnitude to two's complement and back."""
    bits ^= (bits >> (8 * bits.itemsize - 1)) & np.iinfo(bits.dtype).max

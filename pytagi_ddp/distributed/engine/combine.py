"""Sums and other reductions over ranks that this library computes instead of MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np


def combined(arrays: Sequence[np.ndarray] | np.ndarray, op: str) -> np.ndarray:
    """Returns a new array: `op` (of `Communicator.all_reduce`) over the arrays of all ranks, in the order of ranks."""
    if op in ("sum", "mean"):
        total = tree_sum(arrays)
        if op == "mean":
            total /= len(arrays)
        return total
    combine = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
    result = arrays[0].copy()
    with comparable(result, op) as numbers:
        for other in arrays[1:]:
            with comparable(other, op, keep=True) as theirs:
                combine(numbers, theirs, out=numbers)
    return result


def combine_rows(rows: np.ndarray, op: str, out: np.ndarray) -> None:
    """Writes `combined` of the rows of a matrix into `out`."""
    if rows.dtype == np.float32 and op in ("sum", "mean"):
        from pytagi_ddp.distributed.engine._shared_sum import add_rows  # here, because most programs do not use it

        add_rows(rows, out)
        if op == "mean":
            out /= len(rows)
    else:
        with np.errstate(all="ignore"):
            np.copyto(out, combined(rows, op))


def tree_sum(arrays: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The sum, in the order of `add_places` (shared_sum.h): by a binary tree of neighbours.

    If their number is not a power of two, some of the first ones are added in pairs before, to make it one.
    """
    if len(arrays) == 1:
        return arrays[0].copy()
    pairs = len(arrays) - (1 << (len(arrays).bit_length() - 1))
    leaves = [*(arrays[2 * i] + arrays[2 * i + 1] for i in range(pairs)), *arrays[2 * pairs :]]
    while len(leaves) > 1:
        leaves = [a + b for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


@contextmanager
def comparable(data: np.ndarray, op: str, keep: bool = False) -> Iterator[np.ndarray]:
    """Inside the block, `data` can be combined by `op`: for "max" and "min", floats are integers of the same order.

    With floats, MPI's results for NaN, or for -0 and 0, depend on the order of comparisons, so that ranks would
    disagree. Sign-magnitude integers have a single order: -0 is below 0, and NaN (with equal bits on all ranks) is
    beyond the infinity in the direction of the op. So NaN on any rank gives NaN, as with `numpy.maximum`.

    At the end of the block, `data` is converted back; with `keep`, a copy is converted instead.
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

"""One rank's share of a data set."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytagi_ddp.arrays import is_table
from pytagi_ddp.distributed.backends import Backend, get_distributed_backend


class DistributedDataContainer:
    """This rank's share of an object with a length and items: contiguous, and never empty.

    Rank r of R has items floor(N r / R) to floor(N (r + 1) / R) of N: shares are disjoint, contain all data, and differ
    by at most one item. So ranks may have different numbers of batches; with `ShardedSampler` all have the same number.

    Indices count from the start of the share, negative ones from its end. A slice gives a list of items. The share of a
    NumPy or CuPy array is a view, and takes every index that arrays take. The share of a column or table of pandas or
    polars is also one: items are its rows, by position as with `iloc`.

    Args:
        backend: name given to `initialize`, or a communicator.
        data: the same on every rank.

    Attributes:
        data: as given. indices: range of the share in it.

    Raises:
        ValueError: fewer items than ranks.
        TypeError: no length or no items.
    """

    def __init__(self, backend: Backend, data: Any):
        communicator = get_distributed_backend(backend)
        rank, ranks = communicator.rank, communicator.world_size
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(f"DistributedDataContainer needs data with len() and items, got {type(data).__name__}")
        size = len(data)
        if size < ranks:
            raise ValueError(f"{size} items cannot be shared by {ranks} ranks: each needs at least one")
        self.data = data
        self.indices = range(size * rank // ranks, size * (rank + 1) // ranks)
        share = slice(self.indices.start, self.indices.stop)
        self._view = None
        if hasattr(data, "iloc"):  # pandas would index by labels
            self._view = data.iloc[share].iloc
        elif isinstance(data, np.ndarray) or hasattr(data, "__cuda_array_interface__") or is_table(data):
            self._view = data[share]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        if self._view is not None:
            return self._view[index]
        if isinstance(index, slice):
            return [self.data[i] for i in self.indices[index]]
        try:
            return self.data[self.indices[operator.index(index)]]
        except IndexError:
            raise IndexError(f"index {index} is out of range for a share of {len(self)} items") from None

    def __iter__(self) -> Iterator:
        return (self[i] for i in range(len(self)))

"""Batches of arrays, for one rank."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.data.batches import RankBatches
from pytagi_ddp.data.sampler import IndexBatch
from pytagi_ddp.weights import checked_weights


def each_part(function: Callable[[Any], Any], y: Any) -> Any:
    """`function` of observations, or of each part of a tuple of them that is not None; a part may be a tuple, too."""
    if isinstance(y, tuple):
        return tuple(None if part is None else each_part(function, part) for part in y)
    return function(y)


class ArrayLoader(RankBatches):
    """Iterate over this rank's batches of arrays: `for x, y in loader`, or with weights `for x, y, weight in loader`.

    Order, shares of ranks and position are those of `BatchLoader`. Batches are copies of rows.

    Args:
        x: Inputs, (samples, ...): an array, or another argument of `to_numpy` (tensors of PyTorch, tables of pandas).
        y: Observations, (samples, ...) likewise; with a tuple of them, for `Joint` or limits of `Censored`, batches
            have a tuple. Its parts may be None.
        weight: How often each sample counts, (samples,), or each of its observations; not negative. None: once;
            batches are then pairs (x, y).
        batch_size, rank, world_size, shuffle, seed, drop_last, evaluation: As in `BatchLoader`.

    Raises:
        ValueError: As `BatchLoader`; x and y of different lengths; weights that are not one for each sample, or
            negative, NaN or infinite. TypeError: Not numbers.
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike | tuple[ArrayLike, ...],
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        evaluation: bool = False,
        weight: ArrayLike | None = None,
    ) -> None:
        self.x = to_numpy(x, "x")
        if self.x.shape[:1] == (0,):
            raise ValueError("x holds no samples")
        several = ": observations of several kinds are a tuple of arrays" if isinstance(y, list) else ""
        try:
            self.y: Any = each_part(lambda part: to_numpy(part, "y"), y)
        except ValueError as error:
            raise ValueError(f"{error}{several}") from None

        def check(array: np.ndarray) -> None:
            if not array.ndim:
                size = len(self.x) if self.x.ndim else "n"
                raise ValueError(
                    "x and y, and each part of a tuple y, count samples by their first dimension, and one is the "
                    f"number {array}: repeat it for all samples, as by np.full({size}, {array})"
                )
            if len(array) != len(self.x):
                raise ValueError(f"x has {len(self.x)} samples, and y has {len(array)}{several}")

        each_part(check, (self.x, self.y))
        self.weight = None if weight is None else checked_weights(weight, len(self.x), "weight", True)
        sampling = batch_size, rank, world_size, shuffle, seed, drop_last, 0, evaluation
        super().__init__(self.x, *sampling)

    def _make_batches(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Any, None, None]:
        for part in parts:
            batch = np.take(self.x, part.indices, 0), self._observed(part.indices)
            yield batch if self.weight is None else (*batch, self.weight[part.indices])

    def _observed(self, rows: np.ndarray) -> Any:
        return each_part(lambda part: part[rows], self.y)

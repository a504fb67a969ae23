"""The samples of each rank, and their batches."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized
from typing import NamedTuple

import numpy as np

from pytagi_ddp.distributed.rank_zero import launch_of_rank_alone, place_among_ranks
from pytagi_ddp.validate import as_integers


class IndexBatch(NamedTuple):
    """One rank's part of a global batch.

    Attributes:
        indices: int64, the samples of this rank.
        batch: Number of the global batch in the epoch.
        offset: Start of the part in the global batch.
        global_size: Samples in the global batch, all ranks together.
    """

    indices: np.ndarray
    batch: int
    offset: int
    global_size: int


def _share(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Begin and end of a rank's contiguous share of `size` items; shares differ by at most one item."""
    return size * rank // world_size, size * (rank + 1) // world_size


def check_sizes(num_samples: int, rank: int, world_size: int) -> None:
    as_integers("a sampler", 1, num_samples=num_samples, world_size=world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..world_size-1, got rank {rank} of world_size {world_size}")


def _count_batches(num_samples: int, batch_size: int, drop_last: bool = False) -> int:
    as_integers("a sampler", 1, batch_size=batch_size)
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)


def _check_start(start_batch: int, num_batches: int) -> None:
    if not 0 <= start_batch <= num_batches:
        raise ValueError(f"start_batch must be in 0..{num_batches} (batches in the epoch), got {start_batch}")


class ShardedSampler:
    """Training order: every rank takes its slice of each global batch.

    The samples are permuted by PCG64([seed, epoch]), the same on all ranks, and divided into global batches of
    batch_size * world_size. So R ranks with batches of B together get the same batches as one rank with batches of R *
    B. Shards are disjoint and contain all data, and every rank has the same number of steps.

    A last, partial global batch is divided as evenly as possible. A rank's part of it is empty only if fewer samples
    than ranks are left; the rank still gets this empty batch, and takes part in the step.

    Args:
        num_samples: Samples in the data set.
        rank: This rank.
        world_size: Number of ranks.
        shuffle: A new permutation in each epoch; otherwise the stored order.
        seed: Shared by all ranks, >= 0.
        drop_last: Whether to leave out a partial global batch.

    Raises:
        ValueError: Sizes, ranks or seeds out of range.
        TypeError: num_samples is not an integer.
    """

    def __init__(
        self,
        num_samples: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        check_sizes(num_samples, rank, world_size)
        (seed,) = as_integers("a sampler", 0, seed=seed)
        self.num_samples = num_samples
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation; all ranks must name the same epoch.

        Raises:
            ValueError: epoch < 0.
        """
        (self.epoch,) = as_integers("set_epoch", 0, epoch=epoch)

    def num_batches(self, batch_size: int, first: int = 0) -> int:
        """Batches in an epoch whose batch 0 begins at sample `first` of the order; the same on every rank."""
        return _count_batches(self.num_samples - first, batch_size * self.world_size, self.drop_last)

    def batches(self, batch_size: int, start_batch: int = 0, first: int = 0) -> Iterator[IndexBatch]:
        """This rank's part of each global batch of the current epoch, from `start_batch` on.

        Batch k begins at sample first + k * batch_size * world_size of the order. To continue after s samples with
        another number of ranks, use start_batch, first = divmod(s, batch_size * world_size).

        Raises:
            ValueError: batch_size < 1, first outside 0..num_samples, or start_batch outside 0..num_batches.
        """
        if not 0 <= first <= self.num_samples:
            raise ValueError(f"first must be in 0..{self.num_samples} (samples in the epoch), got {first}")
        _check_start(start_batch, self.num_batches(batch_size, first))
        return self._batches(batch_size, start_batch, first, self.order())

    def order(self) -> np.ndarray:
        """The indices of the samples of this epoch, of all ranks, in their order."""
        if self.shuffle:
            generator = np.random.Generator(np.random.PCG64([self.seed, self.epoch]))
            return generator.permutation(self.num_samples)
        return np.arange(self.num_samples)

    def _batches(self, batch_size: int, start_batch: int, first: int, order: np.ndarray) -> Iterator[IndexBatch]:
        global_size = batch_size * self.world_size
        for batch in range(start_batch, self.num_batches(batch_size, first)):
            members = order[first + batch * global_size :][:global_size]
            begin, end = _share(len(members), self.rank, self.world_size)
            yield IndexBatch(members[begin:end], batch, begin, len(members))


class EvaluationSampler:
    """Evaluation order: a contiguous shard per rank, in the stored order and without padding.

    Each sample counts once, so that sums over ranks (errors, log-likelihoods) are exact. Shards differ by at most one
    sample, so ranks may differ by one batch: evaluate without collectives, then add the sums.

    Args:
        num_samples: Samples in the data set.
        rank: This rank.
        world_size: Number of ranks.

    Raises:
        ValueError: Sizes or ranks out of range.
        TypeError: num_samples is not an integer.
    """

    def __init__(self, num_samples: int, rank: int = 0, world_size: int = 1) -> None:
        check_sizes(num_samples, rank, world_size)
        self.begin, self.end = _share(num_samples, rank, world_size)

    def num_batches(self, batch_size: int) -> int:
        """Batches in this rank's shard; may be 0 if there are fewer samples than ranks."""
        return _count_batches(self.end - self.begin, batch_size)

    def batches(self, batch_size: int, start_batch: int = 0) -> Iterator[IndexBatch]:
        """The shard in batches of `batch_size`, from `start_batch` on.

        Raises:
            ValueError: batch_size < 1, or start_batch outside 0..num_batches.
        """
        _check_start(start_batch, self.num_batches(batch_size))
        return self._batches(batch_size, start_batch)

    def _batches(self, batch_size: int, start_batch: int) -> Iterator[IndexBatch]:
        for batch in range(start_batch, self.num_batches(batch_size)):
            begin = self.begin + batch * batch_size
            indices = np.arange(begin, min(begin + batch_size, self.end))
            yield IndexBatch(indices, batch, 0, len(indices))


class DistributedSampler:
    """Sample indices of one rank, one by one, as PyTorch's class of this name.

    Rank r takes items r, r + R, r + 2 R, ... of the epoch's order, which is that of `ShardedSampler`: R ranks with
    batches of B together get the same batches. If R does not divide the number of samples, every rank still gets the
    same number, unless `pad` and `drop_last` are both off.

    It is for training. Padding counts samples twice and dropping leaves some out, so evaluate with `EvaluationSampler`.

    Args:
        data: Data set (anything with a length), or its number of samples.
        rank, world_size: This rank, and the number of ranks. None: those of `initialize`; in a single process 0 and 1.
        shuffle: A new permutation in each epoch; otherwise the stored order.
        seed: Shared by all ranks, >= 0.
        drop_last: Whether to leave out the last few samples, so that all ranks have the same number.
        pad: Whether to repeat samples from the start of the order, so that all ranks have the same number; None: unless
            drop_last.

    Attributes:
        num_samples: Samples in the data set.
        epoch: See `set_epoch`.

    Raises:
        ValueError: Sizes, ranks or seeds out of range; both drop_last and pad; fewer samples than ranks without pad.
    """

    def __init__(
        self,
        data: Sized | int,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool | None = None,
    ) -> None:
        if rank is None or world_size is None:
            if (launch := launch_of_rank_alone()) is not None:
                raise ValueError(
                    f"{launch.launcher} has started several processes, and this one has not connected to the others: "
                    "give rank and world_size, or call initialize() before (initialize('serial') if each process works "
                    "alone)"
                )
            own, ranks = place_among_ranks()
            rank, world_size = own if rank is None else rank, (ranks or 1) if world_size is None else world_size
        num_samples = len(data) if isinstance(data, Sized) else operator.index(data)
        self._sharded = ShardedSampler(num_samples, rank, world_size, shuffle, seed)
        self._pad = not drop_last if pad is None else pad
        if drop_last and self._pad:
            raise ValueError("drop_last and pad exclude each other: leave samples out, or repeat some")
        if num_samples < world_size and not self._pad:
            raise ValueError(f"{num_samples} samples leave some of {world_size} ranks without any; use pad=True")
        self.num_samples = num_samples
        if self._pad:
            self._total = -(-num_samples // world_size) * world_size
        else:
            self._total = num_samples // world_size * world_size if drop_last else num_samples

    @property
    def epoch(self) -> int:
        return self._sharded.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation; all ranks must name the same epoch.

        Raises:
            ValueError: epoch < 0.
        """
        self._sharded.set_epoch(epoch)

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return len(range(self._sharded.rank, self._total, self._sharded.world_size))

    def __iter__(self) -> Iterator[int]:
        order = np.resize(self._sharded.order(), self._total)  # repeats from the start if it is longer
        return iter(order[self._sharded.rank :: self._sharded.world_size].tolist())

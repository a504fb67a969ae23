"""Batches of a data set for one rank: their samples, position and prefetching, and normalised images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import closing
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.data.augment import ShardRandom
from pytagi_ddp.data.prefetch import prefetch as prefetched
from pytagi_ddp.data.sampler import EvaluationSampler, IndexBatch, ShardedSampler
from pytagi_ddp.validate import as_integers

Batch = tuple[np.ndarray, np.ndarray]
Own = TypeVar("Own", bound="RankBatches")


class RankBatches(ABC):
    """The base of all loaders: shares of ranks, the order of an epoch, and the position in it.

    A subclass makes the batches in `_make_batches`. Arguments and errors are those of `BatchLoader`.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        rank: int,
        world_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        prefetch: int,
        evaluation: bool,
    ) -> None:
        (batch_size,) = as_integers("a loader", 1, batch_size=batch_size)
        (prefetch,) = as_integers("a loader", 0, prefetch=prefetch)
        if evaluation and drop_last:
            raise ValueError("evaluation counts every sample: no drop_last")
        self.sampler: EvaluationSampler | ShardedSampler
        if evaluation:
            self.sampler = EvaluationSampler(len(dataset), rank, world_size)
        else:
            self.sampler = ShardedSampler(len(dataset), rank, world_size, shuffle, seed, drop_last)
            seed = self.sampler.seed  # Python's, for states in JSON
            if not self.sampler.num_batches(batch_size):
                raise ValueError(
                    f"drop_last leaves no batch: {len(dataset)} samples, {world_size} ranks x {batch_size}"
                )
        self._order = {"shuffle": int(shuffle and not evaluation), "drop_last": int(drop_last)}
        self.batch_size = batch_size
        self.rank, self.world_size = rank, world_size
        self.seed = seed
        self.prefetch = prefetch
        self._num_samples = len(dataset)
        self._epoch = 0
        self._start = 0, 0  # start of the next iteration: its batch, and the sample at which batch 0 begins
        self._position, self._first = self._start  # the same for the last batch that was returned
        self._iterations: WeakSet[Generator[Batch, None, None]] = WeakSet()

    @abstractmethod
    def _make_batches(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        """The batch of each of this rank's parts."""

    @property
    def num_samples(self) -> int:
        """Samples in the data set, those of all ranks."""
        return self._num_samples

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self.sampler.num_batches(self.batch_size)

    def num_batches(self, first: int = 0) -> int:
        """Batches in an epoch of training whose batch 0 begins at sample `first`."""
        assert isinstance(self.sampler, ShardedSampler)
        return self.sampler.num_batches(self.batch_size, first)

    @property
    def trains(self) -> bool:
        """Whether the batches are for training: in one order for all ranks, with the same number on each."""
        return isinstance(self.sampler, ShardedSampler)

    @property
    def global_batch(self) -> int:
        """Samples of a batch, those of all ranks."""
        return self.batch_size * self.world_size

    def set_epoch(self, epoch: int, start_batch: int = 0, samples: int | None = None) -> None:
        """Choose the order, augmentation and start of the next iteration.

        Args:
            epoch: Its number.
            start_batch: Its first batch.
            samples: Instead of `start_batch`, the number of earlier samples of the epoch, of all ranks. They may have
                had other numbers of ranks and batch sizes: the rest of the order is divided again, and each of its
                samples comes once.

        Raises:
            ValueError: epoch < 0; start_batch outside 0..len(loader); samples outside 0..num_samples, or with
                `evaluation`, which has no common order of ranks.
        """
        first = 0
        if samples is not None:
            if not (self.trains and 0 <= samples <= self._num_samples):
                raise ValueError(
                    f"samples must be in 0..{self._num_samples} (samples in the epoch) of training data, got {samples}"
                )
            start_batch, first = self.place_after(samples)
        elif not 0 <= start_batch <= len(self):
            raise ValueError(f"start_batch must be in 0..{len(self)} (batches in the epoch), got {start_batch}")
        (epoch,) = as_integers("set_epoch", 0, epoch=epoch)
        self._epoch = epoch
        self._start = self._position, self._first = start_batch, first

    def samples_before(self, batch: int, first: int = 0) -> int:
        """Samples of all ranks in the batches before `batch`, if batch 0 begins at sample `first` of the epoch."""
        return min(first + batch * self.global_batch, self._num_samples)

    def place_after(self, samples: int) -> tuple[int, int]:
        """(batch, first): the batch that follows these samples of an epoch, if batch 0 begins at sample `first`.

        Behind all samples there is no further batch, also if the last one was smaller.
        """
        batch, first = divmod(samples, self.global_batch)
        smaller = first > 0 and samples == self._num_samples and not self._order["drop_last"]
        return (self.num_batches(), 0) if smaller else (batch, first)

    def state_dict(self) -> dict[str, int]:
        """Position in the training order, to be stored in a checkpoint; the same on every rank."""
        state = {"epoch": self._epoch, "batch": self._position, "global_batch": self.global_batch, **self._identity()}
        if self.trains:
            state["samples"] = self.samples_before(self._position, self._first)
        return state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the last batch of `state`, with any number of ranks and any batch size.

        With `evaluation`, the global batch has to be the same.

        Raises:
            ValueError: A state of another data size, seed, shuffle or drop_last, or with values that are not integers.
        """
        state = {**self._order, **state}  # states of version 0.2 do not have it
        for key in self.state_dict():
            if not isinstance(state.get(key), int | np.integer) and (key != "samples" or key in state):
                raise ValueError(f"the stored position has no integer for {key}: {state!r:.200}")
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"the stored position has {key} {state[key]}, this loader has {value}")
        samples = state.get("samples")
        if samples is None and self.trains:  # in version 0.2
            samples = state["batch"] * state["global_batch"]
            if samples < self._num_samples + state["global_batch"]:  # the last batch may be smaller
                samples = min(samples, self._num_samples)
        self.set_epoch(state["epoch"], state["batch"], samples)

    def _identity(self) -> dict[str, int]:
        """The values that must be equal for a position to have the same meaning."""
        own = {"num_samples": self._num_samples, "seed": self.seed, **self._order}
        return own if self.trains else own | {"global_batch": self.global_batch}

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the settings and the position, but no iterations in progress."""
        return self.__dict__ | {"_iterations": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _iterations=WeakSet())

    def __iter__(self) -> Iterator[Batch]:
        self._position, self._first = self._start
        self._start = 0, 0
        return self._kept(self._count(self._batches(self._position, self._first), self._position))

    def from_first(self) -> Generator[Batch, None, None]:
        """Iterate over the epoch from its first batch without changing the position; used by `update_bn`."""
        return self._kept(self._batches(0, 0))

    def close(self) -> None:
        """End unfinished iterations and their threads."""
        for iteration in list(self._iterations):
            iteration.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _kept(self, iteration: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """The iteration, registered for `close`."""
        self._iterations.add(iteration)
        return iteration

    def _batches(self, start: int, first: int) -> Generator[Batch, None, None]:
        if isinstance(self.sampler, ShardedSampler):
            self.sampler.set_epoch(self._epoch)
            parts = self.sampler.batches(self.batch_size, start, first)
        else:
            parts = self.sampler.batches(self.batch_size, start)
        batches = self._make_batches(parts, self._epoch)
        return prefetched(batches, self.prefetch) if self.prefetch else batches

    def _count(self, batches: Generator[Batch, None, None], start: int) -> Generator[Batch, None, None]:
        with closing(batches) as source:
            for position, batch in enumerate(source, start + 1):
                self._position = position
                yield batch

    def _random(self, part: IndexBatch, epoch: int) -> ShardRandom:
        """Random numbers for the images of a part, independent of the number of ranks."""
        # batch + 1: NumPy takes [seed, epoch] and [seed, epoch, 0] for the same seed, and the permutation
        # has the former.
        key = [self.seed, epoch, part.batch + 1]
        return ShardRandom(key, part.global_size, part.offset, len(part.indices))


class ImageBatches(RankBatches):
    """The base of `BatchLoader` and `FolderLoader`, for images of `shape` (C, H, W).

    A subclass reads the images of a batch in `_images`.
    """

    def __init__(
        self,
        dataset: Sized,
        shape: tuple[int, int, int],
        mean: float | Sequence[float] | np.ndarray | None,
        std: float | Sequence[float] | np.ndarray | None,
        *sampling: Any,
    ) -> None:
        super().__init__(dataset, *sampling)
        self._scale, self._shift = _affine(mean, std, shape[0])
        self._features = shape[0] * shape[1] * shape[2]

    @abstractmethod
    def _images(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        """Images, uint8 of shape (B, C, H, W), and labels of each of this rank's parts."""

    def _make_batches(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        with closing(self._images(parts, epoch)) as source:
            for images, labels in source:
                x = np.empty(images.shape, np.float32)
                np.multiply(images, self._scale, out=x, casting="same_kind")
                x -= self._shift
                yield x.reshape(len(x), self._features), labels


def _affine(
    mean: float | Sequence[float] | np.ndarray | None,
    std: float | Sequence[float] | np.ndarray | None,
    channels: int,
) -> tuple[np.ndarray, np.ndarray]:
    """scale and shift, shape (C, 1, 1), such that (pixel / 255 - mean) / std = pixel * scale - shift."""
    mean = to_numpy(0.0 if mean is None else mean, "mean").astype(np.float64)
    std = to_numpy(1.0 if std is None else std, "std").astype(np.float64)
    for name, value in (("mean", mean), ("std", std)):
        if value.shape not in ((), (1,), (channels,)):
            raise ValueError(f"{name} has shape {value.shape}, the images have {channels} channels")
        if not np.isfinite(value).all():
            raise ValueError(f"{name} must be finite, got {value}")
    if (std <= 0).any():
        raise ValueError(f"std must be positive, got {std}")
    scale = np.broadcast_to(1 / (255 * std), (channels,)).astype(np.float32)
    shift = np.broadcast_to(mean / std, (channels,)).astype(np.float32)
    return scale.reshape(-1, 1, 1), shift.reshape(-1, 1, 1)

"""Normalised float32 batches of a data set, for one rank."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from weakref import WeakSet

import numpy as np

from pytagi_ddp.data.augment import ShardRandom
from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.data.prefetch import prefetch as prefetched
from pytagi_ddp.data.sampler import EvaluationSampler, IndexBatch, ShardedSampler

Batch = tuple[np.ndarray, np.ndarray]
Transform = Callable[[np.ndarray, ShardRandom], np.ndarray]


class BatchLoader:
    """Iterate over this rank's batches: `for x, labels in loader`.

    x is float32, shape (B, C*H*W), contiguous, each image flattened in NCHW order and normalised to
    (pixel / 255 - mean) / std per channel. labels is int64, shape (B,). Both are the caller's to keep.

    R ranks with batches of B see, batch by batch and augmentation included, what one rank sees with batches
    of R * B. Every rank gets the same number of training batches; in the last one of an epoch B may be
    smaller, even 0 where fewer samples than ranks are left (see `ShardedSampler`).

    Args:
        dataset: The images.
        batch_size: Images per rank and batch.
        rank: This rank.
        world_size: Number of ranks.
        shuffle: A new order in each epoch.
        seed: Seed of order and augmentation, the same on every rank.
        drop_last: Leave a partial global batch out.
        transform: Called as transform(images, rng) with uint8 images of shape (B, C, H, W), B >= 1, and a
            `ShardRandom`; returns an array of that shape, pixels still in 0..255.
        mean: Per channel or one for all, of pixels scaled to [0, 1]. None: 0.
        std: Standard deviation likewise. None: 1.
        prefetch: Batches made ahead by a background thread; 0 for no thread.
        evaluation: Give each rank one contiguous shard in the stored order, so that no sample counts twice;
            `shuffle` has no say then, and the number of batches may differ by one between ranks.

    Raises:
        ValueError: A size, rank, seed or statistic out of range; drop_last or transform with evaluation;
            drop_last where the data do not fill one global batch.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        transform: Transform | None = None,
        mean: float | Sequence[float] | np.ndarray | None = None,
        std: float | Sequence[float] | np.ndarray | None = None,
        prefetch: int = 2,
        evaluation: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, got {prefetch}")
        if evaluation and (drop_last or transform is not None):
            raise ValueError("evaluation counts every sample as it is: no drop_last, no transform")
        self.sampler: EvaluationSampler | ShardedSampler
        if evaluation:
            self.sampler = EvaluationSampler(len(dataset), rank, world_size)
        else:
            self.sampler = ShardedSampler(len(dataset), rank, world_size, shuffle, seed, drop_last)
            if not self.sampler.num_batches(batch_size):
                raise ValueError(
                    f"drop_last leaves no batch: {len(dataset)} samples, {world_size} ranks x {batch_size}"
                )
        self.dataset = dataset
        self.batch_size = batch_size
        self.world_size = world_size
        self.seed = seed
        self.transform = transform
        self.prefetch = prefetch
        self._scale, self._shift = _affine(mean, std, dataset.images.shape[1])
        self._features = dataset.images[0].size
        self._epoch = 0
        self._start_batch = 0  # where the next iteration begins
        self._position = 0  # batches of the epoch that were handed out
        self._iterations: WeakSet[Generator[Batch, None, None]] = WeakSet()

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self.sampler.num_batches(self.batch_size)

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Choose the order and augmentation of the next iteration, and the batch at which it begins.

        Raises:
            ValueError: epoch < 0, or start_batch outside 0..len(loader).
        """
        if not 0 <= start_batch <= len(self):
            raise ValueError(f"start_batch must be in 0..{len(self)} (batches in the epoch), got {start_batch}")
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._epoch = epoch
        self._start_batch = self._position = start_batch

    def state_dict(self) -> dict[str, int]:
        """Position in the training order, to be stored in a checkpoint; the same on every rank."""
        return {"epoch": self._epoch, "batch": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the batch at which `state` was taken.

        The number of ranks may differ as long as the global batch is the same.

        Raises:
            ValueError: A state of another data size, global batch or seed, or with something else than integers.
        """
        for key in self.state_dict():
            if not isinstance(state.get(key), int | np.integer):
                raise ValueError(f"the stored position has no integer for {key}: {state!r:.200}")
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"the stored position has {key} {state[key]}, this loader has {value}")
        self.set_epoch(state["epoch"], state["batch"])

    def _identity(self) -> dict[str, int]:
        """What must be equal for a position to mean the same."""
        return {
            "num_samples": len(self.dataset),
            "global_batch": self.batch_size * self.world_size,
            "seed": self.seed,
        }

    def __iter__(self) -> Iterator[Batch]:
        start, self._start_batch = self._start_batch, 0
        self._position = start
        if isinstance(self.sampler, ShardedSampler):
            self.sampler.set_epoch(self._epoch)
        parts = self.sampler.batches(self.batch_size, start)
        iteration = self._iterate(self._make_batches(parts, self._epoch), start)
        self._iterations.add(iteration)
        return iteration

    def close(self) -> None:
        """End iterations that were left half-way, and their threads."""
        for iteration in list(self._iterations):
            iteration.close()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _iterate(self, batches: Generator[Batch, None, None], start: int) -> Generator[Batch, None, None]:
        with closing(prefetched(batches, self.prefetch) if self.prefetch else batches) as source:
            for position, batch in enumerate(source, start + 1):
                self._position = position
                yield batch

    def _make_batches(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        for part in parts:
            images = self.dataset.images[part.indices]
            if self.transform is not None and len(images):
                images = self._augment(self.transform, images, part, epoch)
            x = np.empty(images.shape, np.float32)
            np.multiply(images, self._scale, out=x, casting="same_kind")
            x -= self._shift
            yield x.reshape(len(x), self._features), self.dataset.labels[part.indices]

    def _augment(self, transform: Transform, images: np.ndarray, part: IndexBatch, epoch: int) -> np.ndarray:
        # batch + 1: NumPy takes [seed, epoch] and [seed, epoch, 0] for the same seed, and the permutation
        # has the former.
        key = [self.seed, epoch, part.batch + 1]
        rng = ShardRandom(key, part.global_size, part.offset, len(images))
        changed = transform(images, rng)
        if changed.shape != images.shape:
            raise ValueError(f"transform changed the shape of the images from {images.shape} to {changed.shape}")
        return changed


def _affine(
    mean: float | Sequence[float] | np.ndarray | None,
    std: float | Sequence[float] | np.ndarray | None,
    channels: int,
) -> tuple[np.ndarray, np.ndarray]:
    """scale and shift, shape (C, 1, 1), such that (pixel / 255 - mean) / std = pixel * scale - shift."""
    mean = np.asarray(0.0 if mean is None else mean, np.float64)
    std = np.asarray(1.0 if std is None else std, np.float64)
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

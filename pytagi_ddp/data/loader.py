"""Normalised float32 batches of a data set, for one rank."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from pytagi_ddp.data.augment import ShardRandom
from pytagi_ddp.data.batches import Batch, ImageBatches
from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.data.sampler import IndexBatch

Transform = Callable[[np.ndarray, ShardRandom], np.ndarray]


class BatchLoader(ImageBatches):
    """Iterate over this rank's batches: `for x, labels in loader`.

    x is float32, shape (B, C*H*W), contiguous, each image flattened in NCHW order and normalised to
    (pixel / 255 - mean) / std per channel. labels is int64, shape (B,). Both may be kept and changed.

    R ranks with batches of B together get the same batches, with the same augmentation, as one rank with batches of R *
    B. Every rank gets the same number of training batches. The last one of an epoch may be smaller, or empty if fewer
    samples than ranks are left (see `ShardedSampler`).

    A copy or a pickle of a loader has its settings and position (`state_dict`), and its own iterations.

    Args:
        dataset: The images.
        batch_size: Images per rank and batch.
        rank: This rank.
        world_size: Number of ranks.
        shuffle: Whether each epoch has a new order.
        seed: Seed of order and augmentation, the same on every rank.
        drop_last: Whether to leave out a partial global batch.
        transform: Called as transform(images, rng) with uint8 images of shape (B, C, H, W), B >= 1, and a
            `ShardRandom`; returns an array of that shape, pixels still in 0..255.
        mean: Mean per channel, or one for all, of pixels scaled to [0, 1]. None: 0.
        std: Standard deviation likewise. None: 1.
        prefetch: Number of batches that a background thread prepares; 0: no thread.
        evaluation: Whether each rank gets one contiguous shard in the stored order, so that no sample counts twice;
            `shuffle` then has no effect, and the number of batches may differ by one between ranks.

    Raises:
        ValueError: A size, rank, seed or statistic out of range; drop_last or transform with evaluation;
            drop_last if the data do not fill one global batch.
        TypeError: The data are not an `ImageDataset`.
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
        if not hasattr(dataset, "images"):
            raise TypeError(f"BatchLoader takes an ImageDataset, got {type(dataset).__name__}")
        if evaluation and transform is not None:
            raise ValueError("evaluation counts every sample as it is: no transform")
        shape = dataset.images.shape[1:]
        sampling = batch_size, rank, world_size, shuffle, seed, drop_last, prefetch, evaluation
        super().__init__(dataset, shape, mean, std, *sampling)
        self.dataset = dataset
        self.transform = transform

    def _images(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        for part in parts:
            images = self.dataset.images[part.indices]
            if self.transform is not None and len(images):
                shape, images = images.shape, self.transform(images, self._random(part, epoch))
                if images.shape != shape:
                    raise ValueError(f"transform changed the shape of the images from {shape} to {images.shape}")
            yield images, self.dataset.labels[part.indices]

"""Batches of images that are read from files by worker processes, for one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from pytagi_ddp.data.batches import Batch, ImageBatches
from pytagi_ddp.data.decoding import LEAST, NUMBERS, ImageError, SerialExecutor, image_workers, read_parts
from pytagi_ddp.data.image_folder import ImageFolder
from pytagi_ddp.data.sampler import IndexBatch
from pytagi_ddp.validate import as_integers, as_numbers
from pytagi_ddp.warn import warn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training set
CHUNK = 8  # images that a worker reads at a time
AHEAD = 2  # batches that workers prepare in addition to the next one


class FolderLoader(ImageBatches):
    """Iterate over this rank's batches of images in files: `for x, labels in loader`.

    Batches, order, shares of ranks and position are those of `BatchLoader`. In training, an image is a random part of
    the file's image, scaled to `size` and mirrored at random, as usual for ImageNet; for evaluation it is the square in
    the centre with 7/8 of the shorter side. Parts do not depend on the number of ranks or workers. Close the loader at
    the end, or use it as a context, which ends its workers.

    Args:
        dataset: The images.
        batch_size: Images per rank and batch; fewer if `dataset` skips files that cannot be read.
        rank, world_size, shuffle, seed, drop_last, prefetch, evaluation: As in `BatchLoader`.
        size: Pixels of both sides.
        augment: Whether training uses random parts; otherwise the centre.
        least_area: Smallest share of an image's area of a random part, above 0 and up to 1. The default is for
            ImageNet; with few images, or objects that fill them, 0.3 to 0.7 is better.
        mean, std: Per channel, of pixels scaled to [0, 1]; by default those of ImageNet.
        mirror: Whether training mirrors images at random.
        whole: Whether the whole image is used, stretched to a square, where otherwise it would be the centre.
        workers: Number of decoding processes, or an executor, such as `image_workers`, which may be shared with other
            loaders (see there for the requirements). 0: the prefetching thread decodes.

    Raises:
        ValueError: As `BatchLoader`, or size < 1, workers < 0 or a least_area out of range. ImportError: Pillow is not
            installed.
        TypeError: not an `ImageFolder`, or a size that is not one integer.

    While iterating:
        ImageError: a file that is not an image, unless `dataset` skips these. OSError: a file that cannot be read.
    """

    def __init__(
        self,
        dataset: ImageFolder,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        size: int = 224,
        augment: bool = True,
        mean: float | Sequence[float] | np.ndarray | None = MEAN,
        std: float | Sequence[float] | np.ndarray | None = STD,
        prefetch: int = 2,
        evaluation: bool = False,
        workers: int | Executor = 0,
        least_area: float = LEAST,
        *,
        mirror: bool = True,
        whole: bool = False,
    ) -> None:
        if not hasattr(dataset, "files"):
            raise TypeError(f"FolderLoader takes an ImageFolder, as of ImageFolder.find, got {type(dataset).__name__}")
        as_integers("FolderLoader", 1, size=size)
        if not isinstance(workers, Executor):
            as_integers("FolderLoader", 0, workers=workers)
        as_numbers("FolderLoader", "(0, 1]", least_area=least_area)
        sampling = batch_size, rank, world_size, shuffle, seed, drop_last, prefetch, evaluation
        super().__init__(dataset, (3, size, size), mean, std, *sampling)
        self.dataset = dataset
        self.size = size
        self.augment = augment and not evaluation
        self.least_area = least_area
        self.mirror = mirror
        self.whole = whole
        self._workers = workers
        self._own: Executor | None = None

    def close(self) -> None:
        """End unfinished iterations, their threads, and the workers of this loader."""
        super().close()
        if self._own is not None:
            self._own.shutdown(cancel_futures=True)
            self._own = None

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self._workers, Executor):
            raise TypeError(
                "this FolderLoader reads with an executor that it was given, and that cannot be copied: make another "
                "loader of `loader.dataset`, or give a number of workers"
            )
        return super().__getstate__() | {"_own": None}  # a copy starts its own workers

    def _images(self, parts: Iterator[IndexBatch], epoch: int) -> Generator[Batch, None, None]:
        pending: deque[tuple[np.ndarray, list[Future]]] = deque()
        workers = self._executor()
        try:
            for part in parts:
                numbers = self._random(part, epoch).random((len(part.indices), NUMBERS)) if self.augment else None
                if numbers is not None and not self.mirror:
                    numbers[:, -1] = 1
                futures = []
                for k in range(0, len(part.indices), CHUNK):
                    sources = [self.dataset.source(int(index)) for index in part.indices[k : k + CHUNK]]
                    own = None if numbers is None else numbers[k : k + CHUNK]
                    futures.append(workers.submit(read_parts, sources, self.size, own, self.least_area, self.whole))
                pending.append((part.indices, futures))
                if len(pending) > AHEAD:
                    yield self._collect(*pending.popleft())
            while pending:
                yield self._collect(*pending.popleft())
        finally:
            for _, futures in pending:
                for future in futures:
                    future.cancel()

    def _executor(self) -> Executor:
        if isinstance(self._workers, Executor):
            return self._workers
        if self._own is None:
            self._own = image_workers(self._workers) if self._workers else SerialExecutor()
        return self._own

    def _collect(self, indices: np.ndarray, futures: Sequence[Future]) -> Batch:
        """The images of a batch, with the labels of those that could be read."""
        read = np.ones(len(indices), bool)
        images = [np.empty((0, 3, self.size, self.size), np.uint8)]
        for k, future in enumerate(futures):
            part, problems = future.result()
            images.append(part)
            for row, problem in problems:
                if self.dataset.on_error == "raise":
                    raise ImageError(problem)
                warn(f"left out: {problem}", RuntimeWarning)
                read[k * CHUNK + row] = False
        return np.concatenate(images), self.dataset.labels[indices[read]]

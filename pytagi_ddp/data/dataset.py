"""Labelled images held in memory as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.warn import warn

_BLOCK = 1 << 22  # pixels whose moments are summed at a time


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images and their class numbers: arrays, or what `to_numpy` takes (tensors of PyTorch, columns of pandas).

    Attributes:
        images: uint8, shape (N, C, H, W), N >= 1.
        labels: int64, shape (N,), each in [0, number of classes).
        classes: The name of each class.
        name: What the set is called in messages.

    Raises:
        TypeError: Images that are not uint8, or labels that are not integers.
        ValueError: Shapes that do not belong together, or a label without a class.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        for field in ("images", "labels"):
            object.__setattr__(self, field, to_numpy(getattr(self, field), f"{self.name}: {field}"))
        if self.images.dtype != np.uint8:
            raise TypeError(f"{self.name}: images must be uint8, got {self.images.dtype}")
        if not np.issubdtype(self.labels.dtype, np.integer):
            raise TypeError(f"{self.name}: labels must be integers, got {self.labels.dtype}")
        if self.images.ndim != 4 or 0 in self.images.shape:
            raise ValueError(
                f"{self.name}: images must have shape (N, C, H, W) with no size 0, got {self.images.shape}"
            )
        if self.images.shape[3] in (1, 3, 4) and min(self.images.shape[1:3]) > 4:
            warn(
                f"{self.name}: images of the shape {self.images.shape} seem to have their channels last, and the "
                "second size is taken for that of the channels: images.transpose(0, 3, 1, 2)?",
            )
        if self.labels.shape != (len(self.images),):
            raise ValueError(
                f"{self.name}: {len(self.images)} images need labels of shape ({len(self.images)},), "
                f"got {self.labels.shape}"
            )
        outside = (self.labels < 0) | (self.labels >= len(self.classes))
        if outside.any():
            first = int(np.argmax(outside))
            raise ValueError(
                f"{self.name}: label {self.labels[first]} of image {first} is outside "
                f"0..{len(self.classes) - 1} ({len(self.classes)} classes)"
            )
        object.__setattr__(self, "labels", self.labels.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, n: int) -> ImageDataset:
        """The first n images (all of them where there are fewer), sharing memory with this set.

        Raises:
            ValueError: n < 1.
        """
        if n < 1:
            raise ValueError(f"{self.name}: a subset needs at least 1 image, got n={n}")
        return replace(self, images=self.images[:n], labels=self.labels[:n])

    def mean(self) -> np.ndarray:
        """Mean of each channel with pixels scaled to [0, 1]; float32, shape (C,)."""
        return self._moments[0]

    def std(self) -> np.ndarray:
        """Standard deviation of each channel with pixels scaled to [0, 1]; float32, shape (C,)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        count, channels = len(self.images), self.images.shape[1]
        total, square = np.zeros(channels), np.zeros(channels)
        some = max(1, _BLOCK // self.images[0].size)
        for start in range(0, count, some):
            pixels = self.images[start : start + some].reshape(-1, channels, self.images[0, 0].size).astype(np.float64)
            total += pixels.sum((0, 2))  # exact, as are the squares: integers below 2^53
            square += np.einsum("nci,nci->c", pixels, pixels)
        size = count * self.images[0, 0].size
        mean = total / size
        std = np.sqrt(np.maximum(square / size - mean**2, 0.0))
        return (mean / 255).astype(np.float32), (std / 255).astype(np.float32)

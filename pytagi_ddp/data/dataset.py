"""Labelled images held in memory as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.validate import as_integers
from pytagi_ddp.warn import warn

_BLOCK = 1 << 22  # pixels whose moments are summed at a time


def warn_of_channels_last(images: np.ndarray, what: str) -> None:
    """Warns if images, which should have the shape (N, C, H, W), seem to have the shape (N, H, W, C)."""
    if images.shape[3] in (1, 3, 4) and min(images.shape[1:3]) > 4:
        warn(
            f"{what} of the shape {images.shape} seem to have their channels last, and the second size is taken for "
            "that of the channels: images.transpose(0, 3, 1, 2)?"
        )


@dataclass(frozen=True, eq=False, init=False)
class ImageDataset:
    """Images and their class numbers: arrays, or other arguments of `to_numpy` (tensors of PyTorch, columns of pandas).

    Attributes:
        images: uint8, shape (N, C, H, W), N >= 1.
        labels: int64, shape (N,), each in [0, number of classes).
        classes: The name of each class.
        name: Its name in messages.

    Raises:
        TypeError: Images that are not uint8, or labels that are not integers.
        ValueError: Shapes that do not match, or a label without a class.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str

    def __init__(self, images: ArrayLike, labels: ArrayLike, classes: Sequence[str], name: str) -> None:
        pixels, numbers = to_numpy(images, f"{name}: images"), to_numpy(labels, f"{name}: labels")
        if pixels.dtype != np.uint8:
            raise TypeError(f"{name}: images must be uint8, got {pixels.dtype}")
        if numbers.dtype.kind not in "iub":
            raise TypeError(f"{name}: labels must be integers, got {numbers.dtype}")
        if pixels.ndim != 4 or 0 in pixels.shape:
            raise ValueError(f"{name}: images must have shape (N, C, H, W) with no size 0, got {pixels.shape}")
        warn_of_channels_last(pixels, f"{name}: images")
        if numbers.shape != (len(pixels),):
            raise ValueError(f"{name}: {len(pixels)} images need labels of shape ({len(pixels)},), got {numbers.shape}")
        outside = (numbers < 0) | (numbers >= len(classes))
        if outside.any():
            first = int(np.argmax(outside))
            raise ValueError(
                f"{name}: label {numbers[first]} of image {first} is outside 0..{len(classes) - 1} "
                f"({len(classes)} classes)"
            )
        numbers = numbers.astype(np.int64, copy=False)
        self.__dict__.update(images=pixels, labels=numbers, classes=tuple(classes), name=name)  # the class is frozen

    def __len__(self) -> int:
        return len(self.images)

    def subset(self, n: int) -> ImageDataset:
        """The first n images (all of them if there are fewer), sharing memory with this set.

        Raises:
            ValueError: n < 1.
        """
        as_integers(f"subset of {self.name}", 1, n=n)
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

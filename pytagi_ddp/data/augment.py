"""Random augmentation of training images, independent of the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class ShardRandom:
    """Random numbers for one rank's part of a global batch.

    All ranks have a generator with the same seed, draw for the whole global batch, and keep the rows of their own part.
    So an image gets the same numbers for any number of ranks. Methods are those of `numpy.random.Generator`; the first
    axis of `size` must be the images of the part.

    Args:
        key: Seeds of the PCG64 generator, the same on every rank.
        global_size: Images in the global batch.
        offset: Start of the part in the global batch.
        size: Images in the part.

    Raises:
        ValueError: A part that is not in the global batch.
    """

    def __init__(self, key: Sequence[int], global_size: int, offset: int, size: int) -> None:
        if not 0 <= offset <= offset + size <= global_size:
            raise ValueError(f"images {offset}..{offset + size} do not lie in a batch of {global_size}")
        self._generator = np.random.Generator(np.random.PCG64(key))
        self._global_size = global_size
        self._part = slice(offset, offset + size)

    def _whole(self, size: int | Sequence[int]) -> tuple[int, ...]:
        shape = (size,) if isinstance(size, int) else tuple(size)
        part = self._part.stop - self._part.start
        if not shape or shape[0] != part:
            raise ValueError(f"the first axis of size must be the {part} images of this part, got {size}")
        return (self._global_size, *shape[1:])

    def integers(self, low: int, high: int, size: int | Sequence[int]) -> np.ndarray:
        """Integers in [low, high), int64."""
        return self._generator.integers(low, high, size=self._whole(size))[self._part]

    def random(self, size: int | Sequence[int]) -> np.ndarray:
        """Uniform numbers in [0, 1), float64."""
        return self._generator.random(self._whole(size))[self._part]

    def normal(self, loc: float, scale: float, size: int | Sequence[int]) -> np.ndarray:
        """Gaussian numbers with mean `loc` and standard deviation `scale`, float64."""
        return self._generator.normal(loc, scale, self._whole(size))[self._part]


def random_crop_flip(
    images: np.ndarray,
    rng: np.random.Generator | ShardRandom,
    padding: int = 4,
    out: np.ndarray | None = None,
    *,
    flip: bool = True,
) -> np.ndarray:
    """Pad each image with zeros, crop it to its size at a random place, and mirror half of the images.

    Args:
        images: Shape (N, C, H, W), any dtype.
        rng: Source of random numbers.
        padding: Zero pixels added on every side.
        out: Memory of the result, with the shape and dtype of `images`; may be `images` itself.
        flip: Whether to mirror images. Digits, for example, must not be mirrored.

    Returns:
        `out`, or a new array.

    Raises:
        ValueError: Not four axes, negative padding, or an `out` of another shape or dtype.
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W), got {images.shape}")
    if padding < 0:
        raise ValueError(f"padding must be at least 0, got {padding}")
    if out is None:
        out = np.empty_like(images)
    elif out.shape != images.shape or out.dtype != images.dtype:
        raise ValueError(f"out is {out.dtype} {out.shape}, images are {images.dtype} {images.shape}")
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * padding, width + 2 * padding), images.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    corners = rng.integers(0, 2 * padding + 1, size=(count, 2)).tolist()
    flips: Any = rng.integers(0, 2, size=count).tolist() if flip else [0] * count
    # One strided copy per image is as fast as a gather over the whole batch, and writes directly into out.
    for target, source, (y, x), mirrored in zip(out, padded, corners, flips, strict=True):
        window = source[:, y : y + height, x : x + width]
        target[...] = window[:, :, ::-1] if mirrored else window
    return out

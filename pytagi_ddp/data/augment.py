"""Random augmentation of training images, independent of the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from pytagi_ddp.data.dataset import warn_of_channels_last
from pytagi_ddp.validate import as_integers, as_numbers

LEAST_SCALE = 0.01  # of `random_affine`


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
    out = _result(images, out)
    as_integers("random_crop_flip", 0, padding=padding)
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


def random_affine(
    images: np.ndarray,
    rng: np.random.Generator | ShardRandom,
    degrees: float = 10.0,
    translate: float = 0.1,
    scale: tuple[float, float] = (0.9, 1.1),
    shear: float = 0.0,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Turn, shear, scale and shift each image at random, around its centre.

    The pixel at a place p of the result is that of the image at A^-1 (p - t), between pixels by bilinear interpolation,
    and 0 outside the image. A = s R(a) S(b) with the scale s, the rotation R by the angle a, and the shear S by b.

    Args:
        images: Shape (N, C, H, W), any dtype of up to 32 bits. Numbers of integer dtypes are rounded.
        rng: Source of random numbers.
        degrees: Largest angle a in degrees, in either direction.
        translate: Largest shift t in each direction, as a share of height and of width.
        scale: Smallest and largest s.
        shear: Largest angle b in degrees by which vertical lines lean, in either direction.
        out: Memory of the result, with the shape and dtype of `images`; may be `images` itself.

    Returns:
        `out`, or a new array.

    Raises:
        ValueError: Not four axes, a number out of its range, or an `out` of another shape or dtype.
    """
    out = _result(images, out)
    as_numbers("random_affine", "[0, inf)", degrees=degrees, translate=translate)
    as_numbers("random_affine", "[0, 90)", shear=shear)
    if np.shape(scale) != (2,) or not LEAST_SCALE <= scale[0] <= scale[1] < inf:
        raise ValueError(f"scale must be two numbers from {LEAST_SCALE} on, the smaller one first, got {scale}")
    least, most = scale
    count, channels, height, width = images.shape
    draws = rng.random((count, 5)).T.astype(np.float32)[..., None, None]
    turn, lean = np.deg2rad((2 * draws[0] - 1) * degrees), np.tan(np.deg2rad((2 * draws[1] - 1) * shear))
    size = least + draws[2] * (most - least)
    y = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2 - (2 * draws[3] - 1) * translate * height
    x = np.arange(width, dtype=np.float32) - (width - 1) / 2 - (2 * draws[4] - 1) * translate * width
    cos, sin = np.cos(turn) / size, np.sin(turn) / size
    y, x = cos * y - sin * x, cos * x + sin * y
    x = x - lean * y
    # Between -1 and the size, where the frame of zeros begins that is put around each image.
    y = np.clip(y + (height - 1) / 2, -1, height).astype(np.float32) + 1
    x = np.clip(x + (width - 1) / 2, -1, width).astype(np.float32) + 1
    top, left = np.minimum(y.astype(np.intp), height), np.minimum(x.astype(np.intp), width)
    y, x = (y - top)[:, None], (x - left)[:, None]
    framed = np.zeros((count, channels, height + 2, width + 2), images.dtype)
    framed[:, :, 1:-1, 1:-1] = images
    flat = framed.reshape(count, channels, (height + 2) * (width + 2))
    corner = (top * (width + 2) + left).reshape(count, 1, height * width)

    def pixels(shift: int) -> np.ndarray:
        return np.take_along_axis(flat, corner + shift, 2).reshape(images.shape)

    upper = (1 - x) * pixels(0) + x * pixels(1)
    lower = (1 - x) * pixels(width + 2) + x * pixels(width + 3)
    found = (1 - y) * upper + y * lower
    np.copyto(out, np.rint(found) if images.dtype.kind in "biu" else found, casting="unsafe")
    return out


def _result(images: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """`out`, or memory for such images; raises ValueError, and warns of channels that seem to be last."""
    if images.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W), got {images.shape}")
    warn_of_channels_last(images, "images")
    if out is None:
        return np.empty_like(images)
    if out.shape != images.shape or out.dtype != images.dtype:
        raise ValueError(f"out is {out.dtype} {out.shape}, images are {images.dtype} {images.shape}")
    return out

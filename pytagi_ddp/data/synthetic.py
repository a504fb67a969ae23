"""A synthetic 10-class set of 32 x 32 colour images, for machines without data and for tests.

Each image shows one of ten shapes, rotated by up to 15 degrees, at a random place and size, over a dim background of
smooth coloured patches, with noise. Two classes share each preferred hue and the hue varies, so that the colour does
not determine the class. Trained on 2,000 images, the nearest class mean errs on half of the test images, a linear
classifier on 30 %, one layer of convolution features on 1 %.

A seed gives the same bytes on every machine: only integers, uniform random numbers, + - * / and square roots are used,
which IEEE 754 rounds correctly, and no sums whose order NumPy may choose.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytagi_ddp.data.dataset import ImageDataset
from pytagi_ddp.validate import as_integers

CLASSES = (
    "disc", "square", "plus", "horizontal bars", "triangle",
    "ring", "frame", "cross", "vertical bars", "checkerboard",
)  # fmt: skip

_SIZE = 32
_BLOCK = 250  # images of one generator, so that a longer set begins with the shorter one
_F = np.float32


def synthetic_images(num_train: int, num_test: int, seed: int = 0) -> tuple[ImageDataset, ImageDataset]:
    """Draw a training and a test set from the same distribution.

    The first n images are the same for any number of images, and classes are equally frequent in each 250 images.

    Args:
        num_train: Training images.
        num_test: Test images.
        seed: Seed; the same bytes on every machine.

    Returns:
        Training set and test set, images of shape (N, 3, 32, 32).

    Raises:
        ValueError: A number of images below 1, or a negative seed.
    """
    as_integers("synthetic images", 1, num_train=num_train, num_test=num_test)
    as_integers("synthetic images", 0, seed=seed)
    return _draw(num_train, [seed, 1], "synthetic train"), _draw(num_test, [seed, 2], "synthetic test")


def _draw(count: int, key: list[int], name: str) -> ImageDataset:
    blocks = [_draw_block(np.random.Generator(np.random.PCG64([*key, b]))) for b in range(-(-count // _BLOCK))]
    images, labels = (np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True))
    return ImageDataset(images, labels, CLASSES, name)


def _draw_block(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.permutation(np.arange(_BLOCK) % len(CLASSES))
    mask = _shapes(labels, rng)[:, np.newaxis]
    hue = (labels % 5) * _F(1.2) + _uniform(rng, -1.7, 1.7)
    shape = _colour(hue, _uniform(rng, 0.75, 0.95), _uniform(rng, 0.8, 1.0))[:, :, np.newaxis, np.newaxis]
    background = _patches(rng)
    noise = rng.integers(-10, 11, size=(_BLOCK, 3, _SIZE, _SIZE), dtype=np.int16)
    pixels = (background + (shape - background) * mask) * _F(255) + noise
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def _uniform(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    return _F(low) + _F(high - low) * rng.random(_BLOCK, dtype=np.float32)


def _colour(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """HSV to RGB, shape (N, 3); hue in sixths of the circle."""
    sector = (np.array([5, 3, 1], np.float32) + hue[:, np.newaxis]) % _F(6)
    dip = np.clip(np.minimum(sector, _F(4) - sector), 0, 1)
    return value[:, np.newaxis] * (1 - saturation[:, np.newaxis] * dip)


def _patches(rng: np.random.Generator) -> np.ndarray:
    """Random colours on a grid of 5 x 5, interpolated linearly; shape (N, 3, 32, 32), values in [0, 0.3]."""
    grid = _F(0.3) * rng.random((_BLOCK, 3, 5, 5), dtype=np.float32)
    place = np.arange(_SIZE, dtype=np.float32) / _F(8)
    left = place.astype(np.intp)
    weight = place - left.astype(np.float32)
    rows = grid[:, :, left] * (1 - weight)[:, np.newaxis] + grid[:, :, left + 1] * weight[:, np.newaxis]
    return rows[..., left] * (1 - weight) + rows[..., left + 1] * weight


def _shapes(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Coverage of each pixel by the shape, in [0, 1]; shape (N, 32, 32)."""
    centre_x, centre_y = _uniform(rng, 11, 20), _uniform(rng, 11, 20)
    radius = _uniform(rng, 9, 12)
    half_tangent = _uniform(rng, -0.13, 0.13)  # of half the angle: cosine and sine without trigonometry
    square = half_tangent * half_tangent
    cosine, sine = (1 - square) / (1 + square), 2 * half_tangent / (1 + square)
    mask = np.empty((_BLOCK, _SIZE, _SIZE), np.float32)
    grid = np.arange(_SIZE, dtype=np.float32)
    for label, distance in enumerate(_DISTANCES):
        members = np.flatnonzero(labels == label)
        column = (slice(None), np.newaxis, np.newaxis)
        x = grid - centre_x[members][column]
        y = grid[:, np.newaxis] - centre_y[members][column]
        c, s, r = cosine[members][column], sine[members][column], radius[members][column]
        inside = -distance((x * c + y * s) / r, (y * c - x * s) / r) * r
        mask[members] = np.clip(inside + _F(0.5), 0, 1)  # edges one pixel wide
    return mask


# Distance to the edge of each shape, negative inside, in a frame where the shape has radius 1.


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(x * x + y * y) - _F(1)


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.sqrt(x * x + y * y) - _F(0.8)) - _F(0.2)


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) - _F(0.85)


def _frame(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.maximum(np.abs(x), np.abs(y)) - _F(0.7)) - _F(0.18)


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x) * _F(0.87) - y * _F(0.5) - _F(0.5), y - _F(0.7))


def _plus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.minimum(x, y) - _F(0.25), np.maximum(x, y) - _F(1))


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    half = _F(0.70710678)
    return _plus((x + y) * half, (x - y) * half)


def _horizontal_bars(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    stripe = np.abs(np.abs(np.abs(y) - _F(0.4)) - _F(0.4)) - _F(0.18)  # at y = -0.8, 0 and 0.8
    return np.maximum(stripe, np.abs(x) - _F(0.95))


def _vertical_bars(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _horizontal_bars(y, x)


def _checkerboard(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    filled = x * y > 0  # two of the four quadrants
    x, y = np.abs(x), np.abs(y)
    return np.where(filled, np.maximum(x, y) - _F(0.95), np.minimum(x, y))


_DISTANCES: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    _disc, _square, _plus, _horizontal_bars, _triangle, _ring, _frame, _cross, _vertical_bars, _checkerboard,
)  # fmt: skip

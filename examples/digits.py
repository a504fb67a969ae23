"""Digits for the gallery: those of MNIST, or synthetic ones, which need no download.

A drawn digit is one of ten pictures of 5 x 7 cells, at a place, size, angle and slant of its own, blurred, with noise.
They are easier than handwriting.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np

from examples.option_types import positive_int
from pytagi_ddp.data import DatasetNotFoundError, load_mnist

SIDE = 28  # pixels
GLYPHS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #...# ....# #...# #...#
#...# ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#...# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# #...#
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .###.
"""


class Digits(NamedTuple):
    """Images (n, 28, 28) from 0 to 1, and their n classes, to learn and to test with."""

    x_train: np.ndarray
    label_train: np.ndarray
    x_test: np.ndarray
    label_test: np.ndarray


def parser(description: str) -> argparse.ArgumentParser:
    """The options that the programs about digits share."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--data", metavar="DIR", help="take MNIST from there, or download it to there")
    options.add_argument("--train", type=positive_int, help="images to learn from (2,000 drawn ones, or all of MNIST)")
    options.add_argument("--quick", action="store_true", help="little data and few passes: to see that it runs")
    return options


def load_digits(args: argparse.Namespace) -> Digits:
    """The digits that the options ask for; ends the program if MNIST is neither in the folder nor can be downloaded."""
    train, test = (400, 200) if args.quick else (2000, 2000)
    if args.data is None:
        return Digits(*draw_digits(args.train or train, 0), *draw_digits(test, 1))
    try:
        sets = load_mnist(args.data)
    except DatasetNotFoundError as error:
        sys.exit(f"error: {error}")
    limits = (args.train or (train if args.quick else None), test if args.quick else None)
    parts = [(s.images[:n, 0] / np.float32(255), s.labels[:n]) for s, n in zip(sets, limits, strict=True)]
    return Digits(*parts[0], *parts[1])


def draw_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, 28, 28) drawn digits from 0 to 1, and their classes, in any order but equally often."""
    rng = np.random.default_rng(seed)
    cells = np.array([[list(glyph) for glyph in row.split()] for row in GLYPHS.split("\n")[1:-1]]) == "#"
    glyphs = np.pad(np.moveaxis(cells, 1, 0), ((0, 0), (2, 2), (2, 2))).astype(np.float32)  # (10, 11, 9)
    labels = rng.permutation(np.arange(count) % 10)
    size, angle, slant = rng.uniform(2.2, 3.2, count), rng.normal(0, 0.15, count), rng.normal(0, 0.15, count)
    centre = (SIDE - 1) / 2 + rng.uniform(-2.5, 2.5, (2, count))
    rows, columns = (axis - c[:, None, None] for axis, c in zip(np.mgrid[:SIDE, :SIDE], centre, strict=True))
    cosine, sine = (f(angle)[:, None, None] / size[:, None, None] for f in (np.cos, np.sin))
    y = cosine * rows - sine * columns
    x = cosine * columns + sine * rows + slant[:, None, None] * y
    y, x = np.clip(y + 5, 0, 9.999), np.clip(x + 4, 0, 7.999)  # in cells; what is outside of the picture is empty
    top, left = y.astype(int), x.astype(int)
    down, right, which = y - top, x - left, labels[:, None, None]
    images = (1 - down) * ((1 - right) * glyphs[which, top, left] + right * glyphs[which, top, left + 1])
    images += down * ((1 - right) * glyphs[which, top + 1, left] + right * glyphs[which, top + 1, left + 1])
    strength = rng.uniform(0.7, 1.2, (count, 1, 1))
    return np.clip(strength * images + rng.normal(0, 0.1, images.shape), 0, 1).astype(np.float32), labels

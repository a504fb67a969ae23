"""Files with many decoded images, which are read faster than JPEG files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save as save_safetensors

from pytagi_ddp.files import atomic_write, file_size
from pytagi_ddp.nn.files.file_format import open_tensors

FORMAT = "pytagi_ddp images 1"
TYPES = {"pixels": np.uint8, "offsets": np.int64, "sizes": np.int32, "checksums": np.uint32}


class ImageShard:
    """A safetensors file of images: their pixels one after the other, their sizes, and a CRC-32 of each of these.

    Attributes:
        made_of: its source, an argument of `write_shard`.

    Raises:
        ValueError: not such a file, or a damaged one; names the file. OSError: it cannot be read.
    """

    def __init__(self, path: str | Path):
        self._path = path
        file_size(path)
        try:
            self._file = open_tensors(path)
            metadata = self._file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r:.50}, this version reads {FORMAT!r}")
            self.made_of = metadata.get("made of")
            self._pixels = self._file.get_slice("pixels")
            shape = self._pixels.get_shape()
            self._offsets, self._sizes, self._checksums = (self._file.get_tensor(name) for name in list(TYPES)[1:])
            self._check(shape)
        except (SafetensorError, ValueError, TypeError, AttributeError) as error:  # the last: a type NumPy has not
            raise ValueError(f"{path}: {error}; delete the file, and it is made anew") from error

    @classmethod
    def open(cls, path: str) -> ImageShard:
        """The shard at a path. Recently used shards stay open, unless they are replaced."""
        return _open(path, os.stat(path).st_mtime_ns)

    def __len__(self) -> int:
        return len(self._sizes)

    def read(self, row: int) -> np.ndarray:
        """The pixels of an image, uint8 of shape (height, width, 3); empty if there was no image.

        Raises:
            ValueError: they are damaged, or there is no such row.
        """
        if not 0 <= row < len(self):
            raise ValueError(f"{self._path}: it has {len(self)} images, and none with number {row}")
        begin, end = self._offsets[row : row + 2].tolist()
        try:
            pixels = self._pixels[begin:end] if end > begin else np.empty(0, np.uint8)
        except SafetensorError as error:
            raise ValueError(f"{self._path}: {error}; delete the file, and it is made anew") from error
        if _checksum(pixels, self._sizes[row]) != self._checksums[row]:
            raise ValueError(f"{self._path}: image {row} is damaged; delete the file, and it is made anew")
        return pixels.reshape(*self._sizes[row], 3)

    def _check(self, shape: Sequence[int]) -> None:
        """Raises ValueError if the arrays do not match."""
        count = len(self._sizes) if self._sizes.ndim else -1
        arrays = {"offsets": self._offsets, "sizes": self._sizes, "checksums": self._checksums}
        expected = {"offsets": (count + 1,), "sizes": (count, 2), "checksums": (count,)}
        found = {name: array.shape for name, array in arrays.items()}
        if found != expected or any(array.dtype != TYPES[name] for name, array in arrays.items()):
            raise ValueError(f"its arrays have shapes {found}, or other types than {FORMAT!r}")
        lengths = 3 * self._sizes.astype(np.int64).prod(axis=1)
        if len(shape) != 1 or (self._sizes < 0).any() or self._offsets[0] != 0 or self._offsets[-1] != shape[0]:
            raise ValueError(f"its {count} images do not fill the {shape} pixels")
        if (np.diff(self._offsets) != lengths).any():
            raise ValueError("sizes and places of its images do not agree")


@lru_cache(maxsize=256)
def _open(path: str, changed: int) -> ImageShard:
    return ImageShard(path)


def _checksum(pixels: np.ndarray, size: np.ndarray) -> int:
    """The checksum of size (height, width, both int32) and pixels."""
    return zlib.crc32(np.ascontiguousarray(pixels).data, zlib.crc32(size.tobytes()))


def write_shard(path: str | Path, images: Sequence[np.ndarray], made_of: str) -> None:
    """Writes a shard of images, uint8 of shape (height, width, 3), by `atomic_write`."""
    sizes = np.array([image.shape[:2] for image in images], np.int32).reshape(-1, 2)
    tensors = {
        "pixels": np.concatenate([image.ravel() for image in images]),
        "offsets": np.concatenate([[0], np.cumsum([image.size for image in images])]).astype(np.int64),
        "sizes": sizes,
        "checksums": np.array([_checksum(*pair) for pair in zip(images, sizes, strict=True)], np.uint32),
    }
    atomic_write(path, save_safetensors(tensors, {"format": FORMAT, "made of": made_of}))

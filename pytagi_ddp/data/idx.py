"""IDX files: a magic number, the sizes as big-endian 32-bit integers, the bytes; gzipped or plain.

Source: LeCun, Cortes & Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The array of bytes in an IDX file, which is gzipped if its name ends in .gz.

    Args:
        path: the file. axes: of the array.

    Returns:
        uint8 array, read-only.

    Raises:
        ValueError: no IDX file of bytes with so many axes, or a truncated or corrupt one.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = _gunzip(data, path)
    header = 4 * (1 + axes)
    magic = bytes((0, 0, 8, axes))  # 8: unsigned bytes
    if len(data) < header or data[:4] != magic:
        raise ValueError(f"{path}: begins with {data[:4].hex()} ({len(data)} bytes), expected {magic.hex()}")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", axes, offset=4))
    expected = header + math.prod(shape)
    if len(data) != expected:
        raise ValueError(f"{path}: expected {expected} bytes for shape {shape}, found {len(data)}; fetch it again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _gunzip(data: bytes, path: Path) -> bytes:
    """Unpack as much as there is: the sizes in the header then tell what is missing."""
    try:
        return zlib.decompressobj(wbits=31).decompress(data)
    except zlib.error as error:
        raise ValueError(f"{path}: corrupt gzip file of {len(data)} bytes: {error}; fetch it again") from error

"""IDX files: a magic number, the sizes as big-endian 32-bit integers, the bytes; gzipped or plain.

Source: LeCun, Cortes & Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pytagi_ddp.files import file_size

# Limits of a gzipped file: the ratio of its unpacked size, or the unpacked size. Photographs and digits shrink to a
# tenth at best; a malicious file to a thousandth.
MAX_RATIO, ALWAYS = 32, 64 << 20


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The array of bytes in an IDX file, which is gzipped if its name ends in .gz; uint8, read-only.

    Raises:
        ValueError: not an IDX file of bytes with this number of axes, a truncated or corrupt one, or a gzipped one that
            unpacks to more than 32 times its size and 64 MiB.
        OSError: the file does not exist, or is not a regular file.
    """
    size = file_size(path)
    if path.suffix != ".gz":
        with open(path, "rb") as file:
            return _read(file, path, axes, size, f"found {size}")
    limit = max(ALWAYS, MAX_RATIO * size)
    try:
        with gzip.open(path) as unpacked:
            return _read(unpacked, path, axes, limit, f"of {size} packed ones at most {limit} are unpacked")
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: corrupt gzip file of {size} bytes: {error}; fetch it again") from error


def _read(file: BinaryIO | gzip.GzipFile, path: Path, axes: int, limit: int, beyond: str) -> np.ndarray:
    """The array in an open file, if it has no more than `limit` bytes; `beyond` is the reason, for the error."""
    header = 4 * (1 + axes)
    begin = file.read(header)
    magic = bytes((0, 0, 8, axes))  # 8: unsigned bytes
    if len(begin) < header or begin[:4] != magic:
        raise ValueError(f"{path}: begins with {begin[:4].hex()} ({len(begin)} bytes), expected {magic.hex()}")
    shape = tuple(int(count) for count in np.frombuffer(begin, ">u4", axes, offset=4))
    expected = header + math.prod(shape)
    if expected > limit:
        raise ValueError(f"{path}: expected {expected} bytes for shape {shape}, {beyond}; fetch it again")
    # Reads one byte more, to detect more data, and because gzip compares its checksum only at the end of a file.
    data = file.read(expected - header + 1)
    found = header + len(data)
    if found != expected:
        more = " or more" if found > expected else ""
        raise ValueError(f"{path}: expected {expected} bytes for shape {shape}, found {found}{more}; fetch it again")
    return np.frombuffer(data, np.uint8).reshape(shape)

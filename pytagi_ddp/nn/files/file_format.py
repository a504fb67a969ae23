"""Arrays and metadata in one file with a checksum.

A file has the safetensors format, and its header begins with `_BEGINNING` and a checksum of all other bytes, so that
damage is noticed before anything is parsed. In files of earlier formats the checksum covers the values alone.
"""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

FORMAT = "pytagi_ddp 3"
FORMAT_OF_VALUES = "pytagi_ddp 2"  # the checksum covers the values, not the header
FORMAT_OF_SIZES = "pytagi_ddp 1"  # likewise, and the architecture has sizes instead of settings
MAX_HEADER = 8 << 20  # bytes; 100 per tensor and 300 per layer are usual, and parsing takes 30 times as much memory
_BEGINNING = f'{{"__metadata__":{{"format":"{FORMAT}","crc32":"'.encode()
DIGITS = slice(8 + len(_BEGINNING), 8 + len(_BEGINNING) + 8)  # place of the checksum, in hexadecimal digits


class Contents(NamedTuple):
    """The parts of a file whose checksum is correct; `what` is its name in errors."""

    what: str
    metadata: dict[str, str]
    tensors: dict[str, np.ndarray]


def packed(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """A file. Equal contents give equal bytes.

    Raises:
        ValueError: a header of more than `MAX_HEADER` bytes.
    """
    return with_checksum(metadata, *split(save_safetensors(tensors)))


def with_checksum(metadata: dict[str, str], header: dict, values: bytes | memoryview) -> bytes:
    """`packed` for a given header, which has the position of each tensor, and the values after it."""
    # Not by the writer of safetensors, whose order of metadata differs from run to run.
    meta = {"format": FORMAT, "crc32": "0" * 8, **metadata}
    text = json.dumps({"__metadata__": meta, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"a header of {len(text)} bytes is not saved, because at most {MAX_HEADER} are read")
    start = len(text).to_bytes(8, "little") + text
    digits = checksum(start, values).encode()
    return b"".join((start[: DIGITS.start], digits, start[DIGITS.stop :], values))


def checksum(start: bytes | memoryview, values: bytes | memoryview = b"") -> str:
    """The checksum of a file, given in one part or two; the digits of the checksum itself are left out."""
    before = zlib.crc32(start[DIGITS.stop :], zlib.crc32(start[: DIGITS.start]))
    return f"{zlib.crc32(values, before):08x}"


def header_size(data: bytes) -> int:
    """Bytes of the header of a safetensors file that begins with `data`.

    Raises:
        ValueError: more than `MAX_HEADER`.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER:
        raise ValueError(f"its header has {size} bytes, more than {MAX_HEADER}")
    return size


def open_tensors(path: str | Path) -> Any:
    """Opens a safetensors file by `safetensors.safe_open`, to read its tensors one at a time.

    Raises:
        ValueError: its header is too long. SafetensorError: it is damaged. OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        header_size(file.read(8))
    return safe_open(path, "numpy")


def split(data: bytes) -> tuple[dict, memoryview]:
    """Header and values of a safetensors file."""
    start = 8 + header_size(data)
    return json.loads(data[8:start]), memoryview(data)[start:]


def read(data: bytes, what: str) -> Contents:
    """The parts of a file of `packed`; `what` names the source in errors.

    Raises:
        ValueError: truncated, changed, or no such file.
    """
    if whole := data[8 : DIGITS.start] == _BEGINNING:
        _compare_checksums(what, data[DIGITS], checksum(memoryview(data)))
    try:
        header, values = split(data)
        tensors = load_safetensors(data)
        meta = header.get("__metadata__") or {}
        if not all(isinstance(value, str) for value in meta.values()):
            raise ValueError("metadata that are not text")
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{what} is truncated or not a file of this library: {error}") from error
    if meta.get("format") in (FORMAT_OF_VALUES, FORMAT_OF_SIZES):
        _compare_checksums(what, str(meta.get("crc32")).encode(), f"{zlib.crc32(values):08x}")
    elif meta.get("format") != FORMAT:
        hint = "" if "format" in meta else "; parameters of PyTorch's modules go in by nn.load_torch_state_dict"
        raise ValueError(f"{what} has format {meta.get('format')!r:.50}, this version reads up to {FORMAT!r}{hint}")
    elif not whole:
        raise ValueError(f"{what} is corrupt: its header is not as this library writes it")
    for name, array in tensors.items():
        if array.dtype != np.float32:
            raise ValueError(f"{what}: {name} holds {array.dtype}, not float32")
    return Contents(what, meta, tensors)


def _compare_checksums(what: str, noted: bytes, found: str) -> None:
    if noted != found.encode():
        noted_text = noted.decode(errors="replace")
        raise ValueError(f"{what} is truncated or corrupt: it has checksum {found}, not {noted_text:.50}")

"""The list of the checkpoints in a folder, with their checksums."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pytagi_ddp.files import atomic_write, file_size, lock, read_file

MANIFEST = "manifest.json"
FORMAT = "pytagi_ddp checkpoints 1"
FOLDER = "step-{:010d}-{}"  # step, and the beginning of the checksum, so that names of different contents differ
NAME = f"{FOLDER}.safetensors"
PATTERN = re.compile(r"step-[0-9]{10,19}-[0-9a-f]{8}(\.safetensors)?")  # names of these forms, not paths
MAX_BYTES = 16 << 20  # of a manifest, 60,000 checkpoints; parsing takes 20 times as much memory
LOCK_SECONDS = 1.0  # limit on waiting for another process


class DamagedCheckpointError(ValueError):
    """A checkpoint is missing, truncated or changed, or has values that are not finite; the message names it."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint: name, size and checksum of its file, and its position in the training.

    For a sharded checkpoint, `file` is the folder, and size and checksum are those of its index, which has those of the
    files. Names are checked, because files of an untrusted manifest could be read or deleted.
    """

    file: str
    bytes: int
    sha256: str
    epoch: int
    batch: int
    step: int
    world_size: int

    @property
    def sharded(self) -> bool:
        return not self.file.endswith(".safetensors")

    def __post_init__(self) -> None:
        if not PATTERN.fullmatch(self.file):
            raise ValueError(f"{self.file!r:.100} is not a name of a checkpoint, as {NAME.format(12, '0123abcd')!r} is")
        for name, value in asdict(self).items():
            if name not in ("file", "sha256") and type(value) is not int:
                raise TypeError(f"{name} of {self.file} must be an integer, got {value!r:.50}")


def read_manifest(folder: Path) -> list[Entry]:
    """The checkpoints of a folder in the order in which they were written; none if there is no manifest."""
    path = folder / MANIFEST
    try:
        content = json.loads(read_file(path, MAX_BYTES))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r:.50}, this version reads {FORMAT!r}")
        return [Entry(**entry) for entry in content["checkpoints"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{path} is damaged: {error!r}. Once it is removed, the checkpoints beside it can be loaded by name, and "
            "the next one begins a new list"
        ) from error


def is_listed(folder: Path, name: str) -> bool:
    """Whether the manifest of the folder can be read, and has a checkpoint of this name."""
    with suppress(DamagedCheckpointError):
        return any(entry.file == name for entry in read_manifest(folder))
    return False


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Inside the block, one process at a time changes a manifest. Without locks, or after a second, it continues."""
    descriptor, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + LOCK_SECONDS
    try:
        while not lock(descriptor) and time.monotonic() <= deadline:
            time.sleep(0.005)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a forked child has the folder open
        os.close(descriptor)


def write_manifest(folder: Path, entries: Sequence[Entry]) -> None:
    """Replaces the manifest atomically, unless it would be too long to be read again."""
    content = {"format": FORMAT, "checkpoints": [asdict(entry) for entry in entries]}
    text = (json.dumps(content, indent=1) + "\n").encode()
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(entries)} checkpoints are too many for one {MANIFEST}: give keep_last, or a new folder")
    atomic_write(folder / MANIFEST, text)


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_checked(path: Path, entry: Entry) -> bytes:
    """The content of a checkpoint; DamagedCheckpointError if it is missing, or differs from `entry`."""
    check_size(path, entry.bytes, MANIFEST)
    data = read_file(path)
    compare_checksums(path, checksum(data), entry.sha256)
    return data


def check_size(path: Path, expected: int, lister: str) -> None:
    """Raises DamagedCheckpointError unless the file has `expected` bytes, as listed in `lister`."""
    try:
        size = file_size(path)
    except IsADirectoryError:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: it is a folder") from None
    except FileNotFoundError:
        raise DamagedCheckpointError(f"checkpoint {path} is missing, though {lister} lists it") from None
    if size != expected:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: it has {size} of {expected} bytes")


def compare_checksums(path: Path, found: str, expected: str) -> None:
    """Raises DamagedCheckpointError if they differ."""
    if found != expected:
        raise DamagedCheckpointError(
            f"checkpoint {path} is damaged: its sha256 is {found}, and was {expected} when it was written"
        )

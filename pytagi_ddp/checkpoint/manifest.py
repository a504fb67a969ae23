"""The list of the checkpoints in a folder, with their checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytagi_ddp.files import atomic_write

MANIFEST = "manifest.json"
FORMAT = "pytagi_ddp checkpoints 1"


class DamagedCheckpointError(ValueError):
    """A checkpoint is missing, cut short or changed; the message names it."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint: name and size of its file, checksum of all its bytes, and what it holds."""

    file: str
    bytes: int
    sha256: str
    epoch: int
    batch: int
    step: int
    world_size: int


def read_manifest(folder: Path) -> list[Entry]:
    """The checkpoints of a folder in the order in which they were written; none if there is no manifest.

    Raises:
        DamagedCheckpointError: a manifest that cannot be understood.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, this version reads {FORMAT!r}")
        return [Entry(**entry) for entry in content["checkpoints"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpointError(
            f"{path} is damaged: {error!r}. Once it is removed, the checkpoints beside it can be loaded by name, and "
            "the next one begins a new list"
        ) from error


def write_manifest(folder: Path, entries: Sequence[Entry]) -> None:
    """Replaces the manifest in one piece."""
    content = {"format": FORMAT, "checkpoints": [asdict(entry) for entry in entries]}
    atomic_write(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_checked(path: Path, entry: Entry) -> bytes:
    """The content of a checkpoint.

    Raises:
        DamagedCheckpointError: it is not what `entry` says, or not there.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpointError(f"checkpoint {path} is missing, though {MANIFEST} lists it") from None
    if len(data) != entry.bytes:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: it has {len(data)} of {entry.bytes} bytes")
    if (found := checksum(data)) != entry.sha256:
        raise DamagedCheckpointError(
            f"checkpoint {path} is damaged: its sha256 is {found}, and was {entry.sha256} when it was written"
        )
    return data

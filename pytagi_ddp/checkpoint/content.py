"""What a checkpoint says of the run that wrote it, and how that compares with the run that reads it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytagi_ddp
from pytagi_ddp.checkpoint.position import TrainingPosition


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of the run that wrote it.

    Attributes:
        path: the file.
        position: where the network was.
        world_size: number of ranks.
        settings: as they were given to `CheckpointManager.save`.
        version: of this library.
    """

    path: Path
    position: TrainingPosition
    world_size: int
    settings: dict[str, Any]
    version: str


def metadata(position: TrainingPosition, world_size: int, settings: dict[str, Any] | None) -> dict[str, str]:
    """The entries of the file's header that `describe` reads.

    Raises:
        TypeError: settings that JSON does not know.
    """
    values = {
        "position": asdict(position),
        "world_size": world_size,
        "settings": settings or {},
        "version": pytagi_ddp.__version__,
    }
    return {key: json.dumps(value) for key, value in values.items()}


def describe(path: Path, meta: Mapping[str, str]) -> Checkpoint:
    """What the metadata `meta` of the file `path` say.

    Raises:
        ValueError: a network that was saved without a position.
    """
    keys = ("position", "world_size", "settings", "version")
    if not meta.keys() >= set(keys):
        raise ValueError(f"{path} is no checkpoint: it says nothing of a place in a training run")
    position, *rest = (json.loads(meta[key]) for key in keys)
    return Checkpoint(path, TrainingPosition(**position), *rest)


def compare(checkpoint: Checkpoint, world_size: int, settings: dict[str, Any] | None, allow_changes: bool) -> None:
    """Refuses other settings (or warns of them, with `allow_changes`), and warns of another number of ranks.

    Raises:
        ValueError: settings that differ; names them.
    """
    stored = checkpoint.settings
    now = stored if settings is None else json.loads(json.dumps(settings))
    changes = []
    for key in {**stored, **now}:
        was, is_now = (repr(values[key]) if key in values else "not given" for values in (stored, now))
        if was != is_now:
            changes.append(f"{key} was {was} and is {is_now}")
    if changes and not allow_changes:
        raise ValueError(
            f"{checkpoint.path} was written with other settings: {', '.join(changes)} (with allow_changes, training "
            "goes on all the same)"
        )
    if checkpoint.world_size != world_size:
        changes.insert(0, f"the number of ranks was {checkpoint.world_size} and is {world_size}")
    if changes:
        warnings.warn(
            f"training on from {checkpoint.path} takes another course than the run that wrote it would have taken: "
            + ", ".join(changes),
            stacklevel=4,
        )

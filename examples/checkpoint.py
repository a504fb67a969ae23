"""Checkpoints of a training run: parameters, and where in the training they belong."""

from __future__ import annotations

import json
from pathlib import Path

from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn import Sequential
from pytagi_ddp.nn.persistence import from_bytes, to_bytes

FILE_NAME = "checkpoint.safetensors"


def save_checkpoint(folder: str | Path, model: Sequential, epochs: int, run: dict, arguments: dict) -> Path:
    """Writes `FILE_NAME` in one piece: a kill on the way leaves the previous checkpoint as it was.

    Args:
        folder: where; it is made if it is missing.
        model: the network; its parameters and running statistics are stored.
        epochs: finished epochs.
        run: what must be the same to go on exactly: ranks, batch size, seed, data.
        arguments: all options, for the reader.
    """
    path = Path(folder, FILE_NAME)
    position = {"epochs": str(epochs), "run": json.dumps(run), "arguments": json.dumps(arguments)}
    atomic_write(path, to_bytes(model, position))
    return path


def load_checkpoint(path: str | Path, model: Sequential, run: dict, allow_changes: bool = False) -> int:
    """Takes the parameters of a checkpoint into `model`.

    Args:
        path: a file of `save_checkpoint`, or its folder.
        model: a network of the same architecture.
        run: as it is now; compared with the stored one.
        allow_changes: skip that comparison.

    Returns:
        Finished epochs.

    Raises:
        OSError: no such file.
        ValueError: a truncated or foreign file, another architecture, or another run; names what differs.
    """
    path = Path(path, FILE_NAME) if Path(path).is_dir() else Path(path)
    meta = from_bytes(model, path.read_bytes(), str(path))
    if not {"epochs", "run"} <= meta.keys():
        raise ValueError(f"{path} holds a network, but no place in a training run: it is no checkpoint of this job")
    stored = json.loads(meta["run"])
    changes = [f"{key} was {stored.get(key)!r} and is {now!r}" for key, now in run.items() if stored.get(key) != now]
    if changes and not allow_changes:
        raise ValueError(f"{path} belongs to another run: {', '.join(changes)} (--allow-changes goes on all the same)")
    return int(meta["epochs"])

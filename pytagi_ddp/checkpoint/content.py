"""The metadata of checkpoints, and their comparison with the present run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from pytagi_ddp import _version
from pytagi_ddp.checkpoint.manifest import DamagedCheckpointError
from pytagi_ddp.checkpoint.position import TrainingPosition
from pytagi_ddp.nn.convert.posterior_average import PosteriorAverage, check_average
from pytagi_ddp.nn.files.file_format import Contents
from pytagi_ddp.nn.files.persistence import BESIDE
from pytagi_ddp.nn.run.evidence import EvidenceSchedule, checked_state
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.warn import warn

KEYS = ("position", "world_size", "settings", "version")


@dataclass(frozen=True)
class Checkpoint:
    """The metadata of a checkpoint.

    Attributes:
        path: the file.
        position: the position in the training.
        world_size: number of ranks.
        settings: those of `CheckpointManager.save`.
        version: version of this library.
        schedule: `state_dict` of the network's `EvidenceSchedule`; None if it had none.
        extra: values of the program, as they were given to `CheckpointManager.save`.
    """

    path: Path
    position: TrainingPosition
    world_size: int
    settings: dict[str, Any]
    version: str
    schedule: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def metadata(
    position: TrainingPosition,
    world_size: int,
    settings: dict[str, Any] | None,
    schedule: EvidenceSchedule | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The entries of the file's header that `describe` reads; TypeError for values that JSON cannot hold."""
    values: dict[str, Any] = {
        "position": asdict(position),
        "world_size": world_size,
        "settings": settings or {},
        "version": _version.version(),
    }
    if schedule is not None:
        values["schedule"] = schedule.state_dict()
    if extra:
        values["extra"] = extra
    return {key: json.dumps(value, default=_plain) for key, value in values.items()}


def average_entries(average: PosteriorAverage | None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays of the average, entries of the header) for `read_average`; both empty without an average.

    ValueError if they could not be loaded again, for example with NaN.
    """
    if average is None or not average.n_averaged:
        return {}, {}
    arrays = average.state_dict()
    try:
        check_average(arrays, average.net.num_parameters)
    except ValueError as error:
        raise ValueError(f"no checkpoint is saved, because it could not be loaded again: {error}") from None
    return arrays, {"n_averaged": str(arrays.pop("n_averaged"))}


def read_average(contents: Contents, num_parameters: int) -> dict[str, Any]:
    """The `state_dict` of the average in a checkpoint, or {}; DamagedCheckpointError if it does not fit the network."""
    n = contents.metadata.get("n_averaged", "0")
    state = {name: contents.tensors.get(f"{BESIDE}/{name}", np.zeros(0, np.float32)) for name in ("mean", "var")}
    try:
        if not re.fullmatch("0|[1-9][0-9]{0,14}", n):
            raise ValueError(f"{n!r:.50} is not a number of posteriors")
        check_average({**state, "n_averaged": int(n)}, num_parameters)
    except ValueError as error:
        raise DamagedCheckpointError(
            f"checkpoint {contents.what} is damaged: its average does not fit its network: {error}"
        ) from None
    return {**state, "n_averaged": int(n)}


def take_schedule(checkpoint: Checkpoint, network: Sequential) -> None:
    """Continues the schedule of `network` at the position of that in the checkpoint, with its own settings.

    If the number of steps of an epoch has changed, it continues at the same share of the epochs. A network without a
    schedule gets that of the checkpoint. A checkpoint without a schedule changes nothing.
    """
    stored = checkpoint.schedule
    if stored is not None:
        own = network.schedule
        schedule = EvidenceSchedule(network) if own is None else own
        if own is not None:
            steps, was, now = stored["steps"], stored["steps_per_epoch"], own.steps_per_epoch
            stored = own.state_dict() | {"steps": round(steps * now / was) if was and now else steps}
        schedule.load_state_dict(stored)


def _plain(value: Any) -> Any:
    """NumPy numbers as Python numbers, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    kind = type(value).__name__
    raise TypeError(f"settings may hold numbers, text, lists and dictionaries, as JSON: got {value!r:.80}, a {kind}")


def describe(path: Path, meta: Mapping[str, str]) -> Checkpoint:
    """The `Checkpoint` in the metadata `meta` of a file; ValueError without a position, else DamagedCheckpointError."""
    if not meta.keys() >= set(KEYS):
        raise ValueError(f"{path} is not a checkpoint: it has no position in a training run")
    try:
        position, world_size, settings, version = (json.loads(meta[key]) for key in KEYS)
        extra = json.loads(meta.get("extra", "{}"))
        if (type(world_size), type(settings), type(version), type(extra)) != (int, dict, str, dict):
            raise TypeError("ranks, settings, version and extra must be an integer, an object, a text and an object")
        if position.keys() | {"samples"} != {field.name for field in fields(TrainingPosition)}:  # not in version 0.2
            raise ValueError(f"a position has {', '.join(field.name for field in fields(TrainingPosition))}")
        schedule = checked_state(json.loads(meta["schedule"])) if "schedule" in meta else None
        return Checkpoint(path, TrainingPosition(**position), world_size, settings, version, schedule, extra)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} is damaged: its metadata are invalid: {error}") from error


def compare(
    checkpoint: Checkpoint,
    world_size: int,
    settings: dict[str, Any] | None,
    allow_changes: bool,
    schedule: EvidenceSchedule | None,
) -> None:
    """Raises ValueError for other settings. Warns of them with `allow_changes`, and of other ranks and schedules."""
    stored = checkpoint.settings
    now = stored if settings is None else json.loads(json.dumps(settings, default=_plain))
    changes = []
    for key in {**stored, **now}:
        was, is_now = (repr(values[key]) if key in values else "not given" for values in (stored, now))
        if was != is_now:
            changes.append(f"{key} was {was} and is {is_now}")
    if changes and not allow_changes:
        raise ValueError(
            f"{checkpoint.path} was written with other settings: {', '.join(changes)} (with allow_changes=True "
            "it is loaded all the same)"
        )
    if checkpoint.world_size != world_size:
        changes.insert(
            0,
            f"the number of ranks was {checkpoint.world_size} and is {world_size} (with the same global batch, "
            "average=False, no merges and no BatchNorm2d, only rounding differs)",
        )
    if schedule is not None and checkpoint.schedule is not None:
        present = schedule.state_dict()
        if (epochs := checkpoint.schedule["epochs"]) and present["epochs"]:  # more epochs only continue the run
            present["epochs"] = min(epochs, present["epochs"])
        differ = (name for name, was in checkpoint.schedule.items() if name != "steps" and present[name] != was)
        changes += [f"{name} of its schedule was {checkpoint.schedule[name]} and is {present[name]}" for name in differ]
    if changes:
        warn(
            f"training on from {checkpoint.path} may take another course than the run that wrote it would have taken: "
            + ", ".join(changes),
        )

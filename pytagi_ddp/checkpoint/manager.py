"""Checkpoints in a folder: written by rank 0, whole or not at all, and found again after a crash."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path
from typing import Any

from pytagi_ddp.checkpoint.content import Checkpoint, compare, describe, metadata
from pytagi_ddp.checkpoint.manifest import (
    MANIFEST,
    NAME,
    DamagedCheckpointError,
    Entry,
    checksum,
    read_checked,
    read_manifest,
    write_manifest,
)
from pytagi_ddp.checkpoint.position import TrainingPosition
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.files import atomic_write, read_file, remove_temporary_files
from pytagi_ddp.nn.persistence import Contents, read, take, to_bytes
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.validate import check_finite


class CheckpointManager:
    """Writes and reads the checkpoints of one training run in one folder.

    A checkpoint is a safetensors file with all parameters and running statistics, the position in the training, the
    number of ranks, the settings and the version of the library. `manifest.json` beside it lists the checkpoints with
    their SHA-256. Both are written to a temporary file, synced and renamed, so that a kill at any moment leaves the
    checkpoint before. One job at a time may write to a folder.

    Args:
        folder: where; the first `save` makes it.
        keep_last: checkpoints to keep (older ones are deleted once a new one is safe); None keeps all.

    Raises:
        ValueError: keep_last below 1.
    """

    def __init__(self, folder: str | Path, keep_last: int | None = 3):
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, or None for all, got {keep_last}")
        self.folder = Path(folder)
        self.keep_last = keep_last

    def save(
        self, model: Sequential | DDPSequential, position: TrainingPosition, settings: dict[str, Any] | None = None
    ) -> Path | None:
        """Writes a checkpoint on rank 0. Not collective: the other ranks return at once.

        To be called between `step` and the next `forward`: deltas that no step has applied are not stored.

        Args:
            model: the network.
            position: where it is in the training, see `TrainingPosition.of`.
            settings: what must be the same to go on exactly (JSON values): batch size, data, sigma_v, ...

        Returns:
            The file; None on other ranks.

        Raises:
            RuntimeError: ranks that have trained apart since their last merge: none has the parameters of all.
            ValueError: parameters or statistics that are NaN or infinite, or settings too long for a header; names
                them. The checkpoints before are as they were.
            OSError: no space, no permission, ...; names the file. The checkpoints before are as they were.
            DamagedCheckpointError: a manifest that cannot be understood.
        """
        if apart := getattr(model, "steps_since_merge", 0):
            raise RuntimeError(
                f"the ranks have taken {apart} steps apart, and rank 0 has the parameters of rank 0 only: call "
                "merge() on every rank before a checkpoint"
            )
        network, world_size = (model.model, model.world_size) if isinstance(model, DDPSequential) else (model, 1)
        if isinstance(model, DDPSequential) and model.rank > 0:
            return None
        data = to_bytes(network, metadata(position, world_size, settings))
        digest = checksum(data)
        path = self.folder / NAME.format(position.step, digest[:8])
        entry = Entry(path.name, len(data), digest, position.epoch, position.batch, position.step, world_size)
        self._write(path, data, entry)
        return path

    def _write(self, path: Path, data: bytes, entry: Entry) -> None:
        old = [other for other in read_manifest(self.folder) if other.file != entry.file]
        known = path.exists()
        for name in ("step-*", MANIFEST):  # of runs that were killed while they wrote
            remove_temporary_files(self.folder, name)
        atomic_write(path, data)
        kept = [*old, entry][-(self.keep_last or 0) :]
        try:
            write_manifest(self.folder, kept)
        except BaseException:
            if not known:
                path.unlink()
            raise
        for other in old:
            if other not in kept:
                (self.folder / other.file).unlink(missing_ok=True)

    def latest(self, fall_back: bool = False) -> Path | None:
        """The newest checkpoint, after it was read and its checksum verified; None if there is none. Not collective.

        Args:
            fall_back: if it is damaged, or its values are not finite, warn and take the newest one that is whole.

        Raises:
            DamagedCheckpointError: it is damaged (with `fall_back`: all are); names it, and the one before.
        """
        found = self._read_latest(fall_back)
        return found and found[0]

    def _read_latest(self, fall_back: bool) -> tuple[Path, Contents] | None:
        entries = read_manifest(self.folder)[::-1]
        for number, entry in enumerate(entries, 1):
            path = self.folder / entry.file
            try:
                return path, _contents(path, read_checked(path, entry))
            except DamagedCheckpointError as error:
                if number == len(entries):
                    raise DamagedCheckpointError(f"{error}; there is none before it") from None
                before = self.folder / entries[number].file
                if not fall_back:
                    raise DamagedCheckpointError(f"{error}; the one before is {before} (fall_back takes it)") from None
                warnings.warn(f"{error}; going back to {before}", stacklevel=3)
        return None

    def load(
        self,
        model: Sequential | DDPSequential,
        path: str | Path | None = None,
        settings: dict[str, Any] | None = None,
        allow_changes: bool = False,
        fall_back: bool = False,
    ) -> Checkpoint | None:
        """Takes a checkpoint into `model`.

        With a `DDPSequential` it is collective: rank 0 reads and broadcasts. So the folder need not be visible from
        other nodes, the file is read once, ranks cannot differ, and an error is raised on all of them.

        Another number of ranks is no error: where the global batch (ranks x batch size) is the same, samples come in
        the same order. But sums over ranks are rounded in another order, BatchNorm2d sees other batches, and the
        average over ranks is another step: the trajectory differs, which a warning says.

        Args:
            model: a network of the same architecture.
            path: a checkpoint, or a folder of them; None: the folder of this manager.
            settings: as they are now; None compares nothing.
            allow_changes: warn of settings that differ, instead of refusing.
            fall_back: see `latest`.

        Returns:
            What the checkpoint says; None if no path was given and the folder has no checkpoint.

        Raises:
            OSError: no such file, no checkpoint in the folder `path`, or unreadable.
            DamagedCheckpointError: checksum and content do not agree, or values that are not finite.
            ValueError: no checkpoint, another architecture, or other settings; names what differs.
        """
        if not isinstance(model, DDPSequential):
            return self._load(model, 1, path, settings, allow_changes, fall_back)
        checkpoint, problem = None, None
        if model.rank == 0:
            try:
                checkpoint = self._load(model.model, model.world_size, path, settings, allow_changes, fall_back)
            except Exception as error:  # the other ranks wait for what became of it
                problem = error
        checkpoint, problem = model.communicator.broadcast_object((checkpoint, problem))
        if problem is not None:
            raise problem
        if checkpoint is not None:
            model.synchronize()
        return checkpoint

    def _load(
        self,
        model: Sequential,
        world_size: int,
        path: str | Path | None,
        settings: dict[str, Any] | None,
        allow_changes: bool,
        fall_back: bool,
    ) -> Checkpoint | None:
        if path is None or Path(path).is_dir():
            found = (self if path is None else CheckpointManager(path))._read_latest(fall_back)
            if found is None and path is not None:
                raise FileNotFoundError(errno.ENOENT, "no checkpoint in this folder", str(path))
            if found is None:
                return None
            path, contents = found
        else:
            path = Path(path)
            listed = {entry.file: entry for entry in read_manifest(path.parent)} if path.exists() else {}
            data = read_checked(path, listed[path.name]) if path.name in listed else read_file(path)
            contents = _contents(path, data)
        checkpoint = describe(path, contents.metadata)
        compare(checkpoint, world_size, settings, allow_changes)
        take(model, contents)
        return checkpoint


def _contents(path: Path, data: bytes) -> Contents:
    """The parts of a checkpoint.

    Raises:
        DamagedCheckpointError: no such file, or values that no network takes: those of a run that had gone wrong.
    """
    try:
        contents = read(data, str(path))
        for name, values in contents.tensors.items():
            check_finite(values, f"checkpoint {path}: {name}")
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    return contents

"""Checkpoints in a folder: written whole or not at all, and found again after a crash."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytagi_ddp.checkpoint import sharded
from pytagi_ddp.checkpoint.content import Checkpoint, average_entries, compare, describe, metadata, read_average
from pytagi_ddp.checkpoint.manifest import (
    FOLDER,
    MANIFEST,
    MAX_BYTES,
    NAME,
    DamagedCheckpointError,
    Entry,
    checksum,
    read_checked,
    read_manifest,
    write_manifest,
)
from pytagi_ddp.checkpoint.position import TrainingPosition
from pytagi_ddp.checkpoint.shards import INDEX, TensorReader, parse_index, read_index, verify
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.distributed.engine.together import errors_of_all_ranks, on_rank_0
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.files import atomic_write, read_file, remove_temporary_files
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.file_format import FORMAT as NETWORK_FORMAT
from pytagi_ddp.nn.file_format import Contents, read
from pytagi_ddp.nn.persistence import take, to_bytes
from pytagi_ddp.nn.posterior_average import PosteriorAverage
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.validate import check_finite
from pytagi_ddp.warn import warn

Result = TypeVar("Result")


class CheckpointManager:
    """Writes and reads the checkpoints of one training run in one folder.

    A checkpoint is a safetensors file with all parameters and running statistics, the position in the training, the
    number of ranks, the settings and the version of the library, and a `PosteriorAverage` if it is given one.
    `manifest.json` beside it lists the checkpoints with their SHA-256. Both are written to a temporary file, synced and
    renamed: if the process is killed at any moment, the previous checkpoint is intact. Only one job at a time may write
    to a folder. With one rank, a checkpoint includes what recurrent layers carry from call to call. With several it
    does not, as each rank has its own; `get_lstm_states` gives it.

    A checkpoint of an `FSDPSequential` or `PipelineSequential` is a folder with one such file for each rank, and an
    index with their checksums. Every rank writes and reads its own parts. So all nodes have to share the folder, and
    `save` and `load` are collective. Any network of the same architecture can load any checkpoint: with another number
    of ranks, in one process, or sharded in another way. What recurrent layers carry is not included.

    Args:
        folder: the folder of the checkpoints; the first `save` makes it.
        keep_last: number of checkpoints to keep (older ones are deleted once a new one is safe); None keeps all.

    Raises:
        ValueError: keep_last below 1. TypeError: it is no integer.
    """

    def __init__(self, folder: str | Path, keep_last: int | None = 3):
        if keep_last is not None and operator.index(keep_last) < 1:
            raise ValueError(f"keep_last must be at least 1, or None for all, got {keep_last}")
        self.folder = Path(folder)
        self.keep_last = keep_last

    def save(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        position: TrainingPosition,
        settings: dict[str, Any] | None = None,
        gather: bool = False,
        average: PosteriorAverage | None = None,
    ) -> Path | None:
        """Writes a checkpoint: on rank 0, while the other ranks return at once; of a sharded network on all ranks.

        Call it between `step` and the next `forward`, as deltas that no step has applied are not stored. With one rank,
        what layers carry from call to call (the memory of an LSTM) is stored; with several it is not, as each has its
        own. The record of an `SLSTM` is not stored: save after `smoother`.

        Args:
            model: the network.
            position: where it is in the training, see `TrainingPosition.of`.
            settings: JSON values that must be equal for an exact continuation: batch size, data, sigma_v, ...
            gather: for a sharded network on nodes that share no folder: rank 0 gets all tensors and writes one ordinary
                file. It needs the memory for that.
            average: the average of this network's posteriors, to be saved with it.

        Returns:
            The file, None on other ranks; of a sharded network the folder (or file), on every rank.

        Raises:
            RuntimeError: the ranks have trained apart since their last merge, so that none has the parameters of all.
                Or `model` is the part of a network that one rank holds. Or the network holds its average now (inside
                `average_parameters`).
            ValueError: parameters or statistics that are NaN or infinite, or settings too long for a header; names
                them. Earlier checkpoints are as they were. Or an average of another network.
            OSError: no space, no permission, ...; names the file. Earlier checkpoints are as they were.
            DamagedCheckpointError: a damaged manifest. TypeError: another kind of network.
        """
        _check_kind(model)
        _check_average(model, average)
        if isinstance(model, ShardedNetwork):
            return (self._save_gathered if gather else self._save_folder)(model, position, settings)
        owner = model.trainer if isinstance(model, Sequential) else model
        if isinstance(owner, ShardedNetwork):
            raise RuntimeError(
                f"this is the part of a network that one rank holds: save the {type(owner).__name__}, on every rank"
            )
        if apart := getattr(owner, "steps_since_merge", 0):
            raise RuntimeError(
                f"the ranks have taken {apart} steps apart, and rank 0 has the parameters of rank 0 only: call "
                "merge() on every rank before a checkpoint"
            )
        network, world_size = model.model if isinstance(model, DDPSequential) else model, _world_size(owner)
        if isinstance(owner, DDPSequential) and owner.rank > 0:
            return None
        beside, entries = average_entries(average)
        extra = metadata(position, world_size, settings) | entries
        data = to_bytes(network, extra, carried=world_size == 1, beside=beside)
        return self._write(data, position, world_size)

    def _write(self, data: bytes, position: TrainingPosition, world_size: int) -> Path:
        path = self.folder / NAME.format(position.step, checksum(data)[:8])
        self._prepare()
        self._add(path, partial(atomic_write, path, data), _entry(path, data, position, world_size))
        return path

    @held_back()
    def _save_gathered(
        self, model: ShardedNetwork, position: TrainingPosition, settings: dict[str, Any] | None
    ) -> Path:
        ranks = model.communicator.world_size
        with errors_of_all_ranks(model.communicator):
            extra = metadata(position, ranks, settings)
        data = model.to_bytes(extra)
        return on_rank_0(model.communicator, lambda: self._write(data, position, ranks))

    @held_back()
    def _save_folder(self, model: ShardedNetwork, position: TrainingPosition, settings: dict[str, Any] | None) -> Path:
        ranks = model.communicator.world_size

        def publish() -> Path:
            path = self.folder / FOLDER.format(position.step, checksum(index)[:8])
            self._add(path, partial(_rename, hidden, path), _entry(path, index, position, ranks))
            return path

        with errors_of_all_ranks(model.communicator):
            extra = metadata(position, ranks, settings)
        on_rank_0(model.communicator, self._prepare)
        name = FOLDER.format(position.step, "new")
        hidden, index = sharded.write_folder(model, self.folder, name, extra)
        return on_rank_0(model.communicator, publish)

    def _prepare(self) -> None:
        """Raises if the manifest is damaged, and deletes temporary files of runs that were killed while writing."""
        read_manifest(self.folder)
        for path in self.folder.glob(f".step-*.{'[0-9a-f]' * 32}.tmp"):
            if path.is_dir():
                sharded.remove_folder(path)
        for name in ("step-*", MANIFEST):
            remove_temporary_files(self.folder, name)

    def _add(self, path: Path, write: Callable[[], None], entry: Entry) -> None:
        """Writes a checkpoint by `write`, lists it in the manifest, and deletes checkpoints that are too old."""
        old = [other for other in read_manifest(self.folder) if other.file != entry.file]
        known = path.exists()
        write()
        kept = [*old, entry][-(self.keep_last or 0) :]
        try:
            write_manifest(self.folder, kept)
        except BaseException:
            if not known:
                _delete(self.folder, entry)
            raise
        for other in old:
            if other not in kept:
                _delete(self.folder, other)

    def latest(self, fall_back: bool = False) -> Path | None:
        """The newest checkpoint, after reading it and verifying its checksum; None if there is none. Not collective.

        Args:
            fall_back: if the newest one is damaged, or has values that are not finite, warn and take the newest intact
                one.

        Raises:
            DamagedCheckpointError: it is damaged (with `fall_back`: all are); names it, and the one before.
        """
        found = self._read_latest(fall_back, _verify)
        return found and found[0]

    def _read_latest(self, fall_back: bool, read: Callable[[Path, Entry], Result]) -> tuple[Path, Result] | None:
        entries = read_manifest(self.folder)[::-1]
        for number, entry in enumerate(entries, 1):
            path = self.folder / entry.file
            try:
                return path, read(path, entry)
            except (DamagedCheckpointError, FileNotFoundError) as error:
                if entry not in read_manifest(self.folder):  # a job that trains on has deleted it, and written others
                    return self._read_latest(fall_back, read)
                if number == len(entries):
                    raise DamagedCheckpointError(f"{error}; there is none before it") from None
                before = self.folder / entries[number].file
                if not fall_back:
                    raise DamagedCheckpointError(f"{error}; the one before is {before} (fall_back takes it)") from None
                warn(f"{error}; going back to {before}")
        return None

    def load(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        path: str | Path | None = None,
        settings: dict[str, Any] | None = None,
        allow_changes: bool = False,
        fall_back: bool = False,
        average: PosteriorAverage | None = None,
    ) -> Checkpoint | None:
        """Loads a checkpoint into `model`, and drops deltas that wait for a step there.

        With a `DDPSequential` it is collective: rank 0 reads and broadcasts. So other nodes need not see the folder,
        the file is read once, ranks cannot differ, and an error is raised on all ranks. With a sharded network it is
        collective too, and every rank reads its own parts.

        The number of ranks may differ. If the global batch (ranks x batch size) is the same, samples come in the same
        order. But sums over ranks are rounded in another order, BatchNorm2d sees other batches, and the average over
        ranks gives another step. So training continues differently, and a warning says so.

        Args:
            model: a network of the same architecture.
            path: a checkpoint, or a folder of them; None: the folder of this manager.
            settings: the present settings; None: they are not compared.
            allow_changes: warn about settings that differ, instead of raising an error.
            fall_back: see `latest`.
            average: the average of this network's posteriors, which is loaded too; it begins anew if the checkpoint has
                none. None: an average in the checkpoint is ignored.

        Returns:
            A description of the checkpoint; None if no path was given and the folder has no checkpoint.

        Raises:
            OSError: no such file, no checkpoint in the folder `path`, or an unreadable file.
            DamagedCheckpointError: the content does not fit the checksum, or has values that are not finite.
            ValueError: not a checkpoint, another architecture, or other settings; names what differs. Or an average of
                another network.
        """
        _check_kind(model)
        _check_average(model, average)
        if isinstance(model, ShardedNetwork):
            return self._load_parts(model, path, settings, allow_changes, fall_back)
        if not isinstance(model, DDPSequential):
            return self._load(model, _world_size(model.trainer), path, settings, allow_changes, fall_back, average)
        with held_back():
            checkpoint = on_rank_0(
                model.communicator,
                lambda: self._load(model.model, model.world_size, path, settings, allow_changes, fall_back, average),
            )
            if checkpoint is not None:
                model.model.drop_deltas()
                model.synchronize()
                if average is not None:
                    n = model.communicator.broadcast_object(average.n_averaged)
                    model.communicator.broadcast(average.theta)
                    average.n_averaged = n
        return checkpoint

    def _load(
        self,
        model: Sequential,
        world_size: int,
        path: str | Path | None,
        settings: dict[str, Any] | None,
        allow_changes: bool,
        fall_back: bool,
        average: PosteriorAverage | None,
    ) -> Checkpoint | None:
        manager, path = self._at(path)
        if path is None:
            found = manager._read_latest(fall_back, _read)
            if found is None and manager is not self:
                raise FileNotFoundError(errno.ENOENT, "no checkpoint in this folder", str(manager.folder))
            if found is None:
                return None
            path, contents = found
        else:
            contents = _read(path, manager._listed(path))
        checkpoint = describe(path, contents.metadata)
        compare(checkpoint, world_size, settings, allow_changes)
        if world_size > 1:  # the carried memory is that of a run on one rank, and not of each of these ranks
            own = {name: array for name, array in contents.tensors.items() if ".carried/" not in name}
            contents = contents._replace(tensors=own)
        averaged = read_average(contents, model.num_parameters) if average is not None else {}
        take(model, contents)
        if average is not None:
            average.load_state_dict(averaged)
        return checkpoint

    def _at(self, path: str | Path | None) -> tuple[CheckpointManager, Path | None]:
        """(manager of the folder that `path` is or is in, the checkpoint that `path` is, or None for a folder)."""
        if path is None:
            return self, None
        path = Path(path)
        if path.is_dir() and not (path / INDEX).exists():
            return CheckpointManager(path), None
        return CheckpointManager(path.parent), path

    def _listed(self, path: Path) -> Entry | None:
        listed = {entry.file: entry for entry in read_manifest(path.parent)} if path.exists() else {}
        return listed.get(path.name)

    @held_back()
    def _load_parts(
        self,
        model: ShardedNetwork,
        path: str | Path | None,
        settings: dict[str, Any] | None,
        allow_changes: bool,
        fall_back: bool,
    ) -> Checkpoint | None:
        def check(candidate: sharded.Candidate) -> Checkpoint:
            checkpoint = describe(candidate.path, candidate.metadata)
            compare(checkpoint, model.communicator.world_size, settings, allow_changes)
            return checkpoint

        def listed() -> list[Entry] | None:
            manager, one = self._at(path)
            return read_manifest(manager.folder) if one is None else None

        before = on_rank_0(model.communicator, listed)
        try:
            found = sharded.read_first(model, self._candidates(path), check, fall_back)
        except (DamagedCheckpointError, FileNotFoundError):
            # A job that trains on may have deleted what was listed, and written others.
            if before is None or on_rank_0(model.communicator, listed) == before:
                raise
            return self._load_parts(model, path, settings, allow_changes, fall_back)
        if found is None and path is not None:
            raise FileNotFoundError(errno.ENOENT, "no checkpoint in this folder", str(path))
        return found

    def _candidates(self, path: str | Path | None) -> Iterator[Callable[[], sharded.Candidate]]:
        """Functions that open the checkpoints which a sharded network may read, the newest first."""
        manager, one = self._at(path)
        if one is not None:
            yield lambda: _candidate(one, manager._listed(one))
            return
        for entry in read_manifest(manager.folder)[::-1]:
            yield partial(_candidate, manager.folder / entry.file, entry)


def _check_kind(model: Any) -> None:
    if not isinstance(model, Sequential | DDPSequential | ShardedNetwork):
        raise TypeError(
            "checkpoints are of a Sequential, DDPSequential, FSDPSequential or PipelineSequential, not of a "
            f"{type(model).__name__}: give its model"
        )


def _world_size(owner: Any) -> int:
    """The number of ranks that train a network together."""
    return owner.world_size if isinstance(owner, DDPSequential) else 1


def _check_average(model: Sequential | DDPSequential | ShardedNetwork, average: PosteriorAverage | None) -> None:
    network = model.model if isinstance(model, DDPSequential) else model
    if average is not None and average.in_place:
        raise RuntimeError("save and load outside of average_parameters(): inside, the network holds the average")
    if average is not None and average.net is not network:
        raise ValueError(
            "the average belongs to another network than the checkpoint: give PosteriorAverage(net), or, for a "
            "DDPSequential, PosteriorAverage(ddp.model); a sharded network cannot have one"
        )


def _entry(path: Path, data: bytes, position: TrainingPosition, world_size: int) -> Entry:
    """The entry of a checkpoint whose file, or index, has the content `data`."""
    return Entry(path.name, len(data), checksum(data), position.epoch, position.batch, position.step, world_size)


def _delete(folder: Path, entry: Entry) -> None:
    if entry.sharded:
        sharded.remove_folder(folder / entry.file)
    else:
        (folder / entry.file).unlink(missing_ok=True)


def _rename(hidden: Path, path: Path) -> None:
    """Makes a hidden folder a checkpoint. If an intact one of this name, and so of this content, exists, it stays."""
    if path.exists():
        try:
            _, shards = parse_index(path, read_index(path))
            for shard in shards:
                verify(path, shard)
            sharded.remove_folder(hidden)
            return
        except DamagedCheckpointError:
            sharded.remove_folder(path)
    os.rename(hidden, path)


def _candidate(path: Path, entry: Entry | None) -> sharded.Candidate:
    """A checkpoint for a sharded network. A file is verified here; of a folder only its index."""
    if _is_sharded(path, entry):
        metadata, shards = parse_index(path, _index(path, entry))
        return sharded.Candidate(path, metadata, shards)
    return sharded.Candidate(path, _read(path, entry).metadata, [])


def _index(path: Path, entry: Entry | None) -> bytes:
    if entry is not None and entry.bytes > MAX_BYTES:
        raise DamagedCheckpointError(
            f"{MANIFEST} lists {path / INDEX} with {entry.bytes} bytes, more than an index has"
        )
    return read_index(path) if entry is None else read_checked(path / INDEX, entry)


def _read(path: Path, entry: Entry | None) -> Contents:
    """The verified content of a checkpoint; the parts in a folder are put together."""
    if not _is_sharded(path, entry):
        return _contents(path, read_file(path) if entry is None else read_checked(path, entry))
    metadata, reader = _open_folder(path, entry)
    with reader:
        return Contents(str(path), {"format": NETWORK_FORMAT, **metadata}, dict(reader.read_whole()))


def _verify(path: Path, entry: Entry) -> None:
    """Verifies a checkpoint as `_read` does, but keeps nothing; a folder is read one tensor at a time."""
    if not _is_sharded(path, entry):
        _read(path, entry)
        return
    with _open_folder(path, entry)[1] as reader:
        for _ in reader.read_whole():
            pass


def _is_sharded(path: Path, entry: Entry | None) -> bool:
    return (path / INDEX).exists() or (entry is not None and entry.sharded)


def _open_folder(path: Path, entry: Entry | None) -> tuple[dict[str, str], TensorReader]:
    """(metadata, reader of the tensors) of a folder, whose files have been compared with their checksums."""
    metadata, shards = parse_index(path, _index(path, entry))
    for shard in shards:
        verify(path, shard)
    return metadata, TensorReader(path, [path / shard.file for shard in shards])


def _contents(path: Path, data: bytes) -> Contents:
    """The parts of a checkpoint.

    Raises:
        DamagedCheckpointError: not such a file, or values that are not finite, as of a run that has diverged.
    """
    try:
        contents = read(data, str(path))
        for name, values in contents.tensors.items():
            check_finite(values, f"checkpoint {path}: {name}")
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    return contents

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
from pytagi_ddp.nn.persistence import FORMAT as NETWORK_FORMAT
from pytagi_ddp.nn.persistence import Contents, read, take, to_bytes
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
    renamed, so that a kill at any moment leaves the checkpoint before. One job at a time may write to a folder. With
    one rank, what recurrent layers carry from call to call is part of it; of several, each has its own, and
    `get_lstm_states` gives that.

    A checkpoint of an `FSDPSequential` or `PipelineSequential` is a folder of such files, one of each rank, and of an
    index with their checksums. Every rank writes and reads its own parts, so the folder has to be one that all nodes
    share, and `save` and `load` are collective. Any network of the same architecture loads any checkpoint: on other
    numbers of ranks, in one process, sharded in another way. What recurrent layers carry is not part of it.

    Args:
        folder: where; the first `save` makes it.
        keep_last: checkpoints to keep (older ones are deleted once a new one is safe); None keeps all.

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
        """Writes a checkpoint: on rank 0, where the other ranks return at once; of a sharded network on all of them.

        To be called between `step` and the next `forward`: deltas that no step has applied are not stored. With one
        rank, what layers carry from call to call (the memory of an LSTM) is; with several it is not, as each has its
        own. The record of an `SLSTM` is not: save behind `smoother`.

        Args:
            model: the network.
            position: where it is in the training, see `TrainingPosition.of`.
            settings: what must be the same to go on exactly (JSON values): batch size, data, sigma_v, ...
            gather: a sharded network goes to rank 0, tensor by tensor, which writes one ordinary file: for nodes that
                share no folder. Rank 0 needs the memory for it.
            average: of this network's posteriors, to be saved with it.

        Returns:
            The file, None on other ranks; of a sharded network the folder (or file), on every rank.

        Raises:
            RuntimeError: ranks that have trained apart since their last merge: none has the parameters of all. Or the
                part of a network that one rank holds, which is not to stand in the list of the checkpoints of all. Or
                an average that the network has in place of what is to be saved.
            ValueError: parameters or statistics that are NaN or infinite, or settings too long for a header; names
                them. The checkpoints before are as they were. Or an average of another network.
            OSError: no space, no permission, ...; names the file. The checkpoints before are as they were.
            DamagedCheckpointError: a manifest that cannot be understood. TypeError: another kind of network.
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
        """Notices a manifest that makes no sense, and deletes what runs have left that were killed while they wrote."""
        read_manifest(self.folder)
        for path in self.folder.glob(f".step-*.{'[0-9a-f]' * 32}.tmp"):
            if path.is_dir():
                sharded.remove_folder(path)
        for name in ("step-*", MANIFEST):
            remove_temporary_files(self.folder, name)

    def _add(self, path: Path, write: Callable[[], None], entry: Entry) -> None:
        """Lists a checkpoint, which `write` puts there, and deletes those that are too old."""
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
        """The newest checkpoint, after it was read and its checksum verified; None if there is none. Not collective.

        Args:
            fall_back: if it is damaged, or its values are not finite, warn and take the newest one that is whole.

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
        """Takes a checkpoint into `model`, and drops the deltas that wait for a step there.

        With a `DDPSequential` it is collective: rank 0 reads and broadcasts. So the folder need not be visible from
        other nodes, the file is read once, ranks cannot differ, and an error is raised on all of them. A sharded
        network is collective too, and there every rank reads its own parts.

        Another number of ranks is no error: where the global batch (ranks x batch size) is the same, samples come in
        the same order. But sums over ranks are rounded in another order, BatchNorm2d sees other batches, and the
        average over ranks is another step: the trajectory differs, which a warning says.

        Args:
            model: a network of the same architecture.
            path: a checkpoint, or a folder of them; None: the folder of this manager.
            settings: as they are now; None compares nothing.
            allow_changes: warn of settings that differ, instead of refusing.
            fall_back: see `latest`.
            average: of this network's posteriors: is as it was when the checkpoint was written, and begins anew if that
                has none. Without it, an average in the checkpoint is left out.

        Returns:
            What the checkpoint says; None if no path was given and the folder has no checkpoint.

        Raises:
            OSError: no such file, no checkpoint in the folder `path`, or unreadable.
            DamagedCheckpointError: checksum and content do not agree, or values that are not finite.
            ValueError: no checkpoint, another architecture, or other settings; names what differs. Or an average of
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
        if world_size > 1:  # ranks have a memory of their own each, and none is that of one rank alone
            own = {name: array for name, array in contents.tensors.items() if ".carried/" not in name}
            contents = contents._replace(tensors=own)
        averaged = read_average(contents, model.num_parameters) if average is not None else {}
        take(model, contents)
        if average is not None:
            average.load_state_dict(averaged)
        return checkpoint

    def _at(self, path: str | Path | None) -> tuple[CheckpointManager, Path | None]:
        """(manager of the folder that `path` names or lies in, the one checkpoint that it names)."""
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
        """What opens those that a sharded network may read, the newest first."""
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
        raise RuntimeError(
            "save and load outside of average_parameters(): inside, the network has the average for its parameters"
        )
    if average is not None and average.net is not network:
        raise ValueError(
            "the average is of another network than the checkpoint: it has to be PosteriorAverage(net), of a "
            "DDPSequential PosteriorAverage(ddp.model); a sharded network has none"
        )


def _entry(path: Path, data: bytes, position: TrainingPosition, world_size: int) -> Entry:
    """Of a checkpoint whose file, or index, has the content `data`."""
    return Entry(path.name, len(data), checksum(data), position.epoch, position.batch, position.step, world_size)


def _delete(folder: Path, entry: Entry) -> None:
    if entry.sharded:
        sharded.remove_folder(folder / entry.file)
    else:
        (folder / entry.file).unlink(missing_ok=True)


def _rename(hidden: Path, path: Path) -> None:
    """Makes a hidden folder a checkpoint; where there is one of the same name, and so of the same content, it stays."""
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
    """A checkpoint for a sharded network: of a folder its index is verified, of a file all of it."""
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
    """The content of a checkpoint, verified; that of a folder put together."""
    if not _is_sharded(path, entry):
        return _contents(path, read_file(path) if entry is None else read_checked(path, entry))
    metadata, reader = _open_folder(path, entry)
    with reader:
        return Contents(str(path), {"format": NETWORK_FORMAT, **metadata}, dict(reader.read_whole()))


def _verify(path: Path, entry: Entry) -> None:
    """`_read`, of which nothing is kept; of a folder a tensor at a time."""
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
        DamagedCheckpointError: no such file, or values that no network takes: those of a run that had gone wrong.
    """
    try:
        contents = read(data, str(path))
        for name, values in contents.tensors.items():
            check_finite(values, f"checkpoint {path}: {name}")
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    return contents

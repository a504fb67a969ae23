"""Checkpoints in a folder, which are written atomically and survive a crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, overload

from pytagi_ddp.checkpoint import sharded
from pytagi_ddp.checkpoint.content import (
    Checkpoint,
    average_entries,
    compare,
    describe,
    metadata,
    read_average,
    take_schedule,
)
from pytagi_ddp.checkpoint.manifest import (
    FOLDER,
    MANIFEST,
    NAME,
    Entry,
    checksum,
    is_listed,
    one_at_a_time,
    read_manifest,
    write_manifest,
)
from pytagi_ddp.checkpoint.position import TrainingPosition
from pytagi_ddp.checkpoint.reading import load_from, newest_intact, read, verified
from pytagi_ddp.distributed.communicator import SerialCommunicator
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks, on_rank_0
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.files import as_path, atomic_write, remove_temporary_files
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.convert.posterior_average import PosteriorAverage
from pytagi_ddp.nn.files import persistence
from pytagi_ddp.nn.files.state_dicts import put
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_integers


class CheckpointManager:
    """Writes and reads the checkpoints of one training run in one folder.

    A checkpoint is a safetensors file with all parameters and running statistics, the position in the training, the
    number of ranks, the settings and the version of the library, the `EvidenceSchedule` of the network, if it has one,
    and a `PosteriorAverage`, if it is passed to `save`. `manifest.json` in the same folder lists the checkpoints with
    their SHA-256. Both are written to a temporary file, synced and renamed, so that the previous checkpoint survives if
    the process is killed. Only one job at a time may write to a folder.

    A checkpoint of an `FSDPSequential` or `PipelineSequential` is a folder with one such file for each rank, and an
    index with their checksums. Every rank writes and reads its own parts, so all nodes have to share the folder, and
    `save` and `load` are collective. Any network of the same architecture can load any checkpoint: with another number
    of ranks, in one process, or sharded in another way.

    Args:
        folder: the folder of the checkpoints, which the first `save` makes.
        keep_last: number of checkpoints to keep (older ones are deleted after a new one was written); None: all.

    Raises:
        ValueError: keep_last below 1. TypeError: it is not an integer.
    """

    def __init__(self, folder: str | bytes | Path, keep_last: int | None = 3):
        if keep_last is not None:
            as_integers("CheckpointManager", 1, keep_last=keep_last)
        self.folder = as_path(folder)
        self.keep_last = keep_last

    def save(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        position: TrainingPosition,
        settings: dict[str, Any] | None = None,
        gather: bool = False,
        average: PosteriorAverage | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Path | None:
        """Writes a checkpoint: on rank 0 only (other ranks return at once), or for a sharded network on all ranks.

        Call it between `step` and the next `forward`, because pending deltas are not stored. States that layers carry
        from call to call (the memory of an LSTM) are stored with one rank only: with several, each rank has its own
        (`get_lstm_states`). The record of an `SLSTM` is not stored: save after `smoother`.

        Args:
            model: the network.
            position: its position in the training, see `TrainingPosition.of`.
            settings: JSON values that must be equal for an exact continuation: batch size, data, sigma_v, ...
            gather: whether rank 0 collects all tensors of a sharded network and writes one ordinary file, for nodes
                without a shared folder. Rank 0 needs memory for all of them.
            average: the average of this network's posteriors, which is saved, too.
            extra: JSON values of the program, which `load` returns as `Checkpoint.extra`; they are not compared.

        Returns:
            The file, None on other ranks; of a sharded network the folder (or file), on every rank.

        Raises:
            RuntimeError: between two merges, because no rank has the merged parameters; or `model` is only this rank's
                part of a network; or inside `average_parameters`.
            ValueError: parameters or statistics that are NaN or infinite, or settings too long for a header; names
                them. Or an average of another network. Earlier checkpoints do not change.
            OSError: no space, no permission, ...; names the file. Earlier checkpoints do not change.
            DamagedCheckpointError: a damaged manifest. TypeError: another kind of network.
        """
        _check_kind(model)
        if not isinstance(position, TrainingPosition):
            raise TypeError(f"position is a TrainingPosition(epoch, batch, step, seed), got {position!r:.60}")
        _check_average(model, average)
        if isinstance(model, ShardedNetwork):
            return self._save_sharded(model, position, settings, gather, extra)
        owner = _owner(model)
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
        header = metadata(position, world_size, settings, network.schedule, extra) | entries
        data = persistence.to_bytes(network, header, carried=world_size == 1, beside=beside)
        return self._write(data, position, world_size)

    def _write(self, data: bytes, position: TrainingPosition, world_size: int) -> Path:
        self._prepare()
        return self._add(NAME, data, position, world_size, lambda path: atomic_write(path, data))

    @held_back()
    def _save_sharded(
        self,
        model: ShardedNetwork,
        position: TrainingPosition,
        settings: dict[str, Any] | None,
        gather: bool,
        extra: dict[str, Any] | None,
    ) -> Path:
        """Saves a network in parts as one file, if rank 0 is to `gather` them, or as a folder; collective."""
        communicator, ranks = model.communicator, model.communicator.world_size
        with errors_of_all_ranks(communicator):
            header = metadata(position, ranks, settings, model.model.schedule, extra)
        if gather:
            data = model.to_bytes(header)
            return on_rank_0(communicator, lambda: self._write(data, position, ranks))
        on_rank_0(communicator, self._prepare)
        hidden, index = sharded.write_folder(model, self.folder, FOLDER.format(position.step, "new"), header)
        publish = partial(sharded.publish, hidden)
        return on_rank_0(communicator, lambda: self._add(FOLDER, index, position, ranks, publish))

    def _prepare(self) -> None:
        """Raises an error if the manifest is damaged, and deletes temporary files of killed runs."""
        read_manifest(self.folder)
        for path in self.folder.glob(f".step-*.{'[0-9a-f]' * 32}.tmp"):
            if path.is_dir():
                sharded.remove_folder(path)
        for name in ("step-*", MANIFEST):
            remove_temporary_files(self.folder, name)

    def _add(
        self, name: str, data: bytes, position: TrainingPosition, world_size: int, write: Callable[[Path], None]
    ) -> Path:
        """Writes a checkpoint by `write`, adds it to the manifest, and deletes older checkpoints.

        Args:
            name: `NAME` or `FOLDER`. data: the content of its file, or of its index.
        """
        digest, at = checksum(data), (position.epoch, position.batch, position.step)
        path = self.folder / name.format(position.step, digest[:8])
        entry = Entry(path.name, len(data), digest, *at, world_size)
        known = path.exists()
        write(path)
        with one_at_a_time(self.folder):  # another job may save here by mistake: both are listed
            try:
                old = [other for other in read_manifest(self.folder) if other.file != entry.file]
                kept = [*old, entry][-(self.keep_last or 0) :]
                write_manifest(self.folder, kept)
            except BaseException:
                if not known and not is_listed(self.folder, entry.file):  # one at the very end leaves it listed
                    _delete(self.folder, entry)
                raise
            for other in old:
                if other not in kept:
                    _delete(self.folder, other)
        return path

    def check_folder(self) -> None:
        """Makes the folder, and writes and deletes an empty file there, so that problems are known before the training.

        Raises:
            OSError: the folder cannot be made, or nothing can be written there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=self.folder):
            pass

    def latest(self, fall_back: bool = False) -> Path | None:
        """The newest checkpoint, after reading it and verifying its checksum; None if there is none. Not collective.

        Args:
            fall_back: if the newest one is damaged, or has values that are not finite, warn and use the newest intact
                one.

        Raises:
            DamagedCheckpointError: it is damaged (with `fall_back`: all are); names it, and the previous one.
        """
        return newest_intact(SerialCommunicator(), self.folder, verified, fall_back)

    @overload
    def load(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        path: str | bytes | Path,
        settings: dict[str, Any] | None = None,
        allow_changes: bool = False,
        fall_back: bool = False,
        average: PosteriorAverage | None = None,
    ) -> Checkpoint: ...
    @overload
    def load(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        path: str | bytes | Path | None = None,
        settings: dict[str, Any] | None = None,
        allow_changes: bool = False,
        fall_back: bool = False,
        average: PosteriorAverage | None = None,
    ) -> Checkpoint | None: ...
    def load(
        self,
        model: Sequential | DDPSequential | ShardedNetwork,
        path: str | bytes | Path | None = None,
        settings: dict[str, Any] | None = None,
        allow_changes: bool = False,
        fall_back: bool = False,
        average: PosteriorAverage | None = None,
    ) -> Checkpoint | None:
        """Loads a checkpoint into `model`, and drops its pending deltas.

        With a `DDPSequential` it is collective: rank 0 reads and broadcasts, so that other nodes do not need the
        folder. With a sharded network it is also collective, and every rank reads its own parts. Errors are raised on
        all ranks.

        The number of ranks may differ. If the global batch (ranks x batch size) is the same, the order of samples is
        the same. But training continues differently, because of rounding, batches of BatchNorm2d, and averages over
        ranks; a warning says so.

        A schedule continues at the position of that in the checkpoint: make it as in the first run, and then load. It
        keeps its own settings (`epochs` may be larger), and a warning names those that differ. A network without a
        schedule gets that of the checkpoint.

        Args:
            model: a network of the same architecture.
            path: a checkpoint, or a folder of them; None: the folder of this manager.
            settings: the present settings; None: they are not compared.
            allow_changes: whether to warn about settings that differ, instead of raising an error.
            fall_back: see `latest`.
            average: the average of this network's posteriors, which is also loaded; it is reset if the checkpoint has
                none. None: an average in the checkpoint is ignored.

        Returns:
            A description of the checkpoint; None if no path was given and the folder has no checkpoint.

        Raises:
            OSError: the file does not exist or cannot be read, or the folder `path` has no checkpoint.
            DamagedCheckpointError: the content does not match the checksum, or has values that are not finite.
            ValueError: not a checkpoint, another architecture, or other settings; names what differs. Or an average of
                another network.
        """
        _check_kind(model)
        _check_average(model, average)
        network, world_size = model if isinstance(model, Sequential) else model.model, _world_size(_owner(model))

        def check(path: Path, metadata: dict[str, str]) -> Checkpoint:
            checkpoint = describe(path, metadata)
            compare(checkpoint, world_size, settings, allow_changes, network.schedule)
            return checkpoint

        with held_back():
            if isinstance(model, ShardedNetwork):
                take = partial(sharded.load, model, check)
                checkpoint = load_from(model.communicator, self.folder, path, take, fall_back)
            else:
                whole = partial(_load_whole, network, check, average, world_size == 1)
                load = partial(load_from, SerialCommunicator(), self.folder, path, whole, fall_back)
                checkpoint = _load_on_ranks(model, load, average) if isinstance(model, DDPSequential) else load()
            if checkpoint is not None:
                take_schedule(checkpoint, network)
        return checkpoint


def _load_on_ranks(
    model: DDPSequential, load: Callable[[], Checkpoint | None], average: PosteriorAverage | None
) -> Checkpoint | None:
    """`load()` on rank 0, with its result on every rank."""
    checkpoint = on_rank_0(model.communicator, load)
    if checkpoint is not None:
        model.model.drop_deltas()
        model.synchronize()
        if average is not None:
            n = model.communicator.broadcast_object(average.n_averaged)
            model.communicator.broadcast(average.theta)
            average.n_averaged = n
    return checkpoint


def _load_whole(
    network: Sequential,
    check: Callable[[Path, dict[str, str]], Checkpoint],
    average: PosteriorAverage | None,
    carried: bool,
    path: Path,
    entry: Entry | None,
) -> Checkpoint:
    """Loads a checkpoint into a network that is whole on this rank; see `sharded.load` for the arguments."""
    contents = read(path, entry)
    checkpoint = check(path, contents.metadata)
    if not carried:  # the memory of a run on one rank is not that of each of several ranks
        own = {name: array for name, array in contents.tensors.items() if ".carried/" not in name}
        contents = contents._replace(tensors=own)
    averaged = read_average(contents, network.num_parameters) if average is not None else {}
    put(network, persistence.check(network, contents))
    if average is not None:
        average.load_state_dict(averaged)
    return checkpoint


def _check_kind(model: Any) -> None:
    if not isinstance(model, Sequential | DDPSequential | ShardedNetwork):
        raise TypeError(
            "checkpoints are of a Sequential, DDPSequential, FSDPSequential or PipelineSequential, not of a "
            f"{type(model).__name__}: give its model"
        )


def _owner(model: Sequential | DDPSequential | ShardedNetwork) -> Any:
    """The wrapper that trains the network on its ranks; None if there is none."""
    return model.trainer if isinstance(model, Sequential) else model


def _world_size(owner: Any) -> int:
    """The number of ranks that train a network together."""
    return owner.communicator.world_size if isinstance(owner, DDPSequential | ShardedNetwork) else 1


def _check_average(model: Sequential | DDPSequential | ShardedNetwork, average: PosteriorAverage | None) -> None:
    network = model.model if isinstance(model, DDPSequential) else model
    if average is not None and average.in_place:
        raise RuntimeError("save and load outside of average_parameters(): inside, the network holds the average")
    if average is not None and average.net is not network:
        raise ValueError(
            "the average belongs to another network than the checkpoint: give PosteriorAverage(net), or, for a "
            "DDPSequential, PosteriorAverage(ddp.model); a sharded network cannot have one"
        )


def _delete(folder: Path, entry: Entry) -> None:
    if entry.sharded:
        sharded.remove_folder(folder / entry.file)
    else:
        (folder / entry.file).unlink(missing_ok=True)

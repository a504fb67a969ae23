"""Checkpoints of networks that no rank holds whole: every rank writes and reads its own parts.

All functions are collective. The ranks have to see the same folder. An error on one rank is raised on all.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pytagi_ddp.checkpoint.manifest import DamagedCheckpointError
from pytagi_ddp.checkpoint.shards import FILE, INDEX, PATTERN, Shard, TensorReader, index_bytes, verify, write_shard
from pytagi_ddp.distributed.engine.together import errors_of_all_ranks, on_rank_0
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn.persistence import check_architecture
from pytagi_ddp.warn import warn

Result = TypeVar("Result")


class Candidate(NamedTuple):
    """A checkpoint to be read.

    Attributes:
        path: a file, or the folder of a sharded checkpoint. metadata: its metadata.
        shards: files of the folder; empty for a single file, which has been verified.
    """

    path: Path
    metadata: dict[str, str]
    shards: list[Shard]


def write_folder(network: ShardedNetwork, folder: Path, name: str, metadata: dict[str, str]) -> tuple[Path, bytes]:
    """Writes the shards and their index into a hidden folder of `folder`, which one rename then makes a checkpoint.

    Args:
        name: of the checkpoint to be.

    Returns:
        (the hidden folder, the content of its index), on every rank.
    """
    communicator = network.communicator
    hidden = on_rank_0(communicator, lambda: _make_hidden(folder, name))
    rank, ranks = communicator.rank, communicator.world_size

    def write_index() -> bytes:
        data = index_bytes({"architecture": network.architecture, **metadata}, shards)
        atomic_write(hidden / INDEX, data)
        return data

    try:
        with errors_of_all_ranks(communicator):
            if not hidden.is_dir():
                raise FileNotFoundError(
                    f"{hidden}, made by rank 0, is not visible on rank {rank}: a sharded checkpoint needs a folder "
                    "that all nodes share; save(..., gather=True) writes one file on rank 0 instead"
                )
            shard = write_shard(hidden / FILE.format(rank, ranks), network.slices(), network.to_host)
        shards = communicator.all_gather_object(shard)
        return hidden, on_rank_0(communicator, write_index)
    except BaseException:
        if rank == 0:
            remove_folder(hidden)
        raise


def _make_hidden(folder: Path, name: str) -> Path:
    hidden = folder / f".{name}.{uuid.uuid4().hex}.tmp"
    hidden.mkdir(parents=True)
    return hidden


def remove_folder(folder: Path) -> None:
    """Deletes the files of this module in a folder, and the folder if nothing else is in it."""
    for path in list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        ours = path.name == INDEX or PATTERN.fullmatch(path.name) or path.name.startswith(".")
        if ours and not path.is_dir():
            path.unlink(missing_ok=True)
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        warn(f"{folder} is not removed: {error}")


def read_first(
    network: ShardedNetwork,
    candidates: Iterator[Callable[[], Candidate]],
    check: Callable[[Candidate], Result],
    fall_back: bool,
) -> Result | None:
    """Loads the first checkpoint, or (with `fall_back`) the first that is intact; None if there is none.

    Args:
        candidates: functions that open the checkpoints; those of rank 0 are used.
        check: makes further checks of a checkpoint on rank 0; its result is returned.

    Raises:
        DamagedCheckpointError: none is intact. ValueError: another architecture. Also whatever `check` raises.
    """
    communicator, damage = network.communicator, None

    def open_next() -> tuple[Candidate, Result] | None:
        opens = next(candidates, None)
        if opens is None:
            return None
        candidate = opens()
        return candidate, check(candidate)

    while True:
        try:
            found = on_rank_0(communicator, open_next)
            if found is not None:
                _take(network, found[0])
                return found[1]
            if damage is None:
                return None
        except DamagedCheckpointError as error:
            if not fall_back:
                raise DamagedCheckpointError(f"{error} (fall_back takes the one before, if there is one)") from None
            damage = error
            words = f"{error}; looking for one before it"
            on_rank_0(communicator, partial(warn, words))  # which may raise, by the user's choice
        else:
            raise DamagedCheckpointError(f"{damage}; there is none before it")


def _take(network: ShardedNetwork, candidate: Candidate) -> None:
    communicator = network.communicator
    path, metadata, shards = candidate

    with errors_of_all_ranks(communicator):
        for shard in shards[communicator.rank :: communicator.world_size]:
            verify(path, shard)
    with errors_of_all_ranks(communicator):
        check_architecture(network.architecture, network.sizes, metadata, str(path))
        files = [path / shard.file for shard in shards] or [path]
        with TensorReader(path, files) as reader:
            values = [(part, reader.read(part)) for part in network.slices()]
    network.take(values)

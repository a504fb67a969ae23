"""Checkpoints of networks that are divided among ranks: every rank writes and reads its own parts.

All functions are collective. The ranks need a shared folder. An error on one rank is raised on all.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytagi_ddp.checkpoint.content import Checkpoint
from pytagi_ddp.checkpoint.manifest import DamagedCheckpointError, Entry
from pytagi_ddp.checkpoint.reading import outline, verified_folder
from pytagi_ddp.checkpoint.shards import FILE, INDEX, PATTERN, Shard, TensorReader, index_bytes, verify, write_shard
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks, on_rank_0
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn.files.persistence import check_architecture
from pytagi_ddp.warn import warn


def write_folder(network: ShardedNetwork, folder: Path, name: str, metadata: dict[str, str]) -> tuple[Path, bytes]:
    """Writes the shards and their index into a hidden folder in `folder`, which `publish` then renames to `name`.

    Returns (the hidden folder, the content of its index), on every rank.
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
        shards = communicator.all_gather_object(shard, "the save of a checkpoint")
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
    try:
        # By its descriptor, as the path may become a link to another folder meanwhile.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in os.listdir(opened):
                if name == INDEX or PATTERN.fullmatch(name) or name.startswith("."):
                    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                        os.unlink(name, dir_fd=opened)
        finally:
            os.close(opened)
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        warn(f"{folder} is not removed: {error}")


def publish(hidden: Path, path: Path) -> None:
    """Renames a hidden folder to a checkpoint, unless an intact one of this name, and so of this content, exists."""
    if path.exists():
        try:
            verified_folder(path)
            remove_folder(hidden)
            return
        except DamagedCheckpointError:
            remove_folder(path)
    os.rename(hidden, path)


def load(
    network: ShardedNetwork, check: Callable[[Path, dict[str, str]], Checkpoint], path: Path, entry: Entry | None
) -> Checkpoint:
    """Loads a checkpoint, of any kind of network.

    Args:
        check: called with the path and the metadata on rank 0, before anything is loaded; its result is returned.
        path: the file or folder. entry: its entry in the manifest; None: it is not listed.
    """
    communicator = network.communicator

    def opened() -> tuple[dict[str, str], list[Shard], Checkpoint]:
        metadata, shards = outline(path, entry)
        return metadata, shards, check(path, metadata)

    metadata, shards, checkpoint = on_rank_0(communicator, opened)
    with errors_of_all_ranks(communicator):
        for shard in shards[communicator.rank :: communicator.world_size]:
            verify(path, shard)
    with errors_of_all_ranks(communicator):
        check_architecture(network.architecture, network.sizes, metadata, str(path))
        with TensorReader(path, [path / shard.file for shard in shards] or [path]) as reader:
            values = [(part, reader.read(part)) for part in network.slices()]
    network.take(values)
    return checkpoint

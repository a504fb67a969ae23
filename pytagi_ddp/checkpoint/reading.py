"""Reading of checkpoints: the newest intact one, and verified contents."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytagi_ddp.checkpoint.manifest import (
    MANIFEST,
    MAX_BYTES,
    DamagedCheckpointError,
    Entry,
    read_checked,
    read_manifest,
)
from pytagi_ddp.checkpoint.shards import INDEX, Shard, TensorReader, parse_index, read_index, verify
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.error_propagation import on_rank_0
from pytagi_ddp.files import as_path, read_file
from pytagi_ddp.nn.files import file_format
from pytagi_ddp.nn.files.file_format import Contents
from pytagi_ddp.validate import check_finite
from pytagi_ddp.warn import warn

Result = TypeVar("Result")


def load_from(
    communicator: Communicator,
    folder: Path,
    path: str | bytes | Path | None,
    take: Callable[[Path, Entry | None], Result],
    fall_back: bool,
) -> Result | None:
    """The result of `take` for the checkpoint `path`, or for the newest one in a folder.

    The folder is `path`, or `folder` if that is None. Without a checkpoint in the folder `path`, FileNotFoundError is
    raised. Arguments and errors are otherwise those of `newest_intact`.
    """

    def placed() -> tuple[Path, Path | None, Entry | None]:
        """(folder, requested checkpoint, its entry), on rank 0."""
        if path is None:
            return folder, None, None
        one = as_path(path)
        if one.is_dir() and not (one / INDEX).exists():
            return one, None, None
        listed = read_manifest(one.parent) if one.exists() else []
        return one.parent, one, next((entry for entry in listed if entry.file == one.name), None)

    place, one, entry = on_rank_0(communicator, placed)
    if one is not None:
        return take(one, entry)
    found = newest_intact(communicator, place, take, fall_back)
    if found is None and path is not None:
        raise FileNotFoundError(errno.ENOENT, "no checkpoint in this folder", str(place))
    return found


def newest_intact(
    communicator: Communicator, folder: Path, take: Callable[[Path, Entry], Result], fall_back: bool
) -> Result | None:
    """The result of `take` for the newest checkpoint, or (with `fall_back`) the newest intact one; None without any.

    Args:
        communicator: that of the ranks. folder: rank 0 reads its list of checkpoints.
        take: a function that reads a checkpoint; with several ranks it is collective, and raises errors on all of them.
    """

    def listed() -> list[Entry]:
        return on_rank_0(communicator, lambda: read_manifest(folder)[::-1])

    entries = listed()
    for number, entry in enumerate(entries, 1):
        try:
            return take(folder / entry.file, entry)
        except (DamagedCheckpointError, FileNotFoundError) as error:
            if entry not in listed():  # a running job has deleted it, and written others
                return newest_intact(communicator, folder, take, fall_back)
            if number == len(entries):
                raise DamagedCheckpointError(f"{error}; there is none before it") from None
            before = folder / entries[number].file
            if not fall_back:
                hint = f"the one before is {before}: load it by its path, or with fall_back=True"
                raise DamagedCheckpointError(f"{error}; {hint}") from None
            words = f"{error}; going back to {before}"
            on_rank_0(communicator, partial(warn, words))  # warnings may be errors
    return None


def read(path: Path, entry: Entry | None) -> Contents:
    """The content of a checkpoint, with the parts in a folder combined; values have to be finite.

    Args:
        path: the file or folder. entry: its entry in the manifest; None: it is not listed.
    """
    if _is_folder(path, entry):
        metadata, files = verified_folder(path, entry)
        with TensorReader(path, files) as reader:
            return Contents(str(path), {"format": file_format.FORMAT, **metadata}, dict(reader.read_whole()))
    data = read_file(path) if entry is None else read_checked(path, entry)
    try:
        contents = file_format.read(data, str(path))
        for name, values in contents.tensors.items():
            check_finite(values, f"checkpoint {path}: {name}")
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    return contents


def verified(path: Path, entry: Entry) -> Path:
    """`path`, after verifying it as `read` does, but with less memory: a folder is read one tensor at a time."""
    if _is_folder(path, entry):
        with TensorReader(path, verified_folder(path, entry)[1]) as reader:
            for _ in reader.read_whole():
                pass
    else:
        read(path, entry)
    return path


def outline(path: Path, entry: Entry | None) -> tuple[dict[str, str], list[Shard]]:
    """(metadata, files in the folder) of a checkpoint. A checkpoint that is a file is verified, and has no others."""
    return _index(path, entry) if _is_folder(path, entry) else (read(path, entry).metadata, [])


def verified_folder(path: Path, entry: Entry | None = None) -> tuple[dict[str, str], list[Path]]:
    """(metadata, files) of a folder, after comparing the files with their checksums."""
    metadata, shards = _index(path, entry)
    for shard in shards:
        verify(path, shard)
    return metadata, [path / shard.file for shard in shards]


def _is_folder(path: Path, entry: Entry | None) -> bool:
    return (path / INDEX).exists() or (entry is not None and entry.sharded)


def _index(path: Path, entry: Entry | None) -> tuple[dict[str, str], list[Shard]]:
    if entry is not None and entry.bytes > MAX_BYTES:
        raise DamagedCheckpointError(
            f"{MANIFEST} lists {path / INDEX} with {entry.bytes} bytes, more than an index has"
        )
    return parse_index(path, read_index(path) if entry is None else read_checked(path / INDEX, entry))

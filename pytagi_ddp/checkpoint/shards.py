"""The files of a sharded checkpoint: one for each rank that wrote it, and an index with their checksums, in a folder.

A shard is a safetensors file with parts of tensors: `Linear.2/mu_w@1024:4096` has the values 1024 to 4095 of the means
of the weights of `Linear.2`. So any number of ranks can read the files of any other number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save as save_safetensors

from pytagi_ddp.checkpoint.manifest import MAX_BYTES, DamagedCheckpointError, check_size, checksum, compare_checksums
from pytagi_ddp.files import atomic_write, read_file
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.files.file_format import header_size, open_tensors
from pytagi_ddp.validate import check_finite

INDEX = "shards.json"
FORMAT = "pytagi_ddp shards 1"
FILE = "rank-{}-of-{}.safetensors"
PATTERN = re.compile(r"rank-[0-9]{1,6}-of-[0-9]{1,6}\.safetensors")  # names of the form FILE, not paths
PART = re.compile(r"([^@]{1,500})@([0-9]{1,15}):([0-9]{1,15})")
BLOCK = 1 << 22  # bytes that are read at a time for a checksum


@dataclass(frozen=True)
class Shard:
    """One file: its name, size, and SHA-256; they are checked, because an index is not trusted."""

    file: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not PATTERN.fullmatch(self.file):
            raise ValueError(f"{self.file!r:.100} is not a name of a shard, as {FILE.format(0, 2)!r} is")
        if type(self.bytes) is not int:
            raise TypeError(f"bytes of {self.file} must be an integer, got {self.bytes!r:.50}")


def write_shard(path: Path, slices: Iterable[TensorSpec], to_host: Callable[[Array], np.ndarray]) -> Shard:
    """Writes the `slices` that this rank has to save, unless they could not be loaded again, such as NaN."""
    tensors = {}
    for part in slices:
        if part.saved and part:
            name = f"{part.name}@{part.start}:{part.stop}"
            tensors[name] = to_host(part.array).reshape(-1)
            part.check(tensors[name], name)
    data = save_safetensors(tensors)
    header_size(data)
    atomic_write(path, data)
    return Shard(path.name, len(data), checksum(data))


def index_bytes(metadata: dict[str, str], shards: Sequence[Shard]) -> bytes:
    """The index of a folder; ValueError if it would be too long to be read again."""
    content = {"format": FORMAT, "metadata": metadata, "shards": [asdict(shard) for shard in shards]}
    data = (json.dumps(content, indent=1) + "\n").encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"an index of {len(data)} bytes is not saved, because at most {MAX_BYTES} are read")
    return data


def parse_index(path: Path, data: bytes) -> tuple[dict[str, str], list[Shard]]:
    """(metadata, shards) of an index; DamagedCheckpointError if it is damaged."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r:.50}, this version reads {FORMAT!r}")
        metadata = content["metadata"]
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("metadata must be texts by name")
        shards = [Shard(**shard) for shard in content["shards"]]
        expected = [FILE.format(rank, len(shards)) for rank in range(len(shards))]
        if not shards or [shard.file for shard in shards] != expected:
            names = ", ".join(shard.file for shard in shards)
            raise ValueError(f"{len(shards)} shards must be those of all ranks, each once, and are {names:.200}")
        return metadata, shards
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error!r}") from error


def read_index(folder: Path) -> bytes:
    """The index of the folder; DamagedCheckpointError if it is missing, or too long."""
    try:
        return read_file(folder / INDEX, MAX_BYTES)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: it has no {INDEX}") from None
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from None


def verify(folder: Path, shard: Shard) -> None:
    """Compares a file with its checksum, block by block; DamagedCheckpointError if they differ."""
    path = folder / shard.file
    check_size(path, shard.bytes, INDEX)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    compare_checksums(path, digest.hexdigest(), shard.sha256)


class TensorReader(ExitStack):
    """Reads tensors from files that have them whole or in parts; to be used in a `with` statement.

    The `files` are verified; only requested values are read. DamagedCheckpointError is raised if parts of a tensor are
    missing, occur twice, or are not float32.
    """

    def __init__(self, what: str | Path, files: Sequence[Path]):
        super().__init__()
        self._what = what
        self._parts: dict[str, list[tuple[int, int, Any]]] = {}
        try:
            for path in files:
                self._list(path)
        except (SafetensorError, ValueError) as error:
            self.close()
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {error}") from error
        self.sizes = {name: self._size(name) for name in self._parts}  # of whole tensors

    def _list(self, path: Path) -> None:
        file = self.enter_context(open_tensors(path))
        for key in file.keys():  # noqa: SIM118 - it is not a mapping
            values = file.get_slice(key)
            shape, dtype = values.get_shape(), values.get_dtype()
            if dtype != "F32" or len(shape) != 1:
                raise ValueError(f"{key!r:.100} holds {dtype} in {len(shape)} dimensions, not flat float32")
            match = PART.fullmatch(key)
            name, start, stop = (match[1], int(match[2]), int(match[3])) if match else (key, 0, shape[0])
            if stop - start != shape[0]:
                raise ValueError(f"{key!r:.100} holds {shape[0]} numbers")
            self._parts.setdefault(name, []).append((start, stop, values))

    def _size(self, name: str) -> int:
        parts = self._parts[name]
        parts.sort(key=lambda part: part[:2])
        end = 0
        for start, stop, _ in parts:
            if start != end:
                self.close()
                problem = "missing" if start > end else "there twice"
                raise DamagedCheckpointError(f"checkpoint {self._what} is damaged: parts of {name} are {problem}")
            end = stop
        return end

    def read(self, part: TensorSpec) -> np.ndarray:
        """The values of a part of a tensor; ValueError if the checkpoint is of another network."""
        if self.sizes.get(part.name) != part.size:
            found = self.sizes.get(part.name, "no")
            raise ValueError(f"{self._what}: {part.name} has {found} numbers there and {part.size} here")
        return self._values(part.name, part.start, part.stop, part.check)

    def _values(self, name: str, first: int, last: int, check: Callable[[np.ndarray, str], None]) -> np.ndarray:
        result = np.empty(last - first, np.float32)
        for start, stop, values in self._parts[name]:
            a, b = max(start, first), min(stop, last)
            if a < b:
                result[a - first : b - first] = values[a - start : b - start]
        try:
            check(result, f"{self._what}: {name}")
        except ValueError as error:
            raise DamagedCheckpointError(str(error)) from None
        return result

    def read_whole(self) -> Iterator[tuple[str, np.ndarray]]:
        """All tensors with their names, one after the other."""
        for name, size in self.sizes.items():
            yield name, self._values(name, 0, size, check_finite)

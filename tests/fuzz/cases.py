"""Reads one damaged file at a time, under limits of memory and time, and checks how the reader deals with it."""

import random
import resource
import time
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.formats import FORMATS, Format
from tests.fuzz.mutations import Mutation, mutate, random_mutations

SECONDS = 5.0  # processor time that reading a file may take
SLACK = 200 << 20  # bytes of memory that reading a file may take, beside ten times the largest good file


class Reader:
    """Reads files of a format from a folder of good files, in which one at a time is damaged.

    Args:
        name: the name of the format.
        folder: an empty folder, for its files.

    Attributes:
        refused, accepted: how many damaged files have raised a documented error, and how many could be read.
    """

    def __init__(self, name: str, folder: Path):
        self.format: Format = FORMATS[name]()
        self.folder = folder
        self.refused = self.accepted = 0
        for file, data in self.format.files.items():
            (folder / file).write_bytes(data)
        self._good: dict[str, Hashable] = {}
        for file in self.format.changed:
            self._good[file] = self.format.read(folder / file)
            (folder / file).write_bytes(self.format.files[file])

    def damaged(self, which: int, inside: bool, mutations: Sequence[Mutation]) -> tuple[str, bytes, bool]:
        """Damages a file; returns its name, its content, and whether it got a checksum that is right again.

        Args:
            which: number of the file.
            inside: whether to damage what is under a checksum or compression, and pack it again, if the format can.
            mutations: the damages.
        """
        file = self.format.changed[which % len(self.format.changed)]
        data = self.format.files[file]
        if not (inside and self.format.inside):
            return file, mutate(data, mutations), False
        unpack, pack = self.format.inside
        return file, pack(mutate(unpack(data), mutations)), True

    def check(self, file: str, data: bytes, checksum_is_right: bool = False) -> None:
        """Reads a file with this content, and then puts the good one in its place again.

        Raises:
            AssertionError: the reader took too long, changed other files, raised an error that does not name the file,
                or read what cannot be in such a file.
        """
        path = self.folder / file
        path.write_bytes(data)
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that an earlier checkpoint was loaded
                found = self.format.read(path)
        except self.format.errors as error:
            self.refused += 1
            assert self.format.names(path, str(error)), f"the error does not name the file: {error!r:.300}"
        else:
            self.accepted += 1
            assert self.format.sound(found), f"not to be read from such a file: {found!r:.300}"
            if self.format.exact and not checksum_is_right:
                assert found == self._good[file], "a damaged file is read, and has another content"
        seconds = time.process_time() - begin
        assert seconds < SECONDS, f"{seconds:.1f} s"
        path.write_bytes(self.format.files[file])
        assert {other.name for other in self.folder.iterdir()} == self.format.files.keys()

    def random_case(self, rng: random.Random) -> tuple[str, bytes, bool]:
        """Arguments of `check`: a file with random damages."""
        return self.damaged(rng.getrandbits(16), rng.random() < 0.5, random_mutations(rng))

    def memory_limit(self) -> int:
        """How many bytes of memory reading may take, beside what the process has already."""
        return 10 * max(map(len, self.format.files.values())) + SLACK


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Within the block, this process can get `more` bytes of address space; beyond that there is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)

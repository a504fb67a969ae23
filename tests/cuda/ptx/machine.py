"""Runs PTX: compiles the C that `translate` wrote, keeps it, and launches it over memory that is watched."""

import bisect
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import weakref
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.cuda.kept import folder, fresh, only_here
from tests.cuda.ptx.parse import BYTES
from tests.cuda.ptx.problems import Problem
from tests.cuda.ptx.translate import translate

FORWARDS, BACKWARDS, SHUFFLED = range(3)  # order of blocks and threads; shuffled: of warps, anew after each barrier
ARGUMENTS, THREADS, ARRAY_SHIFT, PROBLEMS = 64, 1024, 40, 64  # as in runtime.h
SERIAL_SHIFT, SERIAL_BITS = 45, (1 << 19) - 1  # of a launch, in the tags of the memory that it touched
ALIGNMENT = 512  # bytes, of allocations
RUNTIME = Path(__file__).with_name("runtime.h")
FLAGS = ["-O1", "-mfma", "-mavx2", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fno-stack-protector", "-w"]


def missing() -> str | None:
    """What this machine lacks to run PTX, or None."""
    if platform.machine() not in ("x86_64", "AMD64") or not {"fma", "avx2"} <= _processor():
        return "PTX runs on x86-64 with FMA and AVX2"
    return None if shutil.which("gcc") else "PTX is compiled with gcc, which is not installed"


def _processor() -> set[str]:
    """What the processor can do, as Linux tells it."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return set()


class _Tag(ctypes.Structure):
    _fields_ = (("written", ctypes.c_uint64), ("read", ctypes.c_uint64))


class _Array(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("data", "size", "start", "written", "tags"))


class _Problem(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("block", ctypes.c_int32 * 3),
        ("thread", ctypes.c_int32),
        ("other", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("offset", ctypes.c_int64),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("arguments", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("parameters", ctypes.c_uint64 * ARGUMENTS),
        ("arrays", _Array * ARGUMENTS),
        ("serial", ctypes.c_uint64),
        ("counts", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("problems", ctypes.c_int32),
        ("problem", _Problem * PROBLEMS),
    )


class Memory:
    """An allocation on the device: NaN until written, with a flag and two tags for each of its words."""

    device = 0

    def __init__(self, size: int):
        words = size // 4 + 2
        whole = np.full(size + 2 * ALIGNMENT, 0xFF, np.uint8)
        start = -whole.ctypes.data % ALIGNMENT
        self.size, self.address, self.data = size, whole.ctypes.data + start, whole[start : start + size]
        self.written = np.zeros(words, np.uint8)
        self.tags = np.zeros((words, 2), np.uint64)
        bisect.insort(_places, self.address)
        _alive[self.address] = self
        weakref.finalize(self, _places.remove, self.address)


_places: list[int] = []  # of all allocations that are alive, in order
_alive: "weakref.WeakValueDictionary[int, Memory]" = weakref.WeakValueDictionary()


class Piece(NamedTuple):
    """A part of an allocation, in bytes: what a kernel is given for an array."""

    memory: Memory
    offset: int
    size: int

    @property
    def bytes(self) -> np.ndarray:
        return self.memory.data[self.offset : self.offset + self.size]

    @property
    def written(self) -> np.ndarray:
        """A flag for each word."""
        return self.memory.written[self.offset // 4 : (self.offset + self.size + 3) // 4]


def memory_at(address: int, size: int | None = None) -> Piece:
    """What lies from an address on: all of it, or so many bytes.

    Raises:
        ValueError: not all of it lies in one allocation.
    """
    places = _places[:]  # another thread may free memory meanwhile
    memory = _alive[places[max(0, bisect.bisect_right(places, address) - 1)]]
    offset = address - memory.address
    piece = Piece(memory, offset, memory.size - offset if size is None else size)
    if not 0 <= offset <= offset + piece.size <= memory.size:
        raise ValueError(f"{piece.size} bytes from {address:#x} on are not in one allocation")
    return piece


class Machine:
    """What all launches of this process share.

    Attributes:
        order: of blocks and threads in the launches to come.
        problems: that launches had so far.
        programs: of each kernel, by name.
        launches: how often each kernel ran in each order.
    """

    def __init__(self) -> None:
        self.order = FORWARDS
        self.problems: list[Problem] = []
        self.programs: dict[str, list[Program]] = {}
        self.launches: Counter[tuple[str, int]] = Counter()
        self.serial = 0


machine = Machine()


class Program:
    """A kernel that can be launched."""

    def __init__(self, ptx: str):
        self.kernel = translate(ptx)
        self.name = self.kernel.name
        self.counts = np.zeros(len(self.kernel.blocks), np.uint64)
        self._run = ctypes.CDLL(str(compiled(self.kernel.c))).ptx_launch
        self._barriers = np.zeros(len(self.kernel.lines) + 1, np.uint8)
        self._launch = Launch(counts=self.counts.ctypes.data, barriers=self._barriers.ctypes.data)
        machine.programs.setdefault(self.name, []).append(self)

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: list) -> None:
        """arguments: a `Piece` for an array, a NumPy scalar for anything else. Problems are added to `machine`.

        Raises:
            ValueError: grid, block or arguments are none that CUDA would take for this kernel.
        """
        launch = self._launch
        grid, block = (tuple([*size, 1, 1][:3]) for size in (grid, block))
        if not (0 < grid[0] < 1 << 31 and 0 < min(grid[1:]) <= max(grid[1:]) < 1 << 16):
            raise ValueError(f"{self.name}: grid {grid}")
        if not 0 < np.prod(block) <= self.kernel.threads:
            raise ValueError(f"{self.name}: blocks {block}, declared are {self.kernel.threads} threads")
        launch.grid[:], launch.block[:], launch.order = grid, block, machine.order
        machine.serial += 1
        launch.serial, launch.arguments, launch.problems = machine.serial, len(arguments), 0
        for i, (kind, argument) in enumerate(zip(self.kernel.parameters, arguments, strict=True)):
            launch.parameters[i] = self._pass(i, kind, argument)
        if self._run(ctypes.byref(launch)):
            raise MemoryError(f"{self.name}: no memory for the stacks of threads")
        machine.launches[self.name, machine.order] += 1
        for found in launch.problem[: launch.problems]:
            machine.problems.append(Problem.of(found, self.name, self.kernel.lines))

    def _pass(self, i: int, kind: str, argument) -> int:
        array = self._launch.arrays[i]
        if isinstance(argument, Piece):
            memory, offset = argument.memory, argument.offset
            if kind != "u64" or offset % 4:
                raise ValueError(f"{self.name}: an array at byte {offset} for parameter {i} of type {kind}")
            address = memory.address + offset
            array.data, array.size = address, argument.size
            array.start = (i + 1 << ARRAY_SHIFT) + address % ALIGNMENT
            array.written = memory.written.ctypes.data + offset // 4
            array.tags = memory.tags.ctypes.data + offset // 4 * ctypes.sizeof(_Tag)
            return array.start
        array.size = array.start = 0
        if argument.itemsize != BYTES[kind]:
            raise ValueError(f"{self.name}: {argument.dtype} for parameter {i} of type {kind}")
        return int.from_bytes(argument.tobytes(), "little")

    @property
    def idle_barriers(self) -> list[int]:
        """Lines of the barriers that ran, none of which ever stood between two accesses that need one."""
        return np.flatnonzero(self._barriers == 1).tolist()

    @property
    def work(self) -> Counter:
        """What all launches so far did: see `translate.Kernel.blocks`."""
        total: Counter[str] = Counter()
        for count, block in zip(self.counts.tolist(), self.kernel.blocks, strict=True):
            total.update({name: count * n for name, n in block.items()})
        return total


@cache
def program(ptx: str) -> Program:
    """The program of a kernel, one for all."""
    return Program(ptx)


@cache
def _folder() -> Path:
    return folder("programs")


def compiled(source: str, *flags: str) -> Path:
    """The library of a program; made once for all processes."""
    key = hashlib.sha256("".join([source, RUNTIME.read_text(), *FLAGS, *flags]).encode()).hexdigest()[:24]
    library = _folder() / f"{key}.so"
    if not fresh(library):
        with only_here(library), tempfile.TemporaryDirectory(dir=library.parent) as place:
            if not fresh(library):
                made = Path(place) / "program.so"
                command = ["gcc", *FLAGS, *flags, "-shared", "-fPIC", "-I", str(RUNTIME.parent), "-xc", "-", "-lm"]
                subprocess.run([*command, "-o", str(made)], input=source, text=True, check=True)
                os.replace(made, library)
    return library

"""Counts exactly what a launch does without doing it: a kernel is reduced to its control flow and its addresses.

Only those instructions are kept on which branches and addresses in global memory depend. Each access to global memory
is noted, and each basic block counts how often it ran. Arithmetic, shared memory and barriers are left out. About a
tenth remains: a step of ResNet18 with 128 images takes seconds instead of half an hour.

The counts are those of a whole run (`tests/cuda/ptx/test_outline.py` compares) if no branch and no address depends on
computed numbers. If one does (`Outline.depends_on`), the numbers are what arrays hold at that time, and 0 in shared
memory. Blocks take tickets as in a whole run: a ticket lies in a shared array of one word, which thread 0 writes once.
"""

import ctypes
import re
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from tests.cuda.ptx.machine import ALIGNMENT, ARRAY_SHIFT, Launch, Piece, compiled
from tests.cuda.ptx.parse import Instruction, Parsed, parse
from tests.cuda.ptx.translate import C_TYPES, TICKET, Writer, work_of

RUNTIME = Path(__file__).with_name("outline.h")
COUNTS = {  # by the field of outline.h: of loads, of stores
    "issued": ("load", "store"),
    "of_blocks": ("block_load", "block_store"),
    "of_launch": ("read", "written"),
}


class _Totals(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64 * 2) for name in COUNTS),
        ("serial", ctypes.c_uint64),
        ("beside", ctypes.c_int64),
    )


def _registers(operands: list[str]) -> set[str]:
    return set(re.findall(r"%\w+", " ".join(operands)))


def _is_global(one: Instruction) -> bool:
    return one.op.startswith(("ld.", "st.", "cp.")) and ".global" in one.op


def _results(one: Instruction) -> set[str]:
    return set() if one.op.startswith(("st.", "cp.", "bra", "bar", "ret")) else _registers(one.operands[:1])


def _roots(one: Instruction) -> set[str]:
    """Registers that the way of a thread, or an address in global memory, depends on at this instruction."""
    if one.op.startswith(("bra", "ret")):
        return _registers([one.guard])
    if one.op == TICKET:
        return _registers([one.guard, *one.operands])
    if _is_global(one):
        address = one.operands[0] if one.op.startswith("st.") else one.operands[1]
        return _registers([one.guard, address, *one.operands[3:4]])  # the last one: bytes that cp.async takes
    return set()


class _Outliner(Writer):
    """Writes the C of an outline."""

    def __init__(self, parsed: Parsed):
        super().__init__(parsed)
        self.instructions = [one for block in parsed.blocks for one in block.instructions]
        self.words = {name for name, size in parsed.shared.items() if size == 4}  # shared: of tickets
        self.needed: set[str] = set().union(*map(_roots, self.instructions))
        for one in filter(self._keeps_ticket, self.instructions):
            self.needed |= _registers([one.guard, *one.operands])
        known = -1
        while known != len(self.needed):
            known = len(self.needed)
            for one in self.instructions:
                if _results(one) & self.needed:
                    self.needed |= _registers([one.guard, *one.operands])

    def _keeps_ticket(self, one: Instruction) -> bool:
        return one.op.startswith("st.shared") and one.operands[0].strip("[] ") in self.words

    @property
    def depends_on(self) -> list[str]:
        """The loads whose numbers decide on branches or addresses."""
        loads = [one for one in self.instructions if one.op.startswith("ld.") and ".param" not in one.op]
        return [one.text for one in loads if _results(one) & self.needed]

    def program(self) -> str:
        return super().program().replace('#include "runtime.h"', '#include "runtime.h"\n' + RUNTIME.read_text())

    def _mentioned(self, one: Instruction) -> list[str]:
        return [r for r in super()._mentioned(one) if r in self.needed]

    def statement(self, one: Instruction) -> str:
        wanted = _is_global(one) or one.op.startswith(("bra", "ret", "atom")) or _results(one) & self.needed
        wanted = wanted or self._keeps_ticket(one)
        return super().statement(one) if wanted else ""

    def _statement(self, one: Instruction) -> str:
        if one.op == TICKET:
            taken = f"next_ticket({self._address(one.operands[1], 'global')}, {self._get(one.operands[2], 'u32')})"
            return self._put(one.operands[0], "u32", taken)
        return "return;" if one.op == "ret" else super()._statement(one)

    def _memory(self, one: Instruction) -> str:
        if ".param" in one.op:
            return super()._memory(one)
        place = one.operands[0 if one.op.startswith("st.") else 1].strip("[] ")
        if place in self.words:
            word = f"*shared_word({self.shared[place]})"
            if one.op.startswith("st."):
                return f"{word} = {self._lower(one.operands[1], one.type)};"
            return self._load(one.operands[0], one.type, word)
        if not _is_global(one):
            return " ".join(self._load(r, one.type, "0") for r in re.findall(r"[^{},\s]+", one.operands[0]))
        store = one.op.startswith("st.")
        address = self._address(one.operands[0] if store else one.operands[1], "global")
        touch = f"touch({address}, {one.bytes}, {int(store)})"
        names = [] if store else re.findall(r"[^{},\s]+", one.operands[0])
        moves = [self._load(r, one.type, f"p[{i}]") for i, r in enumerate(names) if r in self.needed]
        if not moves:
            return f"{touch};"
        return f"{{ {C_TYPES[one.type]} *p = (void *){touch}; {' '.join(moves)} }}"

    def _copy(self, one: Instruction) -> str:
        taken = self._get(one.operands[3], "s32")
        return f"if ({taken}) touch({self._address(one.operands[1], 'global')}, {taken}, 0);"


class _Tags:
    """When each word of the arrays of a launch was last touched; of one launch after the other, hence the numbers."""

    def __init__(self) -> None:
        self.array = np.zeros((0, 2), np.uint64)
        self.serial = 0  # of the last block

    def of(self, words: int) -> np.ndarray:
        if len(self.array) < words:
            self.array = np.zeros((words, 2), np.uint64)
        return self.array


_tags = _Tags()


class Outline:
    """The outline of a kernel; one for each PTX, see `outline`.

    Attributes:
        depends_on: loads whose numbers decide on branches or addresses.
    """

    def __init__(self, ptx: str):
        parsed = parse(ptx)
        writer = _Outliner(parsed)
        self.name, self.depends_on = parsed.name, writer.depends_on
        self._parameters = list(parsed.parameters.values())
        self._work = [work_of(block.instructions) for block in parsed.blocks]
        self._run = ctypes.CDLL(str(compiled(writer.program(), "-O2"))).ptx_outline

    def count(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: list) -> Counter:
        """What one launch does.

        Args:
            arguments: a `Piece` for an array, a NumPy scalar for anything else.

        Returns: instructions, ffma, mma, and in bytes: shared (issued), and `load` and `store` of global memory as
            issued by all threads, `block_load` and `block_store` with each word once for each block, `read` and
            `written` with each word once.

        Raises:
            ValueError: an access beside the arrays.
        """
        counts = np.zeros(len(self._work), np.uint64)
        launch, totals = Launch(counts=counts.ctypes.data, arguments=len(arguments)), _Totals(serial=_tags.serial)
        launch.grid[:], launch.block[:] = (tuple([*size, 1, 1][:3]) for size in (grid, block))
        words = {id(a.memory): a.memory.size // 4 + 2 for a in arguments if isinstance(a, Piece)}
        tags = _tags.of(sum(words.values()))
        places: dict[int, int] = {}  # where the tags of an allocation begin: two arguments may lie in the same one
        used = 0
        for i, a in enumerate(arguments):
            if not isinstance(a, Piece):
                launch.parameters[i] = int.from_bytes(a.tobytes(), "little")
                continue
            if id(a.memory) not in places:
                places[id(a.memory)], used = used, used + words[id(a.memory)]
            array, address = launch.arrays[i], a.memory.address + a.offset
            array.data, array.size, array.start = address, a.size, (i + 1 << ARRAY_SHIFT) + address % ALIGNMENT
            array.tags = tags.ctypes.data + 16 * (places[id(a.memory)] + a.offset // 4)
            launch.parameters[i] = array.start
        self._run(ctypes.byref(launch), ctypes.byref(totals))
        _tags.serial = totals.serial
        if totals.beside:
            raise ValueError(f"{self.name}: {totals.beside} accesses beside the arrays")
        done: Counter[str] = Counter()
        for times, work in zip(counts.tolist(), self._work, strict=True):
            done.update({name: times * work[name] for name in ("instructions", "ffma", "mma", "shared")})
        for name, keys in COUNTS.items():
            done.update(dict(zip(keys, getattr(totals, name), strict=True)))
        return done


@cache
def outline(ptx: str) -> Outline:
    """The outline of a kernel, one for all."""
    return Outline(ptx)

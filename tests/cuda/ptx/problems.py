"""The problems that the machine finds in running kernels. runtime.h, which finds them, gets their numbers from here."""

from typing import NamedTuple

KINDS = {
    "P_BOUNDS": "out of bounds",
    "P_MISALIGNED": "misaligned",
    "P_UNWRITTEN": "read of memory that nobody wrote",
    "P_READ_WRITE": "race: write after another thread's read",
    "P_WRITE_READ": "race: read after another thread's write",
    "P_WRITE_WRITE": "race: write after another thread's write",
    "P_UNDER_WAY": "touched while an asynchronous copy is under way",
    "P_NOT_WAITED": "asynchronous copy never waited for",
    "P_BARRIER_LEFT": "barrier that other threads have left",
    "P_BARRIER_APART": "threads of a warp at different barriers",
    "P_WARP_APART": "threads of a warp not together at an instruction of the whole warp",
}
NUMBERS = {name: number for number, name in enumerate(KINDS, 1)}
ENUM = "enum { " + ", ".join(f"{name} = {number}" for name, number in NUMBERS.items()) + " };"
_TEXTS = dict(enumerate(KINDS.values(), 1))


class Problem(NamedTuple):
    """The first of its kind at one instruction of a launch."""

    kernel: str
    kind: str
    instruction: str
    line: int  # of the PTX
    block: tuple[int, int, int]
    thread: int
    other: int  # thread; -1: none, or not known
    argument: int  # of the launch, or number of the shared array
    offset: int  # in bytes

    @classmethod
    def of(cls, found, kernel: str, lines: list[str]) -> "Problem":
        """From what the runtime wrote down; lines: of the PTX."""
        instruction = lines[found.line - 1].strip() if 0 < found.line <= len(lines) else ""
        place = found.thread, found.other, found.argument, found.offset
        return cls(kernel, _TEXTS[found.kind], instruction, found.line, tuple(found.block), *place)

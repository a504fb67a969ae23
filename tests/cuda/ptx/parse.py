"""Reads the PTX of one kernel, as NVVM writes it for this library. Source: PTX ISA."""

import re
from typing import NamedTuple

BYTES = {"pred": 1, "f32": 4, "b32": 4, "u32": 4, "s32": 4, "b64": 8, "u64": 8, "s64": 8}

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)([^{]*)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+(\w+)")
_SHARED = re.compile(r"\.shared\s+\.align\s+\d+\s+\.b8\s+(\w+)\[(\d+)\]\s*;")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>\s*;")
_PIECE = re.compile(r"\s*(?:([\w$]+):|(?:@(!?%\w+)\s+)?([\w.:]+)\s*([^;]*);)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Unsupported(Exception):
    """PTX that nobody taught this translator."""


class Instruction(NamedTuple):
    """One instruction; guard: the predicate without which it does nothing, "" if there is none."""

    guard: str
    op: str
    operands: list[str]
    line: int
    text: str

    @property
    def type(self) -> str:
        return self.op.rsplit(".", 1)[-1]

    @property
    def bytes(self) -> int:
        """That it loads, stores or copies."""
        if self.op.startswith("cp."):
            return int(self.operands[2])
        return BYTES.get(self.type, 0) * (4 if ".v4." in self.op else 2 if ".v2." in self.op else 1)


class Block(NamedTuple):
    """Instructions that run one after the other; label: "" if nothing jumps to the first."""

    label: str
    instructions: list[Instruction]


class Parsed(NamedTuple):
    name: str
    parameters: dict[str, str]  # name: type
    threads: int  # of a block, at most
    shared: dict[str, int]  # name: bytes
    registers: dict[str, str]  # name: type
    blocks: list[Block]


def parse(ptx: str) -> Parsed:
    """The one kernel of a module.

    Raises:
        Unsupported: there are functions beside it, memory of another kind, or types that no kernel of ours has.
    """
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), ptx)
    entry = _ENTRY.search(text)
    if entry is None or text.count(".entry") != 1 or ".func" in text:
        raise Unsupported("a module that is not one kernel")
    if found := re.search(r"^\s*(\.local|\.const|\.visible\s+\.global)\b.*", text, re.MULTILINE):
        raise Unsupported(found[0].strip())
    end = text.rindex("}")
    bound = re.search(r"\.maxntid\s+(\d+)", entry[3])
    registers = {}
    for kind, stem, count in _REGISTERS.findall(text):
        if kind not in BYTES:
            raise Unsupported(f"registers of type {kind}")
        registers |= {f"{stem}{i}": kind for i in range(int(count))}
    return Parsed(
        name=entry[1],
        parameters={name: kind for kind, name in _PARAMETER.findall(entry[2])},
        threads=int(bound[1]) if bound else 1024,
        shared={name: int(size) for name, size in _SHARED.findall(text)},
        registers=registers,
        blocks=_blocks(text, entry.end(), end),
    )


def _blocks(text: str, start: int, end: int) -> list[Block]:
    blocks = [Block("", [])]
    line = text.count("\n", 0, start) + 1
    while piece := _PIECE.match(text, start, end):
        label, guard, op, operands = piece.groups()
        first = re.search(r"\S", piece[0])
        begins = line + (piece[0].count("\n", 0, first.start()) if first else 0)
        if label:
            blocks.append(Block(label, []))
        elif not op.startswith((".reg", ".shared", ".pragma")):
            shown = " ".join(piece[0].split())
            blocks[-1].instructions.append(Instruction(guard or "", op, _OPERAND.findall(operands), begins, shown))
            if op.startswith(("bra", "ret")):
                blocks.append(Block("", []))
        line += piece[0].count("\n")
        start = piece.end()
    if text[start:end].strip():
        raise Unsupported(text[start:end].strip().splitlines()[0])
    return blocks

"""PTX to C: a kernel becomes one C function, which is one CUDA thread; runtime.h runs it many times over.

Every instruction is one line of C, by the tables below; one that they do not have raises `Unsupported`. Memory is
touched through functions of runtime.h, which check it, and each basic block counts how often it ran.
"""

import re
from collections import Counter
from typing import NamedTuple

from tests.cuda.ptx.parse import BYTES, Instruction, Parsed, Unsupported, parse
from tests.cuda.ptx.problems import ENUM

C_TYPES = {
    "pred": "uint8_t",
    "f32": "float",
    "b32": "uint32_t",
    "u32": "uint32_t",
    "s32": "int32_t",
    "b64": "uint64_t",
    "u64": "uint64_t",
    "s64": "int64_t",
}
NOT_SET = {"pred": "0", "f32": "as_float(0x7FD5D5D5u)", "b32": "0xD5D5D5D5u", "b64": "0xD5D5D5D5D5D5D5D5ull"}
SPECIAL = {
    f"%{name}.{axis}": f"{source}[{i}]"
    for name, source in {"tid": "T->tid", "ntid": "L->block", "ctaid": "ctaid", "nctaid": "L->grid"}.items()
    for i, axis in enumerate("xyz")
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# Without the type, which all operands share. The division of the GPU and of C agree but for a divisor of 0.
FLOAT = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "add.rn": "{0} + {1}",
    "sub.rn": "{0} - {1}",
    "mul.rn": "{0} * {1}",
    "add.rz": "directed_fma({0}, 1, {1}, TOWARDS_ZERO)",
    "fma.rn": "fmaf({0}, {1}, {2})",
    "fma.rm": "directed_fma({0}, {1}, {2}, DOWN)",
    "div.rn": "{0} / {1}",
    "rcp.rn": "1 / {0}",
    "sqrt.rn": "sqrtf({0})",
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "copysign": "copysignf({1}, {0})",
    "min": "smaller({0}, {1})",
    "max": "larger({0}, {1})",
    "mov": "{0}",
    "selp": "{2} ? {0} : {1}",
    "ex2.approx.ftz": "flushed(exp2f(flushed({0})))",
    "lg2.approx.ftz": "log2f(flushed({0}))",
}
WHOLE = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul.lo": "{0} * {1}",
    "mad.lo": "{0} * {1} + {2}",
    "mul.wide": "({wide}){0} * ({wide}){1}",
    "div": "{1} == 0 ? -1 : {0} / {1}",
    "rem": "{1} == 0 ? {0} : {0} % {1}",
    "min": "{0} < {1} ? {0} : {1}",
    "max": "{0} > {1} ? {0} : {1}",
    "neg": "-{0}",
    "abs": "{0} < 0 ? -{0} : {0}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "~{0}",
    "shl": "{1} >= {bits} ? 0 : {0} << {1}",
    "shr": "{0} >> ({1} >= {bits} ? {bits} - 1 : {1})",  # of signed numbers; others: below
    "mov": "{0}",
    "selp": "{2} ? {0} : {1}",
}
LOGICAL = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "!{0}", "mov": "{0}"}
CONVERSIONS = {  # op: (type of the source, C)
    "cvt.rn.f32.s32": ("s32", "(float){0}"),
    "cvt.rn.f32.u32": ("u32", "(float){0}"),
    "cvt.rn.f32.s64": ("s64", "(float){0}"),
    "cvt.rzi.s32.f32": ("f32", "truncated({0})"),
    "cvt.s64.s32": ("s32", "(int64_t){0}"),
    "cvt.u64.u32": ("u32", "(uint64_t){0}"),
    "cvt.u32.u64": ("u64", "(uint32_t){0}"),
    "cvt.sat.f32.f32": ("f32", "saturated({0})"),
    "cvta.to.global.u64": ("u64", "{0}"),
    "cvta.shared.u64": ("u64", "{0} + SHARED_WINDOW"),
    "cvta.to.shared.u64": ("u64", "{0} - SHARED_WINDOW"),
}
TICKET = "atom.acq_rel.gpu.global.inc.u32"
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"


class Kernel(NamedTuple):
    """A translated kernel.

    Attributes:
        parameters: their types, in order.
        threads: of a block, at most.
        blocks: of each basic block, in which order the program counts them, what one run of it does: instructions,
            ffma, mma, and bytes of global and of shared memory.
    """

    name: str
    parameters: list[str]
    threads: int
    lines: list[str]
    blocks: list[Counter]
    c: str


def translate(ptx: str) -> Kernel:
    """The kernel of a module.

    Raises:
        Unsupported: it has an instruction, or an operand, that no kernel had so far.
    """
    parsed = parse(ptx)
    writer = Writer(parsed)
    work = [work_of(block.instructions) for block in parsed.blocks]
    lines = ptx.splitlines()
    return Kernel(parsed.name, list(parsed.parameters.values()), parsed.threads, lines, work, writer.program())


def work_of(instructions: list[Instruction]) -> Counter:
    work = Counter(instructions=len(instructions))
    for one in instructions:
        work["ffma"] += one.op.startswith("fma")
        work["mma"] += one.op.startswith("mma")
        for space in ("global", "shared"):
            if f".{space}." in f"{one.op}." and one.op.startswith(("ld", "st", "cp", "atom")):
                work[space] += one.bytes
    return work


class Writer:
    """Writes the C of one kernel."""

    def __init__(self, parsed: Parsed):
        self.parsed, self.registers = parsed, parsed.registers
        self.shared = {name: f"{i}u << SHARED_SHIFT" for i, name in enumerate(parsed.shared, 1)}
        self.parameters = {name: i for i, name in enumerate(parsed.parameters)}

    def program(self) -> str:
        used = sorted({r for block in self.parsed.blocks for one in block.instructions for r in self._mentioned(one)})
        sizes = ", ".join(map(str, self.parsed.shared.values())) or "0"
        targets = {one.operands[0] for b in self.parsed.blocks for one in b.instructions if one.op.startswith("bra")}
        body = []
        for number, block in enumerate(self.parsed.blocks):
            if block.label in targets:
                body.append(f"{_label(block.label)}:;")
            body.append(f"  counts[{number}]++;")
            body += [f"  {self.statement(one)}" for one in block.instructions]
        return "\n".join(
            [
                ENUM,
                f"#define SHARED_ARRAYS {len(self.shared)}",
                f"static const unsigned shared_sizes[] = {{{sizes}}};",
                '#include "runtime.h"',
                "static void one_thread(void) {",
                "  uint64_t *const counts = L->counts;",
                *(f"  {C_TYPES[self.registers[r]]} {_name(r)} = {NOT_SET[self.registers[r]]};" for r in used),
                *body,
                "}",
                "",
            ]
        )

    def _mentioned(self, one: Instruction) -> list[str]:
        return [r for r in re.findall(r"%\w+", " ".join([one.guard, *one.operands])) if r in self.registers]

    def statement(self, one: Instruction) -> str:
        try:
            code = self._statement(one)
        except (KeyError, IndexError, ValueError) as error:
            raise Unsupported(f"line {one.line}: {one.text}: {error!r}") from error
        return f"if ({self._get(one.guard, 'pred')}) {{ {code} }}" if one.guard else code

    def _statement(self, one: Instruction) -> str:
        op, a = one.op, one.operands
        kind = op.split(".")[0]
        if op in ("bra", "bra.uni"):
            return f"goto {_label(a[0])};"
        if op == "ret":
            return f"leave({one.line}); return;"
        if op == "bar.sync" and a == ["0"]:
            return f"barrier({one.line});"
        if kind in ("ld", "st"):
            return self._memory(one)
        if kind == "cp":
            return self._copy(one)
        if op == MMA:
            return self._mma(one)
        if op == TICKET:
            taken = f"take_ticket({self._address(a[1], 'global')}, {self._get(a[2], 'u32')}, {one.line})"
            return self._put(a[0], "u32", taken)
        if kind == "setp":
            return self._compare(one)
        if op in CONVERSIONS:
            source, code = CONVERSIONS[op]
            return self._put(
                a[0], op.split(".")[-2] if kind == "cvt" else one.type, code.format(self._lower(a[1], source))
            )
        return self._arithmetic(one)

    def _arithmetic(self, one: Instruction) -> str:
        name, kind = one.op.rsplit(".", 1)
        if kind not in C_TYPES:
            raise Unsupported(f"line {one.line}: {one.text}")
        table = FLOAT if kind == "f32" else LOGICAL if kind == "pred" else WHOLE
        if name not in table:
            raise Unsupported(f"line {one.line}: {one.text}: no {name} in the table of {kind}")
        types = [kind] * len(one.operands)
        if name == "selp":
            types[-1] = "pred"
        if name in ("shl", "shr"):
            types[-1] = "u32"
        code = table[name]
        if name == "shr" and kind[0] != "s":
            code = "{1} >= {bits} ? 0 : {0} >> {1}"
        result = kind
        if name == "mul.wide":
            result = f"{kind[0]}64"
        values = [self._get(operand, t) for operand, t in zip(one.operands[1:], types[1:], strict=True)]
        wide = C_TYPES.get(f"{kind[0]}64")
        return self._put(one.operands[0], result, code.format(*values, wide=wide, bits=8 * BYTES[kind]))

    def _compare(self, one: Instruction) -> str:
        _, how, kind = one.op.split(".")
        unordered = how.endswith("u") and how[:-1] in COMPARISONS  # true as well where one of both is NaN
        x, y = (self._get(operand, kind) for operand in one.operands[1:])
        if how in ("nan", "num"):
            return self._put(one.operands[0], "pred", f"({x} != {x} || {y} != {y}) == {int(how == 'nan')}")
        code = f"{x} {COMPARISONS[how[:-1] if unordered else how]} {y}"
        if kind == "f32" and how == "ne":
            code += f" && {x} == {x} && {y} == {y}"
        if unordered:
            code += f" || {x} != {x} || {y} != {y}"
        return self._put(one.operands[0], "pred", code)

    def _memory(self, one: Instruction) -> str:
        kind, space = one.op.split(".")[:2]
        address, registers = one.operands if kind == "st" else reversed(one.operands)
        names = re.findall(r"[^{},\s]+", registers)
        if space == "param":
            source = f"L->parameters[{self.parameters[address[1:-1]]}]"
            return self._load(names[0], one.type.replace("f", "b"), source)
        check = {"global": "global_memory", "shared": "shared_memory"}[space]
        what = f"{check}({self._address(address, space)}, {one.bytes}, {one.line}, {int(kind == 'st')})"
        if kind == "ld":
            moves = [self._load(r, one.type, f"p[{i}]") for i, r in enumerate(names)]
        else:
            moves = [f"p[{i}] = {self._lower(r, one.type)};" for i, r in enumerate(names)]
        return f"{{ {C_TYPES[one.type]} *p = {what}; {' '.join(moves)} }}"

    def _load(self, register: str, kind: str, value: str) -> str:
        """The register may be wider than what it is loaded with: the sign is extended."""
        if BYTES[self.registers[register]] > BYTES[kind]:
            return self._put(register, f"{kind[0]}64", f"({C_TYPES[kind]}){value}")
        return self._put(register, kind, value)

    def _lower(self, register: str, kind: str) -> str:
        """What is stored or converted may be the lower half of a register."""
        wider = BYTES.get(self.registers.get(register, ""), 0) > BYTES[kind]
        return self._get(register, "u64" if wider else kind)

    def _copy(self, one: Instruction) -> str:
        if one.op == "cp.async.commit_group":
            return "copies_close();"
        if one.op == "cp.async.wait_group":
            return f"copies_wait({int(one.operands[0])});"
        size = {"cp.async.ca.shared.global": (4, 8, 16), "cp.async.cg.shared.global": (16,)}[one.op]
        if one.bytes not in size:
            raise Unsupported(f"line {one.line}: {one.text}")
        target, source = self._address(one.operands[0], "shared"), self._address(one.operands[1], "global")
        return f"copy_start({target}, {source}, {one.bytes}, {self._get(one.operands[3], 's32')}, {one.line});"

    def _mma(self, one: Instruction) -> str:
        d, a, b, c = (re.findall(r"%\w+", operand) for operand in one.operands)
        factors = ", ".join(self._get(r, "b32") for r in a + b)
        sums = ", ".join(self._get(r, "f32") for r in c)
        out = " ".join(self._put(r, "f32", f"w.sums[{i}]") for i, r in enumerate(d))
        return f"{{ Operands w = {{{{{factors}}}, {{{sums}}}}}; multiply(&w, {one.line}); {out} }}"

    def _address(self, operand: str, space: str) -> str:
        base, offset = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand).groups()
        wide = space == "global" or self.registers.get(base) == "b64"
        return f"{self._get(base, 'u64' if wide else 'u32')} + {int(offset or 0)}"

    def _get(self, operand: str, kind: str) -> str:
        """The value of an operand, as C of this type."""
        if operand[0] == "!":
            return f"!{self._get(operand[1:], kind)}"
        if operand in self.registers:
            held, name = self.registers[operand], _name(operand)
            if BYTES[held] != BYTES[kind]:
                raise Unsupported(f"{operand} of type {held} as {kind}")
            if "f32" in (held, kind) and held != kind:
                return f"as_float({name})" if kind == "f32" else f"({C_TYPES[kind]})as_bits({name})"
            return f"(({C_TYPES[kind]}){name})"
        if operand in SPECIAL:
            return f"(({C_TYPES[kind]}){SPECIAL[operand]})"
        if operand in self.shared:
            return f"(({C_TYPES[kind]})({self.shared[operand]}))"
        if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            return f"as_float(0x{found[1]}u)" if kind == "f32" else f"(({C_TYPES[kind]})0x{found[1]}u)"
        if kind == "pred":
            return str(int(int(operand, 0) != 0))
        if kind == "f32":
            return f"as_float({int(operand, 0) & 0xFFFFFFFF:#x}u)"
        return f"(({C_TYPES[kind]}){int(operand, 0) & ((1 << 64) - 1):#x}ull)"

    def _put(self, register: str, kind: str, value: str) -> str:
        """C that gives a register a value of this type."""
        held = self.registers[register]
        if BYTES[held] != BYTES[kind]:
            raise Unsupported(f"{kind} into {register} of type {held}")
        if "f32" in (held, kind) and held != kind:
            value = f"as_bits({value})" if kind == "f32" else f"as_float({value})"
        return f"{_name(register)} = {value};"


def _name(register: str) -> str:
    return "r_" + register[1:]


def _label(label: str) -> str:
    return "to_" + label.replace("$", "_")

"""Compiles every CUDA kernel for every architecture, without a GPU, and looks at what the compiler made of it.

    python -m tests.cuda.compile_report [name ...]

prints the table (of the kernels whose names contain one of the words). The cubins are those that a GPU would be given:
NVVM's PTX, assembled by nvJitLink. Needs `numba-cuda[cu13]`, and for the instructions `nvidia-cuda-nvdisasm`.
"""

import gc
import importlib
import importlib.util
import multiprocessing
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.cuda.kept import keep_ptx, letters

CAPABILITIES = [(7, 5), (8, 0), (9, 0), (10, 0)]


class Instructions(NamedTuple):
    """Of the straight piece of code with the most multiplications: the body of the innermost loop of a product."""

    total: int
    multiplications: int  # HMMA if the kernel has any, else FFMA
    shared_loads: Counter  # by width in bits
    global_loads: Counter  # of the whole kernel, asynchronous copies included


class Row(NamedTuple):
    """One kernel, with (p) or without (a) its optional arguments, for one architecture."""

    kernel: str
    variant: str
    capability: tuple[int, int]
    threads: int
    registers: int
    shared: int
    stack: int
    spilled: int
    float64: int
    instructions: Instructions | None


def missing() -> str | None:
    """Why nothing can be compiled here, or None."""
    needed = {"numba_cuda": "numba-cuda[cu13]", "cuda.bindings.nvjitlink": "numba-cuda[cu13]"}
    for module, package in needed.items():
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{package} is not installed"
    return None if nvdisasm() else "nvidia-cuda-nvdisasm is not installed"


def nvdisasm() -> Path | None:
    """The disassembler of the pip package."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else []
    return next((path for place in places for path in Path(place).glob("*/bin/nvdisasm")), None)


def registry() -> dict:
    """All kernels of the library."""
    package = importlib.import_module("pytagi_ddp.kernels.cuda")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return importlib.import_module("pytagi_ddp.kernels.cuda.runtime.compile").REGISTRY


def compile_all(words: tuple[str, ...] = (), processes: int = 2) -> list[Row]:
    """The rows of all kernels whose names contain one of the words."""
    chosen = [name for name in registry() if not words or any(word in name for word in words)]
    chosen.sort(key=is_product, reverse=True)  # the slow ones first
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=prepare) as pool:
        rows = [row for rows in pool.map(compile_kernel, chosen) for row in rows]
    return sorted(rows, key=lambda row: row[:3])


def prepare() -> None:
    """A process that compiles begins with this."""
    keep_ptx()
    gc.set_threshold(100_000)  # Numba makes many objects that stay: looking for garbage took a sixth of the time
    registry()


def is_product(name: str) -> bool:
    """Whether the instructions of a kernel are counted."""
    return "_fp32_" in name or "_tf32_" in name


def compile_kernel(name: str) -> list[Row]:
    """The rows of one kernel."""
    kernel = registry()[name]
    rows = []
    for variant in kernel.variants():
        for capability in CAPABILITIES:
            if capability >= kernel.min_capability:
                compiled = kernel.compile(capability, variant)
                found = instructions(compiled.cubin) if is_product(name) else None
                rows.append(Row(name, letters(variant), capability, kernel.threads, *resources(compiled), found))
    return rows


def resources(compiled) -> tuple[int, int, int, int, int]:
    """(registers, bytes of shared memory, bytes of stack, bytes spilled, float64 instructions)."""
    number = lambda pattern: sum(map(int, re.findall(pattern, compiled.log)))  # noqa: E731
    shared = sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", compiled.ptx)))
    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    float64 = len(re.findall(r"^\s[^/\n]*\.f64\b", compiled.ptx, re.MULTILINE))
    return number(r"Used (\d+) registers"), shared, number(r"(\d+) bytes stack frame"), spilled, float64


def instructions(cubin: bytes) -> Instructions:
    """What the machine code consists of."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    pieces: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"\s*\.L_\w+:", line):
            pieces.append([])
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            pieces[-1].append(found[1])
            if found[1] in ("BRA", "EXIT", "RET"):
                pieces.append([])
    everything = [op for piece in pieces for op in piece]
    unit = "HMMA" if any(op.startswith("HMMA") for op in everything) else "FFMA"
    count = lambda piece: sum(op.startswith(unit) for op in piece)  # noqa: E731
    inner = max(pieces, key=count)
    return Instructions(len(inner), count(inner), widths(inner, "LDS"), widths(everything, "LDG", "LDGSTS"))


def widths(ops: list[str], *names: str) -> Counter:
    """Number of such instructions by their width in bits."""
    chosen = [op for op in ops if op.split(".")[0] in names]
    return Counter(next((int(part) for part in op.split(".") if part in ("64", "128")), 32) for op in chosen)


def table(rows: list[Row]) -> str:
    """One line for each kernel; numbers that differ by architecture are separated by strokes."""
    by_kernel: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_kernel.setdefault((row.kernel, row.variant), []).append(row)
    lines = [
        ["kernel", "cc from", "threads", "registers", "shared", "stack", "spills", "f64", "multiplications", "LDS"]
    ]
    for (name, variant), group in by_kernel.items():
        first, inner = group[0], [row.instructions for row in group if row.instructions]
        shares = dict.fromkeys(f"{i.multiplications}/{i.total}" for i in inner)
        loads = dict.fromkeys(" ".join(f"{n}x{bits}" for bits, n in i.shared_loads.items()) for i in inner)
        lines.append(
            [
                f"{name} ({variant})" if variant else name,
                "{}.{}".format(*first.capability),
                str(first.threads),
                "|".join(str(row.registers) for row in group),
                *(
                    "|".join(dict.fromkeys(str(getattr(row, field)) for row in group))
                    for field in ("shared", "stack", "spilled", "float64")
                ),
                "|".join(shares),
                "|".join(loads),
            ]
        )
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)).rstrip() for line in lines)


if __name__ == "__main__":
    if reason := missing():
        sys.exit(reason)
    print("compute capability " + ", ".join("{}.{}".format(*c) for c in CAPABILITIES))
    print(table(compile_all(tuple(sys.argv[1:]))))

"""What a training step does on a GPU, counted without one: launches, copies, multiplications, bytes.

    python -m benchmarks.step_counts resnet18-b128 [--tf32] [--json FILE]

The network runs on the stand-in of the PTX lane, on which no kernel runs: launches are recorded, with the tiles that a
GPU takes, and each that differs from all others is counted by its outline (`tests/cuda/ptx`): thread by thread
and exactly, but for branches and addresses that depend on computed numbers, which are taken as for arrays of zeros;
the kernels with such are named. Copies are those on the device, as a replayed step makes them.

Bytes of global memory are counted three ways. Issued: those of all loads and stores, threads that read the same word
counted each. Of blocks: each word once for each block that loads or stores it, as if the first cache held all that a
block reads. Distinct: each word once that a launch reads, and once if it writes it: what memory has to move if nothing
stays in a cache between launches.
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

COLUMNS = ("ffma", "mma", "read", "written", "block_load", "block_store", "load", "store", "shared")


def count(name: str, tf32: bool = False) -> dict:
    """The counts of a step of a workload. Only for a process of its own: CuPy's stand-in takes the place of CuPy.

    Returns: {"workload", "tf32", "launches": [...], "copies": [...], "data_dependent": [kernels]}; a launch is
        {"kernel", "threads", "grid", "times", and the counts of `Outline.count`}, a copy {"what", "times", "read",
        "written"}: numbers are those of one of `times` equal ones.

    Raises:
        RuntimeError: this machine cannot count; the message says what is missing.
        ValueError: there is no such workload.
    """
    from tests.cuda.ptx.emulator import missing, outline, stand_in

    if reason := missing():
        raise RuntimeError(reason)
    stand_in(running=False)

    launches: dict[tuple, dict] = {}
    copies: dict[tuple, dict] = {}
    dependent = set()
    for function, arguments in _recorded(name, tf32):
        if hasattr(function, "prepare"):
            grid, block, passed = arguments
            ptx = function._function.ptx
            made = outline(ptx)
            pieces = [a if isinstance(a, np.generic) else a.piece for a in passed]
            key = function.__name__, ptx, grid, block, _layout(pieces)
            if made.depends_on:
                dependent.add(function.__name__)
            if key not in launches:
                head = {"kernel": function.__name__, "threads": int(np.prod(block)), "grid": list(grid), "times": 0}
                launches[key] = head | made.count(grid, block, pieces)
            launches[key]["times"] += 1
        else:
            what, size = ("copy" if len(arguments) == 2 else "clear"), arguments[-1].nbytes
            read = size if what == "copy" else 0
            one = copies.setdefault((what, size), {"what": what, "times": 0, "read": read, "written": size})
            one["times"] += 1
    return {
        "workload": name,
        "tf32": tf32,
        "launches": list(launches.values()),
        "copies": list(copies.values()),
        "data_dependent": sorted(dependent),
    }


def _recorded(name: str, tf32: bool) -> list:
    """The launches and copies of the second step."""
    from benchmarks.training_step import Workload
    from pytagi_ddp import cuda
    from pytagi_ddp.kernels.cuda.runtime.recorder import recording

    cuda.allow_tf32, cuda.replay_launches = tf32, False
    job = Workload(name, "cuda")
    for _ in range(2):
        with recording() as work:
            job.step()
    return work


def _layout(pieces: list) -> tuple:
    """What a launch depends on: numbers, and how arrays lie to each other."""
    seen: dict[int, tuple[int, int]] = {}
    layout: list[tuple] = []
    for a in pieces:
        if isinstance(a, np.generic):
            layout.append((str(a.dtype), a.tobytes()))
        else:
            number, first = seen.setdefault(id(a.memory), (len(seen), a.offset))
            layout.append((number, a.offset - first, a.size))
    return tuple(layout)


def by_kernel(counts: dict) -> dict[str, Counter]:
    """The sums over a step for each kernel and kind of copy: launches or copies, and all counts."""
    kernels: defaultdict[str, Counter] = defaultdict(Counter)
    for one in counts["launches"]:
        row = kernels[one["kernel"]]
        row.update({name: one["times"] * one[name] for name in COLUMNS}, launches=one["times"])
    for one in counts["copies"]:
        row = kernels[f"({one['what']} on the device)"]
        row.update({name: one["times"] * one[name] for name in ("read", "written")}, copies=one["times"])
    return kernels


def totals(counts: dict) -> Counter:
    """The sums over a step: launches, copies, and all counts; bytes of copies are among `read` and `written`."""
    return sum(by_kernel(counts).values(), Counter())


def show(counts: dict) -> None:
    """Prints the totals, and a line for each kernel."""
    total = totals(counts)
    unit, power = (1e9, 9) if total["read"] > 1e9 else (1e6, 6)
    heads = ("ffma", "mma", "read", "written", "block load", "block store", "issued load", "issued store", "shared")
    print(f"{f'in 10^{power} and 10^{power} bytes':34}{'times':>6}" + "".join(f"{head:>13}" for head in heads))
    kernels = sorted(by_kernel(counts).items(), key=lambda item: -item[1]["read"] - item[1]["written"])
    for kernel, row in [*kernels, ("step", total)]:
        print(
            f"{kernel:34}{row['launches'] + row['copies']:6}" + "".join(f"{row[name] / unit:13.4f}" for name in COLUMNS)
        )
    print(f"{counts['workload']}: {total['launches']} launches, {total['copies']} copies")
    if counts["data_dependent"]:
        print("counted for arrays of zeros, as numbers decide on branches or addresses:", *counts["data_dependent"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "workload", nargs="?", default="resnet18-b128", help="a name of benchmarks.workloads, any batch"
    )
    parser.add_argument("--tf32", action="store_true", help="products on tensor cores")
    parser.add_argument("--json", type=Path, help="file for the counts")
    args = parser.parse_args()
    counts = count(args.workload, args.tf32)
    if args.json:
        args.json.write_text(json.dumps(counts))
    else:
        show(counts)


if __name__ == "__main__":
    main()

"""How data-parallel training scales: section "scaling", and with predictions `python -m benchmarks.scaling`.

The latter measures, on 1 to 4 ranks of one thread, each with the same batch, a step without exchange, and all-reduces
of several sizes. From these it fits

    time of an all-reduce of n bytes on R ranks = alpha ceil(log2 R) + beta n 2 (R - 1)/R

and predicts the efficiency of more ranks, compute / (compute + all-reduce). More ranks than cores are marked (*): there
the step without exchange is slower than on a core of its own, and only the one on a core of its own is used.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.ranks import launch
from benchmarks.report import duration, table
from benchmarks.training_step import WORKLOADS
from pytagi_ddp.kernels.cpu.runtime.threads import usable_cores

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 94_000_000)
RANKS = (1, 2, 3, 4)
PREDICTED = (2, 8, 64, 512)
# What a message and a byte cost on networks between nodes, by their makers' figures: assumptions, not measurements.
NETWORKS = {"10 Gbit/s Ethernet": (30e-6, 8 / 10e9), "100 Gbit/s InfiniBand": (3e-6, 8 / 100e9)}


def run(options: Options, peak: SgemmPeak) -> dict:
    """Samples per second of three ways to use two cores, by workload; of the slowest only if no other is asked for."""
    ways, rows, found = ((1, 1), (2, 1), (1, 2)), [], []
    chosen = [name for name in options.workloads if name not in ("mlp-4096-b256", "resnet18-b128")]
    for workload in chosen or options.workloads:
        base = None
        for ranks, threads in ways:
            row = launch(ranks, threads, options.repeat, workload) | {"ranks": ranks, "threads": threads}
            rate = ranks * row["batch"] / row["step"]
            base = base or rate
            found.append(row | {"workload": workload, "samples_per_second": rate, "speedup": rate / base})
            name = f"{ranks} rank{'s' * (ranks > 1)} x {threads} thread{'s' * (threads > 1)}"
            exchange = duration(row["step"] - row["alone"]) if ranks > 1 and row["step"] > row["alone"] else "-"
            rows.append([workload, name, duration(row["step"]), exchange, f"{rate:.1f}", f"{rate / base:.2f}"])
    print(table(("workload", "processes", "step", "exchange", "samples/s", "times the first"), rows), flush=True)
    return {"rows": found}


def fit(found: dict[int, dict[int, float]]) -> tuple[float, float]:
    """(alpha, beta) by least squares of relative errors, over ranks and sizes."""
    rows, ones = [], []
    for ranks, reductions in found.items():
        for nbytes, seconds in reductions.items():
            rows.append([math.ceil(math.log2(ranks)) / seconds, nbytes * 2 * (ranks - 1) / ranks / seconds])
            ones.append(1.0)
    solution, *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return float(solution[0]), float(solution[1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="resnet18-b16")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    cores, found, compute, batch, nbytes = usable_cores(), {}, 0.0, 0, 0
    print(f"{args.workload}, one thread per rank, {cores} cores (*: more ranks than cores)")
    print(f"{'ranks':>6}{'step alone':>13}{'samples/s':>11}" + "".join(f"{size:>12,} B" for size in SIZES))
    for ranks in RANKS:
        job = launch(ranks, 1, args.repeat, args.workload, SIZES)
        reductions = {size: ours for size, ours, _ in job["reduce"]}
        batch, nbytes = job["batch"], job["nbytes"]
        full = job["alone"] + (reductions[SIZES[-1]] * nbytes / SIZES[-1] if ranks > 1 else 0)
        print(
            f"{ranks:>5}{'*' if ranks > cores else ' '}{job['alone'] * 1e3:>10.1f} ms{ranks * batch / full:>11.1f}"
            + "".join(f"{seconds * 1e6:>11.0f} us" for seconds in reductions.values()),
            flush=True,
        )
        if ranks == 1:
            compute = job["alone"]
        elif ranks <= cores:
            found[ranks] = reductions
    if not found:
        sys.exit("two cores at least are needed to predict anything")
    here = fit(found)
    print(f"fit on this machine: alpha {here[0] * 1e6:.1f} us, beta {here[1] * 1e9:.3f} ns per byte")
    print(f"predicted share of linear scaling, {batch} samples per rank and step, {nbytes / 1e6:.1f} MB of deltas:")
    print(f"{'':24}" + "".join(f"{ranks:>5} ranks" for ranks in PREDICTED))
    for name, (alpha, beta) in {"memory of this machine": here, **NETWORKS}.items():
        times = [alpha * math.ceil(math.log2(r)) + beta * nbytes * 2 * (r - 1) / r for r in PREDICTED]
        print(f"{name:24}" + "".join(f"{compute / (compute + t):>11.1%}" for t in times))


if __name__ == "__main__":
    main()

"""How data-parallel training scales: section "scaling", and by size of the all-reduce `python -m benchmarks.scaling`.

The latter measures, on 1 to 4 ranks of one thread, each with the same batch, a step without exchange, and all-reduces
of several sizes. From these it fits the link between the ranks of a node, for a machine file of `benchmarks.predict`:

    time of an all-reduce of n bytes on R ranks = 2 (latency ceil(log2 R) + n (R - 1)/R / bandwidth)

More ranks than cores are marked (*), and not used for it.
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
from benchmarks.workloads import KNOWN
from pytagi_ddp.kernels.cpu.runtime.threads import usable_cores

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 94_000_000)
RANKS = (1, 2, 3, 4)


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
    """(latency, bandwidth) by least squares of relative errors, over ranks and sizes."""
    rows, ones = [], []
    for ranks, reductions in found.items():
        for nbytes, seconds in reductions.items():
            rows.append([2 * math.ceil(math.log2(ranks)) / seconds, 2 * nbytes * (ranks - 1) / ranks / seconds])
            ones.append(1.0)
    solution, *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return float(solution[0]), float(1 / solution[1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=list(KNOWN), default="resnet18-b16")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    cores, found = usable_cores(), {}
    print(f"{args.workload}, one thread per rank, {cores} cores (*: more ranks than cores)")
    print(f"{'ranks':>6}{'step alone':>13}{'samples/s':>11}" + "".join(f"{size:>12,} B" for size in SIZES))
    for ranks in RANKS:
        job = launch(ranks, 1, args.repeat, args.workload, SIZES)
        reductions = {size: ours for size, ours, _ in job["reduce"]}
        full = job["alone"] + (reductions[SIZES[-1]] * job["nbytes"] / SIZES[-1] if ranks > 1 else 0)
        rate = ranks * job["batch"] / full
        print(
            f"{ranks:>5}{'*' if ranks > cores else ' '}{job['alone'] * 1e3:>10.1f} ms{rate:>11.1f}"
            + "".join(f"{seconds * 1e6:>11.0f} us" for seconds in reductions.values()),
            flush=True,
        )
        if 1 < ranks <= cores:
            found[ranks] = reductions
    if not found:
        sys.exit("two cores at least are needed to fit anything")
    latency, bandwidth = fit(found)
    print(f"fit on this machine: latency {latency * 1e6:.1f} us, bandwidth {bandwidth / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()

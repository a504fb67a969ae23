"""This tree compared with an installed build, such as a wheel: `python -m benchmarks.builds ENVIRONMENT/bin/python`.

Each has a process of its own, and steps of the two take turns, round by round. The environment should have the NumPy,
SciPy and Numba of this one; only pytagi_ddp differs then. The program itself measures nothing but `ours`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import OWN
from benchmarks.report import Spread, spread, table
from benchmarks.training import SETTLE
from benchmarks.worker import ROOT, Worker
from benchmarks.workloads import KNOWN
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads

LARGE = ("mlp-4096-b256", "conv64-b32", "resnet18-b16")


def compare(workload: str, here: Worker, there: Worker, rounds: int, seconds: float) -> list[str]:
    """A row of the table: both medians, and the median over rounds of the ratio of their times."""
    steps: tuple[list[float], list[float]] = ([], [])
    ratios = []
    for worker in (here, there):
        worker.ask("versions")
        worker.ask("build", workload=workload)
        worker.ask("start")
    for k in range(rounds):
        medians = [0.0, 0.0]
        for which in (0, 1) if k % 2 else (1, 0):  # who comes second may find another clock
            time.sleep(SETTLE)
            times = (here, there)[which].ask("round", seconds=seconds)["times"]
            steps[which].extend(times)
            medians[which] = statistics.median(times)
        ratios.append(medians[1] / medians[0])
    ratio = Spread.of(ratios)
    return [
        workload,
        *(spread(Spread.of(times)) for times in steps),
        f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.builds", description=__doc__.partition(":")[0])
    parser.add_argument("python", help="the interpreter of an environment with a pytagi_ddp of its own")
    parser.add_argument("--workload", action="append", choices=list(KNOWN), help=f"default: {LARGE}")
    parser.add_argument("--threads", type=int, default=get_threads(), help="of both; default: usable cores")
    parser.add_argument("--repeat", type=int, default=9, help="rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round of one build (%(default)s)")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:  # from where no source tree is found
        shutil.copytree(ROOT / "benchmarks", Path(folder, "benchmarks"))
        for workload in args.workload or LARGE:
            with (
                Worker(OWN, args.threads) as here,
                Worker(OWN, args.threads, args.python, {"PYTHONPATH": folder}, Path(folder)) as there,
            ):
                rows.append(compare(workload, here, there, args.repeat, args.seconds))
    print(table(("workload", "here: median (quartiles)", "there", "there / here"), rows))


if __name__ == "__main__":
    main()

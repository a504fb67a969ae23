"""How data-parallel training scales: `python -m benchmarks.scaling`.

Starts itself by mpirun on 1 to 4 ranks of one thread, each with the same batch, and measures a step without exchange,
and all-reduces of several sizes. From these it fits

    time of an all-reduce of n bytes on R ranks = alpha ceil(log2 R) + beta n 2 (R - 1)/R

and predicts the efficiency of more ranks, compute / (compute + all-reduce). More ranks than cores are marked (*): there
the step without exchange is slower than on a core of its own, and only the one on a core of its own is used.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.training_step import WORKLOADS, Workload
from pytagi_ddp.distributed.launcher import find_mpirun, load_mpi, mpi_family
from pytagi_ddp.kernels.cpu.threads import set_threads, usable_cores

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 94_000_000)
RANKS = (1, 2, 3, 4)
PREDICTED = (2, 8, 64, 512)
# What a message and a byte cost on networks between nodes, by their makers' figures: assumptions, not measurements.
NETWORKS = {"10 Gbit/s Ethernet": (30e-6, 8 / 10e9), "100 Gbit/s InfiniBand": (3e-6, 8 / 100e9)}


def measure(workload: str, repeat: int) -> None:
    """On every rank: times of a step and of all-reduces; rank 0 prints them as JSON."""
    from pytagi_ddp.distributed.communicator import create_communicator

    set_threads(1)
    communicator = create_communicator()
    job = Workload(workload)
    job.step()
    steps = []
    for _ in range(repeat):
        communicator.barrier()
        start = time.perf_counter()
        job.step()
        steps.append(time.perf_counter() - start)
    reductions = {}
    for nbytes in SIZES:
        buffer = np.ones(nbytes // 4, np.float32)
        times = []
        for _ in range(max(repeat, 3) * (20 if nbytes <= 1 << 16 else 1) + 2):
            communicator.barrier()
            buffer.fill(1)
            start = time.perf_counter()
            communicator.all_reduce(buffer)
            times.append(time.perf_counter() - start)
        reductions[nbytes] = statistics.median(times[2:])
    everyone = communicator.all_gather_object((statistics.median(steps), reductions))
    if communicator.rank == 0:
        slowest = {nbytes: max(found[nbytes] for _, found in everyone) for nbytes in SIZES}
        bytes_of_step = job.net.arena.buffer.nbytes
        print(json.dumps([max(step for step, _ in everyone), list(slowest.items()), job.batch, bytes_of_step]))


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
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        measure(args.workload, args.repeat)
        return
    mpirun = find_mpirun(mpi_family(load_mpi(None).Get_library_version()))
    own = ["-m", "benchmarks.scaling", "--measure", "--workload", args.workload, "--repeat", str(args.repeat)]
    cores, found, compute, batch, nbytes = usable_cores(), {}, 0.0, 0, 0
    print(f"{args.workload}, one thread per rank, {cores} cores (*: more ranks than cores)")
    print(f"{'ranks':>6}{'step alone':>13}{'samples/s':>11}" + "".join(f"{size:>12,} B" for size in SIZES))
    for ranks in RANKS:
        done = subprocess.run(
            [mpirun, "-np", str(ranks), sys.executable, *own], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{ranks} ranks ended with code {done.returncode}:\n{done.stderr}")
        step, reductions, batch, nbytes = json.loads(done.stdout.splitlines()[-1])
        reductions = dict(map(tuple, reductions))
        full = step + (reductions[SIZES[-1]] * nbytes / SIZES[-1] if ranks > 1 else 0)
        print(
            f"{ranks:>5}{'*' if ranks > cores else ' '}{step * 1e3:>10.1f} ms{ranks * batch / full:>11.1f}"
            + "".join(f"{seconds * 1e6:>11.0f} us" for seconds in reductions.values()),
            flush=True,
        )
        if ranks == 1:
            compute = step
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

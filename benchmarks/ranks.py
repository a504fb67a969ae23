"""Measurements on several ranks: `launch` starts them by mpirun, and they report to it.

On every rank: times of a training step without exchange and of a data-parallel one, and of all-reduces of several
sizes, by this library and by a bare `MPI_Allreduce`. What is compared takes turns; the slowest rank counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.training_step import Workload
from benchmarks.worker import ROOT
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.engine.launcher import OPEN_MPI, find_mpirun, load_mpi, mpi_family
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.nn import DDPConfig, DDPSequential, Sequential


def mpirun(ranks: int) -> list[str]:
    """The command that starts this number of ranks with the MPI library of this environment.

    Raises:
        RuntimeError: mpi4py, an MPI library or its mpirun is missing.
    """
    family = mpi_family(load_mpi(None).Get_library_version())
    extra = ["--oversubscribe", "--allow-run-as-root"] if family == OPEN_MPI else []
    return [str(find_mpirun(family)), *extra, "-np", str(ranks)]


def lines_of(ranks: int, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What ranks print that run Python with these arguments and variables of the environment.

    Raises:
        RuntimeError: the job failed; holds what it printed.
    """
    command = [*(mpirun(ranks) if ranks > 1 else ()), sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"{ranks} ranks ended with code {done.returncode}:\n{done.stderr}")
    return done.stdout.splitlines()


def found_by(ranks: int, threads: int, *arguments: str) -> Any:
    """What rank 0 of a module of this package prints as JSON; `lines_of` with a number of threads for each rank."""
    environment = os.environ | {"PYTAGI_DDP_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return json.loads(lines_of(ranks, ["-m", *arguments], environment)[-1])


def launch(ranks: int, threads: int, repeat: int, workload: str | None = None, sizes: tuple[int, ...] = ()) -> dict:
    """Medians in seconds: {"batch", "nbytes", "alone", "step", "reduce": [[bytes, ours, bare], ...]}.

    Args:
        ranks, threads: of each rank. repeat: rounds. workload: whose step; None: no steps. sizes: bytes.

    Raises:
        RuntimeError: the job failed; holds what it printed.
    """
    own = ["benchmarks.ranks", "--threads", str(threads), "--repeat", str(repeat)]
    own += ["--workload", workload] if workload else []
    own += ["--sizes", *map(str, sizes)] if sizes else []
    return found_by(ranks, threads, *own)


def slowest(communicator: Communicator, work: Callable[[], object]) -> float:
    """Seconds of `work`, which all ranks start at once, on the slowest of them."""
    communicator.barrier()
    start = time.perf_counter()
    work()
    seconds = np.array([time.perf_counter() - start])
    communicator.all_reduce(seconds, "max")
    return float(seconds[0])


class Steps:
    """Seconds of a step of a workload on all ranks, on the slowest of them."""

    def __init__(self, workload: str):
        self.job = Workload(workload)
        self.net = DDPSequential(self.job.net, DDPConfig(), average=False)

    def alone(self) -> float:
        """Without exchange."""
        return slowest(self.net.communicator, lambda: self._step(self.job.net, self.job.net.passes.step))

    def full(self) -> float:
        return slowest(self.net.communicator, lambda: self._step(self.net, self.net.step))

    def _step(self, net: Sequential | DDPSequential, step: Callable[[], None]) -> None:
        self.job.pass_through(net)
        step()

    @property
    def nbytes(self) -> int:
        """Of the deltas that are exchanged."""
        return self.job.net.arena.buffer.nbytes


def measure_steps(workload: str, repeat: int) -> dict:
    steps = Steps(workload)
    times: dict[str, list[float]] = {"alone": [], "step": []}
    for _ in range(2):
        steps.alone()
        steps.full()
    for _ in range(max(repeat, min(200, int(repeat * 0.3 / steps.full())))):
        times["alone"].append(steps.alone())
        times["step"].append(steps.full())
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"batch": steps.job.batch, "nbytes": steps.nbytes} | medians


def measure_reductions(sizes: list[int], repeat: int) -> list[list[float]]:
    from mpi4py import MPI

    communicator, found = create_communicator(), []
    for nbytes in sizes:
        buffer = np.ones(nbytes // 4, np.float32)
        ways = (
            lambda b=buffer: communicator.all_reduce(b),
            lambda b=buffer: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, b),
        )
        times: list[list[float]] = [[], []]
        for _ in range(max(repeat, 3) * (20 if nbytes <= 1 << 16 else 2) + 2):
            for way, taken in zip(ways, times, strict=True):
                buffer.fill(1)
                taken.append(slowest(communicator, way))
        found.append([nbytes, *(statistics.median(taken[2:]) for taken in times)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.ranks")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--workload")
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    args = parser.parse_args()
    set_threads(args.threads)
    found = measure_steps(args.workload, args.repeat) if args.workload else {}
    if args.sizes:
        found["reduce"] = measure_reductions(args.sizes, args.repeat)
    if create_communicator().rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

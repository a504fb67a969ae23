"""One process with several replicas (`DataParallel`) and its alternatives: `python -m benchmarks.data_parallel`.

Samples per second of a training step, in turns: one network with all threads of the kernels; `DataParallel` with a
replica for each core; and `DDPSequential` on as many MPI ranks of one thread. A replica, a rank, and the one network
have the same batch. Medians over rounds, in terms of the first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.ranks import launch
from benchmarks.report import table
from benchmarks.training_step import Workload
from benchmarks.worker import times_of
from benchmarks.workloads import KNOWN
from pytagi_ddp import nn
from pytagi_ddp.distributed import DataParallel
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads, usable_cores


def median_time(step: Callable[[], object], seconds: float) -> float:
    step()
    return statistics.median(times_of(step, seconds, at_least=3))


def replicated(workload: str, replicas: int) -> tuple[Callable[[], None], DataParallel]:
    """A step of several replicas, each with a whole batch, and the network."""
    job = Workload(workload)
    net = DataParallel(job.net, ["cpu"] * replicas, average=False)
    x = np.concatenate([job.x] * replicas)
    y = np.concatenate([job.y] * replicas)
    noise, updater = np.ones_like(y), nn.OutputUpdater(net.device)

    def step() -> None:
        net(x)
        updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()

    return step, net


def measure(workload: str, cores: int, repeat: int, seconds: float) -> dict[str, float]:
    """Median samples per second of each way."""
    rates: dict[str, list[float]] = {"one network": [], "DataParallel": [], "DDPSequential": []}
    job = Workload(workload)
    for _ in range(repeat):
        set_threads(cores)
        rates["one network"].append(job.batch / median_time(job.step, seconds))
        together, net = replicated(workload, cores)
        rates["DataParallel"].append(cores * job.batch / median_time(together, seconds))
        net.close()
        rates["DDPSequential"].append(cores * job.batch / launch(cores, 1, 3, workload)["step"])
    return {name: statistics.median(found) for name, found in rates.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser("benchmarks.data_parallel", description=__doc__.partition(":")[0])
    parser.add_argument(
        "--workload", nargs="+", choices=list(KNOWN), default=["mlp-128-b32", "mnist-cnn-b128", "resnet18-b16"]
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round (1)")
    args = parser.parse_args(argv)
    rows, cores = [], usable_cores()
    for workload in args.workload:
        found = measure(workload, cores, args.repeat, args.seconds)
        first = found["one network"]
        rows.append([workload, *(f"{rate:.1f} ({rate / first:.2f})" for rate in found.values())])
    print(f"samples per second on {cores} cores, and in terms of the first column")
    print(table(("workload", f"one network, {cores} threads", "DataParallel", "DDPSequential"), rows))


if __name__ == "__main__":
    main(sys.argv[1:])

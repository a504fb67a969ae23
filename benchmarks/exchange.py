"""Time of a data-parallel step by the way its deltas are exchanged: `mpirun -np 2 python -m benchmarks.exchange`.

One all-reduce, the same compressed to half precision, and buckets that are reduced during the backward pass; a step
without exchange (`no_sync`) as the floor. Rounds of all ways are interleaved; times are medians of the slowest rank.
Run it over a slow network to see where the options pay: `benchmarks.nodes` makes one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.training_step import WORKLOADS
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.nn import DDPConfig, DDPSequential, OutputUpdater

WAYS: dict[str, dict[str, Any]] = {
    "one all-reduce": {},
    "bfloat16": {"wire_dtype": "bfloat16"},
    "float16": {"wire_dtype": "float16"},
    "2 buckets": {"buckets": 2},
    "4 buckets": {"buckets": 4},
    "8 buckets": {"buckets": 8},
}


class Way:
    """A network with one way of exchanging deltas, and the times of its steps."""

    def __init__(self, workload: str, batch: int | None, options: dict):
        make, usual = WORKLOADS[workload]
        self.net = DDPSequential(make(), DDPConfig(**options), average=False)
        batch = batch or usual
        rng = np.random.default_rng(self.net.rank)
        self._x = rng.standard_normal((batch, self.net.model.in_shape.size), np.float32)
        self._y = rng.standard_normal(batch * self.net.model.out_shape.size, np.float32)
        self._noise = np.ones_like(self._y)
        self._updater = OutputUpdater(self.net.model.device)
        self.times: list[float] = []

    def _learn(self) -> None:
        net = self.net
        net(self._x)
        self._updater.update(net.output_z_buffer, self._y, self._noise, net.input_delta_z_buffer)
        net.backward()

    def step(self) -> float:
        """Seconds of one step, on the slowest rank."""

        def together() -> None:
            self._learn()
            self.net.step()

        return self._timed(together)

    def step_alone(self) -> float:
        """Seconds of one step without exchange."""

        def alone() -> None:
            self._learn()
            self.net.model.passes.step()

        return self._timed(alone)

    def _timed(self, work: Callable[[], None]) -> float:
        self.net.barrier()
        start = time.perf_counter()
        work()
        seconds = np.array([time.perf_counter() - start])
        self.net.communicator.all_reduce(seconds, "max")
        return float(seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser("exchange", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="resnet18-b16")
    parser.add_argument("--batch-size", type=int, help="of a rank; default: the workload's")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a rank (1)")
    args = parser.parse_args()
    set_threads(args.threads)
    ways = {name: Way(args.workload, args.batch_size, WAYS[name]) for name in args.ways}
    first = next(iter(ways.values()))
    alone = []
    for way in ways.values():
        way.step()
    for _ in range(args.repeat):
        alone.append(first.step_alone())
        for way in ways.values():
            way.times.append(way.step())
    if first.net.rank == 0:
        nbytes = first.net.model.arena.buffer.nbytes
        floor = statistics.median(alone)
        print(f"{args.workload}: {first.net.world_size} ranks, {nbytes / 1e6:.1f} MB of deltas")
        print(f"{'no exchange':16}{floor * 1e3:9.1f} ms")
        for name, way in ways.items():
            median = statistics.median(way.times)
            print(f"{name:16}{median * 1e3:9.1f} ms, {(median - floor) * 1e3:8.1f} ms more than without", flush=True)


if __name__ == "__main__":
    main()

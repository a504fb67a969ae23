"""Time of a data-parallel step by the way its deltas are exchanged: `mpirun -np 2 python -m benchmarks.exchange`.

One all-reduce, the same compressed to half precision, and buckets that are reduced during the backward pass; a step
without exchange (`no_sync`) as the floor. Rounds of all ways are interleaved; times are medians of the slowest rank.
Run it over a slow network to see where the options pay: `benchmarks.nodes` makes one.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.ranks import Steps
from benchmarks.workloads import KNOWN
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads

WAYS: dict[str, dict[str, Any]] = {
    "one all-reduce": {},
    "bfloat16": {"wire_dtype": "bfloat16"},
    "float16": {"wire_dtype": "float16"},
    "2 buckets": {"buckets": 2},
    "4 buckets": {"buckets": 4},
    "8 buckets": {"buckets": 8},
}


def main() -> None:
    parser = argparse.ArgumentParser("exchange", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=list(KNOWN), default="resnet18-b16")
    parser.add_argument("--batch-size", type=int, help="of a rank; default: the workload's")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a rank (1)")
    args = parser.parse_args()
    set_threads(args.threads)
    base = args.workload.rpartition("-b")[0]
    workload = f"{base}-b{args.batch_size}" if args.batch_size else args.workload
    ways = {name: Steps(workload, **WAYS[name]) for name in args.ways}
    first = next(iter(ways.values()))
    alone: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way.full()
    for _ in range(args.repeat):
        alone.append(first.alone())
        for name, way in ways.items():
            times[name].append(way.full())
    if first.net.rank == 0:
        floor = statistics.median(alone)
        print(f"{workload}: {first.net.world_size} ranks, {first.nbytes / 1e6:.1f} MB of deltas")
        print(f"{'no exchange':16}{floor * 1e3:9.1f} ms")
        for name, found in times.items():
            median = statistics.median(found)
            print(f"{name:16}{median * 1e3:9.1f} ms, {(median - floor) * 1e3:8.1f} ms more than without", flush=True)


if __name__ == "__main__":
    main()

"""Section "allreduce": the time of adding the buffers of two ranks, compared with a bare `MPI_Allreduce`.

On ranks of several nodes, `python -m benchmarks.allreduce` compares the ways of `distributed.engine.across_nodes`:

    python -m benchmarks.nodes --nodes 8 --mbit 1000 -np 16 -- python -m benchmarks.allreduce
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.ranks import launch, slowest
from benchmarks.report import duration, table
from pytagi_ddp.distributed.engine.across_nodes import WAYS
from pytagi_ddp.distributed.engine.mpi import MPICommunicator

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 94_000_000)
SIZES_ACROSS = (10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 45_000_000)
SENT = Path("/sys/class/net/cable/statistics/tx_bytes")  # of a node of `benchmarks.nodes`


def run(options: Options, peak: SgemmPeak) -> dict:
    found = launch(2, 1, options.repeat, sizes=SIZES)["reduce"]
    rows = [[f"{n:,}", "2 ranks", duration(ours), duration(bare), f"{ours / bare:.2f}"] for n, ours, bare in found]
    print(table(("bytes", "processes", "this library", "bare MPI", "ours / bare"), rows), flush=True)
    return {"rows": [{"bytes": n, "own": ours, "bare": bare} for n, ours, bare in found]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("allreduce", description="ways of adding over nodes, by turns")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_ACROSS, help="bytes")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args(argv)
    from mpi4py import MPI

    communicator = MPICommunicator(60.0)
    across = communicator._group.across
    if across is None:
        sys.exit("all ranks are on one node")
    chosen = across.way
    if communicator.rank == 0:
        print(f"{communicator.world_size} ranks, {communicator.local_world_size} of them on the first node")
        print(f"{'n, bytes':>12}{'MPI_Allreduce':>22}" + "".join(f"{way:>22}" for way in WAYS) + f"   first / {chosen}")
    for nbytes in args.sizes:
        buffer = np.ones(nbytes // 4, np.float32)

        def add(way: str, buffer: np.ndarray = buffer) -> None:
            across.way = way
            communicator.all_reduce(buffer)

        ways: dict[str, Callable[[], object]] = {
            "MPI_Allreduce": partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, buffer)
        }
        ways |= {way: partial(add, way) for way in WAYS}
        times: dict[str, list[float]] = {name: [] for name in ways}
        sent = dict.fromkeys(ways, 0.0)
        for _ in range(args.repeat + 1):
            for name, way in ways.items():
                buffer.fill(1)
                before = _sent(communicator)
                times[name].append(slowest(communicator, way))
                sent[name] = _most(communicator, _sent(communicator) - before) / nbytes
        medians = {name: statistics.median(values[1:]) for name, values in times.items()}
        gain = medians["MPI_Allreduce"] / medians[chosen]
        if communicator.rank == 0:
            cells = "".join(f"{duration(medians[name]):>12} {sent[name]:>7.2f} n" for name in ways)
            print(f"{nbytes:>12,}{cells}{gain:>10.2f}", flush=True)


def _sent(communicator: MPICommunicator) -> float:
    """Bytes that this node has sent so far, when all ranks are here; 0 elsewhere than in `benchmarks.nodes`."""
    communicator.barrier()
    sent = float(SENT.read_text()) if SENT.exists() else 0.0
    communicator.barrier()
    return sent


def _most(communicator: MPICommunicator, number: float) -> float:
    """The largest of the numbers of all ranks."""
    most = np.array([number])
    communicator.all_reduce(most, "max")
    return float(most[0])


if __name__ == "__main__":
    main()

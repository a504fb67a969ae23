"""Parallel strategies compared with each other: section "parallel", and `python -m benchmarks.parallel`.

    mpirun -np 2 python -m benchmarks.parallel                      # this machine
    python -m benchmarks.nodes --mbit 1000 -np 2 -- python -m benchmarks.parallel --exchanges

All ranks together learn from the same number of samples per step, the workload's batch times the ranks, whatever the
way. Rounds of all ways take turns; the slowest rank counts. Memory is that of parameters, deltas and gathered groups of
one rank. With ``--exchanges`` the ways are those in which `DDPSequential` exchanges deltas, compared with no exchange.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.ranks import found_by, slowest
from benchmarks.report import duration, table
from benchmarks.workloads import find
from pytagi_ddp import nn
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.nn import (
    BaseDeltaStates,
    BaseHiddenStates,
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    OutputUpdater,
    PipelineSequential,
    Sequential,
    balance_by_time,
)

MICRO_BATCHES = (4, 8)


def ddp(model: Sequential, x: np.ndarray, **options: Any) -> DDPSequential:
    return DDPSequential(model, DDPConfig(**options), average=False)


def fsdp(model: Sequential, x: np.ndarray, reshard: bool = True) -> FSDPSequential:
    return FSDPSequential(model, average=False, reshard_after_forward=reshard)


def pipeline(model: Sequential, x: np.ndarray, schedule: str, count: int) -> PipelineSequential:
    balance = balance_by_time(model, x[: max(1, len(x) // count)], create_communicator().world_size)
    return PipelineSequential(
        model, DDPConfig(), average=False, n_microbatches=count, schedule=schedule, balance=balance
    )


WAYS: dict[str, Callable[[Sequential, np.ndarray], Any]] = {  # of a network and the inputs of all ranks
    "DDP": ddp,
    "DDP, 4 buckets": partial(ddp, buckets=4),
    "FSDP, parameters whole": partial(fsdp, reshard=False),
    "FSDP": fsdp,
    **{f"pipeline 1F1B, {k} micro-batches": partial(pipeline, schedule="1F1B", count=k) for k in MICRO_BATCHES},
    "pipeline GPipe, 8 micro-batches": partial(pipeline, schedule="GPipe", count=8),
}
HALF = ("bfloat16", "float16")
EXCHANGES: dict[str, Callable[[Sequential, np.ndarray], Any]] = {
    "no exchange": partial(ddp, backend="serial"),
    "one all-reduce": ddp,
    **{dtype: partial(ddp, wire_dtype=dtype) for dtype in HALF},
    **{f"{count} buckets": partial(ddp, buckets=count) for count in (2, 4, 8)},
}


class Way:
    """A network that is trained in one way, and the times of its steps."""

    def __init__(self, name: str, workload: str):
        spec = find(workload)
        model, batch = spec.build(nn), spec.batch
        self.name = name
        self.times: list[float] = []
        self.communicator = create_communicator()
        ranks, rank = self.communicator.world_size, self.communicator.rank
        self.samples, rng = batch * ranks, np.random.default_rng(0)
        x = rng.standard_normal((self.samples, model.in_shape.size), np.float32)
        y = rng.standard_normal((self.samples, model.out_shape.size), np.float32)
        self.net = (WAYS | EXCHANGES)[name](model, x)
        piped = isinstance(self.net, PipelineSequential)
        share = slice(None) if piped else slice(rank * batch, (rank + 1) * batch)
        self._x, self._y = x[share], y[share]
        self._updater = OutputUpdater("cpu")
        self._learn = self._learn_piped if piped else self._learn_share

    def _learn_share(self) -> None:
        self.net(self._x)
        self._updater.update(self.net.output_z_buffer, self._y, 1.0, self.net.input_delta_z_buffer)
        self.net.backward()

    def _learn_piped(self) -> None:
        def observe(states: BaseHiddenStates, rows: slice, deltas: BaseDeltaStates) -> None:
            self._updater.update(states, self._y[rows], 1.0, deltas)

        self.net.forward_backward(self._x, observe)

    def step(self) -> float:
        return slowest(self.communicator, lambda: (self._learn(), self.net.step()))

    def bytes_of_a_step(self) -> float:
        """What a rank sends in one step, on average: of a collective, what a ring or an equal exchange sends."""
        c = self.net.communicator
        share, before = (c.world_size - 1) / c.world_size, (c.reduce_bytes, c.gather_bytes, c.sent_bytes)
        self._learn()
        self.net.step()
        after = c.reduce_bytes, c.gather_bytes, c.sent_bytes
        reduced, gathered, sent = (b - a for a, b in zip(before, after, strict=True))
        times = 1 if isinstance(self.net, FSDPSequential) else 2  # its sums are scattered, and not gathered again
        total = np.array([share * (times * reduced + gathered) + sent])
        self.communicator.all_reduce(total, "mean")
        return float(total[0])

    @property
    def memory(self) -> int:
        """Bytes of parameters and deltas on the rank that has the most of them."""
        net = self.net
        mine = net.nbytes if isinstance(net, FSDPSequential) else getattr(net, "stage", net.model).arena.nbytes
        most = np.array([mine], np.int64)
        self.communicator.all_reduce(most, "max")
        return int(most[0])


def measure(workload: str, ways: Sequence[str], repeat: int) -> list[dict]:
    """Medians of every way, on every rank."""
    trained = [Way(name, workload) for name in ways]
    for way in trained:
        way.step()
    for _ in range(repeat):
        for way in trained:
            way.times.append(way.step())
    return [
        {
            "way": way.name,
            "ranks": way.communicator.world_size,
            "samples": way.samples,
            "step": statistics.median(way.times),
            "memory": way.memory,
            "bytes": way.bytes_of_a_step(),
        }
        for way in trained
    ]


def show(found: Sequence[dict]) -> str:
    """A table of `measure`; the first way is what the others are compared with."""
    rows = []
    for row in found:
        rate, first = (r["samples"] / r["step"] for r in (row, found[0]))
        memory, sent = f"{row['memory'] / 1e6:.1f} MB", f"{row['bytes'] / 1e6:.1f} MB"
        rows.append([row["way"], memory, sent, duration(row["step"]), f"{rate:.1f}", f"{rate / first:.2f}"])
    return table(("way", "memory of a rank", "sent by a rank", "step", "samples/s", f"times {found[0]['way']}"), rows)


def launch(workload: str, ranks: int, repeat: int, ways: Sequence[str] = tuple(WAYS)) -> list[dict]:
    """`measure` on ranks of one thread each.

    Raises:
        RuntimeError: the job failed; holds what it printed.
    """
    own = ["--json", "--workload", workload, "--repeat", str(repeat), "--ways", *ways]
    return found_by(ranks, 1, "benchmarks.parallel", *own)


def run(options: Options, peak: SgemmPeak) -> dict:
    """Section "parallel": two ranks of one thread, ResNet18 with 16 images per rank."""
    workload = "resnet18-b16" if "resnet18-b16" in options.workloads else options.workloads[0]
    found = launch(workload, 2, options.repeat)
    print(f"{workload}\n\n{show(found)}", flush=True)
    return {"workload": workload, "rows": found}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.parallel", description=__doc__.partition(":")[0])
    parser.add_argument("--workload", default="resnet18-b16", help="with any batch of a rank after -b (resnet18-b16)")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, *EXCHANGES], default=list(WAYS))
    parser.add_argument("--exchanges", dest="ways", action="store_const", const=list(EXCHANGES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of a rank (1)")
    parser.add_argument("--json", action="store_true", help="print the figures for a program")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    found = measure(args.workload, args.ways, args.repeat)
    if create_communicator().rank == 0:
        print(json.dumps(found) if args.json else f"{args.workload}\n\n{show(found)}", flush=True)


if __name__ == "__main__":
    main()

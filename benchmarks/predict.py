"""Time, efficiency and bytes of training on 2 to 10,000 ranks, by a model: `python -m benchmarks.predict MACHINE.json`.

    python -m benchmarks.predict benchmarks/machines/ethernet.json --workload resnet18-b16 --ranks 2 64 1024
    python -m benchmarks.predict --check                # the model beside measured times (results/steps.jsonl)

Each rank learns from the same number of samples per step, b. A step takes

    compute (1 + wait x collectives) + time of the collectives + rounding       with buckets and overlap left out
    compute = (operations of the matrix products of b samples / flops + P parameter_seconds) slowdown
    gather of n bytes on n_r ranks of each of N nodes, or a sum that is scattered; an all-reduce is both:
        latency ceil(log2 n_r) + n (n_r - 1)/n_r / bandwidth      within a node
        latency ceil(log2 N) + n (N - 1)/N / bandwidth            between nodes, whose ranks share one link

Bytes follow from the memory of the network (`net.arena`). A machine file has the numbers of `Machine`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quality.done import read
from benchmarks.report import duration, table
from benchmarks.training_step import Workload, positions
from benchmarks.workloads import KNOWN
from pytagi_ddp.distributed.sharded_arena import groups_of
from pytagi_ddp.validate import as_integers, as_numbers

FOLDER = Path(__file__).parent
RANKS = (2, 8, 64, 512, 1024, 10_000)
STAGES, MICRO = 4, 16  # of a pipeline
CLUSTERS = ("ethernet", "hundred_gigabit", "gpu")
LATENCY = 50e-6  # of a message through two network namespaces
REACHED = 0.86  # share of the rate of their cables that exchanges by TCP reach (fitted)


class Link(NamedTuple):
    """Seconds of a message without content, and bytes per second in each direction."""

    latency: float
    bandwidth: float


class Machine(NamedTuple):
    """A cluster.

    Attributes:
        name: of it. ranks_per_node: that share a link to other nodes.
        flops: operations per second of a rank in matrix products. parameter_seconds: of a step for each parameter,
            whatever the batch. slowdown: factor on both when all ranks of a node compute.
        wait: for the slowest rank in a collective, as a share of the time that a rank computes.
        rounding: bytes per second of rounding to half precision and adding.
        node, network: the links between the ranks of a node, and of a node.
    """

    name: str
    ranks_per_node: int
    flops: float
    parameter_seconds: float
    slowdown: float
    wait: float
    rounding: float
    node: Link
    network: Link


MAY_BE_ZERO = ("parameter_seconds", "wait", "latency")


def machine_of(values: Any, what: str) -> Machine:
    """The machine in the JSON of a file.

    Raises:
        ValueError: a key that is missing or not known, or a value that is out of range. TypeError: not a number.
    """

    def checked(kind: Any, values: Any, where: str) -> Any:
        if not isinstance(values, dict) or (wrong := values.keys() ^ set(kind._fields)):
            found = ", ".join(sorted(map(str, wrong))) if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"{what}: {where or 'the file'} has the keys {', '.join(kind._fields)}; look at {found}")
        parts = {}
        for key, value in values.items():
            name = f"{where}.{key}".lstrip(".")
            if key in ("node", "network"):
                parts[key] = checked(Link, value, name)
                continue
            if key == "ranks_per_node":
                as_integers(what, 1, **{name: value})
            elif key != "name":
                as_numbers(what, "[0, inf)" if key in MAY_BE_ZERO else "(0, inf)", **{name: value})
            parts[key] = value
        return kind(**parts)

    return checked(Machine, values, "")


def load(path: Path) -> Machine:
    """Raises ValueError: not JSON. ValueError, TypeError: as in `machine_of`. OSError: it cannot be read."""
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return machine_of(values, str(path))


class Job(NamedTuple):
    """What the model needs of a network and its step, from the network's own memory.

    Attributes:
        batch: samples of a rank and step. operations: of their matrix products. parameters: P.
        theta, deltas: bytes of means and variances, and of what is added over ranks. groups: of FSDP.
        stages: of a pipeline. stage: share of the parameters in the largest, with equal operations. boundary: the most
            outputs of a sample that cross a cut between them.
    """

    batch: int
    operations: float
    parameters: int
    theta: int
    deltas: int
    groups: int
    stages: int
    stage: float
    boundary: int


def job_of(workload: str, stages: int = STAGES) -> Job:
    work = Workload(workload)
    net, arena = work.net, work.net.arena
    leaves = [[leaf for leaf in layer.leaves() if leaf.num_weights] for layer in net.layers]
    sizes = [sum(leaf.num_weights + leaf.num_biases for leaf in part) for part in leaves]
    done = np.cumsum([sum(positions(leaf) * leaf.num_weights for leaf in part) for part in leaves])
    ends = np.searchsorted(done, done[-1] * np.arange(1, stages) / stages) + 1
    stage = max(map(sum, np.split(np.array(sizes), ends))) / net.num_parameters
    boundary = max(net.layers[end - 1].out_shape.size for end in ends)
    memory = net.num_parameters, arena.theta.nbytes, arena.buffer.nbytes
    return Job(
        work.batch, work.floor_flops, *memory, len(groups_of(arena.leaves, 2, 1_000_000)), stages, stage, boundary
    )


class Step(NamedTuple):
    """Seconds of a step, and bytes that a rank sends in it; of several steps with one merge, their means."""

    seconds: float
    nbytes: float


def alone(machine: Machine, job: Job, part: float = 1.0) -> float:
    """Seconds of a step on one rank, for a part of the batch."""
    return part * job.operations / machine.flops + job.parameters * machine.parameter_seconds


def collective(machine: Machine, nbytes: float, ranks: int) -> float:
    """Seconds of a gather of so many bytes, or of a sum that is scattered."""
    of_node = min(ranks, machine.ranks_per_node)
    members = (of_node, machine.node), (-(-ranks // of_node), machine.network)
    return sum(link.latency * math.ceil(math.log2(n)) + nbytes * (n - 1) / n / link.bandwidth for n, link in members)


def step(machine: Machine, job: Job, way: str, ranks: int, micro: int = MICRO, every: int = 1) -> Step:
    """The model; `way` is one of `WAYS`, `micro` the micro-batches of a pipeline, `every` the steps between merges."""
    busy = machine.slowdown if min(ranks, machine.ranks_per_node) > 1 else 1.0
    compute, share = busy * alone(machine, job), (ranks - 1) / ranks
    if ranks == 1:
        return Step(compute, 0.0)
    if way == "pipeline":
        stages = job.stages
        link = machine.node if ranks <= machine.ranks_per_node else machine.network
        there = 8 * job.boundary * job.batch * stages  # mean and variance of the outputs, and back two deltas
        slots = micro + stages - 1
        passes = slots * (busy * alone(machine, job, stages / micro) / stages + 2 * link.latency)
        summed = step(machine, job._replace(deltas=int(job.deltas * job.stage)), "DDP", ranks // stages)
        replicas = summed.seconds - busy * alone(machine, job) if ranks // stages > 1 else 0.0
        return Step(passes + 2 * there / link.bandwidth * slots / micro + replicas, 2 * there + summed.nbytes)
    if way == "FSDP":  # parameters forward, means backward, and deltas that are scattered
        nbytes = 1.5 * job.theta + job.deltas
        rest = 3 * job.groups * (collective(machine, 0, ranks) + machine.wait * compute)
        return Step(compute + collective(machine, nbytes, ranks) + rest, nbytes * share)
    half = way.endswith("bfloat16")
    nbytes = job.deltas / (2 if half else 1)
    exchange = 2 * collective(machine, nbytes, ranks) + machine.wait * compute + half * job.deltas / machine.rounding
    return Step(compute + exchange / every, 2 * nbytes * share / every)


WAYS = ("DDP", "DDP, bfloat16", "FSDP", "pipeline")  # and "merge every k"
ALL_REDUCE = "all-reduce"  # the way of a measured point that is no whole step


def prediction(machine: Machine, job: Job, ranks: Sequence[int], every: int) -> str:
    """Time of a step, share of linear scaling and bytes, by ranks and way."""
    rows = []
    for way, k in [*((way, 1) for way in WAYS), (f"merge every {every}", every)]:
        for count in (count for count in ranks if way != "pipeline" or count >= STAGES):
            seconds, nbytes = step(machine, job, way, count, every=k)
            rate, share = f"{count * job.batch / seconds:,.0f}", f"{alone(machine, job) / seconds:.0%}"
            rows.append([way, f"{count:,}", duration(seconds), rate, share, f"{nbytes / 1e6:,.2f} MB"])
    return table(("way", "ranks", "step", "samples/s", "of linear", "sent by a rank"), rows)


def check(points: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """The model beside measured steps and all-reduces, and the largest relative error.

    A point with a `link` (bits per second) is of several nodes, of one rank each or of `ranks_per_node`.
    """
    rows, worst = [], 0.0
    steps = [point for point in points if point["way"] != ALL_REDUCE]
    wanted = {(point["workload"], point["ranks"]) for point in steps}
    jobs = {key: job_of(key[0], max(2, min(STAGES, key[1]))) for key in wanted}
    for point in points:
        machine, way, ranks = load(FOLDER / "machines" / f"{point['machine']}.json"), point["way"], point["ranks"]
        if link := point["link"]:
            network = Link(LATENCY, REACHED * link / 8)
            machine = machine._replace(ranks_per_node=point.get("ranks_per_node", 1), network=network)
            machine = machine._replace(parameter_seconds=machine.parameter_seconds * machine.slowdown)
            machine = machine._replace(flops=machine.flops / machine.slowdown)  # the nodes share their cores
        if way == ALL_REDUCE:
            found = 2 * collective(machine, point["nbytes"], ranks)
            way = f"{way} of {point['nbytes'] / 1e6:g} MB, {machine.ranks_per_node} on a node"
        else:
            found = step(machine, jobs[point["workload"], ranks], way, ranks, point.get("micro", MICRO)).seconds
        error = found / point["seconds"] - 1
        worst = max(worst, abs(error))
        where = f"{point['machine']}, {f'{link / 1e9:g} Gbit/s' if link else 'one node'}"
        used = f"{error:+.0%}" + " (fitted)" * bool(point.get("fitted"))
        rows.append([where, way, str(ranks), duration(point["seconds"]), duration(found), used, point["source"]])
    return table(("machine", "way", "ranks", "measured", "predicted", "error", "measured by"), rows), worst


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.predict", description=__doc__.partition(":")[0])
    parser.add_argument("machine", type=Path, nargs="*", help="JSON files (those of three clusters)")
    parser.add_argument("--workload", choices=list(KNOWN), default="resnet18-b16")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--every", type=int, default=10, help="steps between two merges")
    parser.add_argument("--check", action="store_true", help="the model beside measured steps")
    args = parser.parse_args(argv)
    if min(*args.ranks, args.every) < 1:
        parser.error("--ranks and --every must be at least 1")
    files = args.machine or [FOLDER / "machines" / f"{name}.json" for name in CLUSTERS]
    try:
        machines = [load(path) for path in files]
        if args.check:
            print(check(read(FOLDER / "results" / "steps.jsonl"))[0])
            return
    except (OSError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
    job = job_of(args.workload)
    for machine in machines:
        print(f"\n{args.workload} on {machine.name}, {job.batch} samples per rank and step: predicted\n")
        print(prediction(machine, job, args.ranks, args.every))


if __name__ == "__main__":
    main()

"""Ranks and ways against one process: `python -m tests.distributed.random_ways --count 5000 --seed 0`.

Each case is a network of the battery, a way to train it on 1 to 3 ranks (threads of this process), options, and batches
of random sizes, also none, all of which follow from its number. After three steps its parameters are those of one
process that has all samples, up to rounding; those of all ranks are equal; and ways that promise the bits of a
`DDPSequential` have them. The exit code is the number of cases that went otherwise (up to 99).
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from pytagi_ddp import nn
from pytagi_ddp.distributed import DataParallel, run_threads
from pytagi_ddp.distributed.merge import MERGES
from pytagi_ddp.distributed.pipeline.schedule import micro_batch_rows
from pytagi_ddp.kernels.tensors import Delta, Tensor
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
from pytagi_ddp.nn.core.step import Change
from tests import random_cases
from tests.battery.example import Example
from tests.battery.layers import examples_of, layers_of
from tests.learning import backpropagate
from tests.nn.networks import random_batch

WAYS = ("ddp", "buckets", "shards", "whole", "devices", "merges", "pipeline")
LIKE_DDP = ("buckets", "devices", "shards", "whole")  # with the bits of "ddp"; the latter two without micro-batches
STEPS, NOISE = 3, 0.3
TOLERANCE = 2e-3  # of the largest number; a delta at its cap or a variance near 0 magnifies what sums are rounded by


@dataclass
class Case:
    """A training.

    Attributes:
        seed: its number. layer, place: of the network, in the battery. way: one of `WAYS`. ranks: how many.
        average, sync: options of the way. number: buckets, the largest group of a shard, steps between merges, or
            micro-batches. merge, schedule: of merges, and of a pipeline.
        parts: samples of each step, rank and micro-batch.
    """

    seed: int
    layer: str
    place: str
    way: str
    ranks: int
    average: bool
    sync: bool
    number: int
    merge: str
    schedule: str
    parts: list[list[list[int]]]


def networks() -> dict[tuple[str, str], Example]:
    """The examples of the battery by layer and place, but those whose layers carry a state that is each rank's own."""
    found = {(kind.__name__, place): each for kind in layers_of(nn) for place, each in examples_of(kind).items()}
    return {name: each for name, each in found.items() if not each.network().arena.carried.size}


NETWORKS: dict[tuple[str, str], Example] = {}


def draw(seed: int) -> Case:
    """Returns case number `seed`."""
    NETWORKS.update(NETWORKS or networks())
    rng = random.Random(f"ways {seed}")
    layer, place = rng.choice([*NETWORKS])
    way, ranks = rng.choice(WAYS), rng.choice((1, 2, 2, 3))
    net = NETWORKS[layer, place].network()
    if way == "pipeline":
        ranks = min(ranks, sum(any(leaf.num_weights for leaf in each.leaves()) for each in net.layers))
    through = any(getattr(norm, "through_statistics", False) for norm in net.arena.running)
    sync = bool(net.arena.running) and rng.random() < 0.5 and way not in ("merges", "pipeline") and not through

    micro_batches = rng.randint(1, 4)

    def sizes() -> list[list[int]]:
        if way == "devices":  # cuts a batch itself; with `sync`, each device needs a sample
            n = rng.randint(2 * ranks, 9)
            return [[n // ranks + (rank < n % ranks)] for rank in range(ranks)]
        if way == "pipeline":  # micro-batches of one sample have no variance that BatchNorm2d could divide by
            return [[rng.randint(2 * micro_batches, 9)]] + [[]] * (ranks - 1)
        least = 2 if net.arena.running else 1
        return [[rng.randint(least, 4) for _ in range(rng.choice((1, 1, 1, 2, 0)))] for _ in range(ranks)]

    number = {"buckets": rng.randint(2, 4), "merges": rng.randint(1, 3), "pipeline": micro_batches}
    return Case(
        seed,
        layer,
        place,
        way,
        ranks,
        rng.random() < 0.5 and way != "merges",
        sync,
        number.get(way, rng.choice((0, 10, 10**6))),
        rng.choice(tuple(MERGES)),
        rng.choice(("1F1B", "GPipe")),
        [sizes() for _ in range(STEPS)],
    )


def batches(case: Case, net: nn.Sequential, step: int) -> list[list[tuple]]:
    """(x, var_x, y) of each micro-batch of each rank."""
    sizes = case.parts[step]
    x, var_x, y, _ = random_batch(net, sum(map(sum, sizes)), case.seed * STEPS + step)
    ends = np.cumsum([0, *(size for of_rank in sizes for size in of_rank)])
    cut = iter([tuple(a[i:j] for a in (x, var_x, y)) for i, j in pairwise(ends)])
    return [[next(cut) for _ in of_rank] for of_rank in sizes]


def learn(net: Any, x: np.ndarray, var_x: np.ndarray, y: np.ndarray) -> None:
    backpropagate(net, x, y, NOISE, var_x)


def learn_all(net: Any, parts: Sequence[tuple], accumulate: Any) -> None:
    """Micro-batches whose deltas are added up."""
    with accumulate() if len(parts) > 1 else nullcontext():
        for part in parts[:-1]:
            learn(net, *part)
    for part in parts[-1:]:
        learn(net, *part)


def wrapped(case: Case, net: nn.Sequential) -> Any:
    options = {"average": case.average, "sync_batch_norm": case.sync}
    if case.way == "devices":
        return DataParallel(net, ["cpu"] * case.ranks, **options)
    if case.way == "merges":
        return DDPSequential(net, every=case.number, merge=case.merge)
    if case.way == "pipeline":
        return PipelineSequential(net, n_microbatches=case.number, schedule=case.schedule, average=case.average)
    if case.way in ("shards", "whole"):
        reshard = case.way == "shards"
        return FSDPSequential(net, reshard_after_forward=reshard, min_num_params=case.number, **options)
    return DDPSequential(net, DDPConfig(buckets=case.number if case.way == "buckets" else 1), **options)


def train_pipeline(case: Case, net: Any, x: np.ndarray, var_x: np.ndarray, y: np.ndarray) -> None:
    update = nn.OutputUpdater("cpu").update

    def observe(states: Any, rows: slice, deltas: Any) -> None:
        update(states, y[rows], np.full(y[rows].shape, NOISE, np.float32), deltas)

    net.forward_backward(x, observe, var_x)


def on_ranks(case: Case) -> list[np.ndarray]:
    """Parameters after all steps, of each rank that holds all of them."""

    def program() -> np.ndarray | None:
        net = NETWORKS[case.layer, case.place].network()
        model = wrapped(case, net)
        whole = NETWORKS[case.layer, case.place].network()
        for step in range(STEPS):
            of_rank = batches(case, whole, step)
            if case.way == "devices":
                parts = [part for each in of_rank for part in each]
                learn(model, *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
            elif case.way == "pipeline":
                train_pipeline(case, model, *of_rank[0][0])
            else:
                learn_all(model, of_rank[model.rank], model.no_sync)
            model.step()
        if case.way == "merges":
            model.merge()
        state = model.state_dict()
        if case.way == "devices":
            model.close()
        return theta_of(whole, state) if state else None

    found = [program()] if case.way == "devices" else run_threads(program, case.ranks)
    return [theta for theta in found if theta is not None]


def theta_of(net: nn.Sequential, state: Any) -> np.ndarray:
    net.load_state_dict(state)
    return net.arena.theta.copy()


def on_one(case: Case) -> np.ndarray:
    """The same training by one process."""
    net = NETWORKS[case.layer, case.place].network()
    alone = bool(net.arena.running) and not case.sync  # each batch is normalised by itself
    replicas = [copy.deepcopy(net) for _ in range(case.ranks)]
    prior, seen, since = net.arena.theta.copy(), [0] * case.ranks, 0
    for step in range(STEPS):
        of_rank = batches(case, net, step)
        parts = [part for each in of_rank for part in each]
        if case.way == "merges":
            since += 1
            for rank, (replica, mine) in enumerate(zip(replicas, of_rank, strict=True)):
                seen[rank] += sum(len(part[0]) for part in mine)
                if mine:
                    learn_all(replica, mine, replica.accumulate)
                    replica.step()
            if since == case.number or step == STEPS - 1:
                merge(case, replicas, prior, seen)
                seen, since, prior = [0] * case.ranks, 0, replicas[0].arena.theta.copy()
            continue
        if case.way == "pipeline":
            ((whole,),) = of_rank[:1]
            rows = micro_batch_rows(len(whole[0]), case.number)
            parts = [tuple(array[part] for array in whole) for part in rows]
        elif parts and not alone:  # with `sync`, the k-th passes of all ranks are one
            together = [[p for p in each if p] for each in zip_longest(*of_rank)] if case.sync else [parts]
            parts = [tuple(np.concatenate(arrays) for arrays in zip(*each, strict=True)) for each in together]
        learn_all(net, parts, net.accumulate)
        active = sum(any(map(len, each)) if case.way == "pipeline" else bool(each) for each in of_rank)
        if not parts:
            continue
        if case.average and active > 1:
            samples = sum(len(part[0]) for part in parts)
            net.arena.step(-(-samples // active), 1 / active)
            net.passes.stepped()
            net.passes.invalidate(Change.PARAMETERS)
        else:
            net.step()
    return (replicas[0] if case.way == "merges" else net).arena.theta.copy()


def merge(case: Case, replicas: list[nn.Sequential], prior: np.ndarray, seen: list[int]) -> None:
    """Gives all replicas the merged posterior, by the kernels that ranks use."""
    active = [net for net, samples in zip(replicas, seen, strict=True) if samples]
    kernels, rule = replicas[0].kernels.merge, MERGES[case.merge]
    sums = np.zeros_like(prior)
    for net in active:
        change = np.zeros_like(prior)
        kernels.contribute(Tensor(*net.arena.theta), Tensor(*prior), Delta(*change), rule)
        sums += change
    counters = np.array([sum(seen), len(active), 0], np.float32)
    theta = replicas[0].arena.theta
    kernels.merge_sums(Tensor(*theta), Tensor(*prior.copy()), Delta(*sums), counters, rule)
    for net in replicas:
        net.arena.theta[...] = theta
        net.passes.invalidate(Change.PARAMETERS)


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case; returns what was wrong, and how large the difference was."""
    found, expected, wrong = on_ranks(case), on_one(case), []
    if any(not np.array_equal(theta, found[0]) for theta in found):
        wrong.append("ranks differ")
    scale = np.abs(expected).max(axis=1, keepdims=True)
    worst = float((np.abs(found[0] - expected) / scale).max())
    if not worst < TOLERANCE:
        wrong.append("differs from one process")
    micro_batches = any(len(of_rank) > 1 for sizes in case.parts for of_rank in sizes)
    alike = case.way in (LIKE_DDP[:2] if micro_batches else LIKE_DDP)
    if alike and not np.array_equal(found[0], on_ranks(replace(case, way="ddp"))[0]):
        wrong.append("not the bits of DDP")
    return wrong, f"{worst:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    return random_cases.main(arguments, "tests.distributed.random_ways", draw, run, WAYS)


if __name__ == "__main__":
    sys.exit(main())

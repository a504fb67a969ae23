"""Ranks that meet only every k steps, against ranks that meet at every step: `python -m benchmarks.merging`.

One epoch of MNIST with a 784-128-128-11 network on several ranks, for several standard deviations of a label, batch
sizes, rules and k; test error, negative log-likelihood per test image and bytes that a rank gives to the all-reduce.
The ranks are replicas in this one process: they meet only where their posteriors are merged, by the kernels that
`DDPSequential` uses, so the numbers are those of real ranks.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import pytagi_ddp
from benchmarks.quality.done import loaded
from benchmarks.workloads import mlp
from pytagi_ddp import Utils, nn
from pytagi_ddp.data import BatchLoader, ImageDataset, load_mnist
from pytagi_ddp.distributed.merge import MERGES
from pytagi_ddp.kernels.cpu.layers import merge
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.kernels.tensors import Delta, Tensor
from pytagi_ddp.nn import OutputUpdater, Sequential
from pytagi_ddp.nn.hierarchical_softmax import class_probabilities, hierarchical_softmax

CLASSES = 10
AT_EVERY_STEP = ("sum", "average")
RULES = tuple(MERGES)
FIELDS = ("rule", "every", "sigma_v", "batch", "seed", "error", "nll", "megabytes")


class Replicas:
    """The networks of all ranks.

    Args:
        ranks: how many.
        rule: one of `AT_EVERY_STEP` or `RULES`.
        every: steps between two merges.
        seed: of the prior.
        make: gives a network.
        caps: factor on the divisors of the caps, where ranks meet at every step.
    """

    def __init__(
        self,
        ranks: int,
        rule: str,
        every: int,
        seed: int,
        make: Callable[[], Sequential] = lambda: mlp(nn, 784, 128, 128, CLASSES + 1),
        caps: float = 1.0,
    ):
        self.rule, self.every, self.ranks, self.caps = rule, every, ranks, caps
        self.nets = []
        for _ in range(1 if rule in AT_EVERY_STEP else ranks):
            pytagi_ddp.manual_seed(seed)
            self.nets.append(make())
        self.prior = self.nets[0].arena.theta.copy()
        self.sums = np.zeros_like(self.prior)
        self.own = np.empty_like(self.prior)
        self.steps = self.bytes = 0

    def step(self, batches: Sequence[tuple[np.ndarray, np.ndarray]], sigma_v: float) -> None:
        """One step of every rank on its own batch; then, where it is time, the exchange."""
        if self.rule in AT_EVERY_STEP:  # the step of one process with all samples, or its average over ranks
            x, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            learn(self.nets[0], x, labels, sigma_v)
            samples, scale = (len(x), 1.0) if self.rule == "sum" else (-(-len(x) // self.ranks), 1 / self.ranks)
            self.nets[0].arena.step(samples, scale, self.caps)
            self.nets[0].passes.stepped()
            self.bytes += self.prior.nbytes
            return
        for net, (x, labels) in zip(self.nets, batches, strict=True):
            learn(net, x, labels, sigma_v)
            net.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.merge()

    def merge(self) -> None:
        """Gives all ranks the merged posterior."""
        if self.rule in AT_EVERY_STEP:
            return
        self.bytes += self.prior.nbytes
        rule = MERGES[self.rule]
        self.sums[...] = 0
        for net in self.nets:
            merge.contribute(Tensor(*net.arena.theta), Tensor(*self.prior), Delta(*self.own), rule)
            self.sums += self.own
        counters = np.array([0, self.ranks, 0], np.float32)
        posterior = Tensor(*self.nets[0].arena.theta)
        merge.merge_sums(posterior, Tensor(*self.prior), Delta(*self.sums), counters, rule)
        for net in self.nets:
            net.arena.theta[...] = self.prior

    def forget_evidence(self, factor: float) -> None:
        """`Sequential.forget_evidence` on all ranks, which have just met."""
        for net in self.nets:
            net.forget_evidence(factor)
        self.prior = self.nets[0].arena.theta.copy()


def learn(net: Sequential, x: np.ndarray, labels: np.ndarray, sigma_v: float) -> None:
    """Everything of a training step but the step."""
    net(x)
    obs, index, _ = Utils().label_to_obs(labels, CLASSES)
    var_obs = np.full_like(obs, sigma_v**2)
    OutputUpdater("cpu").update_using_indices(net.output_z_buffer, obs, var_obs, index, net.input_delta_z_buffer)
    net.backward()


def evaluate(net: Sequential, x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(error, negative log-likelihood per image); probabilities are those of the classes, normalised."""
    p = class_probabilities(*net.predict(x), hierarchical_softmax(CLASSES))
    p /= p.sum(axis=1, keepdims=True)
    nll = -np.log(np.maximum(p[np.arange(len(labels)), labels], 1e-7)).mean()
    return float(np.mean(p.argmax(1) != labels)), float(nll)


class Digits(NamedTuple):
    """A training set, and test images with their labels; mean and standard deviation of the pixels."""

    train: ImageDataset
    x_test: np.ndarray
    labels_test: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def load(folder: str | None, limit: int | None = None) -> Digits:
    """MNIST; ends the program where there is none."""
    train_set, test_set = loaded(load_mnist, folder)
    train_set = train_set.subset(limit or len(train_set))
    mean, std = train_set.mean(), train_set.std()
    x_test, labels_test = next(iter(BatchLoader(test_set, len(test_set), evaluation=True, mean=mean, std=std)))
    return Digits(train_set, x_test, labels_test, mean, std)


def run(data: Digits, ranks: int, rule: str, every: int, sigma_v: float, batch: int, seed: int) -> dict:
    """One epoch; a row of the table."""
    replicas = Replicas(ranks, rule, every, seed)
    loaders = [
        BatchLoader(data.train, batch, r, ranks, seed=seed, prefetch=0, drop_last=True, mean=data.mean, std=data.std)
        for r in range(ranks)
    ]
    for batches in zip(*loaders, strict=True):
        replicas.step(batches, sigma_v)
    replicas.merge()
    error, nll = evaluate(replicas.nets[0], data.x_test, data.labels_test)
    row = (rule, every, sigma_v, batch, seed, error, nll, replicas.bytes / 1e6)
    return dict(zip(FIELDS, row, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("merging", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="where MNIST is ($PYTAGI_DATA, ./data/mnist)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sigma-v", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--every", type=int, nargs="+", default=[2, 10, 50, 200])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit-train", type=int, metavar="N", help="use the first N training images")
    parser.add_argument("--output", type=Path, default=Path("merging.csv"), help="a table of the runs")
    args = parser.parse_args(argv)
    set_threads(1)
    data = load(args.data_dir, args.limit_train)
    rules = [(rule, 1) for rule in AT_EVERY_STEP] + list(itertools.product(RULES, args.every))
    rows = []
    with open(args.output, "w", newline="") as file:
        table = csv.DictWriter(file, FIELDS)
        table.writeheader()
        for sigma_v, batch, (rule, every), seed in itertools.product(
            args.sigma_v, args.batch_size, rules, range(args.seeds)
        ):
            rows.append(run(data, args.ranks, rule, every, sigma_v, batch, seed))
            table.writerow(rows[-1])
            file.flush()
            print(
                "{rule:<18} k {every:>3}  sigma_v {sigma_v:<4} batch {batch:<3} seed {seed}: error {error:6.2%}, "
                "NLL {nll:6.3f}, {megabytes:7.1f} MB".format(**rows[-1]),
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Large global batches, and what helps them: `python -m benchmarks.quality batches`.

Test error of classifiers after the same epochs with global batches of 16 to 1024 images, for several ways to learn from
the images of a batch: one step with their sum or average, tighter caps, merged posteriors of ranks, and smaller steps;
each with and without `forget_evidence` between epochs. Ranks are simulated (`benchmarks.merging.Replicas`): this needs
no mpirun. Where posteriors are merged, BatchNorm2d normalises by each rank's images, else by those of the step, as with
`sync_batch_norm`. Each run that is done is a line of JSON: a run that ends early continues where it was. One thread.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.merging import Replicas, evaluate
from benchmarks.quality.done import Runs, loaded, of, parser_of
from benchmarks.report import table
from benchmarks.workloads import mlp, mnist_cnn
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader, ImageDataset, load_cifar10, load_mnist
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.nn.core.forgetting import forgets_before

SMALL = 16  # images of a small step
BATCHES = (16, 64, 256, 1024)
KIND = ("job", "images", "epochs", "sigma_v", "forget")  # what the runs of one table share


def small_cnn() -> nn.Sequential:
    """Two strided convolutions with batch normalisation, then two dense layers, for images of 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, bias=False, stride=2, padding=1, in_width=32, in_height=32),
        nn.MixtureReLU(),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 32, 4, bias=False, stride=2, padding=1),
        nn.MixtureReLU(),
        nn.BatchNorm2d(32),
        nn.AvgPool2d(2, 2),
        nn.Linear(512, 64),
        nn.MixtureReLU(),
        nn.Linear(64, 11),
    )


class Job(NamedTuple):
    """A network and how it is trained.

    sigma_v is the standard deviation of a label, `images` are those that it takes (every batch divides them), and
    `forget` is the factor of `forget_evidence`.
    """

    make: Callable[[], nn.Sequential]
    load: Callable[[str | None], tuple[ImageDataset, ImageDataset]]
    epochs: int
    sigma_v: float
    images: int
    forget: float


JOBS = {
    "mnist-mlp": Job(lambda: mlp(nn, 784, 128, 128, 11), load_mnist, 2, 0.3, 20 * 1024, 16.0),
    "mnist-cnn": Job(lambda: mnist_cnn(nn), load_mnist, 2, 0.1, 20 * 1024, 4.0),
    "cifar-cnn": Job(small_cnn, load_cifar10, 4, 0.3, 4 * 1024, 4.0),
}


class Way(NamedTuple):
    """How a batch is learnt from: `step` images of all ranks together in one step, a merge after `every` steps.

    `rule` is one of `Replicas`, `caps` a factor on the divisors of the caps.
    """

    step: int
    rule: str = "sum"
    ranks: int = 1
    every: int = 1
    caps: float = 1.0


def averaged(batch: int, ranks: int) -> Way:
    return Way(batch, "average", ranks) if ranks > 1 else Way(batch)


def merged(batch: int, ranks: int, steps: int = 1) -> Way:
    """Posteriors of ranks that share the batch, each taking `steps` steps with its part."""
    return Way(batch // steps, "precision_weighted", ranks, steps) if ranks > 1 else Way(batch // steps)


WAYS: dict[str, Callable[[int], Way]] = {
    "sum": Way,
    "sum, caps 3 times tighter": lambda batch: Way(batch, caps=3.0),
    "sum, caps 10 times tighter": lambda batch: Way(batch, caps=10.0),
    "average, 4 ranks": lambda batch: averaged(batch, 4),
    "average, ranks of 16 images": lambda batch: averaged(batch, batch // SMALL),
    "merge, 4 ranks, one step each": lambda batch: merged(batch, 4),
    "merge, ranks of 16 images, one step each": lambda batch: merged(batch, batch // SMALL),
    "merge, 4 ranks, steps of 16 images": lambda batch: merged(batch, 4, max(1, batch // (4 * SMALL))),
    "sum, in steps of 16 images": lambda batch: Way(SMALL),
}


def train(job: Job, data: tuple[ImageDataset, ImageDataset], way: Way, forget: float, seed: int) -> tuple[float, float]:
    """(test error, negative log-likelihood per image) after all epochs.

    Args:
        job: what is trained. data: training images, a multiple of `way.step` x `way.every`, and test images.
        way: of learning.
        forget: factor of `forget_evidence` before each epoch of the first 70 %, but the first one; 1: none.
        seed: of the prior and of the order.
    """
    images, test = data
    moments: dict[str, Any] = {"mean": images.mean(), "std": images.std()}
    loader = BatchLoader(images, way.step, seed=seed, prefetch=0, **moments)
    replicas = Replicas(way.ranks, way.rule, way.every, seed, job.make, way.caps)
    for epoch in range(job.epochs):
        if forget > 1 and forgets_before(epoch, job.epochs):
            replicas.forget_evidence(forget)
        loader.set_epoch(epoch)
        for x, labels in loader:
            shares = np.array_split(x, way.ranks), np.array_split(labels, way.ranks)
            replicas.step(list(zip(*shares, strict=True)), job.sigma_v)
    net = replicas.nets[0]
    nn.update_bn(BatchLoader(images, 64, seed=seed, prefetch=0, **moments), net, 40)
    return evaluate(net, *next(iter(BatchLoader(test, len(test), evaluation=True, prefetch=0, **moments))))


def report(done: list[dict[str, Any]], batches: Sequence[int]) -> str:
    """A table for each kind of training: test error in % and NLL by way and batch, means of the seeds."""
    parts = []
    for setting in sorted({tuple(one[name] for name in KIND) for one in done}):
        there = of(done, **dict(zip(KIND, setting, strict=True)))
        rows = [[how, *(cell(of(there, way=list(way(batch)))) for batch in batches)] for how, way in WAYS.items()]
        title = "{}, {} images, {} epochs, sigma_v {:g}, evidence forgotten by {:g}".format(*setting)
        parts.append(f"{title}\n\n{table(['batch', *map(str, batches)], rows)}")
    return "\n\n".join(parts)


def cell(ones: list[dict[str, Any]]) -> str:
    """Mean of the seeds, half their range (one seed has none), NLL; empty where there is no run."""
    if not ones:
        return ""
    errors, nll = [100 * one["error"] for one in ones], statistics.fmean(one["nll"] for one in ones)
    half = f" ± {(max(errors) - min(errors)) / 2:.1f}" if len(ones) > 1 else ""
    return f"{statistics.fmean(errors):.1f}{half}, {nll:.2f}"


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality batches", __doc__)
    parser.add_argument("--data-dir", help="where the images are ($PYTAGI_DATA, ./data/mnist or ./data/cifar)")
    parser.add_argument("--job", choices=list(JOBS), default="mnist-mlp")
    parser.add_argument("--batch-size", type=int, nargs="+", default=BATCHES, metavar="B", help="global ones")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="may be repeated; default: all")
    parser.add_argument("--forget", type=float, nargs="+", help="factors; 1: nothing is forgotten, and then the job's")
    parser.add_argument("--sigma-v", type=float, help="standard deviation of a label")
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit-train", type=int, metavar="N", help="use the first N training images")
    args = parser.parse_args(argv)
    if wrong := [batch for batch in args.batch_size if batch < 1 or batch % SMALL]:
        parser.error(f"--batch-size {wrong[0]}: expected a multiple of {SMALL}")
    done = Runs(args.results)
    if not args.report:
        measure(args, done)
    print(report(done, args.batch_size))


def measure(args: argparse.Namespace, done: Runs) -> None:
    """Makes the runs that are not there yet; a way is the same run under each of its names."""
    set_threads(1)
    job = JOBS[args.job]
    job = job._replace(epochs=args.epochs or job.epochs, sigma_v=args.sigma_v or job.sigma_v)
    images, test = loaded(job.load, args.data_dir)
    limit = min(args.limit_train or job.images, len(images))
    whole = int(np.lcm.reduce(args.batch_size))
    if limit < whole:
        sys.exit(f"error: {limit} training images are less than one batch of {whole}")
    images = images.subset(limit // whole * whole)
    for seed, forget, batch, how in itertools.product(
        args.seed, args.forget or [1.0, job.forget], args.batch_size, args.way or WAYS
    ):
        way = WAYS[how](batch)
        one = {"job": args.job, "images": len(images), "epochs": job.epochs, "sigma_v": job.sigma_v}
        one |= {"forget": forget, "seed": seed, "way": list(way)}
        if not of(done, **one):
            one["error"], one["nll"] = train(job, (images, test), way, forget, seed)
            done.add(one, f"{args.job} {how}, batch {batch}, forget {forget:g}, seed {seed}: {one['error']:.2%}")

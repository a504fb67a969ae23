"""Evidence that is forgotten between epochs: `python -m benchmarks.forgetting mnist-mlp --data-dir DIR`.

Test error of classifiers after each epoch, and negative log-likelihood (NLL) after the last, for several factors of
`Sequential.forget_evidence`, which is called before the epochs of the first part of the training; and what is left of
the prior's variances. One thread.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import pytagi_ddp
from benchmarks.merging import evaluate, learn
from benchmarks.quality.done import loaded
from benchmarks.report import table
from benchmarks.workloads import cifar_cnn, let_deltas_through, mlp, mnist_cnn
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader, ImageDataset, load_cifar10, load_mnist
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.models import resnet8_cifar10

BATCH = 32


class Job(NamedTuple):
    """A network and how it is trained; sigma_v is the standard deviation of a label in the first epoch."""

    make: Callable[[], nn.Sequential]
    load: Callable[[str | None], tuple[ImageDataset, ImageDataset]]
    epochs: int
    sigma_v: float
    limit: int | None = None


JOBS = {
    "mnist-mlp": Job(lambda: mlp(nn, 784, 128, 128, 11), load_mnist, 10, 0.3),
    "mnist-cnn": Job(lambda: mnist_cnn(nn), load_mnist, 5, 0.1),
    "cifar-cnn": Job(lambda: cifar_cnn(nn), load_cifar10, 10, 0.3, 10_000),
    "cifar-resnet8": Job(lambda: resnet8_cifar10(0.1, 0.1), load_cifar10, 10, 0.1, 10_000),
}


def train(
    job: Job,
    data: tuple[ImageDataset, ImageDataset],
    factor: float,
    until: float,
    seed: int,
    decay: float = 1.0,
    through_statistics: bool = False,
    after_epoch: Callable[[float], None] = lambda error: None,
) -> tuple[list[float], float, float]:
    """(test error after each epoch; NLL, and mean variance over that of the prior, at the end) of one run.

    Args:
        job: what is trained. data: training and test images.
        factor: of `forget_evidence`; 1: never.
        until: the part of the epochs that it is called in.
        seed: of the prior and of the order.
        decay: factor on sigma_v from epoch to epoch.
        through_statistics: of BatchNorm2d.
        after_epoch: called with each test error.
    """
    pytagi_ddp.manual_seed(seed)
    net = job.make()
    let_deltas_through(net, through_statistics)
    prior = net.arena.theta[1].mean()
    images, test = data
    mean, std = images.mean(), images.std()
    loader = BatchLoader(images, BATCH, seed=seed, prefetch=0, mean=mean, std=std)
    x_test, labels_test = next(iter(BatchLoader(test, len(test), evaluation=True, prefetch=0, mean=mean, std=std)))
    errors, nll = [], 0.0
    for epoch in range(job.epochs):
        if 0 < epoch < until * job.epochs:
            net.forget_evidence(factor)
        net.train()
        loader.set_epoch(epoch)
        for x, labels in loader:
            learn(net, x, labels, job.sigma_v * decay**epoch)
            net.step()
        nn.update_bn(loader, net, 40)
        error, nll = evaluate(net, x_test, labels_test)
        errors.append(error)
        after_epoch(error)
    return errors, nll, float(net.arena.theta[1].mean() / prior)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("forgetting", description=__doc__.partition("\n")[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--data-dir", help="where the images are ($PYTAGI_DATA, ./data/mnist or ./data/cifar)")
    parser.add_argument("--factor", type=float, nargs="+", default=[1, 4, 16])
    parser.add_argument("--until", type=float, nargs="+", default=[0.7], metavar="SHARE", help="of the epochs (0.7)")
    parser.add_argument("--sigma-v", type=float, help="standard deviation of a label")
    parser.add_argument("--decay", type=float, default=1.0, help="factor on it from epoch to epoch (1)")
    parser.add_argument("--through-statistics", action="store_true", help="of BatchNorm2d (no)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--limit-train", type=int, metavar="N", help="use the first N training images")
    args = parser.parse_args(argv)
    set_threads(1)
    job = JOBS[args.job]
    job = job._replace(epochs=args.epochs or job.epochs, sigma_v=args.sigma_v or job.sigma_v)
    images, test = loaded(job.load, args.data_dir)
    data = images.subset(args.limit_train or job.limit or len(images)), test
    rows = []
    for factor, until in itertools.product(args.factor, args.until):
        last = []
        for seed in args.seed:
            print(f"factor {factor:g} until {until:g}, seed {seed}:", end="", flush=True)
            options = args.decay, args.through_statistics, lambda error: print(f" {error:.2%}", end="", flush=True)
            errors, nll, left = train(job, data, factor, until, seed, *options)
            print(f"; NLL {nll:.4f}, variances {left:.2f} of the prior's", flush=True)
            last.append(errors[-1])
        rows.append([f"{factor:g}", f"{until:g}", *(f"{error:.2%}" for error in last), f"{np.mean(last):.2%}"])
    seeds = [f"seed {seed}" for seed in args.seed]
    print(table(["factor", "until", *seeds, "mean"], rows))


if __name__ == "__main__":
    main()

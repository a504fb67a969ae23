"""Running statistics of BatchNorm2d against fresh ones, on CIFAR-10: `python -m benchmarks.batch_norm --data-dir DIR`.

Part "ways": one training; how well do the network's running statistics describe it, and what do other ways to take
statistics give? Part "causes": a training for each batch size, sigma_v and cap; what makes a step move the statistics,
and does that cost accuracy? Errors are percentages, of one network and seed.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import pytagi_ddp
from benchmarks.report import table
from examples.classifier import HierarchicalHead
from pytagi_ddp.data import BatchLoader, ImageDataset, load_cifar10, random_crop_flip
from pytagi_ddp.kernels.cpu.threads import set_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn import BatchNorm2d, DDPConfig, DDPSequential, Sequential, update_bn

MODELS = {"resnet8": resnet8_cifar10, "resnet18": resnet18_cifar10}
MOMENTA = (0.5, 0.97)  # beside the network's own 0.9
CANDIDATES = (0.0, 0.3, 0.5, 0.7, 0.9, 0.97)  # of the momentum that adapts
BATCHES = (10, 20, 40)
AVERAGED = (10, 40)  # last steps whose posterior means are averaged
CAUSES: dict[str, dict[str, Any]] = {
    "as the job does": {},
    "sigma_v 0.3": {"sigma_v": 0.3},
    "sigma_v 1": {"sigma_v": 1.0},
    "batch 16": {"batch_size": 16},
    "batch 256": {"batch_size": 256},
    "caps halved": {"caps": 2.0},
    "statistics of half batches": {"parts": 2},
}


class Run:
    """A network in training.

    Args:
        args: the options. train, test: images.
        batch_size: images of a step. sigma_v: standard deviation of a label in the first epoch. None: of the options.
        caps: what the caps on a step's change are divided by.
        parts: parts of a batch that are normalised by themselves, as those of ranks are.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        train: ImageDataset,
        test: ImageDataset,
        batch_size: int | None = None,
        sigma_v: float | None = None,
        caps: float = 1.0,
        parts: int = 1,
    ):
        pytagi_ddp.manual_seed(args.seed)
        self.net = MODELS[args.model](0.1, 0.1)
        self._ddp = DDPSequential(self.net, DDPConfig(backend="serial"), average=False)
        self._sigma_v, self._caps, self._parts = sigma_v or args.sigma_v, caps, parts
        self._head = HierarchicalHead(10, self.net.device)
        make = partial(BatchLoader, mean=train.mean(), std=train.std())
        size, seed, transform = batch_size or args.batch_size, args.seed, random_crop_flip
        self.loader = make(train, size, seed=seed, transform=transform)
        self.second = make(train, size, seed=seed + 1, transform=transform)
        self.plain = make(train, size, seed=seed + 1)
        self.seen = make(train.subset(len(test)), 100, evaluation=True)
        self.test = make(test, 100, evaluation=True)

    def epoch(self, number: int, after_step: Callable[[], None] = lambda: None) -> float:
        """Trains for an epoch; returns the error of predictions made before the image was learnt."""
        sigma_v = float(pytagi_ddp.exponential_scheduler(self._sigma_v, min(0.05, self._sigma_v), 0.9, number))
        self.loader.set_epoch(number)
        self.net.train()
        wrong = 0
        for x, labels in self.loader:
            with self._ddp.no_sync():
                for part in np.array_split(np.arange(len(labels)), self._parts):
                    mu, var = self._ddp(x[part])
                    wrong += self._head.count_errors(mu, var, labels[part])
                    self._head.observe(self._ddp, labels[part], sigma_v)
                    self._ddp.backward()
            if self._caps == 1:
                self._ddp.step()
            else:
                self.net.arena.step(len(labels), caps=self._caps)
                self.net.arena.delta.fill(0)  # the next backward pass adds to them
                for norm in self.net.arena.running:
                    norm.update_running()
            after_step()
        return 100 * wrong / len(self.loader.dataset)

    def error(self, loader: BatchLoader, net: Sequential | None = None) -> float:
        """Percent of wrong predictions in evaluation mode, of the network as it is or of another one."""
        net = self.net if net is None else net
        net.eval()
        wrong = sum(self._head.count_errors(*net(x), labels) for x, labels in loader)
        net.train()
        return 100 * wrong / len(loader.dataset)

    def fresh(self, batches: int | None, loader: BatchLoader | None = None) -> Sequential:
        """A copy of the network with the statistics of so many training batches."""
        net = copy.deepcopy(self.net)
        update_bn(loader or self.second, net, batches)
        return net


class StepChange:
    """What the last step of an epoch does to the statistics of the same four batches.

    Args:
        run: the training; `after_step` is to be called after each of its steps.
    """

    def __init__(self, run: Run):
        self._run, self._step = run, 0
        self.shift = self.ratio = float("nan")  # over layers: mean shift in standard deviations, factor on variances

    def after_step(self) -> None:
        self._step = self._step % len(self._run.loader) + 1
        if self._step == len(self._run.loader) - 1:
            self._before = self._run.fresh(4, self._run.plain)
        elif self._step == len(self._run.loader):
            now = copy.deepcopy(self._run.net)
            now.arena.statistics[...] = self._before.arena.statistics
            changes = update_bn(self._run.plain, now, 4)
            self.shift = statistics.median(change.mean_shift for change in changes)
            self.ratio = statistics.median(max(change.var_ratio, 1 / change.var_ratio) for change in changes)


class Shadow:
    """Running statistics by other momenta, and means of the posterior means of the last steps.

    The momentum that adapts is the one of `CANDIDATES` whose running statistics have lately predicted those of the
    next batch best: for each layer the squared errors of its log variances, averaged over about ten steps, decide.
    """

    def __init__(self, net: Sequential):
        self._net, self._norms = net, norms_of(net)
        self._running = {m: net.arena.statistics.copy() for m in {*MOMENTA, *CANDIDATES}}
        self._errors = np.zeros((len(CANDIDATES), len(self._norms)))
        self._means: list[np.ndarray] = []

    def after_step(self) -> None:
        batch = np.concatenate([moments for norm in self._norms for moments in norm.batch_statistics()])
        self._errors *= 0.9
        for errors, momentum in zip(self._errors, CANDIDATES, strict=True):
            errors += [self._error(self._running[momentum], batch, layer) for layer in range(len(self._norms))]
        for momentum, running in self._running.items():
            running *= np.float32(momentum)
            running += np.float32(1 - momentum) * batch
        self._means = [*self._means[1 - max(AVERAGED) :], self._net.arena.theta[0].copy()]

    def _layer(self, layer: int) -> slice:
        """Where a layer's means and variances are among all statistics."""
        starts = np.cumsum([0, *(2 * norm.running_var.size for norm in self._norms)])
        return slice(starts[layer], starts[layer + 1])

    def _error(self, running: np.ndarray, batch: np.ndarray, layer: int) -> float:
        part = self._layer(layer)
        half = (part.stop - part.start) // 2
        return float(np.mean(np.log((running[part][half:] + 1e-5) / (batch[part][half:] + 1e-5)) ** 2))

    def adapted(self) -> tuple[Sequential, list[float]]:
        """A network with each layer's best predicted statistics, and the momenta they have."""
        net, best = copy.deepcopy(self._net), [CANDIDATES[i] for i in self._errors.argmin(axis=0)]
        for layer, momentum in enumerate(best):
            net.arena.statistics[self._layer(layer)] = self._running[momentum][self._layer(layer)]
        return net, best

    def with_momentum(self, momentum: float) -> Sequential:
        net = copy.deepcopy(self._net)
        net.arena.statistics[...] = self._running[momentum]
        return net

    def averaged(self, steps: int) -> Sequential:
        """A network with the mean of the last means, whose statistics are still to be taken."""
        net = copy.deepcopy(self._net)
        net.arena.theta[0] = np.mean(self._means[-steps:], axis=0)
        return net


def norms_of(net: Sequential) -> list[BatchNorm2d]:
    return [leaf for _, leaf in net.named_leaves() if isinstance(leaf, BatchNorm2d)]


def layer_by_layer(run: Run, batches: int) -> Sequential:
    """Statistics of each layer from passes in which the layers before it are normalised as in evaluation."""
    net = copy.deepcopy(run.net)
    for norm in norms_of(net):
        net.eval()
        norm.training = True
        found: list[list[np.ndarray]] = []
        norm.on_moments = lambda *moments, found=found: found.append([np.array(m, np.float64) for m in moments])
        for x, _ in islice(run.second, batches):
            net.pass_forward(x)
        norm.on_moments = None
        rows = sum(n for n, _, _ in found)
        mean = sum(n * m for n, m, _ in found) / rows
        norm.running_mean[...] = mean
        norm.running_var[...] = sum(m2 + n * (m - mean) ** 2 for n, m, m2 in found) / (rows - 1)
    return net


def ways(args: argparse.Namespace, train: ImageDataset, test: ImageDataset) -> None:
    """One training, and its network evaluated with statistics from many places."""
    run = Run(args, train, test)
    shadow, change = Shadow(run.net), StepChange(run)

    def after_step() -> None:
        shadow.after_step()
        change.after_step()

    rows = []
    for epoch in range(args.epochs):
        seen = run.epoch(epoch, after_step)
        found = [seen, run.error(run.test), run.error(run.test, run.fresh(40))]
        rows.append(
            [f"{epoch + 1}", *(f"{error:.1f}" for error in found), f"{change.shift:.3f}", f"{change.ratio:.2f}"]
        )
        print(f"epoch {' '.join(rows[-1])}", flush=True)
    header = ("epoch", "training", "test, running", "test, 40 batches", "mean shift by a step", "variance factor")
    print(table(header, rows))
    rows = []
    for name, net in networks(run, shadow):
        rows.append([name, f"{run.error(run.test, net):.1f}", f"{run.error(run.seen, net):.1f}"])
    print("\n" + table(("statistics", "test error", "error on training images"), rows), flush=True)


def networks(run: Run, shadow: Shadow) -> Iterator[tuple[str, Sequential]]:
    """The trained network with statistics from many places, one at a time: each keeps the memory of its passes."""
    yield "running, momentum 0.9", run.net
    for momentum in MOMENTA:
        yield f"running, momentum {momentum:g}", shadow.with_momentum(momentum)
    net, momenta = shadow.adapted()
    print(f"\nmomenta that predict the next batch best, layer by layer: {' '.join(f'{m:g}' for m in momenta)}")
    yield "running, momentum that adapts", net
    for batches in BATCHES:
        yield f"{batches} batches", run.fresh(batches)
    yield "all batches", run.fresh(None)
    yield "40 batches without augmentation", run.fresh(40, run.plain)
    yield "40 batches, layer by layer", layer_by_layer(run, 40)
    for steps in AVERAGED:
        net = shadow.averaged(steps)
        update_bn(run.second, net, 40)
        yield f"40 batches, means of {steps} steps averaged", net


def causes(args: argparse.Namespace, train: ImageDataset, test: ImageDataset) -> None:
    """A training each; how far the statistics move and how good the network gets."""
    rows = []
    for name in args.causes:
        run = Run(args, train, test, **CAUSES[name])
        change = StepChange(run)
        for epoch in range(args.epochs):
            run.epoch(epoch, change.after_step)
        fresh = run.fresh(40)
        errors = (run.error(run.test), run.error(run.test, fresh), run.error(run.seen, fresh))
        rows.append([name, *(f"{error:.1f}" for error in errors), f"{change.shift:.3f}", f"{change.ratio:.2f}"])
        print("  ".join(rows[-1]), flush=True)
    header = ("training", "test, running", "test, 40 batches", "on training images", "mean shift", "variance factor")
    print("\n" + table(header, rows), flush=True)


PARTS = {"ways": ways, "causes": causes}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser("benchmarks.batch_norm", description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data-dir", required=True, help="where CIFAR-10 is")
    parser.add_argument("--model", choices=MODELS, default="resnet8")
    parser.add_argument("--images", type=int, default=10_000, help="training images (10000)")
    parser.add_argument("--test-images", type=int, default=2_000, help="test images (2000)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--sigma-v", type=float, default=0.1, help="standard deviation of a label (0.1)")
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=list(CAUSES), metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: those of the library")
    args = parser.parse_args(argv)
    if args.threads:
        set_threads(args.threads)
    train, test = load_cifar10(args.data_dir, download=False)
    PARTS[args.part](args, train.subset(args.images), test.subset(args.test_images))


if __name__ == "__main__":
    main(sys.argv[1:])

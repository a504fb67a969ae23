"""Class probabilities and doubt on MNIST and CIFAR-10: `python -m benchmarks.quality calibration`.

Test error, negative log-likelihood, calibration error, and how well images of another kind are told from those of the
test set (AUROC): by the entropy of the class probabilities, by variance, and by `FeatureDensity`. For each network with
the categorical likelihood and the evidence-weighted step, and with each head that observes labels as numbers, by the
last posterior and by the average of those after the last steps; and for the same networks in PyTorch, by Adam, by SGD
with momentum, and with MC dropout, which are trained on the same images for the CPU time that this library took with
the evidence-weighted step, or for as many epochs. One thread. Each run that is done is a line of JSON: a run that ends
early continues where it was.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import pytagi_ddp
from benchmarks.quality.done import Runs, loaded, of, parser_of, with_error
from benchmarks.report import table
from benchmarks.workloads import Head, cifar_cnn, let_deltas_through, mnist_cnn, tree_head
from examples.classifier import HierarchicalHead, RemaxHead
from examples.options import COUNT, PRIOR_FACTOR
from pytagi_ddp import metric, nn
from pytagi_ddp.data import (
    BatchLoader,
    ImageDataset,
    load_cifar10,
    load_mnist,
    random_affine,
    random_crop_flip,
    synthetic_images,
)
from pytagi_ddp.distributed import initialize, run_threads
from pytagi_ddp.distributed.merge import MERGES
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.models.resnet import RESNET8, resnet_layers
from pytagi_ddp.nn.core.forgetting import forgets_before
from pytagi_ddp.nn.run.evidence import FIRST, LAST, WARM_UP

LAST_STEPS = 0.2  # what share of all steps an average is of
STATISTICS = 40  # batches that give BatchNorm2d its statistics
FOREIGN = 2000  # images of each other kind
DENSITY = 10_000  # training images that a FeatureDensity is of
DROPOUT, SAMPLES = 0.2, 20
SMALLEST = 1e-7  # probability
Batches = Iterable[tuple[np.ndarray, np.ndarray]]  # images and labels
Predict = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]  # probabilities (n, 10), variance (n,)


class Job(NamedTuple):
    """A network, its images and those of another kind.

    sigma_v and sigma_one_hot: standard deviations of the observations of a label, in the tree and as ones and zeros.
    forget: factor by which evidence is forgotten before each of the first epochs but the first; 1: none is.
    evidence_count, prior_factor, rates, warm_up: `count`, `prior_factor`, `first` and `last`, `warm_up` of the
    `EvidenceSchedule`. ranks, every, merge: ranks (threads of this process) that each learn from batches of
    `batch_size`, and merge their posteriors after so many steps by this rule. shift, flip: training images are shifted
    by up to so many pixels, and half of them are mirrored. affine: degrees by which they are turned at most; in
    hundredths, also by how much they are scaled and shifted.
    """

    make: Callable[[Any, Head], Any]
    load: Callable[[str | None], tuple[ImageDataset, ImageDataset]]
    foreign: Callable[[ImageDataset], dict[str, ImageDataset]]
    epochs: int
    sigma_v: float
    sigma_one_hot: float
    forget: float = 4.0
    limit: int | None = None
    evidence_count: float = 8.0
    prior_factor: float = 1.0
    rates: tuple[float, float] = (FIRST, LAST)
    warm_up: float = WARM_UP
    batch_size: int = 32
    ranks: int = 1
    every: int = 1
    merge: str = "damped_product"
    shift: int = 0
    flip: bool = False
    affine: float = 0.0


def mnist_mlp(layers: Any, head: Head) -> Any:
    """784-128-128, and the head."""
    body = layers.Linear(784, 128), layers.ReLU(), layers.Linear(128, 128), layers.ReLU()
    return layers.Sequential(*body, *head(128))


def resnet8(layers: Any, head: Head) -> Any:
    """The job's network (`examples.ddp_cifar_resnet --model resnet8`)."""
    *body, _ = resnet_layers(layers, RESNET8, 0.3, 0.3)
    return layers.Sequential(*body, *head(RESNET8[-1]))


def of_digits(test: ImageDataset) -> dict[str, ImageDataset]:
    """Test images with their pixels shuffled, on their side, and noise."""
    images, rng = test.subset(FOREIGN).images, np.random.default_rng(0)
    pictures = {
        "shuffled": rng.permuted(images.reshape(len(images), -1), axis=1).reshape(images.shape),
        "turned by 90°": np.rot90(images, axes=(2, 3)),
        "noise": rng.integers(0, 256, images.shape, np.uint8),
    }
    labels = test.subset(FOREIGN).labels
    return {name: replace(test, images=some, labels=labels, name=name) for name, some in pictures.items()}


def of_objects(test: ImageDataset) -> dict[str, ImageDataset]:
    """The library's synthetic shapes."""
    return {"synthetic": synthetic_images(1, min(FOREIGN, len(test)))[1]}


JOBS = {
    "mnist-mlp": Job(mnist_mlp, load_mnist, of_digits, 5, 0.3, 0.1),
    "cifar-cnn": Job(cifar_cnn, load_cifar10, of_objects, 10, 0.3, 0.2, 1.0, 10_000),
    "mnist-cnn": Job(mnist_cnn, load_mnist, of_digits, 2, 0.1, 0.1),
    "resnet8": Job(resnet8, load_cifar10, of_objects, 10, 0.05, 0.2, 1.0, 10_000, COUNT, PRIOR_FACTOR),
}
EVIDENCE = "categorical, evidence-weighted step"
TREE = "hierarchical softmax"
# Layers after ten units, and the gain of these units' prior: with the usual one the moments of the closed-form
# softmax, exponentials of variances, overflow. Chosen on training images that were held back.
ONE_HOT: dict[str, tuple[type[nn.BaseLayer], float]] = {
    "Remax": (nn.Remax, 0.03),
    "closed-form softmax": (nn.ClosedFormSoftmax, 0.01),
}
TORCH = {  # share of dropout, and whether SGD
    "softmax, PyTorch": (0.0, False),
    "SGD with momentum, PyTorch": (0.0, True),
    "MC dropout, PyTorch": (DROPOUT, False),
}
IN_TIME = tuple(TORCH)  # for the time of the evidence-weighted step; the others for as many epochs
TORCH |= {f"{name}, same epochs": options for name, options in TORCH.items()}
METHODS = (EVIDENCE, TREE, *ONE_HOT, *TORCH)
AVERAGED = "{}, averaged"


class Learner(NamedTuple):
    """A network, how it observes labels, how it predicts, and whether it forgets evidence between epochs."""

    net: nn.Sequential
    observe: Callable[[np.ndarray], None]
    predict: Predict
    forgets: bool


def learner_of(job: Job, method: str, steps: int, epochs: int) -> Learner:
    """One of this library's ways to learn classes, for a given number of steps per epoch."""
    head: Any
    if method == EVIDENCE:
        net, head = job.make(nn, lambda inputs: [nn.Linear(inputs, 10)]), Categorical(10)
        options = {"first": job.rates[0], "last": job.rates[1], "warm_up": job.warm_up}
        options |= {"count": job.evidence_count, "prior_factor": job.prior_factor}
        nn.EvidenceSchedule(net, steps, epochs, **options)
    elif method == TREE:
        net, head = job.make(nn, tree_head(nn)), HierarchicalHead(10, job.sigma_v)
    else:
        last, gain = ONE_HOT[method]
        net = job.make(nn, lambda inputs: [nn.Linear(inputs, 10, gain_weight=gain, gain_bias=gain), last()])
        head = RemaxHead(10, job.sigma_one_hot)  # ones and zeros, whatever layer gives the probabilities

    def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mu, var = net.predict(x)
        return head.prediction(mu, var).probabilities, var.mean(1)

    def observe(labels: np.ndarray) -> None:
        head.observe(net, labels, *(() if net.schedule is None else (net.schedule.weight,)))

    return Learner(net, observe, predict, method != EVIDENCE)


def train_tagi(
    job: Job, method: str, loader: BatchLoader, epochs: int, seed: int
) -> tuple[Predict, nn.Sequential, nn.PosteriorAverage]:
    """Trains in this library, on one of `job.ranks` ranks; BatchNorm2d has still to be given its statistics."""
    pytagi_ddp.manual_seed(seed)
    net, observe, predict, forgets = learner_of(job, method, len(loader), epochs)
    let_deltas_through(net)
    learns = net if job.ranks == 1 else nn.DDPSequential(net, every=job.every, merge=job.merge)
    average, steps_left = nn.PosteriorAverage(net), epochs * len(loader)
    averaged = max(1, round(LAST_STEPS * steps_left))
    for epoch in range(epochs):
        if forgets and forgets_before(epoch, epochs):
            net.forget_evidence(job.forget)
        loader.set_epoch(epoch)
        for x, labels in loader:
            learns(x)
            observe(labels)
            learns.backward()
            learns.step()
            if job.ranks == 1 and steps_left <= averaged:
                average.update()
            steps_left -= 1
    if isinstance(learns, nn.DDPSequential):
        learns.merge()
    return predict, net, average


def train_on_ranks(
    job: Job, method: str, loader_of: Callable[[int], BatchLoader], epochs: int, seed: int
) -> tuple[Predict, nn.Sequential]:
    """`train_tagi` on all ranks; returns a network with the merged posterior."""
    states = run_threads(
        lambda: train_tagi(job, method, loader_of(initialize().rank), epochs, seed)[1].state_dict(), job.ranks
    )
    learner = learner_of(job, method, 1, epochs)
    learner.net.load_state_dict(states[0])
    return learner.predict, learner.net


def train_torch(
    job: Job, method: str, loader: BatchLoader, epochs: int, seconds: float, seed: int
) -> tuple[Predict, int]:
    """Trains in PyTorch, for `epochs` or for `seconds` of CPU time; how many steps it took."""
    dropout, sgd = TORCH[method]
    classifier = torch_classifier()(job.make, loader.dataset.images.shape[1:], dropout, seed, sgd)
    steps = classifier.train(loader, seconds, None if method in IN_TIME else epochs)

    def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        p = classifier.probabilities(x, SAMPLES)
        return p.mean(0), p.var(0, ddof=1).mean(1) if len(p) > 1 else None

    return predict, steps


def torch_classifier() -> Any:
    """The class. PyTorch need not be installed, and importing it takes seconds that are not to be counted."""
    from benchmarks.peers.torch_classifier import TorchClassifier

    return TorchClassifier


def predictions(predict: Predict, images: Batches) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Normalised probabilities (n, 10), variance (n,) or None, labels (n,) of images."""
    parts = [(*predict(x), labels) for x, labels in images]
    p = np.clip(np.concatenate([np.asarray(part[0], np.float64) for part in parts]), SMALLEST, None)
    variances = [part[1] for part in parts if part[1] is not None]
    p /= p.sum(1, keepdims=True)
    return p, np.concatenate(variances) if variances else None, np.concatenate([part[2] for part in parts])


def score(
    predict: Predict, test: Batches, foreign: Mapping[str, Batches], density: nn.FeatureDensity | None = None
) -> dict[str, Any]:
    """What is reported of a network."""

    def distances(images: Batches) -> np.ndarray:
        assert density is not None
        return np.concatenate([density.distance(x) for x, _ in images])

    p, variance, labels = predictions(predict, test)
    doubt, auroc = metric.entropy(p), {}
    usual = None if density is None else distances(test)
    for name, images in foreign.items():
        p_foreign, variance_foreign, _ = predictions(predict, images)
        auroc[name] = [metric.auroc(doubt, metric.entropy(p_foreign))]
        if variance is not None and variance_foreign is not None:
            auroc[name].append(metric.auroc(variance, variance_foreign))
        if usual is not None:
            auroc[name].append(metric.auroc(usual, distances(images)))
    error = metric.classification_error(p.argmax(1), labels)
    return {
        "error": error,
        "nll": float(-np.log(p[np.arange(len(p)), labels]).mean()),
        "ece": metric.calibration_error(p, labels),
        "overconfidence": float(p.max(1).mean() - (1 - error)),
        "auroc": auroc,
    }


def measure(
    job: Job, method: str, data: tuple[ImageDataset, ImageDataset], epochs: int, seed: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Trains and scores; `seconds` of CPU time are for PyTorch. Moments that are not finite end a run.

    Returns:
        What is reported of the method, and under `AVERAGED` of the average of its posteriors (of one rank).
    """
    train, test = data
    batches = partial(BatchLoader, prefetch=0, mean=train.mean(), std=train.std())
    transform: Any = partial(random_crop_flip, padding=job.shift, flip=job.flip) if job.shift or job.flip else None
    if job.affine:
        part = job.affine / 100
        transform = partial(random_affine, degrees=job.affine, translate=part, scale=(1 - part, 1 + part))
    shuffled = partial(batches, train, job.batch_size, transform=transform, seed=seed)
    loader = shuffled()
    if method in TORCH:
        torch_classifier()
    shown = {name: batches(images, 500, evaluation=True) for name, images in job.foreign(test).items()}
    evaluated = batches(test, 500, evaluation=True)
    start = time.process_time()
    try:
        if method in TORCH:
            predict, steps = train_torch(job, method, loader, epochs, seconds, seed)
            used = {"cpu_seconds": time.process_time() - start, "epochs_seen": steps / len(loader)}
            return {method: used | score(predict, evaluated, shown)}
        if job.ranks > 1:
            of_rank = partial(shuffled, world_size=job.ranks)
            predict, net = train_on_ranks(job, method, lambda rank: of_rank(rank=rank), epochs, seed)
        else:
            predict, net, average = train_tagi(job, method, loader, epochs, seed)
        nn.update_bn(loader, net, STATISTICS)
        used = {"cpu_seconds": time.process_time() - start, "epochs_seen": float(epochs)}
        seen = batches(train.subset(min(DENSITY, len(train))), 500, evaluation=True)
        scores = {method: used | score(predict, evaluated, shown, nn.FeatureDensity(net).fit(seen))}
        if job.ranks > 1:
            return scores
        with average.average_parameters():
            nn.update_bn(loader, net, STATISTICS)
            density = nn.FeatureDensity(net).fit(seen)
            return scores | {AVERAGED.format(method): used | score(predict, evaluated, shown, density)}
    except FloatingPointError as error:
        return {method: {"failed": str(error)}}


Kind = tuple[str, int, int, str]  # job, training images, epochs, and what a trial changes
TRIAL = (  # options
    "held_out",
    "batch_size",
    "count",
    "rates",
    "warm_up",
    "prior_factor",
    "ranks",
    "every",
    "merge",
    "shift",
    "flip",
    "affine",
)


def kind_of(one: dict[str, Any]) -> Kind:
    return one["job"], one["images"], one["epochs"], one.get("trial", "")


def trial_of(args: argparse.Namespace) -> str:
    """The options of a trial that were given, in one line."""
    given = {name: getattr(args, name) for name in TRIAL if getattr(args, name) is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())


def cells(ones: list[dict[str, Any]], foreign: list[str]) -> list[str]:
    """What a row says of runs of one method; nothing of none."""
    if not ones:
        return []
    row = [with_error([100 * one["error"] for one in ones], 2)]
    row += [with_error([one[key] for one in ones], 4) for key in ("nll", "ece")]
    row.append(f"{statistics.fmean(one['overconfidence'] for one in ones):+.4f}")
    for kind in foreign:
        by = zip(*(one["auroc"][kind] for one in ones), strict=False)  # earlier runs are without densities
        row.append(" / ".join(f"{statistics.fmean(values):.3f}" for values in by))
    return [*row, *(f"{statistics.median(one[key] for one in ones):.1f}" for key in ("epochs_seen", "cpu_seconds"))]


def report(done: list[dict[str, Any]]) -> str:
    """A table for each network and number of epochs: means over seeds with their standard errors."""
    parts = []
    for kind in sorted({kind_of(one) for one in done}, key=lambda kind: (list(JOBS).index(kind[0]), kind)):
        there = [one for one in done if kind_of(one) == kind]
        foreign = next((list(one["auroc"]) for one in there if "auroc" in one), [])
        header = ("method", "seeds", "error, %", "NLL", "ECE", "confidence - accuracy", *foreign, "epochs", "s")
        rows = []
        for method in itertools.chain.from_iterable((method, AVERAGED.format(method)) for method in METHODS):
            every = of(there, method=method)
            ones = [one for one in every if "failed" not in one]
            failed = f", {len(every) - len(ones)} failed" if len(ones) < len(every) else ""
            if every:
                rows.append([method, f"{len(ones)}{failed}", *(cells(ones, foreign) or ["-"] * (len(header) - 2))])
        trial = f"; trial: {kind[3]}" if kind[3] else ""
        title = f"{kind[0]}, {kind[1]:,} images, {kind[2]} epochs{trial}; AUROC by entropy / variance / density"
        parts.append(title + "\n\n" + table(header, rows))
    return "\n\n".join(parts)


def changed(job: Job, args: argparse.Namespace) -> Job:
    """The job with the constants that were given."""
    given = {name: getattr(args, name) for name in TRIAL[1:] if getattr(args, name) is not None}
    if "count" in given:
        given["evidence_count"] = given.pop("count")
    return job._replace(**given)


def held_out(train: ImageDataset, number: int) -> tuple[ImageDataset, ImageDataset]:
    """The training images but the last ones, and these, on which constants are chosen."""
    rest = len(train) - number
    last = replace(train, images=train.images[rest:], labels=train.labels[rest:])
    return train.subset(rest), last


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality calibration", __doc__)
    parser.add_argument("--data-dir", help="where the images are ($PYTAGI_DATA, ./data/mnist or ./data/cifar)")
    parser.add_argument("--job", action="append", choices=JOBS, help="may be repeated; all, if left out")
    parser.add_argument("--method", action="append", choices=METHODS, help="may be repeated; all, if left out")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit-train", type=int, metavar="N", help="use the first N training images")
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    trial = parser.add_argument_group("trials of other constants; their runs say what was changed")
    trial.add_argument("--held-out", type=int, metavar="N", help="test on the last N training images")
    trial.add_argument("--batch-size", type=int, help="images of a step")
    trial.add_argument("--count", type=float, help="of the evidence-weighted step, as --rates and --prior-factor")
    trial.add_argument("--rates", type=float, nargs=2, metavar=("FIRST", "LAST"))
    trial.add_argument("--warm-up", type=float)
    trial.add_argument("--prior-factor", type=float)
    trial.add_argument("--ranks", type=int, help="ranks that merge their posteriors")
    trial.add_argument("--every", type=int, help="steps of a rank between two merges")
    trial.add_argument("--merge", choices=list(MERGES), help="the rule of a merge")
    trial.add_argument("--shift", type=int, metavar="PIXELS", help="shift training images by up to so many pixels")
    trial.add_argument("--flip", action="store_true", default=None, help="mirror half of the training images")
    trial.add_argument("--affine", type=float, metavar="DEGREES", help="turn, scale and shift training images")
    args = parser.parse_args(argv)
    alone = args.ranks is None and (args.every or args.merge)
    if (args.ranks is not None and (args.ranks < 2 or args.method != [EVIDENCE])) or alone:
        parser.error(
            f"--ranks is a number of at least 2, for --method {EVIDENCE!r} alone; --every and --merge are for several "
            "ranks"
        )
    set_threads(1)
    done = Runs(args.results)
    for name in [] if args.report else args.job or JOBS:
        job = changed(JOBS[name], args)
        epochs = args.epochs or job.epochs
        train, test = loaded(job.load, args.data_dir)
        if args.held_out:
            train, test = held_out(train, args.held_out)
        train = train.subset(min(args.limit_train or job.limit or len(train), len(train)))
        run = {"job": name, "images": len(train), "epochs": epochs}
        if changed_options := trial_of(args):
            run["trial"] = changed_options
        for method in args.method or METHODS:
            for seed in args.seed:
                there = [one for one in done if kind_of(one) == kind_of(run)]
                if of(there, method=method, seed=seed):
                    continue
                taken = [one["cpu_seconds"] for one in of(there, method=EVIDENCE) if "failed" not in one]
                if method in IN_TIME and not taken:
                    sys.exit(f"error: PyTorch gets the time of the {EVIDENCE}, of which no run of {name} is done")
                try:
                    scores = measure(job, method, (train, test), epochs, seed, statistics.median(taken or [0.0]))
                except ModuleNotFoundError as error:
                    print(f"{name}, {method}: left out: {error}")
                    break
                for way, one in scores.items():
                    what = f"error {one['error']:.2%}, ECE {one['ece']:.4f}" if "error" in one else one["failed"]
                    done.add(run | {"seed": seed, "method": way} | one, f"{name}, {way}, seed {seed}: {what}")
    print("\n" + report(done))

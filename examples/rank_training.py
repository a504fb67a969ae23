"""How the data-parallel jobs train: what they do alike, whatever the images, the network and the number of ranks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, TypeVar

import numpy as np

from examples.classifier import HEADS, Head, forgets_before
from examples.progress import NoProgress, Progress, show_progress
from examples.run_log import RunLog
from examples.stop_and_resume import Checkpoints, Net, resume, run_settings
from pytagi_ddp import exponential_scheduler
from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.checkpoint import StopOnSignal, TrainingPosition
from pytagi_ddp.data import BatchLoader, FolderLoader, ImageDataset, ImageFolder
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.engine.offspring import launcher_of_rank
from pytagi_ddp.distributed.engine.placement import choose_device
from pytagi_ddp.nn import (
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    PosteriorAverage,
    Sequential,
)

WAYS = {"ddp": DDPSequential, "fsdp": FSDPSequential, "pipeline": PipelineSequential}
SETUP_TIMEOUT = 3600.0  # seconds that the other ranks wait while rank 0 downloads 170 MB, or for a cache of images
REPORT = (
    "train error {train_error:.2%}, test error {test_error:.2%}{more}, {images_per_second:.1f} images/s, "
    "{communication_share:.1%} of the time in communication"
)
FRESH = "; BatchNorm statistics of {batches} batches per rank in {bn_seconds:.1f} s"
LAST = "test error of the last posterior instead of the average: {test_error_last:.2%}"
LAGGING = "test error with the running statistics of the last steps, as pytagi evaluates: {test_error_running:.2%}"
T = TypeVar("T")


class Loaders(NamedTuple):
    """Batches of this rank: for training, and for the test."""

    train: BatchLoader | FolderLoader
    test: BatchLoader | FolderLoader


def run_on_ranks(args: argparse.Namespace, run: Callable[[argparse.Namespace, Communicator], T]) -> T:
    """`run(args, communicator)` on this rank; all ranks run it together.

    Raises:
        SystemExit: `--backend serial` under a launcher that has started several ranks, each of which would train by
            itself and write the same files; Ctrl-C on a single rank.
    """
    launch = launcher_of_rank()
    if launch and args.backend == "serial" and (launch.world_size or 1) > 1:
        problem = f"error: --backend serial is for one process, and {launch.launcher} has started {launch.world_size}"
        sys.exit(1 if launch.rank else problem)
    # NCCL is for training; before that there is nothing on a GPU to exchange.
    communicator = create_communicator("auto" if args.backend == "nccl" else args.backend, timeout=SETUP_TIMEOUT)
    try:
        return run(args, communicator)
    except KeyboardInterrupt:
        if communicator.world_size > 1:
            raise  # the library's hook ends the other ranks
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def train_and_test(
    args: argparse.Namespace,
    communicator: Communicator,
    sets: tuple[ImageDataset | ImageFolder, ImageDataset | ImageFolder],
    make_model: Callable[[argparse.Namespace], Sequential],
    make_loaders: Callable[[int, int], Loaders],
    top: Sequence[int] = (1,),
) -> None:
    """Trains and tests for as many epochs as asked for, with checkpoints, progress and a log.

    Args:
        args: of `examples.options`.
        communicator: for what has to be settled before training.
        sets: training and test set.
        make_model: makes the network with its prior, the same on every rank.
        make_loaders: makes the batches of a share, from its index and the number of shares.
        top: of how many classes, the most probable ones, one has to be right.
    """
    is_first = communicator.rank == 0
    train_set, test_set = sets
    device_ids = [int(args.device[5:])] if args.device.startswith("cuda:") else None
    args.device = on_all_ranks(communicator, lambda: choose_own_device(args, communicator.local_rank, device_ids))
    model = on_all_ranks(communicator, lambda: make_model(args))
    config = DDPConfig(backend=args.backend, device_ids=device_ids)
    parameters = model.num_parameters
    net = on_all_ranks(communicator, lambda: WAYS[args.parallel](model, config, args.average))
    share, shares = share_of(net)
    settings = run_settings(args, train_set, shares)
    train, test = make_loaders(share, shares)
    average = LastSteps(model, train, args.average_last)
    position, batch = on_all_ranks(communicator, lambda: resume(args, net, settings, average.posteriors))
    log = on_all_ranks(communicator, lambda: RunLog(args.log_dir, bool(args.resume), args.track) if is_first else None)

    head = HEADS[args.head](len(train_set.classes), args.device)
    if log:
        part = "pipeline" if args.parallel == "pipeline" else "rank"
        log.write("start", ranks=communicator.world_size, parameters=parameters, **vars(args))
        print(
            f"{args.model}: {parameters:,} parameters, each with a mean and a variance\n"
            f"ranks: {communicator.world_size}, threads per rank: {args.threads}, "
            f"images per {part} and step: {args.batch_size}\n"
            f"images: {len(train_set):,} of {train_set.name}, {len(test_set):,} of {test_set.name}",
            flush=True,
        )
    checkpoints = Checkpoints(args, net, train, settings, position.step, average.posteriors)
    batch, begun = min(batch, len(train)), position.batch > 0

    def after_step() -> bool:
        average.after_step()
        return checkpoints.after_step()

    with ExitStack() as stack:
        for loader in (train, test):
            stack.enter_context(loader)
        if args.checkpoint_on_signal:
            stack.enter_context(StopOnSignal(net))
        for epoch in range(position.epoch, args.epochs):
            title = f"epoch {epoch + 1}/{args.epochs}"
            images = max(0, len(train_set) - batch * args.batch_size * shares)
            progress = show_progress(args.progress, title, images) if shows_progress(net) else NoProgress()
            sigma_v_min = min(args.sigma_v_min, args.sigma_v)
            sigma_v = float(exponential_scheduler(args.sigma_v, sigma_v_min, args.sigma_v_decay, epoch))
            if args.forget > 1 and not begun and forgets_before(epoch, args.epochs):
                net.forget_evidence(args.forget)
            train.set_epoch(epoch, batch)
            if not begun:
                average.begin()
            batch, begun = 0, False
            result = run_epoch(net, head, train, sigma_v, progress, after_step)
            if result is None:
                if log:
                    done = train.state_dict()["batch"]
                    log.write("stop", epoch=epoch, batch=done, step=checkpoints.step)
                    print(
                        f"stopped by a signal after batch {done}/{len(train)} of {title}; "
                        "the same command with --resume goes on from there",
                        flush=True,
                    )
                break
            is_last = epoch + 1 == args.epochs
            result |= evaluate_epoch(net, head, (train, test), average, args.bn_batches, is_last, top, checkpoints)
            checkpoints.after_epoch()  # first: what writes and draws below may fail
            if log:
                print(title + ": " + report(result, args.bn_batches), flush=True)
                log.write("epoch", epoch=epoch + 1, sigma_v=sigma_v, **result)
                log.plot()
    if log:
        print(f"log and curves: {log.folder}", flush=True)


class LastSteps:
    """Averages the posteriors behind the last steps of each epoch; an epoch needs none of those before.

    Args:
        model: this rank's replica. train: its batches.
        share: of the steps of an epoch; 0 for no average.

    Attributes:
        posteriors: the average, or None.
    """

    def __init__(self, model: Sequential, train: BatchLoader | FolderLoader, share: float):
        self.posteriors = PosteriorAverage(model) if share else None
        self._train, self._share = train, share

    def begin(self) -> None:
        """To be called before each epoch, but not where a training goes on in the middle of one."""
        if self.posteriors:
            self.posteriors.reset()

    def after_step(self) -> None:
        """To be called after each step."""
        steps = len(self._train)
        if self.posteriors and TrainingPosition.of(self._train, 0).batch > steps - max(1, round(self._share * steps)):
            self.posteriors.update()

    def __bool__(self) -> bool:
        """Whether there is an average: not if training went on behind the last batch."""
        return self.posteriors is not None and self.posteriors.n_averaged > 0

    def in_place(self) -> AbstractContextManager[None]:
        """The replica has the average inside."""
        assert self.posteriors is not None
        return self.posteriors.average_parameters()


def on_all_ranks(communicator: Communicator, work: Callable[[], T]) -> T:
    """`work()` on every rank; an error on any of them ends all of them, with one line on rank 0."""
    result, problem = None, None
    try:
        result = work()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        problem = str(error)
    for rank, reported in enumerate(communicator.all_gather_object(problem)):
        if reported is not None:
            sys.exit(f"error on rank {rank}: {reported}" if communicator.rank == 0 else 1)
    return result


def choose_own_device(args: argparse.Namespace, local_rank: int, device_ids: list[int] | None) -> str:
    """The device of this rank, by the rule of `DDPSequential`: "cuda" is a GPU of its own, as far as there are any.

    Raises:
        ValueError: one GPU was named for several ranks.
    """
    if args.device == "cpu" and args.backend != "nccl":
        return "cpu"
    return f"cuda:{choose_device(local_rank, device_ids)}"


def share_of(net: Net) -> tuple[int, int]:
    """(index, number) of the shares of data, of which the ranks of a pipeline have one together."""
    group = net.data_group if isinstance(net, PipelineSequential) else net.communicator
    return group.rank, group.world_size


def shows_progress(net: Net) -> bool:
    """One rank does, that knows of errors: of a pipeline the last one, where the outputs are."""
    return net.rank == (net.world_size - 1 if isinstance(net, PipelineSequential) else 0)


def report(result: dict[str, float], bn_batches: int) -> str:
    """What is printed of an epoch."""
    fresh = FRESH.format(batches=bn_batches, **result) if "bn_seconds" in result else ""
    lines = ((LAST, "test_error_last"), (LAGGING, "test_error_running"))
    others = "".join("\n" + line.format(**result) for line, name in lines if name in result)
    more = "".join(f", {name[11:]} {value:.2%}" for name, value in result.items() if name.startswith("test_error_top"))
    return REPORT.format(more=more, **result) + fresh + others


def run_epoch(
    net: Net,
    head: Head,
    train: BatchLoader | Any,
    sigma_v: float,
    progress: Progress,
    after_step: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """One pass over the training set; the results are those of all ranks.

    Args:
        net: the replica. head: its output layer.
        train: this rank's batches: any iterable of images and labels that knows its `batch_size`.
        sigma_v: standard deviation of an observed label.
        progress: where to show how far it is.
        after_step: called after each step; returns whether to stop there, the same on all ranks.

    Returns:
        Error and times, those of the images since the start or resumption. None if stopped.
    """
    start, reduced = time.perf_counter(), net.communicator.reduce_seconds
    counts = train_epoch(net, head, train, sigma_v, progress, after_step)
    seconds, reduced = time.perf_counter() - start, net.communicator.reduce_seconds - reduced
    progress.close()
    if counts is None:
        return None
    wrong, seen, share = add_over_ranks(net, *counts, reduced / seconds)
    return {
        "train_error": wrong / seen if seen else float("nan"),  # resumed behind the last batch
        "images_per_second": seen / seconds,
        "communication_share": share / net.world_size,
        "train_seconds": seconds,
    }


def evaluate_epoch(
    net: Net,
    head: Head,
    loaders: tuple[Iterable, Iterable],
    average: LastSteps,
    bn_batches: int,
    is_last: bool,
    top: Sequence[int],
    checkpoints: Checkpoints,
) -> dict[str, float]:
    """`evaluate` of the average, if there is one, at the end of an epoch; in the last epoch, of all other ways too.

    In any case the network is left with statistics of its own: its checkpoint may be what somebody predicts by. The
    average is saved with statistics of its own, too. What is said of running statistics is of the last posterior.
    """
    train, test = loaders
    if not average:
        return evaluate(net, head, test, train, bn_batches, is_last, top)
    if is_last:
        others = evaluate(net, head, test, train, bn_batches, True)
        others["test_error_last"] = others.pop("test_error")
    else:
        others = refresh_statistics(net, train, bn_batches)
    with average.in_place():
        result = evaluate(net, head, test, train, bn_batches, False, top) | others
        checkpoints.save_average()
        return result


def evaluate(
    net: Net,
    head: Head,
    test: Iterable,
    train: Iterable,
    bn_batches: int,
    both: bool = False,
    top: Sequence[int] = (1,),
) -> dict[str, float]:
    """The test error of all ranks, with statistics of BatchNorm2d that are those of the network as it is now.

    Args:
        net: the replica. head: its output layer. test: this rank's share of the test set.
        train: training batches for the statistics, and `bn_batches` how many of them; 0: the running ones are kept.
        both: whether to count the errors with the running statistics too.
        top: as for `train_and_test`.

    Returns:
        test_error, test_error_top5 and the like; with fresh statistics also bn_seconds, which they took, and how far
        the running ones were off (medians over layers, see `pytagi_ddp.nn.update_bn`); with `both`, test_error_running.
    """
    result = {}
    if both and bn_batches:
        result["test_error_running"] = test_errors(net, head, test, (1,))["test_error"]
    result |= refresh_statistics(net, train, bn_batches)
    return result | test_errors(net, head, test, top)


def refresh_statistics(net: Net, train: Iterable, bn_batches: int) -> dict[str, float]:
    """Gives BatchNorm2d statistics of the network as it is now; returns how long that took and what it changed.

    Nothing of it without batches, or without a BatchNorm2d.
    """
    start = time.perf_counter()
    changes = net.update_bn(train, bn_batches) if bn_batches else []
    if not changes:
        return {}
    return {
        "bn_seconds": time.perf_counter() - start,
        "bn_mean_shift": float(np.median([change.mean_shift for change in changes])),
        "bn_var_ratio": float(np.median([change.var_ratio for change in changes])),
    }


def test_errors(net: Net, head: Head, test: Iterable, top: Sequence[int]) -> dict[str, float]:
    """Shares of wrong predictions among the test images of all ranks."""
    *wrong, seen = add_over_ranks(net, *count_errors(net, head, test, top))
    names = ["test_error" if k == 1 else f"test_error_top{k}" for k in top]
    return {name: count / seen for name, count in zip(names, wrong, strict=True)}


def add_over_ranks(net: Net, *values: float) -> list[float]:
    """The sums of `values` over all ranks."""
    sums = np.array(values, np.float64)
    net.communicator.all_reduce(sums)
    return sums.tolist()


def train_epoch(
    net: Net,
    head: Head,
    loader: BatchLoader | Any,
    sigma_v: float,
    progress: Progress,
    after_step: Callable[[], bool],
) -> tuple[int, int] | None:
    """Trains on this rank's batches; returns how many predictions were wrong, each made before the image was learnt,
    and how many there were. None if stopped."""
    net.train()
    global_batch = loader.batch_size * share_of(net)[1]
    wrong = seen = 0
    for step, (x, labels) in enumerate(loader, 1):
        if len(labels):  # at the end of an epoch there may be fewer images than ranks
            labels = to_numpy(labels, "labels")
            mu, var = learn(net, head, x, labels, sigma_v)
            if mu.size:
                wrong += head.count_errors(mu, var, labels)
                seen += len(labels)
        net.step()
        progress.update(step * global_batch, wrong / max(seen, 1))
        if after_step():
            return None
    return wrong, seen


def learn(net: Net, head: Head, x: np.ndarray, labels: np.ndarray, sigma_v: float) -> tuple[np.ndarray, np.ndarray]:
    """The passes of a batch; returns the outputs, where this rank has them."""
    if isinstance(net, PipelineSequential):
        return net.forward_backward(x, lambda states, rows, deltas: head.update(states, labels[rows], sigma_v, deltas))
    mu, var = net(x)
    head.observe(net, labels, sigma_v)
    net.backward()
    return mu, var


def count_errors(net: Net, head: Head, loader: Iterable, top: Sequence[int] = (1,)) -> list[int]:
    """Wrong predictions on this rank's share of a test set, for each of `top`, and how many images it has."""
    net.eval()
    counts = [0] * (len(top) + 1)
    for x, labels in loader:
        if len(labels):
            labels = to_numpy(labels, "labels")
            mu, var = net(x)
            if mu.size:
                errors = [head.count_errors(mu, var, labels, k) for k in top]
                counts = [a + b for a, b in zip(counts, [*errors, len(labels)], strict=True)]
    net.barrier()  # where a pass is collective, shares of other sizes take other numbers of passes
    return counts

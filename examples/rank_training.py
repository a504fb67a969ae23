"""The training that the data-parallel jobs share, whatever the images, the network and the number of ranks."""

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
from pytagi_ddp.distributed.engine.child_process import launcher_of_rank
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
        args: options of `examples.options`.
        communicator: for communication before training.
        sets: training and test set.
        make_model: makes the network with its prior, the same on every rank.
        make_loaders: makes the batches of a share of the data, from its index and the number of shares.
        top: numbers k. For each, a top-k error is reported: the label is not among the k most probable classes.
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
    """Averages the posteriors after each of the last steps of an epoch. Every epoch has an average of its own.

    Args:
        model: this rank's replica. train: its batches.
        share: fraction of the steps of an epoch that are averaged; 0: there is no average.

    Attributes:
        posteriors: the average, or None.
    """

    def __init__(self, model: Sequential, train: BatchLoader | FolderLoader, share: float):
        self.posteriors = PosteriorAverage(model) if share else None
        self._train, self._share = train, share

    def begin(self) -> None:
        """To be called before each epoch, but not when a training is resumed in the middle of one."""
        if self.posteriors:
            self.posteriors.reset()

    def after_step(self) -> None:
        """To be called after each step."""
        steps = len(self._train)
        if self.posteriors and TrainingPosition.of(self._train, 0).batch > steps - max(1, round(self._share * steps)):
            self.posteriors.update()

    def __bool__(self) -> bool:
        """Whether there is an average. There is none if training was resumed after the last batch of an epoch."""
        return self.posteriors is not None and self.posteriors.n_averaged > 0

    def in_place(self) -> AbstractContextManager[None]:
        """A context in which the replica has the averaged parameters."""
        assert self.posteriors is not None
        return self.posteriors.average_parameters()


def on_all_ranks(communicator: Communicator, work: Callable[[], T]) -> T:
    """`work()` on every rank; an error on any of them ends all of them, with one line on rank 0."""
    problem = None
    try:
        result = work()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        problem = str(error)
    for rank, reported in enumerate(communicator.all_gather_object(problem)):
        if reported is not None:
            sys.exit(f"error on rank {rank}: {reported}" if communicator.rank == 0 else 1)
    return result


def choose_own_device(args: argparse.Namespace, local_rank: int, device_ids: list[int] | None) -> str:
    """The device of this rank, by the rule of `DDPSequential`: with "cuda", each rank has a GPU of its own if possible.

    Raises:
        ValueError: one GPU was named for several ranks.
    """
    if args.device == "cpu" and args.backend != "nccl":
        return "cpu"
    return f"cuda:{choose_device(local_rank, device_ids)}"


def share_of(net: Net) -> tuple[int, int]:
    """(index, number) of the shares of the data. The ranks of one pipeline have one share together."""
    group = net.data_group if isinstance(net, PipelineSequential) else net.communicator
    return group.rank, group.world_size


def shows_progress(net: Net) -> bool:
    """Whether this rank shows the progress: rank 0, or the last rank of a pipeline, which alone has the outputs."""
    return net.rank == (net.world_size - 1 if isinstance(net, PipelineSequential) else 0)


def report(result: dict[str, float], bn_batches: int) -> str:
    """The text that is printed after an epoch."""
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
    """Makes one pass over the training set, and returns the results of all ranks together.

    Args:
        net: the replica. head: its output layer.
        train: this rank's batches: an iterable of images and labels that has a `batch_size`.
        sigma_v: standard deviation of an observed label.
        progress: shows how far the epoch is.
        after_step: called after each step. It returns whether to stop there, which must be the same on all ranks.

    Returns:
        Error and times of the images since the start or resumption of the epoch; None if `after_step` stopped it.
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
    """Evaluates the average at the end of an epoch, if there is one, and the network itself otherwise.

    In the last epoch the last posterior is evaluated too, with fresh and with running statistics of BatchNorm2d. The
    network is always left with statistics that fit its own parameters, as its checkpoint may be used for predictions.
    The average is saved with statistics that fit the average. Results about running statistics are of the last
    posterior.
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
    """The test error of all ranks, after BatchNorm2d layers have got fresh statistics for the present parameters.

    Args:
        net: the replica. head: its output layer. test: this rank's share of the test set.
        train: training batches for the statistics.
        bn_batches: number of batches that are used; 0: the running statistics are kept.
        both: whether to compute the error with the running statistics too.
        top: as in `train_and_test`.

    Returns:
        test_error, test_error_top5 and the like. With fresh statistics also bn_seconds, the time that they took, and
        bn_mean_shift and bn_var_ratio, the differences to the running ones (medians over layers, see
        `pytagi_ddp.nn.tools.update_bn`). With `both` also test_error_running.
    """
    result = {}
    if both and bn_batches:
        result["test_error_running"] = test_errors(net, head, test, (1,))["test_error"]
    result |= refresh_statistics(net, train, bn_batches)
    return result | test_errors(net, head, test, top)


def refresh_statistics(net: Net, train: Iterable, bn_batches: int) -> dict[str, float]:
    """Computes the statistics of BatchNorm2d layers for the present parameters; returns its time and the changes.

    Returns an empty dictionary if `bn_batches` is 0 or the network has no BatchNorm2d.
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
    """Trains on this rank's batches.

    Returns:
        (number of wrong predictions, number of predictions), each made before the image was learnt; None if stopped.
    """
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
    """The forward and backward pass of a batch; returns the outputs, which are empty on ranks that do not have them."""
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

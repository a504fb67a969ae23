"""Train a Bayesian ResNet on CIFAR-10 by TAGI, data-parallel over MPI.

    mpirun -np 2 python -m examples.ddp_cifar_resnet

Every rank trains a replica on its own share of each batch; one all-reduce per step keeps the replicas equal. With
`--parallel fsdp` parameters lie in shards over the ranks, with `--parallel pipeline` each rank has some of the layers.
Runs without mpirun too (one rank), and with any number of ranks. `--help` lists the options.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import numpy as np

import pytagi_ddp
from examples.classifier import HEADS, Head, forgets_before
from examples.image_data import find_or_download, load_images
from examples.options import parse_arguments
from examples.progress import NoProgress, Progress, show_progress
from examples.run_log import RunLog
from examples.stop_and_resume import Checkpoints, Net, resume, run_settings
from pytagi_ddp import exponential_scheduler
from pytagi_ddp.checkpoint import StopOnSignal
from pytagi_ddp.data import BatchLoader, random_crop_flip
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.engine.placement import choose_device
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential, Sequential

WAYS = {"ddp": DDPSequential, "fsdp": FSDPSequential, "pipeline": PipelineSequential}
MODELS = {"resnet18": resnet18_cifar10, "resnet8": resnet8_cifar10}
SETUP_TIMEOUT = 3600.0  # seconds that the other ranks wait while rank 0 downloads 170 MB
REPORT = (
    "train error {train_error:.2%}, test error {test_error:.2%}, {images_per_second:.1f} images/s, "
    "{communication_share:.1%} of the time in communication"
)
FRESH = "; BatchNorm statistics of {batches} batches per rank in {bn_seconds:.1f} s"
LAGGING = "test error with the running statistics of the last steps, as pytagi evaluates: {test_error_running:.2%}"
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and trains.

    Raises:
        SystemExit: anything wrong with options, data or checkpoint, in one line; Ctrl-C on a single rank.
    """
    args = parse_arguments(argv)
    # NCCL is for training; before that there is nothing on a GPU to exchange.
    communicator = create_communicator("auto" if args.backend == "nccl" else args.backend, timeout=SETUP_TIMEOUT)
    try:
        run(args, communicator)
    except KeyboardInterrupt:
        if communicator.world_size > 1:
            raise  # the library's hook ends the other ranks
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def run(args: argparse.Namespace, communicator: Communicator) -> None:
    """Trains on this rank; all ranks run it together.

    Args:
        args: of `parse_arguments`; what was left to be chosen here is filled in.
        communicator: for what has to be settled before training.
    """
    ranks, is_first = communicator.world_size, communicator.rank == 0
    folder, reason = find_or_download(args, communicator)
    if folder is None and args.data == "cifar10":
        sys.exit(f"error: {reason}" if is_first else 1)
    if folder is None and args.data == "auto" and is_first:
        print(f"no CIFAR-10 (see --data-dir), training on synthetic images: {reason}", flush=True)
    if args.batch_size is None:
        args.batch_size = 8 if folder is None else 128
    if args.augment is None:
        args.augment = folder is not None
    args.threads = args.threads or get_threads()

    train_set, test_set = on_all_ranks(communicator, lambda: load_images(args, folder))
    device_ids = [int(args.device[5:])] if args.device.startswith("cuda:") else None
    args.device = on_all_ranks(communicator, lambda: choose_own_device(args, communicator.local_rank, device_ids))
    model = on_all_ranks(communicator, lambda: make_model(args))
    config = DDPConfig(backend=args.backend, device_ids=device_ids)
    parameters = model.num_parameters
    net = on_all_ranks(communicator, lambda: WAYS[args.parallel](model, config, args.average))
    share, shares = share_of(net)
    settings = run_settings(args, train_set, shares)
    position = on_all_ranks(communicator, lambda: resume(args, net, settings))
    log = on_all_ranks(communicator, lambda: RunLog(args.log_dir, bool(args.resume), args.track) if is_first else None)

    head = HEADS[args.head](len(train_set.classes), args.device)
    statistics = {"mean": train_set.mean(), "std": train_set.std()}
    transform = random_crop_flip if args.augment else None
    train = BatchLoader(train_set, args.batch_size, share, shares, seed=args.seed, transform=transform, **statistics)
    test = BatchLoader(test_set, args.batch_size, share, shares, evaluation=True, **statistics)
    again = BatchLoader(train_set, args.batch_size, share, shares, seed=args.seed, transform=transform, **statistics)
    if log:
        part = "pipeline" if args.parallel == "pipeline" else "rank"
        log.write("start", ranks=ranks, parameters=parameters, **vars(args))
        print(
            f"{args.model}: {parameters:,} parameters, each with a mean and a variance\n"
            f"ranks: {ranks}, threads per rank: {args.threads}, images per {part} and step: {args.batch_size}\n"
            f"images: {len(train_set):,} of {train_set.name}, {len(test_set):,} of {test_set.name}",
            flush=True,
        )
    checkpoints = Checkpoints(args, net, train, settings, position.step)
    batch = min(position.batch, len(train))
    with train, test, again, StopOnSignal(net) if args.checkpoint_on_signal else nullcontext():
        for epoch in range(position.epoch, args.epochs):
            title = f"epoch {epoch + 1}/{args.epochs}"
            images = max(0, len(train_set) - batch * args.batch_size * shares)
            progress = show_progress(args.progress, title, images) if shows_progress(net) else NoProgress()
            sigma_v_min = min(args.sigma_v_min, args.sigma_v)
            sigma_v = float(exponential_scheduler(args.sigma_v, sigma_v_min, args.sigma_v_decay, epoch))
            if args.forget > 1 and batch == 0 and forgets_before(epoch, args.epochs):
                net.forget_evidence(args.forget)
            train.set_epoch(epoch, batch)
            batch = 0
            result = run_epoch(net, head, train, sigma_v, progress, checkpoints.after_step)
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
            again.set_epoch(epoch)
            result |= evaluate(net, head, test, again, args.bn_batches, both=epoch + 1 == args.epochs)
            checkpoints.after_epoch()  # first: what writes and draws below may fail
            if log:
                print(title + ": " + report(result, args.bn_batches), flush=True)
                log.write("epoch", epoch=epoch + 1, sigma_v=sigma_v, **result)
                log.plot()
    if log:
        print(f"log and curves: {log.folder}", flush=True)


def on_all_ranks(communicator: Communicator, work: Callable[[], T]) -> T:
    """`work()` on every rank; an error on any of them ends all of them, with one line on rank 0."""
    result, problem = None, None
    try:
        result = work()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
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


def make_model(args: argparse.Namespace) -> Sequential:
    """The network with its prior, the same on every rank.

    Raises:
        ValueError, RuntimeError: a device that is unknown or not supported.
    """
    set_threads(args.threads)
    pytagi_ddp.manual_seed(args.seed)
    remax, recompute = args.head == "remax", args.checkpoint_blocks
    model = MODELS[args.model](args.gain_w, args.gain_b, is_remax=remax, checkpoint_blocks=recompute)
    model.to_device(args.device)
    return model


def report(result: dict[str, float], bn_batches: int) -> str:
    """What is printed of an epoch."""
    fresh = FRESH.format(batches=bn_batches, **result) if "bn_seconds" in result else ""
    lagging = "\n" + LAGGING.format(**result) if "test_error_running" in result else ""
    return REPORT.format(**result) + fresh + lagging


def run_epoch(
    net: Net,
    head: Head,
    train: BatchLoader,
    sigma_v: float,
    progress: Progress,
    after_step: Callable[[], bool],
) -> dict[str, float] | None:
    """One pass over the training set; the results are those of all ranks.

    Args:
        net: the replica. head: its output layer. train: this rank's batches.
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


def evaluate(
    net: Net, head: Head, test: BatchLoader, again: BatchLoader, bn_batches: int, both: bool
) -> dict[str, float]:
    """The test error of all ranks, with statistics of BatchNorm2d that are those of the network as it is now.

    Args:
        net: the replica. head: its output layer. test: this rank's share of the test set.
        again: training batches for the statistics, and `bn_batches` how many of them; 0: the running ones are kept.
        both: whether to count the errors with the running statistics too.

    Returns:
        test_error; with fresh statistics also bn_seconds, which they took, and how far the running ones were off
        (medians over layers, see `pytagi_ddp.nn.update_bn`); with `both`, test_error_running.
    """
    result, images = {}, len(test.dataset)
    if bn_batches:
        if both:
            result["test_error_running"] = add_over_ranks(net, count_errors(net, head, test))[0] / images
        start = time.perf_counter()
        changes = net.update_bn(again, bn_batches)
        again.close()
        if changes:
            result["bn_seconds"] = time.perf_counter() - start
            result["bn_mean_shift"] = float(np.median([change.mean_shift for change in changes]))
            result["bn_var_ratio"] = float(np.median([change.var_ratio for change in changes]))
    return result | {"test_error": add_over_ranks(net, count_errors(net, head, test))[0] / images}


def add_over_ranks(net: Net, *values: float) -> list[float]:
    """The sums of `values` over all ranks."""
    sums = np.array(values, np.float64)
    net.communicator.all_reduce(sums)
    return sums.tolist()


def train_epoch(
    net: Net,
    head: Head,
    loader: BatchLoader,
    sigma_v: float,
    progress: Progress,
    after_step: Callable[[], bool],
) -> tuple[int, int] | None:
    """Trains on this rank's batches; returns how many predictions were wrong, each made before the image was learnt,
    and how many there were. None if stopped."""
    net.train()
    global_batch = loader.batch_size * share_of(net)[1]
    images = len(loader.dataset) - loader.state_dict()["batch"] * global_batch
    wrong = seen = 0
    for step, (x, labels) in enumerate(loader, 1):
        if len(labels):  # at the end of an epoch there may be fewer images than ranks
            mu, var = learn(net, head, x, labels, sigma_v)
            if mu.size:
                wrong += head.count_errors(mu, var, labels)
                seen += len(labels)
        net.step()
        progress.update(min(step * global_batch, images), wrong / max(seen, 1))
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


def count_errors(net: Net, head: Head, loader: BatchLoader) -> int:
    """Wrong predictions on this rank's share of a test set."""
    net.eval()
    wrong = 0
    for x, labels in loader:
        mu, var = net(x)
        wrong += head.count_errors(mu, var, labels) if mu.size else 0
    net.barrier()  # where a pass is collective, shares of other sizes take other numbers of passes
    return wrong


if __name__ == "__main__":
    main()

"""Train a Bayesian ResNet on CIFAR-10 by TAGI, in a pipeline over MPI: every rank holds some of the layers.

    mpirun -np 2 python -m examples.pipeline_cifar_resnet

Micro-batches go through all ranks, and their deltas back. `--pipelines D` has D pipelines learn side by side.
`--help` lists the options, most of which are those of `examples.ddp_cifar_resnet`. At the end it shows which stage did
what when, and how much of the time stages had nothing to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from examples.classifier import HEADS, Head, forget_before, noise_of
from examples.ddp_cifar_resnet import make_model
from examples.figures import draw as draw_figure
from examples.image_data import find_or_download, load_images
from examples.option_types import picture, positive_int
from examples.options import parse_arguments
from examples.progress import NoProgress, show_progress
from examples.rank_training import add_over_ranks, on_all_ranks, run_on_ranks
from pytagi_ddp.data import BatchLoader, random_crop_flip
from pytagi_ddp.distributed import init_device_mesh
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.pipeline.schedule import SCHEDULES, Timeline, bubble, draw, make_schedule, simulate
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.nn import DDPConfig, PipelineSequential, Sequential, balance_by_size, balance_by_time

NOT_HERE = ("checkpoint_dir", "resume", "log_dir", "track", "parallel", "average_last")
COLORS = {"F": "tab:blue", "B": "tab:orange"}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and trains.

    Raises:
        SystemExit: anything wrong with options or data, in one line; Ctrl-C on a single rank.
    """
    run_on_ranks(parse_arguments(argv, add_options), run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what a pipeline has beside the options of the data-parallel job."""
    parser.prog = "pipeline_cifar_resnet"
    parser.description = (
        str(parser.description).replace("data-parallel", "in a pipeline")
        + "\n\nThis job keeps no checkpoints and no logs: it refuses --log-dir, --track, --parallel, and all that is "
        "listed\nunder checkpoints."
    )
    parser.set_defaults(parallel=None)  # so that it shows if it is given
    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument("--micro-batches", type=positive_int, default=8, metavar="M", help="parts of a batch (8)")
    pipeline.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="order of the micro-batches (1F1B)")
    pipeline.add_argument(
        "--balance",
        type=balance,
        default="time",
        help="where to cut: time (default), size, or the layers of each stage, as in 7,6",
    )
    pipeline.add_argument("--recompute", action="store_true", help="run forward passes again: less memory, more time")
    pipeline.add_argument("--pipelines", type=positive_int, default=1, metavar="D", help="side by side (1)")
    pipeline.add_argument("--plot", type=picture, metavar="FILE", help="draw who did what when there (plot extra)")


def balance(text: str) -> str | list[int]:
    return text if text in ("time", "size") else [int(part) for part in text.split(",")]


def run(args: argparse.Namespace, communicator: Communicator) -> None:
    """Trains on this rank; all ranks run it together."""
    is_first = communicator.rank == 0
    for name in NOT_HERE:
        if getattr(args, name):
            sys.exit(f"error: --{name.replace('_', '-')} is not for this job" if is_first else 1)
    folder, reason = find_or_download(args, communicator)
    if folder is None and args.data == "cifar10":
        sys.exit(f"error: {reason}" if is_first else 1)
    args.batch_size = args.batch_size or (32 if folder is None else 128)
    args.augment = folder is not None if args.augment is None else args.augment
    if args.through_statistics is None:
        args.through_statistics = folder is not None or args.head == "categorical"
    args.threads = args.threads or get_threads()
    train_set, test_set = on_all_ranks(communicator, lambda: load_images(args, folder))
    net = on_all_ranks(communicator, lambda: make_pipeline(args, train_set.images[:32], communicator.world_size))
    head = HEADS[args.head](len(train_set.classes), net.stage.device)
    mine, replicas = net.data_group.rank, net.data_group.world_size
    mean, std = train_set.mean(), train_set.std()
    transform = random_crop_flip if args.augment else None
    train = BatchLoader(
        train_set, args.batch_size, mine, replicas, seed=args.seed, transform=transform, mean=mean, std=std
    )
    test = BatchLoader(test_set, args.batch_size, mine, replicas, evaluation=True, mean=mean, std=std)
    if is_first:
        print(
            f"{args.model}: {net.num_parameters:,} parameters, each with a mean and a variance\n"
            f"stages: {net.pipe_group.world_size} with {', '.join(map(str, net.balance))} layers, "
            f"pipelines: {replicas}, threads per rank: {args.threads}\n"
            f"images per pipeline and step: {args.batch_size}, micro-batches: {args.micro_batches}, {args.schedule}\n"
            f"images: {len(train_set):,} of {train_set.name}, {len(test_set):,} of {test_set.name}",
            flush=True,
        )
    spans = net.communicator.all_gather_object(net.stage.num_parameters)
    if is_first:
        print(f"parameters per rank: {', '.join(f'{count:,}' for count in spans)}", flush=True)
    head.plan(net, len(train), args)
    full: list[Timeline] = []
    with train, test:
        for epoch in range(args.epochs):
            title = f"epoch {epoch + 1}/{args.epochs}"
            sigma_v = noise_of(args, epoch)
            forget_before(args, net, epoch)
            train.set_epoch(epoch, 0)
            error, rate, full = train_epoch(net, head, train, sigma_v, title, args)
            if args.bn_batches:
                net.update_bn(train, args.bn_batches)
            tested = count_errors(net, head, test) / len(test_set)
            if is_first:
                print(f"{title}: train error {error:.2%}, test error {tested:.2%}, {rate:.1f} images/s", flush=True)
    if is_first:
        report(full, args)


def make_pipeline(args: argparse.Namespace, some_images: np.ndarray, ranks: int) -> PipelineSequential:
    """The network with its prior, cut into stages.

    Raises:
        ValueError: ranks that cannot be divided into so many pipelines, or a network into so many stages.
    """
    model = make_model(args)
    stages, rest = divmod(ranks, args.pipelines)
    if rest or not stages:
        raise ValueError(f"{ranks} ranks cannot be divided into {args.pipelines} pipelines")
    mesh = init_device_mesh((stages, args.pipelines), ("pipe", "data")) if args.pipelines > 1 else None
    return PipelineSequential(
        model,
        DDPConfig(backend=args.backend),
        args.average,
        n_microbatches=args.micro_batches,
        schedule=args.schedule,
        balance=choose_balance(args, model, some_images, stages),
        mesh=mesh,
        recompute=args.recompute,
    )


def choose_balance(args: argparse.Namespace, model: Sequential, some_images: np.ndarray, stages: int) -> list[int]:
    """Layers of each stage, measured with a micro-batch of images; those of rank 0 count."""
    if isinstance(args.balance, list):
        return args.balance
    images = some_images[: max(1, args.batch_size // args.micro_batches)].astype(np.float32)
    by: Any = {"time": balance_by_time, "size": balance_by_size}[args.balance]
    return by(model, images / 255 - 0.5, stages)


def train_epoch(
    net: PipelineSequential, head: Head, loader: BatchLoader, sigma_v: float, title: str, args: argparse.Namespace
) -> tuple[float, float, list[Timeline]]:
    """Trains on the batches of this pipeline.

    Returns:
        The share of wrong predictions, each made before the image was learnt; images per second; and the timelines of
        the second batch, or of the only one.
    """
    images = len(loader.dataset)
    # Errors are known where the outputs are: there is the progress.
    shows = net.is_last and net.data_group.rank == 0
    progress = show_progress(args.progress, title, images) if shows else NoProgress()
    start, wrong, seen = time.perf_counter(), 0, 0
    timelines: list[Timeline] = []
    for step, (x, labels) in enumerate(loader, 1):
        if len(labels):  # at the end of an epoch there may be fewer images than pipelines

            def observe(states: Any, rows: slice, deltas: Any, labels: np.ndarray = labels) -> None:
                head.update(states, labels[rows], sigma_v, deltas)

            mu, var = net.forward_backward(x, observe)
            if net.is_last:
                wrong += head.count_errors(mu, var, labels)
                seen += len(labels)
        net.step()
        if step <= 2:
            timelines = net.timelines()  # the first step compiles
        progress.update(min(step * args.batch_size * net.data_group.world_size, images), wrong / max(seen, 1))
    progress.close()
    all_wrong, all_seen = add_over_ranks(net, wrong, seen)
    return all_wrong / all_seen, all_seen / (time.perf_counter() - start), timelines


def count_errors(net: PipelineSequential, head: Head, loader: BatchLoader) -> float:
    """Wrong predictions of all pipelines."""
    wrong = 0
    for x, labels in loader:
        if len(labels):
            mu, var = net.predict(x)
            wrong += head.count_errors(mu.reshape(-1), var.reshape(-1), labels) if net.is_last else 0
    return add_over_ranks(net, wrong)[0]


def report(timelines: list[Timeline], args: argparse.Namespace) -> None:
    """Prints who did what when, and the bubble: of equal stages, of stages as they are, and as it was."""
    micro_batches = sum(span.action.kind == "F" for span in timelines[0])
    schedule = make_schedule(len(timelines), micro_batches, args.schedule)
    seconds = {
        kind: [median(s.stop - s.start for s in line if s.action.kind == kind) for line in timelines] for kind in "FB"
    }
    stages = len(timelines)
    print(draw(timelines))
    print(
        f"bubble: {(stages - 1) / (micro_batches + stages - 1):.1%} of equal stages, "
        f"{bubble(simulate(schedule, seconds['F'], seconds['B'])):.1%} predicted from the stages' times, "
        f"{bubble(timelines):.1%} measured",
        flush=True,
    )
    draw_figure(args.plot, lambda figure: paint(figure, timelines), (9, 1 + 0.6 * stages))


def paint(figure: Any, timelines: list[Timeline]) -> None:
    """A bar for each pass of each stage, with the number of its micro-batch."""
    begin = min(line[0].start for line in timelines)
    axes = figure.add_subplot(xlabel="ms", yticks=range(len(timelines)))
    axes.set_yticklabels([f"stage {stage}" for stage in range(len(timelines))])
    axes.invert_yaxis()
    for stage, line in enumerate(timelines):
        for (kind, m), start, stop in line:
            left, width = 1e3 * (start - begin), 1e3 * (stop - start)
            label = {"F": "forward", "B": "backward"}[kind] if stage == m == 0 else None
            axes.barh(stage, width, left=left, color=COLORS[kind], edgecolor="white", label=label)
            axes.text(left + width / 2, stage, str(m), ha="center", va="center", color="white")
    axes.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


if __name__ == "__main__":
    main()

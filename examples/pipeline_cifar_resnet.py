"""Train a Bayesian ResNet on CIFAR-10 by TAGI, in a pipeline over MPI: every rank holds some of the layers.

    mpirun -np 2 python -m examples.pipeline_cifar_resnet

Micro-batches go through all ranks, and their deltas back. `--pipelines D` has D pipelines learn side by side.
`--help` lists the options, most of which are those of `examples.ddp_cifar_resnet`. At the end it shows which stage did
what when, and how much of the time stages had nothing to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from examples import ddp_cifar_resnet
from examples.figures import draw as draw_figure
from examples.option_types import picture, positive_int
from examples.options import parse_arguments
from examples.rank_training import run_on_ranks
from pytagi_ddp.distributed import init_device_mesh
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.pipeline.schedule import SCHEDULES, Timeline, bubble, draw, make_schedule, simulate
from pytagi_ddp.nn import DDPConfig, PipelineSequential, Sequential, balance_by_size, balance_by_time
from pytagi_ddp.training import Callback

COLORS = {"F": "tab:blue", "B": "tab:orange"}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and trains.

    Raises:
        SystemExit: anything wrong with options or data, in one line; Ctrl-C on a single rank.
    """
    run_on_ranks(parse_arguments(argv, add_options), run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a pipeline to those of the data-parallel job."""
    parser.prog = "pipeline_cifar_resnet"
    parser.description = str(parser.description).replace("data-parallel", "in a pipeline")
    parser.set_defaults(parallel=None)  # so that it shows if it is given
    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument("--micro-batches", type=positive_int, default=8, metavar="M", help="parts of a batch (8)")
    pipeline.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="order of the micro-batches (1F1B)")
    pipeline.add_argument(
        "--balance",
        type=lambda text: text if text in ("time", "size") else [int(part) for part in text.split(",")],
        default="time",
        help="where to cut: time (default), size, or the layers of each stage, as in 7,6",
    )
    pipeline.add_argument("--recompute", action="store_true", help="run forward passes again: less memory, more time")
    pipeline.add_argument("--pipelines", type=positive_int, default=1, metavar="D", help="side by side (1)")
    pipeline.add_argument("--plot", type=picture, metavar="FILE", help="draw who did what when there (plot extra)")


def run(args: argparse.Namespace, communicator: Communicator) -> None:
    """Trains on this rank; all ranks run it together."""
    if args.parallel:
        sys.exit("error: --parallel is not for this job" if communicator.rank == 0 else 1)
    args.parallel, args.average_last = "pipeline", 0.0

    def make_net(model: Sequential, config: DDPConfig) -> PipelineSequential:
        stages, rest = divmod(communicator.world_size, args.pipelines)
        if rest or not stages:
            raise ValueError(f"{communicator.world_size} ranks cannot be divided into {args.pipelines} pipelines")
        mesh = init_device_mesh((stages, args.pipelines), ("pipe", "data")) if args.pipelines > 1 else None
        options: dict[str, Any] = {"n_microbatches": args.micro_batches, "schedule": args.schedule, "mesh": mesh}
        balance = choose_balance(args, model, stages)
        return PipelineSequential(model, config, args.average, balance=balance, recompute=args.recompute, **options)

    times = Times()
    ddp_cifar_resnet.run(args, communicator, make_net=make_net, callbacks=[times])
    if communicator.rank == 0:
        report(times.lines, args)


def choose_balance(args: argparse.Namespace, model: Sequential, stages: int) -> list[int]:
    """Layers of each stage, measured with a micro-batch of noise; those of rank 0 count."""
    if isinstance(args.balance, list):
        return args.balance
    images = np.random.default_rng(0).normal(size=(max(1, args.batch_size // args.micro_batches), 3, 32, 32))
    by: Any = {"time": balance_by_time, "size": balance_by_size}[args.balance]
    return by(model, images.astype(np.float32), stages)


class Times(Callback):
    """Says how parameters are shared, and keeps the timelines of the second batch, as the first step compiles."""

    on_all_ranks = True

    def fit_begin(self, trainer: Any) -> None:
        counts = trainer.ranks.all_gather_object(trainer.network.num_parameters)
        if trainer.ranks.rank == 0:
            print(f"parameters per rank: {', '.join(f'{count:,}' for count in counts)}", flush=True)

    def batch_end(self, trainer: Any) -> None:
        if trainer.batch <= 2:
            self.lines: list[Timeline] = trainer.net.timelines()


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

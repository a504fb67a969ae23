"""The command line of the CIFAR-10 job, and the options that other jobs of residual networks share with it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from examples.option_types import factor, natural, positive_float, positive_int, share
from pytagi_ddp.distributed.engine.child_process import launcher_of_rank
from pytagi_ddp.distributed.pipeline.schedule import SCHEDULES
from pytagi_ddp.nn.run.evidence import FIRST, LAST
from pytagi_ddp.training.trackers import TRACKERS

DESCRIPTION = """\
Train a Bayesian residual network on CIFAR-10 by TAGI, data-parallel over MPI.

Without CIFAR-10 (found by --data-dir, in $PYTAGI_DATA or ./data/cifar, or downloaded) it trains on a small synthetic
set of ten shapes instead. If --data-dir is given, that is an error."""

# Residual networks begin with small parameters, and learn large ones (benchmarks/quality/README.md, "CIFAR-10").
COUNT, PRIOR_FACTOR = 40.0, 100.0
GAINS = {"categorical": 0.3, "hierarchical": 0.1, "remax": 0.1}
OF_PIPELINES = {"micro_batches": 8, "schedule": "1F1B", "balance": "time", "recompute": False, "pipelines": 1}
YES_OR_NO = argparse.BooleanOptionalAction


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the options of the CIFAR-10 job."""
    parser = job_parser(
        "ddp_cifar_resnet",
        DESCRIPTION,
        ("resnet18", "resnet8"),
        batch_size="128; synthetic set: 8",
        through_statistics="yes; with numbers as labels, on the synthetic set: no",
        average_last="CIFAR-10 and --parallel ddp 0.5, else 0",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", choices=("auto", "cifar10", "synthetic"), default="auto", help="auto: as said above")
    data.add_argument("--data-dir", metavar="DIR", help="where CIFAR-10 is, or is downloaded to")
    text = "shift and flip the training images at random (default: CIFAR-10 yes, synthetic set no)"
    data.add_argument("--augment", action=YES_OR_NO, help=text)
    add_limits(data)
    return parse(parser, argv)


def add_observation_options(
    training: Any,
    sigma_v: float = 0.05,
    forget: float = 1.0,
    falls: bool = True,
    count: float = COUNT,
    prior_factor: float = PRIOR_FACTOR,
) -> None:
    """Adds options for the way in which labels are observed, with these defaults; falls: sigma_v may fall."""
    add = training.add_argument
    text = "labels are classes of a softmax (default), numbers on a tree (default with its options), or ones and zeros"
    add("--head", choices=("categorical", "hierarchical", "remax"), help=text)
    text = "of the categorical head: how often an image counts in all"
    add("--count", type=positive_float, help=f"{text} ({count:g})")
    text = "of the categorical head: factor on the variance of the prior to which steps pull"
    add("--prior-factor", type=positive_float, help=f"{text} ({prior_factor:g})")
    text = "of the categorical head: share of the posterior that an epoch learns anew, after a warm-up and at the end"
    add("--rates", type=positive_float, nargs=2, metavar=("FIRST", "LAST"), help=f"{text} ({FIRST:g} {LAST:g})")
    add("--sigma-v", type=positive_float, help=f"of the other heads: standard deviation of a label ({sigma_v})")
    of_numbers = {"sigma_v": sigma_v, "forget": forget}
    if falls:
        add("--sigma-v-min", type=positive_float, help=f"where a larger one ends ({sigma_v})")
        add("--sigma-v-decay", type=positive_float, help="its factor per epoch (0.9)")
        of_numbers |= {"sigma_v_min": sigma_v, "sigma_v_decay": 0.9}
    text = "of the other heads: before each of the first 70 %% of the epochs but the first, earlier evidence counts"
    add("--forget", type=factor, metavar="FACTOR", help=f"{text} 1/FACTOR ({forget:g})")
    of_classes = {"count": count, "prior_factor": prior_factor, "rates": (FIRST, LAST)}
    training.set_defaults(of_numbers=of_numbers, of_classes=of_classes)


def settle_observation(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fills in the defaults of `add_observation_options`; an option of another head than the chosen one is an error."""
    own, others = args.of_classes, args.of_numbers
    if args.head is None:
        args.head = "categorical" if all(getattr(args, name) is None for name in args.of_numbers) else "hierarchical"
    if args.head != "categorical":
        own, others = others, own
    for name in others:
        if getattr(args, name) is not None:
            parser.error(f"--{name.replace('_', '-')} means nothing to --head {args.head}")
    for name, value in own.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if getattr(args, "average", True) is None:
        args.average = args.head != "categorical"
    del args.of_numbers, args.of_classes


def add_limits(data: Any) -> None:
    """Adds options for the number of images."""
    data.add_argument("--limit-train", type=positive_int, metavar="N", help="use N training images")
    data.add_argument("--limit-test", type=positive_int, metavar="N", help="use N test images")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options of a `job_parser`; every rank reads them alike, and only rank 0 prints help and errors.

    Raises:
        SystemExit: a bad option (exit code 2), or --help (0).
    """
    with only_rank_0_prints():
        args = parser.parse_args(argv)
        settle_observation(parser, args)
        args.gain_w, args.gain_b = (GAINS[args.head] if gain is None else gain for gain in (args.gain_w, args.gain_b))
        if args.resume is True and args.checkpoint_dir is None:
            parser.error("--resume needs a checkpoint: name it, or give its folder by --checkpoint-dir")
        if args.allow_changes and not args.resume:
            parser.error("--allow-changes is for a resumed run: give --resume")
        if args.average_last and args.parallel != "ddp":
            parser.error("--average-last is for --parallel ddp, where each rank has all parameters")
        for option, value in OF_PIPELINES.items():
            if getattr(args, option) is None:
                setattr(args, option, value)
            elif args.parallel != "pipeline":
                parser.error(f"--{option.replace('_', '-')} is for --parallel pipeline")
        for option in ("checkpoint_every", "checkpoint_on_signal", "keep_last"):
            if getattr(args, option) and args.checkpoint_dir is None:
                parser.error(f"--{option.replace('_', '-')} needs a folder: give it by --checkpoint-dir")
    return args


@contextlib.contextmanager
def only_rank_0_prints() -> Iterator[None]:
    """Silences all ranks of a launcher but rank 0, as all read the same options and would print the same."""
    launch = launcher_of_rank()
    with contextlib.ExitStack() as silence:
        if launch and launch.rank > 0:
            nowhere = silence.enter_context(open(os.devnull, "w"))
            silence.enter_context(contextlib.redirect_stdout(nowhere))
            silence.enter_context(contextlib.redirect_stderr(nowhere))
        yield


def job_parser(
    prog: str,
    description: str,
    models: Sequence[str],
    batch_size: str,
    through_statistics: str = "yes",
    average_last: str = "0",
) -> argparse.ArgumentParser:
    """A parser with all options of a job except those of its data.

    Args:
        prog, description: name and description of the program. models: names of its networks, the default first.
        batch_size, through_statistics, average_last: descriptions of the defaults of these options, for the help.
    """
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog, "%(prog)s [options]", description=description, formatter_class=style)
    training = parser.add_argument_group("training")
    add = training.add_argument
    add("--model", choices=models, default=models[0], help=f"network ({models[0]})")
    add_observation_options(training)
    add("--epochs", type=positive_int, default=2, help="in all, a resumed run included (2)")
    add("--batch-size", type=positive_int, help=f"images per rank and step ({batch_size})")
    for name, what in (("--gain-w", "weights"), ("--gain-b", "biases")):
        text = f"factor on the standard deviations of the {what}' prior (categorical head: 0.3, others: 0.1)"
        add(name, type=positive_float, help=text)
    text = "forward passes per rank that give BatchNorm its statistics before each evaluation (40); 0: the running ones"
    add("--bn-batches", type=natural, default=40, metavar="N", help=text)
    text = "deltas take into account that the statistics of BatchNorm depend on the batch; without, they are constants"
    add("--through-statistics", action=YES_OR_NO, help=f"{text} (default: {through_statistics})")
    text = "evaluate by the average of the posteriors after the last SHARE of an epoch's steps; 0: by the last one"
    add("--average-last", type=share, metavar="SHARE", help=f"{text} (default: {average_last})")
    add("--seed", type=natural, default=0, help="of the prior, the order and the augmentation (0)")
    deltas = training.add_mutually_exclusive_group()
    text = "average the ranks' deltas (default with observed numbers)"
    deltas.add_argument("--average", action="store_true", default=None, help=text)
    text = "add them, as one large batch would (default otherwise)"
    deltas.add_argument("--sum", dest="average", action="store_false", help=text)

    add = parser.add_argument_group("machine").add_argument
    add("--device", type=_device, default="cpu", help="cpu (default), cuda (a GPU for each rank) or cuda:<index>")
    add("--backend", choices=("auto", "mpi", "nccl", "serial"), default="auto", help="how ranks communicate")
    text = "a rank has: ddp (default), a replica; fsdp, shards of all parameters; pipeline, some of the layers"
    add("--parallel", choices=("ddp", "fsdp", "pipeline"), default="ddp", help=text)
    text = "run residual blocks again in the backward pass: less memory"
    add("--checkpoint-blocks", action="store_true", help=text)
    add("--threads", type=positive_int, help="per rank (usable cores / ranks on this node)")

    add = parser.add_argument_group("--parallel pipeline").add_argument
    add("--micro-batches", type=positive_int, metavar="M", help="parts of a batch (8)")
    add("--schedule", choices=SCHEDULES, help="order of the micro-batches (1F1B)")
    text = "where to cut the network: time (default), size, or the layers of each stage, as in 7,6"
    add("--balance", type=balance, help=text)
    add("--recompute", action="store_true", default=None, help="run forward passes again: less memory, more time")
    add("--pipelines", type=positive_int, metavar="D", help="that learn side by side, from batches of their own (1)")

    add = parser.add_argument_group("output").add_argument
    add("--progress", choices=("auto", "bar", "lines"), default="auto", help="auto: bar on a terminal")
    add("--log-dir", metavar="DIR", help="for log.jsonl and curves.png (runs/<date and time>)")
    add("--track", action="append", choices=sorted(TRACKERS), default=[], help="tell this program too")

    add = parser.add_argument_group("checkpoints").add_argument
    add("--checkpoint-dir", metavar="DIR", help="write a checkpoint there after every epoch")
    add("--checkpoint-every", type=positive_int, metavar="STEPS", help="and after this number of steps")
    text = "on SIGTERM or SIGUSR1 (to mpirun or any rank) write one at the end of the step, and end with code 0"
    add("--checkpoint-on-signal", action="store_true", help=text)
    add("--keep-last", type=positive_int, metavar="N", help="checkpoints to keep (3)")
    text = "continue from this checkpoint or the newest of this folder; without PATH, of --checkpoint-dir, if any"
    add("--resume", nargs="?", const=True, metavar="PATH", help=text)
    text = "resume although the global batch, the seed, the data or another setting differ"
    add("--allow-changes", action="store_true", help=text)
    return parser


def _device(text: str) -> str:
    kind, colon, index = text.partition(":")
    if text != "cpu" and (kind != "cuda" or (colon and not index.isdecimal())):
        raise argparse.ArgumentTypeError(f'must be "cpu", "cuda" or "cuda:<index>", got {text}')
    return text


def balance(text: str) -> str | list[int]:
    return text if text in ("time", "size") else [int(part) for part in text.split(",")]

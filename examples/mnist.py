"""Classify the digits of MNIST with a small Bayesian network, on one process or on many ranks.

    python -m examples.mnist --model cnn
    mpirun -np 2 python -m examples.mnist --model cnn

Every rank learns from its own share of each batch, and one all-reduce per step keeps the networks equal. Without MNIST
(found by --data-dir, in $PYTAGI_DATA or ./data/mnist, or downloaded) it trains on a small synthetic set. If
--data-dir is given, that is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytagi_ddp
from examples.classifier import HEADS, training_options
from examples.image_data import load_or_exit
from examples.option_types import natural, positive_int
from examples.options import add_limits, add_observation_options, only_rank_0_prints, settle_observation
from examples.rank_training import JobProgress, Tests, run_on_ranks
from pytagi_ddp.data import BatchLoader
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    DDPConfig,
    DDPSequential,
    Linear,
    MixtureReLU,
    ReLU,
    Remax,
    Sequential,
)
from pytagi_ddp.training import Log, Trainer


def make_mlp(outputs: int = 10, is_remax: bool = False) -> Sequential:
    """784-128-128-10. For labels as numbers on a binary tree, 11 outputs encode 10 classes."""
    last = [Remax()] if is_remax else []
    return Sequential(Linear(784, 128), ReLU(), Linear(128, 128), ReLU(), Linear(128, outputs), *last)


def make_cnn(outputs: int = 10, is_remax: bool = False) -> Sequential:
    """Two convolutions with batch normalisation, then two dense layers."""
    last = [Remax()] if is_remax else []
    return Sequential(
        Conv2d(1, 16, kernel_size=4, padding=1, in_width=28, in_height=28, bias=False),
        MixtureReLU(),
        BatchNorm2d(16),
        AvgPool2d(3, 2),
        Conv2d(16, 32, kernel_size=5, bias=False),
        MixtureReLU(),
        BatchNorm2d(32),
        AvgPool2d(3, 2),
        Linear(32 * 4 * 4, 100),
        MixtureReLU(),
        Linear(100, outputs),
        *last,
    )


MODELS = {"mlp": make_mlp, "cnn": make_cnn}


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, prints a line per epoch, and returns the last test error of all ranks (a share of 1).

    Raises:
        SystemExit: a bad option, no MNIST with `--data mnist`, or a damaged file, in one line.
    """
    with only_rank_0_prints():
        args = parse_arguments(argv)
    return run_on_ranks(args, run)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser("mnist", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", choices=MODELS, default="mlp", help="network (mlp)")
    add("--epochs", type=positive_int, default=2, help="passes over the data (2)")
    add("--batch-size", type=positive_int, default=32, help="images per rank and step (32)")
    add_observation_options(parser, sigma_v=0.3, forget=4.0, falls=False, count=8.0, prior_factor=1.0)
    add("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    add("--data", choices=("auto", "mnist", "synthetic"), default="auto", help="auto: MNIST if found or downloaded")
    add("--data-dir", metavar="DIR", help="where MNIST is, or is downloaded to")
    add_limits(parser)
    deltas = parser.add_mutually_exclusive_group()
    deltas.add_argument("--average", action="store_true", default=None, help="average the ranks' deltas")
    deltas.add_argument("--sum", dest="average", action="store_false", help="add them (default of --head categorical)")
    add("--backend", choices=("auto", "mpi", "serial"), default="auto", help="how ranks communicate")
    add("--progress", choices=("auto", "bar", "lines"), default="auto", help="auto: bar on a terminal")
    add("--log-dir", metavar="DIR", help="write log.jsonl and curves.png there")
    args = parser.parse_args(argv)
    settle_observation(parser, args)
    return args


def run(args: argparse.Namespace, communicator: Communicator) -> float:
    """Trains on this rank; all ranks run it together."""
    (train_set, test_set), _ = load_or_exit(args, communicator, "mnist")
    share: dict[str, Any] = {"rank": communicator.rank, "world_size": communicator.world_size}
    share |= {"mean": train_set.mean(), "std": train_set.std()}
    train = BatchLoader(train_set, args.batch_size, seed=args.seed, **share)
    test = BatchLoader(test_set, 500, evaluation=True, **share)

    pytagi_ddp.manual_seed(args.seed)
    model = MODELS[args.model](HEADS[args.head](10).outputs, is_remax=args.head == "remax")
    net = DDPSequential(model, DDPConfig(backend=args.backend), average=args.average)
    step = f"images per rank and step: {args.batch_size}, {len(train_set):,} of {train_set.name}"
    callbacks = [Tests(args, test), JobProgress(args, f"ranks: {net.world_size}, {step}")]
    callbacks += [Log(args.log_dir, settings=vars(args))] if args.log_dir else []
    trainer = Trainer(net, epochs=args.epochs, callbacks=callbacks, **training_options(args, 10))
    return trainer.fit(train, test)[-1]["test_error"]


if __name__ == "__main__":
    main()

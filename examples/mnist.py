"""Classify the digits of MNIST with a small Bayesian network, on one process.

    python -m examples.mnist --model mlp
    python -m examples.mnist --model cnn

A complete TAGI classifier: data, network, likelihood, training. The same on many ranks is `examples.ddp_mnist`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import pytagi_ddp
from examples.classifier import HEADS, training_options
from examples.option_types import natural, positive_int
from examples.options import add_observation_options, settle_observation
from pytagi_ddp.data import BatchLoader, load_mnist
from pytagi_ddp.nn import AvgPool2d, BatchNorm2d, Conv2d, Linear, MixtureReLU, ReLU, Sequential
from pytagi_ddp.training import Progress, Trainer


def make_mlp(outputs: int = 10) -> Sequential:
    """784-128-128-10. For labels as numbers on a binary tree, 11 outputs encode 10 classes."""
    return Sequential(Linear(784, 128), ReLU(), Linear(128, 128), ReLU(), Linear(128, outputs))


def make_cnn(outputs: int = 10) -> Sequential:
    """Two convolutions with batch normalisation, then two dense layers."""
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
    )


MODELS = {"mlp": make_mlp, "cnn": make_cnn}


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, prints a line per epoch, and returns the last test error (a share of 1).

    Raises:
        SystemExit: a bad option, or no MNIST, or a damaged file, in one line.
    """
    args = parse_arguments(argv)
    try:
        train_set, test_set = load_mnist(args.data_dir)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    train_set = train_set.subset(args.limit_train or len(train_set))
    mean, std = train_set.mean(), train_set.std()
    train = BatchLoader(train_set, args.batch_size, seed=args.seed, mean=mean, std=std)
    test = BatchLoader(test_set, batch_size=500, evaluation=True, mean=mean, std=std)

    pytagi_ddp.manual_seed(args.seed)
    net = MODELS[args.model](HEADS[args.head](10).outputs)
    progress = Progress("lines", unit="images")
    trainer = Trainer(net, epochs=args.epochs, callbacks=[progress], **training_options(args, 10))
    return trainer.fit(train, test)[-1]["val_error"]


def parse_arguments(
    argv: Sequence[str] | None, change: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> argparse.Namespace:
    """Reads the options; `change` is what another job with these options does to the parser, such as adding its own."""
    parser = argparse.ArgumentParser("mnist", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="mlp", help="network (mlp)")
    parser.add_argument("--epochs", type=positive_int, default=2, help="passes over the data (2)")
    parser.add_argument("--batch-size", type=positive_int, default=32, help="images of a step, on each rank (32)")
    add_observation_options(parser, sigma_v=0.3, forget=4.0, falls=False, count=8.0, prior_factor=1.0, rates=(0.5, 0.2))
    parser.add_argument("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    parser.add_argument("--data-dir", help="where MNIST is, or is downloaded to ($PYTAGI_DATA, ./data/mnist)")
    parser.add_argument("--limit-train", type=positive_int, metavar="N", help="use the first N training images")
    change(parser)
    args = parser.parse_args(argv)
    settle_observation(parser, args)
    return args


if __name__ == "__main__":
    main()

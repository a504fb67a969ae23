"""Classify the digits of MNIST data-parallel over MPI, with the networks of `examples.mnist`.

    mpirun -np 2 python -m examples.ddp_mnist
    mpirun -np 2 python -m examples.ddp_mnist --model cnn --sum
    mpirun -np 2 python -m examples.ddp_mnist --loader torch

Every rank learns from its own share of each batch, and one all-reduce per step keeps the networks equal. With
`--loader torch` batches come from a `DataLoader` of PyTorch. Without MNIST it trains on a small synthetic set.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import pytagi_ddp
from examples import mnist
from examples.classifier import HEADS, forget_before, noise_of
from examples.image_data import find_or_download, load_digits
from examples.option_types import positive_int
from examples.options import only_rank_0_prints
from examples.progress import NoProgress, show_progress
from examples.rank_training import evaluate, on_all_ranks, run_epoch, run_on_ranks
from examples.run_log import RunLog
from examples.torch_loading import torch_loader
from pytagi_ddp.data import BatchLoader, ImageDataset
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn import DDPConfig, DDPSequential

QUICK = {"data": "synthetic", "epochs": 1, "limit_train": 500, "limit_test": 200}
REPORT = "train error {train_error:.2%}, test error {test_error:.2%}, {images_per_second:,.0f} images/s"


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, and returns the last test error of all ranks (a share of 1).

    Raises:
        SystemExit: a bad option, no MNIST, a damaged file, or no PyTorch, in one line.
    """
    with only_rank_0_prints():
        args = mnist.parse_arguments(argv, add_options)
        if args.quick:
            args = mnist.parse_arguments(argv, add_quick_options)  # options that are given override the quick defaults
    return run_on_ranks(args, run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of several ranks to those of `examples.mnist`."""
    parser.prog, parser.description = "ddp_mnist", __doc__.partition("\n")[0]
    parser.add_argument("--data", choices=("auto", "mnist", "synthetic"), default="auto", help="auto: MNIST if found")
    parser.add_argument("--limit-test", type=positive_int, metavar="N", help="use the first N test images")
    parser.add_argument("--loader", choices=("own", "torch"), default="own", help="what makes the batches")
    deltas = parser.add_mutually_exclusive_group()
    deltas.add_argument("--average", action="store_true", default=None, help="average the ranks' deltas")
    deltas.add_argument(
        "--sum", dest="average", action="store_false", help="add them (default of the categorical head)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one epoch of a few synthetic images, which other options change"
    )
    parser.add_argument("--backend", choices=("auto", "mpi", "serial"), default="auto", help="how ranks communicate")
    parser.add_argument("--progress", choices=("auto", "bar", "lines"), default="auto", help="auto: bar on a terminal")
    parser.add_argument("--log-dir", metavar="DIR", help="write log.jsonl and curves.png there")


def add_quick_options(parser: argparse.ArgumentParser) -> None:
    """`add_options`, with the defaults of a quick run."""
    add_options(parser)
    parser.set_defaults(**QUICK)


def run(args: argparse.Namespace, communicator: Communicator) -> float:
    """Trains on this rank; all ranks run it together."""
    is_first, rank, ranks = communicator.rank == 0, communicator.rank, communicator.world_size
    folder, reason = find_or_download(args, communicator, "mnist")
    if folder is None and args.data == "mnist":
        sys.exit(f"error: {reason}" if is_first else 1)
    if folder is None and args.data == "auto" and is_first:
        print(f"no MNIST (see --data-dir), training on synthetic images: {reason}", flush=True)
    train_set, test_set = on_all_ranks(communicator, lambda: load_digits(args, folder))
    train, test = on_all_ranks(communicator, lambda: make_loaders(args, train_set, test_set, rank, ranks))

    pytagi_ddp.manual_seed(args.seed)
    head = HEADS[args.head](len(train_set.classes), "cpu")
    net = DDPSequential(mnist.MODELS[args.model](head.outputs), DDPConfig(backend=args.backend), average=args.average)
    head.plan(net, len(train), args)
    log = on_all_ranks(communicator, lambda: RunLog(args.log_dir) if is_first and args.log_dir else None)
    if is_first:
        print(f"ranks: {ranks}, images per rank and step: {args.batch_size}, {len(train_set):,} of {train_set.name}")
    if log:
        log.write("start", ranks=ranks, **vars(args))
    for epoch in range(args.epochs):
        title = f"epoch {epoch + 1}/{args.epochs}"
        forget_before(args, net, epoch)
        (train if isinstance(train, BatchLoader) else train.sampler).set_epoch(epoch)  # another order
        progress = show_progress(args.progress, title, len(train_set)) if is_first else NoProgress()
        trained = run_epoch(net, head, train, noise_of(args, epoch), progress)
        assert trained is not None  # nothing stops an epoch
        result = trained | evaluate(net, head, test, train, mnist.BN_BATCHES)
        if is_first:
            print(f"{title}: {REPORT.format(**result)}", flush=True)
        if log:
            log.write("epoch", epoch=epoch + 1, **result)
            log.plot()
    return result["test_error"]


def make_loaders(
    args: argparse.Namespace, train_set: ImageDataset, test_set: ImageDataset, rank: int, ranks: int
) -> tuple[Any, Any]:
    """This rank's batches for training, and its share of the test set.

    Raises:
        RuntimeError: PyTorch is asked for and not installed.
    """
    make = torch_loader if args.loader == "torch" else BatchLoader
    mean, std = train_set.mean(), train_set.std()
    train = make(train_set, args.batch_size, rank, ranks, seed=args.seed, mean=mean, std=std)
    return train, make(test_set, 500, rank, ranks, evaluation=True, mean=mean, std=std)


if __name__ == "__main__":
    main()

"""Train a Bayesian ResNet on CIFAR-10 by TAGI, data-parallel over MPI.

    mpirun -np 2 python -m examples.ddp_cifar_resnet

Every rank trains a replica on its own share of each batch; one all-reduce per step keeps the replicas equal. With
`--parallel fsdp` parameters lie in shards over the ranks, with `--parallel pipeline` each rank has some of the layers.
Runs without mpirun too (one rank), and with any number of ranks. `--help` lists the options.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pytagi_ddp
from examples.classifier import HEADS
from examples.image_data import find_or_download, load_images
from examples.options import parse_arguments
from examples.rank_training import Loaders, on_all_ranks, run_on_ranks, train_and_test
from pytagi_ddp.data import BatchLoader, random_crop_flip
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn import Sequential

MODELS = {"resnet18": resnet18_cifar10, "resnet8": resnet8_cifar10}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and trains.

    Raises:
        SystemExit: anything wrong with options, data or checkpoint, in one line; Ctrl-C on a single rank.
    """
    run_on_ranks(parse_arguments(argv), run)


def run(args: argparse.Namespace, communicator: Communicator) -> None:
    """Trains on this rank; all ranks run it together.

    Args:
        args: of `parse_arguments`; what was left to be chosen here is filled in.
        communicator: for what has to be settled before training.
    """
    folder, reason = find_or_download(args, communicator)
    if folder is None and args.data == "cifar10":
        sys.exit(f"error: {reason}" if communicator.rank == 0 else 1)
    if folder is None and args.data == "auto" and communicator.rank == 0:
        print(f"no CIFAR-10 (see --data-dir), training on synthetic images: {reason}", flush=True)
    if args.batch_size is None:
        args.batch_size = 8 if folder is None else 128
    if args.augment is None:
        args.augment = folder is not None
    if args.through_statistics is None:
        args.through_statistics = folder is not None or args.head == "categorical"
    if args.average_last is None:
        args.average_last = 0.5 if folder is not None and args.parallel == "ddp" else 0.0
    args.threads = args.threads or get_threads()

    train_set, test_set = on_all_ranks(communicator, lambda: load_images(args, folder))
    mean, std = train_set.mean(), train_set.std()
    transform = random_crop_flip if args.augment else None

    def make_loaders(share: int, shares: int) -> Loaders:
        return Loaders(
            BatchLoader(
                train_set, args.batch_size, share, shares, seed=args.seed, transform=transform, mean=mean, std=std
            ),
            BatchLoader(test_set, args.batch_size, share, shares, evaluation=True, mean=mean, std=std),
        )

    train_and_test(args, communicator, (train_set, test_set), make_model, make_loaders)


def make_model(args: argparse.Namespace) -> Sequential:
    """The network with its prior, the same on every rank.

    Raises:
        ValueError, RuntimeError: a device that is unknown or not supported.
    """
    set_threads(args.threads)
    pytagi_ddp.manual_seed(args.seed)
    model = MODELS[args.model](
        args.gain_w,
        args.gain_b,
        is_remax=args.head == "remax",
        outputs=HEADS[args.head](10, "cpu").outputs,
        checkpoint_blocks=args.checkpoint_blocks,
        through_statistics=args.through_statistics,
    )
    model.to_device(args.device)
    return model


if __name__ == "__main__":
    main()

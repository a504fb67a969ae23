"""Train a Bayesian ResNet on CIFAR-10 by TAGI, data-parallel over MPI.

    mpirun -np 2 python -m examples.ddp_cifar_resnet

Every rank trains a replica on its own share of each batch; one all-reduce per step keeps the replicas equal. With
`--parallel fsdp` parameters lie in shards over the ranks, with `--parallel pipeline` each rank has some of the layers.
Runs without mpirun too (one rank), and with any number of ranks. `--help` lists the options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from examples.image_data import load_or_exit
from examples.options import parse_arguments
from examples.rank_training import Loaders, run_on_ranks, train_and_test
from pytagi_ddp.data import BatchLoader, random_crop_flip
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10

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
    sets, synthetic = load_or_exit(args, communicator)
    chosen = {
        "batch_size": 8 if synthetic else 128,
        "augment": not synthetic,
        "through_statistics": not synthetic or args.head == "categorical",
        "average_last": 0.5 if not synthetic and args.parallel == "ddp" else 0.0,
        "threads": get_threads(),
    }
    for name, value in chosen.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    mean, std = sets[0].mean(), sets[0].std()
    transform = random_crop_flip if args.augment else None

    def make_loaders(share: int, shares: int) -> Loaders:
        train: dict[str, Any] = {"seed": args.seed, "transform": transform, "mean": mean, "std": std}
        return Loaders(
            BatchLoader(sets[0], args.batch_size, share, shares, **train),
            BatchLoader(sets[1], args.batch_size, share, shares, evaluation=True, mean=mean, std=std),
        )

    train_and_test(args, communicator, sets, MODELS[args.model], make_loaders)


if __name__ == "__main__":
    main()

"""The images of the jobs: CIFAR-10 or MNIST where they can be had, else a synthetic set."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from examples.rank_training import on_all_ranks
from pytagi_ddp.data import (
    DatasetNotFoundError,
    ImageDataset,
    download_cifar10,
    download_mnist,
    find_cifar10,
    find_mnist,
    load_cifar10,
    load_mnist,
    synthetic_images,
)
from pytagi_ddp.distributed.communicator import Communicator

SYNTHETIC_TRAIN, SYNTHETIC_TEST = 1500, 300  # so that ResNet18 sees them twice in some minutes on two cores
TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
Sets = tuple[ImageDataset, ImageDataset]


def load_or_exit(args: argparse.Namespace, communicator: Communicator, name: str = "cifar10") -> tuple[Sets, bool]:
    """Training and test set that the options ask for, and whether they are synthetic; collective.

    Raises:
        SystemExit: they are not there, or damaged.
    """
    folder, reason = find_or_download(args, communicator, name)
    if folder is None and must_be_found(args):
        sys.exit(f"error: {reason}" if communicator.rank == 0 else 1)
    if folder is None and args.data == "auto" and communicator.rank == 0:
        print(f"no {TITLES[name]} (see --data-dir), training on synthetic images: {reason}", flush=True)
    return on_all_ranks(communicator, lambda: load_images(args, folder, name)), folder is None


def must_be_found(args: argparse.Namespace) -> bool:
    """Whether the options name the data or their folder, so that synthetic images would be a surprise."""
    return args.data != "synthetic" and (args.data != "auto" or args.data_dir is not None)


def find_or_download(
    args: argparse.Namespace, communicator: Communicator, name: str = "cifar10"
) -> tuple[Path | None, str]:
    """Rank 0 looks for the data, and downloads them where they are nowhere; the other ranks wait for its answer.

    Args:
        args: `data` and `data_dir`.
        communicator: of the ranks that wait.
        name: "cifar10" or "mnist".

    Returns:
        The folder, or None and why there is none; the same on every rank.
    """
    ways = {"cifar10": (find_cifar10, download_cifar10), "mnist": (find_mnist, download_mnist)}
    find, download = ways[name]
    found: tuple[Path | None, str] = None, ""
    if communicator.rank == 0 and args.data != "synthetic":
        try:
            found = find(args.data_dir) or download(args.data_dir), ""
        except DatasetNotFoundError as error:
            in_full = must_be_found(args)  # with every place that was searched
            found = None, str(error if in_full else error.__cause__ or error)
    return communicator.broadcast_object(found)


def load_images(args: argparse.Namespace, folder: Path | None, name: str = "cifar10") -> Sets:
    """Training and test set, as many images as asked for.

    Args:
        args: `limit_train`, `limit_test` and `seed`.
        folder: where they are; None for the synthetic set, which for "mnist" becomes grey and 28 x 28.

    Raises:
        ValueError: a truncated or corrupt file. OSError: no such file on this node.
    """
    if folder is not None:
        train, test = (load_cifar10 if name == "cifar10" else load_mnist)(folder, download=False)
        return train.subset(args.limit_train or len(train)), test.subset(args.limit_test or len(test))
    train, test = synthetic_images(args.limit_train or SYNTHETIC_TRAIN, args.limit_test or SYNTHETIC_TEST)
    return (train, test) if name == "cifar10" else (_as_digits(train), _as_digits(test))


def _as_digits(coloured: ImageDataset) -> ImageDataset:
    return replace(coloured, images=coloured.images[..., 2:30, 2:30].max(1, keepdims=True))

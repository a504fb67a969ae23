"""Train a Bayesian ResNet on ImageNet by TAGI, data-parallel over MPI, from a folder of JPEG files.

    mpirun -np 8 python -m examples.ddp_imagenet --data-dir imagenet --cache /scratch/copies --workers 4
    mpirun -np 2 python -m examples.ddp_imagenet --quick

The folder has `train/CLASS/*.JPEG` and `val/CLASS/*.JPEG`; there may be any number of classes. Worker processes decode:
random parts of the images, mirrored at random, for training, and the centre for validation. With `--cache` each image
is decoded once and kept, which is faster from the second epoch on. `--help` lists the options, most of which are those
of `examples.ddp_cifar_resnet`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from examples.option_types import natural, positive_int
from examples.options import add_limits, job_parser, parse
from examples.rank_training import Loaders, on_all_ranks, run_on_ranks, top_5, train_and_test
from pytagi_ddp.data import FolderLoader, ImageFolder, image_workers, synthetic_images
from pytagi_ddp.data.decoding import pillow
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.models import resnet18_imagenet, resnet50_imagenet

MODELS = {"resnet18": resnet18_imagenet, "resnet50": resnet50_imagenet}
QUICK = {"image_size": 32, "batch_size": 10, "epochs": 1, "workers": 1, "bn_batches": 2}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and trains.

    Raises:
        SystemExit: anything wrong with options, images or checkpoint, in one line; Ctrl-C on a single rank.
    """
    description, _, rest = (__doc__ or "").partition("\n\n")
    parser = job_parser("ddp_imagenet", description + "\n\n" + rest.partition("\n\n")[2], list(MODELS), "32")
    add_options(parser)
    parser.set_defaults(through_statistics=True, average_last=0.0)
    args = parse(parser, argv)
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parse(parser, argv)  # what is given counts
    run_on_ranks(args, run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only images in files need."""
    data = parser.add_argument_group("data")
    source = data.add_mutually_exclusive_group(required=True)
    source.add_argument("--data-dir", metavar="DIR", help="the folder with train and val")
    source.add_argument(
        "--quick",
        action="store_true",
        help="a short run with a few synthetic images instead, which other options change",
    )
    data.add_argument("--image-size", type=positive_int, default=224, help="pixels that the network sees (224)")
    data.add_argument("--workers", type=natural, default=2, help="processes that decode, per rank (2); 0: none")
    data.add_argument(
        "--cache", metavar="DIR", help="keep decoded copies there: 4 bytes x the square of their side each"
    )
    data.add_argument(
        "--cache-side", type=positive_int, default=256, help="shorter side of the copies, in pixels (256)"
    )
    data.add_argument(
        "--skip-errors", action="store_true", help="leave out what is not an image, and say so; default: stop"
    )
    data.add_argument("--no-augment", dest="augment", action="store_false", help="train with the centres of images")
    add_limits(data)


def run(args: argparse.Namespace, communicator: Communicator) -> None:
    """Trains on this rank; all ranks run it together.

    Args:
        args: of the command line; what was left to be chosen here is filled in.
        communicator: for what has to be settled before training.
    """
    on_all_ranks(communicator, pillow)
    args.threads = args.threads or get_threads()
    args.batch_size = args.batch_size or 32
    with ExitStack() as stack:
        if args.quick:
            made = stack.enter_context(tempfile.TemporaryDirectory()) if communicator.rank == 0 else None
            args.data_dir = communicator.broadcast_object(made and str(write_images(Path(made))))
        workers = stack.enter_context(image_workers(args.workers)) if args.workers else 0
        sets = on_all_ranks(communicator, lambda: find_images(args, communicator, workers))

        def make_loaders(share: int, shares: int) -> Loaders:
            ranks = {"rank": share, "world_size": shares, "size": args.image_size, "workers": workers}
            return Loaders(
                FolderLoader(sets[0], args.batch_size, seed=args.seed, augment=args.augment, **ranks),
                FolderLoader(sets[1], args.batch_size, evaluation=True, **ranks),
            )

        network = partial(MODELS[args.model], image_size=args.image_size)
        train_and_test(args, communicator, sets, network, make_loaders, metrics={"error_top5": top_5})
        communicator.barrier()  # before rank 0 removes images that it has made


def find_images(
    args: argparse.Namespace, communicator: Communicator, workers: int | Executor
) -> tuple[ImageFolder, ImageFolder]:
    """Training and validation set, limited as asked for, read from cached copies if these are wanted.

    All ranks call it.

    Raises:
        ValueError: no images where they are expected, or one that cannot be read. OSError: no such folder.
        ImportError: Pillow is not installed.
    """
    on_error = "skip" if args.skip_errors else "raise"
    sets: list[ImageFolder] = []
    for name, limit in (("train", args.limit_train), ("val", args.limit_test)):
        found = ImageFolder.find(Path(args.data_dir, name), sets[0].classes if sets else None, on_error)
        found = found.subset(limit or len(found))
        if args.cache:
            share = communicator.rank, communicator.world_size
            found = found.cached(Path(args.cache, name), args.cache_side, *share, workers)
        sets.append(found)
    return sets[0], sets[1]


def write_images(folder: Path, train: int = 100, test: int = 20) -> Path:
    """Writes synthetic images of ten classes as an ImageNet of JPEG files, and returns its folder."""
    from PIL import Image  # here, because it is optional

    for name, images in zip(("train", "val"), synthetic_images(train, test), strict=True):
        for k, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
            path = folder / name / images.classes[label] / f"{k}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).resize((50, 40)).save(path)
    return folder


if __name__ == "__main__":
    main()

"""Classify the digits of MNIST data-parallel over MPI, with the networks of `examples.mnist`.

    mpirun -np 2 python -m examples.ddp_mnist
    mpirun -np 2 python -m examples.ddp_mnist --model cnn --sum
    mpirun -np 2 python -m examples.ddp_mnist --loader torch

Every rank learns from its own share of each batch, and one all-reduce per step keeps the networks equal. With
`--loader torch` batches come from a `DataLoader` of PyTorch. Without MNIST it trains on a small synthetic set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import pytagi_ddp
from examples import mnist
from examples.classifier import HEADS, training_options
from examples.image_data import load_or_exit
from examples.option_types import positive_int
from examples.options import only_rank_0_prints
from examples.rank_training import JobProgress, Tests, on_all_ranks, run_on_ranks
from pytagi_ddp.data import BatchLoader, DistributedSampler, EvaluationSampler, ImageDataset
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn import DDPConfig, DDPSequential
from pytagi_ddp.training import Log, Trainer

QUICK = {"data": "synthetic", "epochs": 1, "limit_train": 500, "limit_test": 200}


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, and returns the last test error of all ranks (a share of 1).

    Raises:
        SystemExit: a bad option, no MNIST, a damaged file, or no PyTorch, in one line.
    """
    with only_rank_0_prints():
        args = mnist.parse_arguments(argv, add_options)
        if args.quick:
            args = mnist.parse_arguments(argv, lambda parser: add_options(parser, QUICK))  # what is given counts
    return run_on_ranks(args, run)


def add_options(parser: argparse.ArgumentParser, defaults: dict[str, Any] | None = None) -> None:
    """Adds the options of several ranks to those of `examples.mnist`."""
    parser.prog, parser.description = "ddp_mnist", __doc__.partition("\n")[0]
    parser.add_argument("--data", choices=("auto", "mnist", "synthetic"), default="auto", help="auto: MNIST if found")
    parser.add_argument("--limit-test", type=positive_int, metavar="N", help="use the first N test images")
    parser.add_argument("--loader", choices=("own", "torch"), default="own", help="what makes the batches")
    deltas = parser.add_mutually_exclusive_group()
    deltas.add_argument("--average", action="store_true", default=None, help="average the ranks' deltas")
    deltas.add_argument("--sum", dest="average", action="store_false", help="add them (default of --head categorical)")
    parser.add_argument("--quick", action="store_true", help="one epoch of a few synthetic images; others change it")
    parser.add_argument("--backend", choices=("auto", "mpi", "serial"), default="auto", help="how ranks communicate")
    parser.add_argument("--progress", choices=("auto", "bar", "lines"), default="auto", help="auto: bar on a terminal")
    parser.add_argument("--log-dir", metavar="DIR", help="write log.jsonl and curves.png there")
    parser.set_defaults(**(defaults or {}))


def run(args: argparse.Namespace, communicator: Communicator) -> float:
    """Trains on this rank; all ranks run it together."""
    (train_set, test_set), _ = load_or_exit(args, communicator, "mnist")
    make = torch_loader if args.loader == "torch" else BatchLoader
    share: dict[str, Any] = {"rank": communicator.rank, "world_size": communicator.world_size}
    share |= {"mean": train_set.mean(), "std": train_set.std()}
    train = on_all_ranks(communicator, lambda: make(train_set, args.batch_size, seed=args.seed, **share))
    test = make(test_set, 500, evaluation=True, **share)

    pytagi_ddp.manual_seed(args.seed)
    model = mnist.MODELS[args.model](HEADS[args.head](10).outputs)
    net = DDPSequential(model, DDPConfig(backend=args.backend), average=args.average)
    log = [Log(args.log_dir, settings=vars(args))] if args.log_dir else []
    step = f"images per rank and step: {args.batch_size}, {len(train_set):,} of {train_set.name}"
    progress = JobProgress(args, f"ranks: {net.world_size}, {step}")
    callbacks = [Tests(args, test), progress, *log]
    trainer = Trainer(net, epochs=args.epochs, callbacks=callbacks, **training_options(args, 10))
    return trainer.fit(train, test)[-1]["test_error"]


def torch_loader(
    dataset: ImageDataset,
    batch_size: int,
    *,
    rank: int,
    world_size: int,
    mean: np.ndarray,
    std: np.ndarray,
    seed: int = 0,
    evaluation: bool = False,
) -> Any:
    """A `DataLoader` of PyTorch with (images, labels) for one rank; arguments as for `BatchLoader`.

    In training every rank gets as many images, so that all step equally often; evaluation counts every image once.

    Raises:
        RuntimeError: PyTorch is not installed.
    """
    try:
        import torch  # here, because nothing else needs it
    except ImportError:
        raise RuntimeError("--loader torch needs PyTorch, which is not installed: pip install torch") from None
    x = (dataset.images / np.float32(255) - mean[:, None, None]) / std[:, None, None]
    shard = EvaluationSampler(len(dataset), rank, world_size)
    ours = DistributedSampler(dataset, rank, world_size, seed=seed)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(dataset.labels)),
        batch_size,
        sampler=range(shard.begin, shard.end) if evaluation else ours,
    )


if __name__ == "__main__":
    main()

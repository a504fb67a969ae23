"""Data-parallel training in an own loop and by `DDPSequential`: both end with the same bits.

    python -m examples.functional_training
    mpirun -np 3 python -m examples.functional_training

A curve with noise is learned twice from the same start. `train_with_ddp` wraps the network. `train_by_hand` keeps it as
it is, gives all ranks one start with `synchronize`, and adds `all_reduce_deltas` in front of `step`. Every rank has a
share of the data that it takes batches from, so the last batches of an epoch may differ in size, and a rank that has
run out steps along.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import numpy as np

import pytagi_ddp
from examples.option_types import natural, positive_int
from pytagi_ddp.distributed import (
    Communicator,
    DistributedDataContainer,
    all_reduce_deltas,
    all_reduce_metrics,
    initialize,
    rank_zero_print,
    synchronize,
)
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential

SAMPLES = 301
NOISE = 0.1  # standard deviation of an observation


def make_data(seed: int) -> np.ndarray:
    """(samples, 2) points x, y of a sine with noise, the same on every rank."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, SAMPLES)
    return np.stack([x, np.sin(3 * x) + generator.normal(0, NOISE, SAMPLES)], axis=1).astype(np.float32)


def batches(share: DistributedDataContainer, batch_size: int, count: int) -> list[np.ndarray]:
    """The share in `count` batches; a rank whose share ends earlier has empty ones at the end."""
    return [share[i * batch_size : (i + 1) * batch_size] for i in range(count)]


def learn(net: Sequential | DDPSequential, updater: OutputUpdater, batch: np.ndarray) -> None:
    """Everything of a training step that concerns this rank alone."""
    x, y = batch.T
    net(x)
    updater.update(net.output_z_buffer, y, np.full_like(y, NOISE**2), net.input_delta_z_buffer)
    net.backward()


def train_with_ddp(net: Sequential, backend: str, epochs: int, steps: list[np.ndarray], average: bool) -> Sequential:
    """The short way: `DDPSequential` synchronises and exchanges."""
    ddp = DDPSequential(net, DDPConfig(backend=backend), average)
    updater = OutputUpdater(net.device)
    for _ in range(epochs):
        for batch in steps:
            if len(batch):
                learn(ddp, updater, batch)
            ddp.step()
    return net


def train_by_hand(net: Sequential, backend: str, epochs: int, steps: list[np.ndarray], average: bool) -> Sequential:
    """The same in a loop of one's own."""
    synchronize(backend, net)
    updater = OutputUpdater(net.device)
    for _ in range(epochs):
        for batch in steps:
            if len(batch):
                learn(net, updater, batch)
            all_reduce_deltas(backend, net, average)
            net.step()
    return net


def root_mean_square_error(net: Sequential, communicator: Communicator, share: DistributedDataContainer) -> float:
    """Over the data of all ranks, each point once."""
    x, y = share[:].T
    mu, _ = net.predict(x.reshape(-1, 1))
    squares = float(np.sum((mu.reshape(-1) - y) ** 2, dtype=np.float64))
    return all_reduce_metrics(communicator, {"error": (squares, len(y))})["error"] ** 0.5


def main(argv: Sequence[str] | None = None) -> float:
    """Trains both ways, prints the error of each, and returns that of the second.

    Raises:
        RuntimeError: they differ.
    """
    args = parse_arguments(argv)
    communicator = initialize()
    backend, ranks = communicator.backend, communicator.world_size
    share = DistributedDataContainer(backend, make_data(args.seed))
    longest = -(-SAMPLES // ranks)  # of the shares of all ranks
    steps = batches(share, args.batch_size, -(-longest // args.batch_size))

    pytagi_ddp.manual_seed(args.seed)
    net = Sequential(Linear(1, 32), ReLU(), Linear(32, 32), ReLU(), Linear(32, 1))
    nets = {}
    for name, train in (("DDPSequential", train_with_ddp), ("by hand", train_by_hand)):
        nets[name] = train(copy.deepcopy(net), backend, args.epochs, steps, not args.sum)
        error = root_mean_square_error(nets[name], communicator, share)
        rank_zero_print(f"{name}: error {error:.4f} on {SAMPLES} points, noise {NOISE}, {ranks} ranks")
    first, second = (net.state_dict() for net in nets.values())
    if not all(np.array_equal(a, b) for key in first for a, b in zip(first[key], second[key], strict=True)):
        raise RuntimeError("the two ways have come to different parameters")
    rank_zero_print("the same parameters, to the last bit")
    return error


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser("functional_training", description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=positive_int, default=20, help="passes over the data (20)")
    parser.add_argument("--batch-size", type=positive_int, default=8, help="of each rank (8)")
    parser.add_argument("--sum", action="store_true", help="add the ranks' deltas instead of averaging them")
    parser.add_argument("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()

"""Data-parallel training in an own loop and by `DDPSequential`: both end with the same bits.

    python -m examples.functional_training
    mpirun -np 3 python -m examples.functional_training

A curve with noise is learned twice from the same start. `DDPSequential` wraps the network; in the other loop the
network stays as it is, `synchronize` gives all ranks one start, and `all_reduce_deltas` stands in front of `step`. The
shares of the ranks may differ in size: a rank that has run out of samples steps along.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial

import numpy as np

import pytagi_ddp
from pytagi_ddp.distributed import (
    DistributedDataContainer,
    all_reduce_deltas,
    all_reduce_metrics,
    initialize,
    rank_zero_print,
    synchronize,
)
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, ReLU, Sequential

SAMPLES, BATCH = 301, 8
NOISE = 0.1  # standard deviation of an observation


def make_data() -> np.ndarray:
    """(samples, 2) points x, y of a sine with noise, the same on every rank."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, SAMPLES)
    return np.stack([x, np.sin(3 * x) + generator.normal(0, NOISE, SAMPLES)], axis=1).astype(np.float32)


def train(net: Sequential | DDPSequential, share: np.ndarray, steps: int, epochs: int, exchange: Callable) -> None:
    """Learns from the batches of this rank's share; `exchange` is called before each step."""
    noise = Gaussian(NOISE)
    for _ in range(epochs):
        for begin in range(0, steps * BATCH, BATCH):
            x, y = share[begin : begin + BATCH].T
            if len(x):
                net(x)
                noise.observe(net, y)
                net.backward()
            exchange()
            net.step()


def main(epochs: int = 20, average: bool = True) -> float:
    """Trains both ways, prints the error of each, and returns that of the second.

    Raises:
        RuntimeError: they differ.
    """
    communicator = initialize()
    backend, ranks = communicator.backend, communicator.world_size
    share = DistributedDataContainer(backend, make_data())[:]
    steps = -(-SAMPLES // (ranks * BATCH)) + 1  # enough for the largest share
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(1, 32), ReLU(), Linear(32, 32), ReLU(), Linear(32, 1))
    wrapped = copy.deepcopy(net)
    train(DDPSequential(wrapped, DDPConfig(backend=backend), average), share, steps, epochs, exchange=lambda: None)
    synchronize(backend, net)
    train(net, share, steps, epochs, exchange=partial(all_reduce_deltas, backend, net, average))
    for name, found in (("DDPSequential", wrapped), ("by hand", net)):
        x, y = share.T
        squares = float(np.sum((found.predict(x)[0].reshape(-1) - y) ** 2, dtype=np.float64))
        error = all_reduce_metrics(communicator, {"error": (squares, len(y))})["error"] ** 0.5  # over all ranks
        rank_zero_print(f"{name}: error {error:.4f} on {SAMPLES} points, noise {NOISE}, {ranks} ranks")
    first, second = wrapped.state_dict(), net.state_dict()
    if not all(np.array_equal(a, b) for key in first for a, b in zip(first[key], second[key], strict=True)):
        raise RuntimeError("the two ways have come to different parameters")
    rank_zero_print("the same parameters, to the last bit")
    return error


if __name__ == "__main__":
    description = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser("functional_training", description=description).parse_args()  # --help alone
    main()

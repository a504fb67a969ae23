"""What a step costs once a network has learnt: numbers of units that are off become subnormal, which new ones lack.

    python -m benchmarks.learnt [--network mnist-cnn] [--steps 400]

Trains on the synthetic images of the package, and prints the time of a step at the start and at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

import pytagi_ddp
from benchmarks.merging import learn
from benchmarks.report import duration
from benchmarks.workloads import mlp, mnist_cnn
from pytagi_ddp import nn
from pytagi_ddp.data import synthetic_images
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads
from pytagi_ddp.models import resnet8_cifar10

NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], int, int]] = {  # network, side of a grey image or 0, steps
    "mlp": (lambda: mlp(nn, 784, 128, 128, 11), 28, 400),
    "mnist-cnn": (lambda: mnist_cnn(nn), 28, 400),
    "resnet8": (lambda: resnet8_cifar10(0.1, 0.1), 0, 80),
}
BATCH, IMAGES, SIGMA_V = 32, 2000, 0.1
TIMED = 10  # steps


def batches(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardised images, of one channel and smaller if `side` says so, and their labels."""
    data, _ = synthetic_images(IMAGES, 1)
    x = np.asarray(data.images, np.float32)
    if side:
        edge = (x.shape[-1] - side) // 2
        x = x.mean(axis=1, keepdims=True)[..., edge : edge + side, edge : edge + side]
    return (x - x.mean()) / x.std(), np.asarray(data.labels)


def measure(name: str, steps: int | None) -> tuple[float, float]:
    """Median time of the first steps, and of the last ones."""
    build, side, usual = NETWORKS[name]
    pytagi_ddp.manual_seed(0)
    net, (x, labels) = build(), batches(side)
    rng, times = np.random.default_rng(0), []
    clock = time.thread_time if get_threads() == 1 else time.perf_counter
    for _ in range(max(steps or usual, 2 * TIMED) + TIMED):  # the first ones compile and record
        rows = rng.integers(0, len(x), BATCH)
        start = clock()
        learn(net, x[rows], labels[rows], SIGMA_V)
        net.step()
        times.append(clock() - start)
    return statistics.median(times[TIMED : 2 * TIMED]), statistics.median(times[-TIMED:])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.learnt", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="may be repeated; default: all")
    parser.add_argument("--steps", type=int, help="of training (400, resnet8: 80)")
    parser.add_argument("--threads", type=int, default=1, help="(1: then times are those of the processor)")
    args = parser.parse_args(argv)
    set_threads(args.threads)
    for name in args.network or NETWORKS:
        first, last = measure(name, args.steps)
        print(f"{name}: a step {duration(first)} at the start, {duration(last)} at the end")


if __name__ == "__main__":
    main()

"""How often a sample should count where noise is known: `python -m benchmarks.quality counts`.

A network learns a sine from observations with a noise of 0.1. For each `count` of the `EvidenceSchedule` (0: without
one): the error of the mean and its own standard deviation, among the data, and how much of the truth is within two of
them (95 % would be right). Means over seeds. One thread, a minute.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from benchmarks.report import table
from pytagi_ddp import manual_seed
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, ReLU, Sequential

NOISE = 0.1
ACTIVATIONS = {layer.name: layer for layer in (ReLU, MixtureReLU)}
PLACES = np.linspace(-2.9, 2.9, 200)


def measure(
    count: float, epochs: int, batch_size: int, args: argparse.Namespace, seed: int
) -> tuple[float, float, float]:
    """Root mean squared error, mean standard deviation, and the share of the truth within two of them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, args.samples)
    y = np.sin(x) + rng.normal(0, NOISE, x.size)
    manual_seed(seed)
    sizes = itertools.pairwise([1, *[args.units] * args.layers])
    hidden = [layer for size in sizes for layer in (Linear(*size), ACTIVATIONS[args.activation]())]
    net = Sequential(*hidden, Linear(args.units, 1))
    net.set_threads(1)
    evidence = {"count": count} if count else None
    net.fit(x, y, Gaussian(NOISE), epochs=epochs, batch_size=batch_size, evidence=evidence)
    mu, var = (moments[:, 0] for moments in net.predict(PLACES))
    errors, std = mu - np.sin(PLACES), np.sqrt(var)
    return float(np.sqrt(np.mean(errors**2))), float(std.mean()), float(np.mean(np.abs(errors) < 2 * std))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.quality counts", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0], help="0: no schedule")
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--layers", type=int, default=1, help="hidden ones")
    parser.add_argument("--units", type=int, default=50, help="of each hidden layer")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="ReLU")
    parser.add_argument("--seeds", type=int, default=5, help="0 to this number less 1")
    args = parser.parse_args(argv)
    rows = []
    for batch_size in args.batch_size:
        for epochs in args.epochs:
            for count in args.count:
                found = [measure(count, epochs, batch_size, args, seed) for seed in range(args.seeds)]
                error, std, inside = np.mean(found, 0)
                rows.append([str(batch_size), str(epochs), f"{count:g}", f"{error:.3f}", f"{std:.3f}", f"{inside:.0%}"])
    header = ("batch", "epochs", "count", "RMSE", "mean std", "truth within 2 std")
    print(table(header, rows))

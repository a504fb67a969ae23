"""How often a sample should count where noise is known: `python -m benchmarks.quality counts`.

A network of one hidden layer learns a sine from 400 observations with a noise of 0.1. For each `count` of the
`EvidenceSchedule`: the error of the mean and its own standard deviation, among the data, and how much of the truth is
within two of them (95 % would be right). Means over seeds. One thread, a minute.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.report import table
from pytagi_ddp import manual_seed
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import Linear, MixtureReLU, ReLU, Sequential

NOISE, SAMPLES = 0.1, 400
ACTIVATIONS = {layer.name: layer for layer in (ReLU, MixtureReLU)}
PLACES = np.linspace(-2.9, 2.9, 200)


def measure(
    count: float, epochs: int, batch_size: int, units: int, activation: str, seed: int
) -> tuple[float, float, float]:
    """Root mean squared error, mean standard deviation, and the share of the truth within two of them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, SAMPLES)
    y = np.sin(x) + rng.normal(0, NOISE, SAMPLES)
    manual_seed(seed)
    net = Sequential(Linear(1, units), ACTIVATIONS[activation](), Linear(units, 1))
    net.set_threads(1)
    net.fit(x, y, Gaussian(NOISE), epochs=epochs, batch_size=batch_size, evidence={"count": count})
    mu, var = (moments[:, 0] for moments in net.predict(PLACES))
    errors, std = mu - np.sin(PLACES), np.sqrt(var)
    return float(np.sqrt(np.mean(errors**2))), float(std.mean()), float(np.mean(np.abs(errors) < 2 * std))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.quality counts", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--units", type=int, default=50, help="of the hidden layer")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="ReLU")
    parser.add_argument("--seeds", type=int, default=5, help="0 to this number less 1")
    args = parser.parse_args(argv)
    rows = []
    for batch_size in args.batch_size:
        for epochs in args.epochs:
            for count in args.count:
                found = [
                    measure(count, epochs, batch_size, args.units, args.activation, seed) for seed in range(args.seeds)
                ]
                error, std, inside = np.mean(found, 0)
                rows.append([str(batch_size), str(epochs), f"{count:g}", f"{error:.3f}", f"{std:.3f}", f"{inside:.0%}"])
    header = ("batch", "epochs", "count", "RMSE", "mean std", "truth within 2 std")
    print(table(header, rows))

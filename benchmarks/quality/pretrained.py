"""A pretrained start: a network of PyTorch learns a task from many samples, and TAGI a near one from few.

    python -m benchmarks.quality pretrained

Errors and log-likelihoods (per observation) on samples of the second task, for a start from scratch and for pretrained
ones of several variances, before and after ten epochs; means of seeds 0 to 2 (docs/guide/other_libraries.md has the
table). It needs PyTorch (`pip install torch`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pytagi_ddp
from pytagi_ddp import metric, nn

INPUTS, UNITS, SIGMA_V = 8, 100, 0.1
VARIANCES = ("prior", 0.1, 0.01, 0.001, 0.0001, 0.00001)
Samples = tuple[np.ndarray, np.ndarray]


def main(argv: Sequence[str] | None = None) -> dict[Any, list[float]]:
    """Returns, for each start, RMSE before and after, and log-likelihood before and after."""
    parser = argparse.ArgumentParser("python -m benchmarks.quality pretrained", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4000, help="of the first task (4000)")
    parser.add_argument("--few", type=int, default=200, help="of the second one (200)")
    parser.add_argument("--epochs", type=int, default=10, help="on the second one (10)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (0)")
    args = parser.parse_args(argv)

    rng = np.random.default_rng(args.seed)
    pytagi_ddp.manual_seed(args.seed)
    first, second = tasks(rng)
    module = pretrain(samples(first, args.samples, rng), rng, args.seed)
    few, test = samples(second, args.few, rng), samples(second, 2000, rng)
    results = {}
    print("variance       RMSE    log-likelihood")
    for start in ("scratch", *VARIANCES):
        net = scratch() if start == "scratch" else nn.from_torch(module, variance=start)
        before = score(net, test)
        learn(net, few, args.epochs, rng)
        results[start] = [value for pair in zip(before, score(net, test), strict=True) for value in pair]
        print(f"{start!s:10} {{:.2f}} {{:.2f}}    {{:6.2f}} {{:6.2f}}".format(*results[start]), flush=True)
    return results


def tasks(rng: np.random.Generator) -> tuple[Callable, Callable]:
    """Two functions of INPUTS numbers, near each other."""
    a = rng.normal(size=(INPUTS, 3))

    def first(x: np.ndarray) -> np.ndarray:
        return np.sin(0.6 * x @ a[:, 0]) + np.tanh(x @ a[:, 1])

    return first, lambda x: first(x) + 0.3 * np.cos(0.5 * x @ a[:, 2])


def samples(task: Callable, n: int, rng: np.random.Generator) -> Samples:
    x = rng.normal(size=(n, INPUTS)).astype(np.float32)
    return x, (task(x) + rng.normal(0, SIGMA_V, n)).astype(np.float32)


def pretrain(data: Samples, rng: np.random.Generator, seed: int) -> Any:
    """A module of PyTorch, trained by Adam."""
    try:
        import torch  # here, because nothing else needs it
    except ModuleNotFoundError:
        sys.exit("error: this program needs PyTorch, which is not installed: pip install torch")

    torch.manual_seed(seed)
    x, y = map(torch.from_numpy, data)
    layers = torch.nn.Linear(INPUTS, UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, UNITS), torch.nn.ReLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(UNITS, 1))
    optimizer = torch.optim.Adam(module.parameters(), 2e-3)
    for _ in range(30):
        for rows in np.array_split(rng.permutation(len(x)), max(1, len(x) // 100)):
            optimizer.zero_grad()
            ((module(x[rows])[:, 0] - y[rows]) ** 2).mean().backward()
            optimizer.step()
    return module


def scratch() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, 1))


def learn(net: nn.Sequential, data: Samples, epochs: int, rng: np.random.Generator) -> None:
    x, y = data
    updater = nn.OutputUpdater(net.device)
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(x)), max(1, len(x) // 5)):
            net(x[rows])
            updater.update(net.output_z_buffer, y[rows], SIGMA_V**2, net.input_delta_z_buffer)
            net.backward()
            net.step()


def score(net: nn.Sequential, data: Samples) -> tuple[float, float]:
    """Root mean square error, and log-likelihood per observation."""
    mu, var = (moments[:, 0] for moments in net.predict(data[0]))
    return metric.rmse(mu, data[1]), metric.log_likelihood(mu, data[1], np.sqrt(var + SIGMA_V**2))

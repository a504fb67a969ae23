"""Three ranks whose data differ and stay where they are: `python -m examples.federated --plot federated.png`.

Each rank has samples of one third of the inputs. By itself it knows nothing of the others' thirds. Together they learn
one function without showing each other a sample: every k steps their posteriors become one (`every`, `merge`), or they
share the deltas of every step (`average`). The ranks are threads of this process (`run_threads`).

RMSE against the function and log-likelihood per observation, over all inputs; means of seeds 0 to 4 (`--seed`):

| | RMSE | log-likelihood | exchanges |
|---|---|---|---|
| each rank alone (means of the three) | 2.39 | -10.4 | none |
| average of every step | 0.053 | 0.57 | 2000 |
| mean, every 20 | 0.041 | 0.79 | 100 |
| precision_weighted, every 20 | 0.031 | 0.84 | 100 |
| one process with all samples | 0.024 | 0.85 | |
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import pytagi_ddp
from examples.figures import draw
from examples.option_types import at_least, natural, picture, positive_int
from pytagi_ddp import metric, plot
from pytagi_ddp.distributed import run_threads
from pytagi_ddp.nn import DDPSequential, Linear, MixtureReLU, OutputUpdater
from pytagi_ddp.nn import Sequential as Network

RANKS, SIGMA_V = 3, 0.1
THIRDS = np.linspace(-3, 3, RANKS + 1)
QUICK = {"epochs": 4, "samples": 200}
GRID = np.linspace(-3, 3, 241, dtype=np.float32)
Samples = tuple[np.ndarray, np.ndarray]


class Found(NamedTuple):
    """What a way of training ends with: means and variances on `GRID`, and how good they are."""

    mu: np.ndarray
    var: np.ndarray
    rmse: float
    log_likelihood: float


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(2 * x) + 0.3 * x


def samples_of(rank: int, n: int, seed: int) -> Samples:
    """n noisy observations of a rank's third of the inputs."""
    rng = np.random.default_rng([seed, rank])
    x = rng.uniform(THIRDS[rank], THIRDS[rank + 1], n)
    return x.astype(np.float32), (truth(x) + rng.normal(0, SIGMA_V, n)).astype(np.float32)


def make_network(seed: int) -> Network:
    """The same on every rank."""
    pytagi_ddp.manual_seed(seed)
    return Network(Linear(1, 64), MixtureReLU(), Linear(64, 64), MixtureReLU(), Linear(64, 1))


def learn(net: Network | DDPSequential, data: Samples, args: argparse.Namespace) -> None:
    """A loop as for one process; on several ranks `step` does what there is to exchange."""
    (x, y), updater, rng = data, OutputUpdater("cpu"), np.random.default_rng(args.seed)
    for _ in range(args.epochs):
        for rows in np.array_split(rng.permutation(len(x)), max(1, len(x) // args.batch_size)):
            net(x[rows])
            updater.update(net.output_z_buffer, y[rows], SIGMA_V**2, net.input_delta_z_buffer)
            net.backward()
            net.step()


def evaluate(net: Network) -> Found:
    mu, var = (moments[:, 0] for moments in net.predict(GRID))
    # The expectation over the noise of the log-likelihood of one observation at each input.
    spread = var + SIGMA_V**2
    expected = -0.5 * np.log(2 * np.pi * spread) - 0.5 * ((truth(GRID) - mu) ** 2 + SIGMA_V**2) / spread
    return Found(mu, var, metric.rmse(mu, truth(GRID)), float(expected.mean()))


def train_alone(data: Samples, args: argparse.Namespace) -> Found:
    """One process, with some samples or all."""
    net = make_network(args.seed)
    learn(net, data, args)
    return evaluate(net)


def train_together(args: argparse.Namespace, options: dict[str, Any]) -> Found:
    """Every rank with its own samples; `options` are those of `DDPSequential`."""

    def program() -> Found:
        net = DDPSequential(make_network(args.seed), **options)
        learn(net, samples_of(net.rank, args.samples, args.seed), args)
        if "merge" in options:
            net.merge()  # what came behind the last k steps
        return evaluate(net.model)

    return run_threads(program, RANKS)[0]  # all ranks end with the same network


def compare(args: argparse.Namespace) -> dict[str, Found]:
    """All ways, by name."""
    own = [samples_of(k, args.samples, args.seed) for k in range(RANKS)]
    found = {f"rank {k} alone": train_alone(data, args) for k, data in enumerate(own)}
    found["average of every step"] = train_together(args, {"average": True})
    for merge in ("mean", "precision_weighted"):
        found[f"{merge}, every {args.every}"] = train_together(args, {"every": args.every, "merge": merge})
    x, y = (np.concatenate(parts) for parts in zip(*own, strict=True))
    found["one process with all samples"] = train_alone((x, y), args)
    return found


def paint(figure: Any, found: dict[str, Found], args: argparse.Namespace) -> None:
    """Three panels: each rank by itself, the average, and the merged posteriors."""
    own = [samples_of(k, args.samples, args.seed) for k in range(RANKS)]
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    names = ["average of every step", f"precision_weighted, every {args.every}"]
    for axes, title, shown in zip(
        panels,
        ["each rank alone", *names],
        [[f"rank {k} alone" for k in range(RANKS)], *([n] for n in names)],
        strict=True,
    ):
        for k, (x, y) in enumerate(own):
            axes.plot(x, y, ".", color=f"C{k}", markersize=2, alpha=0.4)
        axes.plot(GRID, truth(GRID), "--", color="0.4", linewidth=1, label="truth")
        for k, name in enumerate(shown):
            color = f"C{k}" if len(shown) > 1 else "C3"
            plot.band(axes, GRID, found[name].mu, found[name].var, name, color)
        axes.set(title=title, ylim=(-3, 3), xlabel="x")
    panels[0].legend(loc="upper left", fontsize="small")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("federated", description=__doc__.partition(":")[0])
    parser.add_argument("--every", type=at_least(2), default=20, metavar="K", help="steps between two merges (20)")
    parser.add_argument("--samples", type=positive_int, default=400, help="of each rank (400)")
    parser.add_argument("--epochs", type=positive_int, default=20, help="passes over the data (20)")
    parser.add_argument("--batch-size", type=positive_int, default=4, help="of each rank (4)")
    parser.add_argument("--seed", type=natural, default=0, help="of everything that is drawn (0)")
    parser.add_argument("--quick", action="store_true", help="fewer epochs and samples")
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw what was learnt")
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args(argv)  # what is given counts
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Found]:
    """Trains in all ways, prints how good they are, and returns what they found."""
    args = parse_arguments(argv)
    found = compare(args)
    print(f"{'':30}  RMSE  log-likelihood")
    for name, way in found.items():
        print(f"{name:30} {way.rmse:5.3f}  {way.log_likelihood:6.2f}")
    draw(args.plot, lambda figure: paint(figure, found, args), (12, 3.8))
    return found


if __name__ == "__main__":
    main()

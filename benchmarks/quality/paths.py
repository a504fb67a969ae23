"""Forecasts of many steps by an LSTM, in three ways: `python -m benchmarks.quality paths`.

The network learns from windows of 24 values, and of the time of day, to predict the next value and its variance. A
forecast of more steps is made of *paths*, each of which draws its next value from the prediction and continues from it;
or means and variances of predictions are the next inputs; or a `Forecaster` gives all steps at once, without an LSTM.
Means over seeds of forecasts of 72 steps from 10 origins. 15 seconds a seed on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import pytagi_ddp
from benchmarks.report import table
from pytagi_ddp.forecasting import Forecaster
from pytagi_ddp.metric import log_likelihood, rmse
from pytagi_ddp.nn import LSTM, EvenExp, Linear, OutputUpdater
from pytagi_ddp.nn import Sequential as Network

PERIOD = 24  # time steps of a season
WINDOW = PERIOD  # values that the network sees
AHEAD = 3 * PERIOD  # steps of a forecast
ORIGINS = 10  # one forecast begins at each of the last seasons that are followed by enough values


def make_series(steps: int, seed: int) -> np.ndarray:
    """A season of `PERIOD` steps, its overtone, weather and noise; standardised by its first half without noise."""
    generator = np.random.default_rng(seed)
    errors = generator.normal(scale=0.1, size=steps)
    angle = 2 * np.pi * np.arange(steps) / PERIOD
    signal = np.sin(angle) + 0.4 * np.cos(2 * angle)
    weather = 0.0
    for k, new in enumerate(generator.normal(scale=0.15, size=steps)):
        weather = 0.9 * weather + new
        signal[k] += weather
    first = signal[: steps // 2]
    return ((signal + errors - first.mean()) / first.std()).astype(np.float32)


class Scores(NamedTuple):
    """Quality of predictions N(mu, var): root mean square error, mean log-likelihood, share within 90 % intervals."""

    rmse: float
    log_likelihood: float
    coverage: float


def score(mu: np.ndarray, var: np.ndarray, y: np.ndarray) -> Scores:
    """Scores of predictions of the observations y; missing ones do not count."""
    std, known = np.sqrt(var), np.isfinite(y)
    inside = np.abs(y - mu)[known] < 1.645 * std[known]
    return Scores(rmse(mu, y), log_likelihood(mu, y, std), float(inside.mean()))


def make_network(units: int = 30) -> Network:
    """(WINDOW, 3) per sample to mean and noise variance of the next value."""
    return Network(
        LSTM(3, units, seq_len=WINDOW),
        LSTM(units, units, last_timestep=True, seq_len=WINDOW),
        Linear(units, 2, gain_weight=0.1, gain_bias=0.1),  # begins with a noise variance of about 1
        EvenExp(),
    )


def inputs(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(samples, WINDOW, 3): values (samples, WINDOW) from time steps `first` on, and the time of day after each."""
    angle = 2 * np.pi / PERIOD * (first[:, None] + np.arange(1, WINDOW + 1))
    return np.stack([values, np.sin(angle), np.cos(angle)], 2).astype(np.float32)


def predict(net: Network, x: np.ndarray, var_x: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the observation after each window: the network's own variance and that of the noise."""
    mu, var = (moments.reshape(-1, 2) for moments in net.predict(x, var_x=var_x))
    return mu[:, 0], var[:, 0] + mu[:, 1]


def train(net: Network, y: np.ndarray, epochs: int, batch_size: int, seed: int) -> None:
    """Learns to predict each value of y from those before it."""
    updater, generator = OutputUpdater(net.device), np.random.default_rng(seed)
    x = inputs(np.lib.stride_tricks.sliding_window_view(y[:-1], WINDOW), np.arange(len(y) - WINDOW))
    target = y[WINDOW:]
    for _ in range(epochs):
        for part in np.array_split(generator.permutation(len(x)), -(-len(x) // batch_size)):
            net(x[part])
            updater.update_heteros(net.output_z_buffer, target[part], net.input_delta_z_buffer)
            net.backward()
            net.step()


def forecast(net: Network, y: np.ndarray, origins: np.ndarray, paths: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances (origins, AHEAD) of the observations from each origin on, given those of y before it."""
    generator, start = np.random.default_rng(seed), np.repeat(origins, paths) - WINDOW
    path = np.empty((len(start), WINDOW + AHEAD), np.float32)
    path[:, :WINDOW] = y[start[:, None] + np.arange(WINDOW)]
    for t in range(AHEAD):
        mu, var = predict(net, inputs(path[:, t : t + WINDOW], start + t))
        path[:, WINDOW + t] = generator.normal(mu, np.sqrt(var))
    drawn = path[:, WINDOW:].reshape(len(origins), paths, AHEAD)
    return drawn.mean(1), drawn.var(1, ddof=1)


def feed_back_moments(net: Network, y: np.ndarray, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `forecast`, with means and variances of predictions as the next inputs."""
    start = origins - WINDOW
    mu, var = np.zeros((2, len(start), WINDOW + AHEAD), np.float32)
    mu[:, :WINDOW] = y[start[:, None] + np.arange(WINDOW)]
    for t in range(AHEAD):
        x = inputs(mu[:, t : t + WINDOW], start + t)
        var_x = np.zeros_like(x)
        var_x[..., 0] = var[:, t : t + WINDOW]
        mu[:, WINDOW + t], var[:, WINDOW + t] = predict(net, x, var_x)
    return mu[:, WINDOW:], var[:, WINDOW:]


def forecast_directly(y: np.ndarray, origins: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As `forecast`, by a `Forecaster`, whose networks see three seasons and give all steps at once."""
    forecaster = Forecaster(AHEAD, season=PERIOD, random_state=seed).fit(y[: origins.min()])
    found = [forecaster.predict(y[:origin]) for origin in origins]
    return np.stack([one.mean for one in found]), np.stack([one.variance for one in found])


def measure(steps: int, epochs: int, paths: int, seed: int) -> dict[str, Scores]:
    """Scores of the three ways; the last of the `steps` are held back."""
    pytagi_ddp.manual_seed(seed)
    y = make_series(steps, seed)
    origins = steps - AHEAD - PERIOD * np.arange(ORIGINS)
    net = make_network()
    train(net, y[: origins.min()], epochs, batch_size=16, seed=seed)
    truth = y[origins[:, None] + np.arange(AHEAD)]
    found = {
        "Forecaster, all steps at once": forecast_directly(y, origins, seed),
        "paths": forecast(net, y, origins, paths, seed),
        "means and variances fed back": feed_back_moments(net, y, origins),
    }
    return {name: score(mu, var, truth) for name, (mu, var) in found.items()}


def main(argv: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Prints a table, and returns the means over seeds."""
    parser = argparse.ArgumentParser("python -m benchmarks.quality paths", description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (20)")
    parser.add_argument(
        "--steps", type=int, default=2400, help="of the series; the last 12 seasons are held back (2400)"
    )
    parser.add_argument("--paths", type=int, default=100, help="of a forecast (100)")
    parser.add_argument("--seeds", type=int, default=6, help="0 to this number less 1 (6)")
    args = parser.parse_args(argv)
    runs = [measure(args.steps, args.epochs, args.paths, seed) for seed in range(args.seeds)]
    means = {name: np.mean([run[name] for run in runs], 0) for name in runs[0]}
    rows = [[name, f"{rmse:.3f}", f"{likely:.2f}", f"{inside:.0%}"] for name, (rmse, likely, inside) in means.items()]
    print(table(("way", "RMSE", "log-likelihood", "in 90 % intervals"), rows))
    return means

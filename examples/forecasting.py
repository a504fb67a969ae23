"""Forecast a time series three days ahead with an LSTM: `python -m examples.forecasting --plot forecast.png`.

The network learns from windows of 24 values to predict the next one. A forecast feeds its predictions back as the next
inputs, variances included: each step ahead is uncertain because the one before it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import pytagi_ddp
from examples.figures import band, draw
from examples.series import PERIOD, Scores, make_series, score
from pytagi_ddp.nn import LSTM, Linear, OutputUpdater, Sequential

WINDOW = PERIOD  # values that the network sees


def make_network(units: int = 30) -> Sequential:
    """(WINDOW, 1) per sample to the next value."""
    return Sequential(
        LSTM(1, units, seq_len=WINDOW), LSTM(units, units, last_timestep=True, seq_len=WINDOW), Linear(units, 1)
    )


def windows(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All windows of a series, and the value behind each."""
    return np.lib.stride_tricks.sliding_window_view(y[:-1], WINDOW), y[WINDOW:]


def train(net: Sequential, y: np.ndarray, sigma_v: float, epochs: int, batch_size: int, seed: int) -> None:
    """Learns to predict each value of y from those before it; sigma_v: standard deviation of an observation."""
    updater, (x, target) = OutputUpdater(net.device), windows(y)
    generator = np.random.default_rng(seed)
    for epoch in range(epochs):
        noise = max(sigma_v, 0.5 * 0.8**epoch)  # large at first, so that early batches do not decide
        wrong = 0.0
        for part in np.array_split(generator.permutation(len(x)), -(-len(x) // batch_size)):
            mu, _ = net(x[part])
            wrong += float(np.sum((mu - target[part]) ** 2))
            updater.update(net.output_z_buffer, target[part], noise**2, net.input_delta_z_buffer)
            net.backward()
            net.step()
        print(
            f"epoch {epoch + 1}/{epochs}: RMSE one step ahead, while learning {np.sqrt(wrong / len(x)):.3f}", flush=True
        )


def forecast(net: Sequential, past: np.ndarray, steps: int, sigma_v: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the observations that follow `past`, which fills a window."""
    mu, var = np.empty((2, WINDOW + steps), np.float32)
    mu[:WINDOW], var[:WINDOW] = past, 0
    for t in range(WINDOW, WINDOW + steps):
        seen = slice(t - WINDOW, t)
        mu[t : t + 1], var[t : t + 1] = (moments.ravel() for moments in net.predict(mu[seen], var_x=var[seen]))
    return mu[WINDOW:], var[WINDOW:] + np.float32(sigma_v**2)


def main(argv: Sequence[str] | None = None) -> Scores:
    """Trains, forecasts what was held back, and returns how good that was."""
    parser = argparse.ArgumentParser("forecasting", description=__doc__.partition(":")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1200, help="of the series; the last three seasons are forecast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the forecast")
    args = parser.parse_args(argv)
    pytagi_ddp.manual_seed(args.seed)
    series, ahead = make_series(args.steps, seed=args.seed), 3 * PERIOD
    net = make_network()
    train(net, series.y[:-ahead], series.noise, args.epochs, args.batch_size, args.seed)
    mu, var = forecast(net, series.y[-ahead - WINDOW : -ahead], ahead, series.noise)
    scores = score(mu, var, series.y[-ahead:])
    print(f"{ahead} steps ahead: {scores}")

    def paint(figure) -> None:
        axes = figure.add_subplot(xlabel="time step", ylabel="value")
        t = np.arange(args.steps)
        shown = slice(-3 * ahead, None)
        axes.plot(t[shown], series.y[shown], ".", color="0.4", markersize=3, label="observed")
        band(axes, t[-ahead:], mu, var, "forecast, two standard deviations", "C0")
        axes.axvline(args.steps - ahead, color="0.7", linestyle="--")
        axes.legend(loc="lower left", framealpha=0.9)

    draw(args.plot, paint)
    return scores


if __name__ == "__main__":
    main()

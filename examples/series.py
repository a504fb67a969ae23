"""A time series to learn from, how a network goes through one, and how good its predictions are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pytagi_ddp.metric import log_likelihood, rmse
from pytagi_ddp.nn import OutputUpdater, Sequential

PERIOD = 24  # time steps of a season


class Series(NamedTuple):
    """Observations of a signal, standardised by the mean and standard deviation of its first part.

    Attributes:
        y: observations, NaN where they are missing. signal: what was observed, without noise. noise: its standard
            deviation in y.
    """

    y: np.ndarray
    signal: np.ndarray
    noise: float


def make_series(
    steps: int, noise: float = 0.1, seed: int = 0, change_at: int | None = None, weather: float = 0.0
) -> Series:
    """A season of `PERIOD` steps, its first overtone, and a slow wave or weather; from `change_at` on another season.

    weather: standard deviation of what is new in it at each time step; nine tenths of it are left at the next one.
    """
    generator, t = np.random.default_rng(seed), np.arange(steps)
    errors = generator.normal(scale=noise, size=steps)
    angle = 2 * np.pi * t / PERIOD
    signal = np.sin(angle) + 0.4 * np.cos(2 * angle)
    if weather:
        now = 0.0
        for k, new in enumerate(generator.normal(scale=weather, size=steps)):
            now = 0.9 * now + new
            signal[k] += now
    else:
        signal += 0.3 * np.sin(2 * np.pi * t / (11 * PERIOD))
    if change_at is not None:
        signal[change_at:] = (0.5 * np.cos(angle) - 0.8 * np.sin(2 * angle))[change_at:]
    first = signal[: steps // 2]
    mean, std = first.mean(), first.std()
    observed = signal + errors
    return Series(((observed - mean) / std).astype(np.float32), ((signal - mean) / std).astype(np.float32), noise / std)


class Scores(NamedTuple):
    """Quality of predictions N(mu, var): root mean square error, mean log-likelihood, share within 90 % intervals."""

    rmse: float
    log_likelihood: float
    coverage: float

    def __str__(self) -> str:
        return (
            f"RMSE {self.rmse:.3f}, log-likelihood {self.log_likelihood:.2f}, 90 % intervals hold {self.coverage:.0%}"
        )


def score(mu: np.ndarray, var: np.ndarray, y: np.ndarray) -> Scores:
    """Scores of predictions of the observations y; missing ones do not count."""
    std, known = np.sqrt(var), np.isfinite(y)
    inside = np.abs(y - mu)[known] < 1.645 * std[known]
    return Scores(rmse(mu, y), log_likelihood(mu, y, std), float(inside.mean()))


def observe_one_by_one(net: Sequential, y: np.ndarray, sigma_v: float) -> tuple[np.ndarray, np.ndarray]:
    """Goes through a series once, learning each value after predicting it from the one before and the net's memory.

    Args:
        y: observations, NaN where they are missing; then the prediction is the next input, as uncertain as it is.
        sigma_v: standard deviation of an observation.

    Returns:
        Means and variances of the signal at each time step, before its observation was seen.
    """
    updater = OutputUpdater(net.device)
    mu, var = np.zeros((2, len(y)), np.float32)
    x, var_x = np.zeros(1, np.float32), np.ones(1, np.float32)  # of what is before the first value nothing is known
    for t, observed in enumerate(y):
        m, s = net(x, var_x)
        mu[t], var[t] = m[0], s[0]
        updater.update(net.output_z_buffer, y[t : t + 1], sigma_v**2, net.input_delta_z_buffer)
        net.backward()
        net.step()
        x[0], var_x[0] = (observed, 0) if np.isfinite(observed) else (m[0], s[0])
    return mu, var

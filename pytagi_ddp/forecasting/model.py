"""The networks of a forecaster: windows of the past to all steps ahead, and the noise of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.estimators.members import Training
from pytagi_ddp.forecasting.forecast import ranked_score
from pytagi_ddp.likelihoods.prediction import GaussianPrediction, LogNormalPrediction
from pytagi_ddp.nn import EvidenceSchedule, OutputUpdater, Sequential

FIRST_NOISE = 0.3**2  # variance of the noise in units of the targets, before it is estimated
LEAST_NOISE = 0.1  # of the mean squared residual of a step, at least so much is noise
SHRINKAGE = 0.1  # of correlations between steps towards 0
BATCH, PREDICTED = 16, 512
Run = Callable[[Callable[..., Any], Iterable[tuple]], list]


class Windows(NamedTuple):
    """What is known at some origins, and what followed. NaN: missing.

    Attributes:
        past: (n, lags) values up to the origin. more: (n, k) calendar, covariates and which series it is.
        series, origin: (n,) numbers of the series, and of the last time step that is known.
        future: (n, horizon).
    """

    past: np.ndarray
    more: np.ndarray
    series: np.ndarray
    origin: np.ndarray
    future: np.ndarray

    def rows(self, some: np.ndarray) -> Windows:
        return Windows(*(array[some] for array in self))


class Kind(NamedTuple):
    """What is chosen: whether logarithms are taken, the level is an input, and the hidden layers."""

    log: bool
    level: bool
    hidden: tuple[int, ...]


@dataclass
class Scaling:
    """From windows to standardised inputs and targets, and back.

    Targets are differences to the last known value, divided by their standard deviation in each series, less their
    mean at each step. So a trend goes on, and series of any size are learnt together.
    """

    kind: Kind
    series: np.ndarray  # (3, series): mean, standard deviation, and that of the differences
    center: np.ndarray = field(default_factory=lambda: np.zeros(0))
    inputs: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    @classmethod
    def of(cls, kind: Kind, windows: Windows, number: int) -> Scaling:
        series = np.zeros((3, number))
        scaling = cls(kind, series)
        past, future = scaling.of_values(windows.past), scaling.of_values(windows.future)
        differences = future - anchors(past)[:, None]
        for k in range(number):
            rows = windows.series == k
            series[:, k] = np.nanmean(past[rows]), spread(past[rows]), spread(differences[rows])
        scaling.center = np.nanmean(differences / series[2, windows.series][:, None], 0)
        x = scaling.raw(windows)
        scaling.inputs = np.stack([np.nanmean(x, 0), np.array([spread(column) for column in x.T])])
        return scaling

    def of_values(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.kind.log else values

    def raw(self, windows: Windows) -> np.ndarray:
        past = self.of_values(windows.past)
        last = anchors(past)
        mean, std, scale = self.series[:, windows.series]
        columns = [(past - last[:, None]) / scale[:, None], windows.more]
        if self.kind.level:
            columns.append(((last - mean) / std)[:, None])
        return np.concatenate(columns, 1)

    def x(self, windows: Windows) -> np.ndarray:
        mean, std = self.inputs
        return ((self.raw(windows) - mean) / std).astype(np.float32)

    def targets(self, windows: Windows) -> np.ndarray:
        last, scale = anchors(self.of_values(windows.past)), self.series[2, windows.series]
        differences = self.of_values(windows.future) - last[:, None]
        return (differences / scale[:, None] - self.center).astype(np.float32)

    def back(self, windows: Windows, m: np.ndarray) -> np.ndarray:
        """Means in the unit of the values (or of their logarithm)."""
        last, scale = anchors(self.of_values(windows.past)), self.series[2, windows.series]
        return (m + self.center) * scale[:, None] + last[:, None]


@dataclass
class Model:
    """Trained networks, fold by fold, with their scaling and the noise of each step.

    Attributes:
        noise: (horizon,) variances, and correlation: (horizon, horizon), of standardised targets.
        scores: (stretches,) mean CRPS, in units of each series' standard deviation, of the windows of each stretch, by
            networks that have not seen it nor its neighbours.
    """

    scaling: Scaling
    networks: list[Sequential]
    noise: np.ndarray
    correlation: np.ndarray
    scores: np.ndarray

    @property
    def score(self) -> float:
        return float(self.scores.mean())

    def better_than(self, other: Model) -> bool:
        """On average, and in the last stretch of time, which is most like the time to come."""
        return self.score < other.score and bool(self.scores[-1] < other.scores[-1])

    def moments(self, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
        """(means (n, horizon), covariances (n, horizon, horizon)) of observations, or of their logarithms."""
        m, v = mixture(self.networks, self.scaling.x(windows))
        std = np.sqrt(v + self.noise) * self.scaling.series[2, windows.series][:, None]
        return self.scaling.back(windows, m), self.correlation * std[:, :, None] * std[:, None, :]


def fit(
    kind: Kind,
    windows: Windows,
    number: int,
    folds: int,
    noise: np.ndarray | None,
    epochs: int,
    seeds: Callable[[int], list[int]],
    count: int,
    run: Run,
) -> Model:
    """Trains `count` networks without each of `folds` stretches of time.

    A network without a stretch has not seen windows whose observations lie in it either.

    Args:
        number: of series. noise: variances of the steps with which networks learn; None: a first guess.
        seeds: returns as many seeds. run: calls a function with each of some tuples of arguments.
    """
    scaling = Scaling.of(kind, windows, number)
    x, y = scaling.x(windows), scaling.targets(windows)
    horizon = y.shape[1]
    learnt_noise = np.full(horizon, FIRST_NOISE) if noise is None else noise
    stretches = np.array_split(np.unique(windows.origin), folds)
    held = [(windows.origin >= part[0]) & (windows.origin <= part[-1]) for part in stretches]
    near = [(windows.origin > part[0] - horizon) & (windows.origin < part[-1] + horizon) for part in stretches]
    tasks = [(x[~some], y[~some], learnt_noise, kind.hidden, epochs, seed) for some in near for seed in seeds(count)]
    networks = run(train, tasks)
    m, v = np.zeros_like(y, np.float64), np.zeros_like(y, np.float64)
    for k, rows in enumerate(held):
        m[rows], v[rows] = mixture(networks[k * count : (k + 1) * count], x[rows])
    residuals = y - m
    squares = np.nanmean(residuals**2, 0)
    found = np.maximum(squares - v.mean(0), LEAST_NOISE * squares)
    scale = scaling.series[2, windows.series][:, None]
    distribution = LogNormalPrediction if kind.log else GaussianPrediction
    scores = ranked_score(distribution(scaling.back(windows, m), (v + found) * scale**2), windows.future)
    scores /= np.array([spread(windows.future[windows.series == k]) for k in range(number)])[windows.series][:, None]
    by_stretch = np.array([np.nanmean(scores[rows]) for rows in held])
    return Model(scaling, networks, found, correlations(residuals), by_stretch)


def train(
    x: np.ndarray, y: np.ndarray, noise: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int
) -> Sequential:
    """A network that has learnt standardised windows; each sample counts once, however many epochs are run."""
    net = Training(hidden, epochs, BATCH, outputs=len(noise)).network(x.shape[1], seed)
    rng, updater, size = np.random.default_rng(seed), OutputUpdater(net.device), min(BATCH, len(x))
    schedule = EvidenceSchedule(net, len(x) // size, epochs, count=1)
    for _ in range(epochs):
        for rows in rng.permutation(len(x))[: len(x) // size * size].reshape(-1, size):
            net(x[rows])
            variances = np.tile((noise / schedule.weight).astype(np.float32), size)
            updater.update(net.output_z_buffer, y[rows].ravel(), variances, net.input_delta_z_buffer)
            net.backward()
            net.step()
    schedule.remove()
    return net


def mixture(networks: list[Sequential], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the mean output: variances of the networks, and of their means."""
    mu, var = zip(*(net.predict(x, PREDICTED) for net in networks), strict=True)
    means = np.array(mu, np.float64)
    return means.mean(0), np.mean(var, 0, np.float64) + (means.var(0, ddof=1) if len(means) > 1 else 0)


def correlations(residuals: np.ndarray) -> np.ndarray:
    """Correlations between the residuals of steps, shrunk towards 0."""
    known = np.isfinite(residuals)
    filled = np.where(known, residuals, 0)
    products, pairs = filled.T @ filled, known.T.astype(np.float64) @ known
    covariance = products / np.maximum(pairs, 1)
    std = np.sqrt(np.maximum(np.diag(covariance), 1e-30))
    found = covariance / (std * std[:, None])
    return (1 - SHRINKAGE) * found + SHRINKAGE * np.eye(len(found))


def anchors(past: np.ndarray) -> np.ndarray:
    """The last known value of each window."""
    known = np.isfinite(past[:, ::-1])
    return past[np.arange(len(past)), past.shape[1] - 1 - known.argmax(1)]


def spread(values: np.ndarray) -> float:
    """The standard deviation of the known values; 1 if they are all the same."""
    std = float(np.nanstd(values)) if np.isfinite(values).any() else 0.0
    return std if std > 1e-12 * abs(float(np.nanmean(values)) if std else 1.0) else 1.0

"""The networks of a forecaster: from windows of the past to all steps ahead, and the noise of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.estimators.members import DRAWS, PREDICTED, Training, observe_values, run_epoch
from pytagi_ddp.forecasting.forecast import FAMILIES
from pytagi_ddp.forecasting.windows import Windows
from pytagi_ddp.nn import EvidenceSchedule, OutputUpdater, Sequential

FIRST_NOISE = 0.3**2  # variance of the noise in units of the targets, before it is estimated
LEAST_NOISE = 0.1  # smallest share of noise in the mean squared residual of a step
LEAST_ASSUMED = 0.1**2  # least variance of the noise in training
NO_NOISE = 1e-10  # variance of the noise if all residuals are 0
LEAST_VARIANCE = 1e-6  # principal components below this share of the largest variance are left out
SHRINKAGE = 0.1  # of the correlations between steps, towards 0
SHARED = 10  # windows as many as which the noise of all series counts in that of one of them
TESTED = 2000  # windows by which the noise after missing values is estimated,
DRAWN = 250  # and by which the variance that missing inputs cause is
FEWEST = 8  # least number of windows in training
BATCH = 16
Run = Callable[[Callable[..., Any], Iterable[tuple]], list]
Cut = Callable[[np.ndarray, np.ndarray], Windows]  # the windows of these series at these origins


class Kind(NamedTuple):
    """The choices of a forecaster.

    Attributes:
        past: number of the last values that are inputs. log: whether it learns logarithms. level: whether the last
            value itself is an input. again: whether values of a long cycle ago are. earlier: whether covariates of time
            steps before the last one are. hidden: units of layers. counts: whether forecasts are negative binomial.
    """

    past: int
    log: bool
    level: bool = False
    again: bool = False
    earlier: bool = False
    hidden: tuple[int, ...] = ()
    counts: bool = False

    @property
    def family(self) -> str:
        return "log-normal" if self.log else "negative binomial" if self.counts else "Gaussian"


@dataclass(frozen=True)
class Scaling:
    """From windows to standardised inputs and targets, and back.

    Targets are differences to the last known value, divided by their standard deviation in each series, less their
    mean at each step. So trends continue, and series of any size are learnt together. Inputs are transformed to their
    principal components: lags of a series are correlated, and TAGI treats weights as independent, which is right for
    uncorrelated inputs.

    Attributes:
        kind: as chosen. series: (5, series) mean, standard deviation, that of the differences, smallest and largest
            value.
        center: (horizon,) means of the differences. inputs: (2, inputs) mean and standard deviation.
        axes: (inputs, k) principal axes of the standardised inputs. spreads: (k,) standard deviations along them.
    """

    kind: Kind
    series: np.ndarray
    center: np.ndarray
    inputs: np.ndarray
    axes: np.ndarray
    spreads: np.ndarray

    @classmethod
    def of(cls, kind: Kind, windows: Windows, number: int) -> Scaling:
        """The scaling of these windows of `number` series."""
        none = np.empty((2, 0)), np.empty((0, 0)), np.empty(0)
        raw = cls(kind, np.ones((5, number)), np.zeros(windows.future.shape[1]), *none)
        past, differences = raw._values(windows.past), raw._differences(windows)
        for k in range(number):
            rows = windows.series == k
            mean = means(past[rows].ravel())
            std = spread(past[rows], abs(mean) or 1.0)
            known = raw._values(np.concatenate([windows.past[rows], windows.future[rows]], 1))
            raw.series[:, k] = mean, std, spread(differences[rows], std), np.nanmin(known), np.nanmax(known)
        center = means(differences / raw.series[2, windows.series][:, None])
        x = raw._inputs(windows)
        inputs = np.stack([means(x), [spread(column, 1.0) for column in x.T]])
        x = (known_or(inputs[0], raw._inputs(windows, bridged=True)) - inputs[0]) / inputs[1]
        values, axes = np.linalg.eigh(x.T @ x / len(x))
        some = values >= LEAST_VARIANCE * values.max()
        return cls(kind, raw.series, center, inputs, axes[:, some], np.sqrt(values[some]))

    def _values(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.kind.log else values

    def _last(self, windows: Windows) -> np.ndarray:
        """(n, 1): the last known value of each window; NaN: there is none."""
        past = self._values(windows.past)
        return past[np.arange(len(past)), past.shape[1] - 1 - windows.age][:, None]

    def _differences(self, windows: Windows) -> np.ndarray:
        return self._values(windows.future) - self._last(windows)

    def _inputs(self, windows: Windows, bridged: bool = False) -> np.ndarray:
        """(n, inputs), NaN where missing; `bridged`: with values between two others of the past."""
        last, (mean, std, scale) = self._last(windows), self.series[:3, windows.series, None]
        past, again = self._values(windows.past), self._values(windows.again)
        past = between(past) if bridged else past
        parts = [(past[:, -self.kind.past :] - last) / scale, windows.more]
        parts += [windows.earlier] if self.kind.earlier else []
        parts += [(again - last) / scale] if self.kind.again else []
        if self.kind.level:  # beyond the levels that were learnt, a pull back to them would grow without limit
            parts += [(np.clip(last, *self.series[3:, windows.series, None]) - mean) / std]
        return np.concatenate(parts, 1)

    def x(self, windows: Windows) -> np.ndarray:
        """(n, k) principal components of the standardised inputs.

        Missing inputs are replaced by their mean, or between two values of the past by linear interpolation.
        """
        return self._components(known_or(self.inputs[0], self._inputs(windows, bridged=True)))

    def drawn(self, windows: Windows, number: int) -> Iterator[np.ndarray]:
        """`x` this many times, plus errors of the `missing` inputs: those of random inputs with the same gaps."""
        (mean, std), rng = self.inputs, np.random.default_rng(0)
        inputs = known_or(mean, self._inputs(windows, bridged=True))
        known, missing = np.isfinite(self._inputs(windows)), self.missing(windows)
        for _ in range(number):
            drawn = rng.standard_normal((len(inputs), len(self.spreads))) * self.spreads @ self.axes.T * std + mean
            seen = np.where(known, drawn, np.nan)
            seen[:, : self.kind.past] = between(seen[:, : self.kind.past])
            yield self._components(inputs + np.where(missing, drawn - known_or(mean, seen), 0))

    def _components(self, inputs: np.ndarray) -> np.ndarray:
        mean, std = self.inputs
        return ((inputs - mean) / std @ self.axes).astype(np.float32)

    def missing(self, windows: Windows) -> np.ndarray:
        """(n, inputs): whether an input is missing, except values after the last known one: they are in the noise."""
        found, lags = np.isnan(self._inputs(windows)), self.kind.past
        found[:, :lags] &= np.arange(lags) < lags - windows.age[:, None]
        return found

    def targets(self, windows: Windows) -> np.ndarray:
        """(n, horizon) standardised targets; NaN: missing."""
        return (self._differences(windows) / self.scale(windows) - self.center).astype(np.float32)

    def scale(self, windows: Windows) -> np.ndarray:
        """(n, 1): the difference that a target of 1 means, in the unit of the values (or of their logarithm)."""
        return self.series[2, windows.series, None]

    def back(self, windows: Windows, m: np.ndarray, v: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of values (or of their logarithms) from means and variances of targets.

        The mean of values grows as the exponential of the variance of their logarithms. So networks that learn
        logarithms have at most the largest variance of any distribution over the range of the logarithms that were
        learnt: the square of half of this range (Popoviciu's inequality). The noise is added to it.
        """
        scale = self.scale(windows)
        low, high = self.series[3:, windows.series, None]
        most = np.where(high > low, ((high - low) / 2 / scale) ** 2, np.inf) if self.kind.log else np.inf
        std = np.sqrt(np.minimum(v, most) + noise) * scale
        return (m + self.center) * scale + self._last(windows), std

    def ahead(self, windows: Windows, m: np.ndarray) -> np.ndarray:
        """(n, horizon) values (of logarithms the medians) from means of targets.

        They are at most the range of the values that were learnt below or above it.
        """
        found, _ = self.back(windows, m, np.zeros(1), np.zeros(1))
        low, high = self.series[3:, windows.series, None]
        found = np.clip(found, 2 * low - high, 2 * high - low)
        return np.exp(found) if self.kind.log else found


@dataclass(frozen=True)
class Model:
    """Trained networks with their scaling and the noise of each step.

    Attributes:
        noise: (ages, series, horizon) variances of standardised targets, for each of the `ages` of the last known
            value. factor: (ages, series, horizon) on variances of the networks, below 1 if they are larger than the
            squared errors in held-out stretches.
        longest: the largest age up to which forecasts are better if the values after the last known one are forecast.
        usual: (horizon,) mean variances that missing inputs cause in the windows that were learnt; the noise includes
            them.
        correlation: (horizon, horizon) of the errors of the steps.
        scores: (stretches,) mean CRPS, in units of each series' standard deviation, of the windows of each stretch, by
            networks that have seen neither the stretch nor the steps around it.
    """

    scaling: Scaling
    networks: list[Sequential]
    noise: np.ndarray
    factor: np.ndarray
    longest: int
    usual: np.ndarray
    correlation: np.ndarray
    scores: np.ndarray

    @property
    def score(self) -> float:
        return float(self.scores.mean())

    def better_than(self, other: Model) -> bool:
        """Whether it is better on average, and in the last stretch of time, which is most like the future."""
        return self.score < other.score and bool(self.scores[-1] < other.scores[-1])

    def moments(self, windows: Windows, cut: Cut) -> tuple[np.ndarray, np.ndarray]:
        """(n, horizon) means and standard deviations of observations, or of their logarithms."""

        def ahead(some: Windows, rows: np.ndarray) -> np.ndarray:
            return self.scaling.ahead(some, mixture(self.networks, self.scaling.x(some))[0])

        place = np.interp(windows.age, ages(windows), np.arange(len(self.noise)))
        windows = filled(windows, self.longest, cut, ahead)
        m, v = mixture(self.networks, self.scaling.x(windows))
        v = v + np.maximum(by_missing(self.networks, self.scaling, windows) - self.usual, 0)
        low, high, part = np.floor(place).astype(int), np.ceil(place).astype(int), (place % 1)[:, None]
        factor, noise = (
            (1 - part) * values[low, windows.series] + part * values[high, windows.series]
            for values in (self.factor, self.noise)
        )
        return self.scaling.back(windows, m, factor * v, noise)


class Stretch(NamedTuple):
    """Windows of a stretch of time, and those from which its networks may learn: (n,) bools.

    The two have no observation in common.
    """

    held_out: np.ndarray
    learnt: np.ndarray


def stretches(origin: np.ndarray, horizon: int, number: int) -> list[Stretch]:
    """Divides windows with these origins into this number of stretches of time.

    The list is empty if too few windows are left to learn from without one stretch and the steps on either side of it.
    """
    found = []
    for part in np.array_split(np.unique(origin), number):
        first, last = (part[0], part[-1]) if len(part) else (0, -1)
        held_out = (origin >= first) & (origin <= last)
        found.append(Stretch(held_out, (origin <= first - horizon) | (origin >= last + horizon)))
    enough = all(part.held_out.any() and part.learnt.sum() >= FEWEST for part in found)
    return found if enough else []


def fit(
    kind: Kind,
    windows: Windows,
    number: int,
    parts: list[Stretch],
    noise: np.ndarray | None,
    epochs: int,
    seeds: list[int],
    run: Run,
    cut: Cut | None = None,
    counts: bool = False,
) -> Model:
    """Trains one network without each stretch of time, and forecasts the stretch by it.

    Args:
        number: number of series. noise: (series, horizon) variances in training; None: a first guess.
        seeds: of the networks. run: calls a function with each tuple of arguments. cut: makes windows of the same
            series; None: the noise after missing values is not estimated. counts: whether forecasts of these networks
            may be negative binomial instead of Gaussian, which their scores decide.
    """
    scaling = Scaling.of(kind, windows, number)
    x, y = scaling.x(windows), scaling.targets(windows)
    if kind.again:
        y[np.isnan(windows.again).all(1)] = np.nan
    assumed = np.full(y.shape, FIRST_NOISE) if noise is None else np.maximum(noise, LEAST_ASSUMED)[windows.series]
    tasks = [
        (x[part.learnt], y[part.learnt], assumed[part.learnt], kind.hidden, epochs, seed)
        for part, seed in zip(parts, seeds, strict=True)
    ]
    networks = run(train, tasks)

    def forecast(windows: Windows, rows: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        m, v = np.zeros((2, *windows.future.shape))
        for part, network in zip(parts, networks, strict=True):
            held_out = part.held_out[rows]
            m[held_out], v[held_out] = mixture([network], scaling.x(windows.some(held_out)))
        return m, v

    def tried(older: Windows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(series, horizon) mean squared errors of forecasts, and their variances."""
        mean, variance = forecast(older, rows)
        return squares_of_series(scaling.targets(older) - mean, older.series, number), variance

    m, v = forecast(windows)
    residuals = y - m
    squares = [squares_of_series(residuals, windows.series, number)]
    within = [means_of_series(v, windows.series, number)]
    longest = 0
    if cut is not None:
        for younger, age in pairwise(ages(windows).tolist()):
            tested = evenly(len(y), max(TESTED // (1 + age // y.shape[1]), DRAWN))

            def ahead(some: Windows, rows: np.ndarray, tested: np.ndarray = tested) -> np.ndarray:
                return scaling.ahead(some, forecast(some, tested[rows])[0])

            older = windows.some(tested).without_last(age)
            errors, variance = tried(older, tested)
            if longest == younger:
                other, its_variance = tried(filled(older, age, cut, ahead), tested)
                if other.mean() <= errors.mean():
                    errors, variance, longest = other, its_variance, age
            squares.append(np.maximum(errors, squares[-1]))
            within.append(means_of_series(variance, older.series, number))
    most, inside = np.array(squares), np.array(within)
    found = np.maximum(most - inside, LEAST_NOISE * most) + NO_NOISE
    factor = np.minimum(most / (inside + found), 1)
    mean, std = scaling.back(windows, m, factor[0, windows.series] * v, found[0, windows.series])

    def scored(kind: Kind) -> np.ndarray:
        scores = FAMILIES[kind.family](mean, std**2).crps(windows.future)
        for k in range(number):
            rows = windows.series == k
            scores[rows] /= spread(windows.future[rows], 1.0)
        return np.array([means(scores[part.held_out].ravel()) for part in parts])

    families = (False, True) if counts and not kind.log else (False,)
    each = {chosen: scored(kind._replace(counts=chosen)) for chosen in families}
    best = min(each, key=lambda chosen: each[chosen].mean())
    scaling = replace(scaling, kind=kind._replace(counts=best))
    usual = by_missing(networks, scaling, windows.some(evenly(len(y), DRAWN))).mean(0)
    return Model(scaling, networks, found, factor, longest, usual, correlations(residuals), each[best])


def train(
    x: np.ndarray, y: np.ndarray, noise: np.ndarray, hidden: tuple[int, ...], epochs: int, seed: int
) -> Sequential:
    """A network trained on standardised windows; each sample counts once, for any number of epochs.

    noise: variances of y, in its shape.
    """
    net = Training(hidden, epochs, BATCH, outputs=y.shape[1]).network(x.shape[1], seed)
    schedule, rng = EvidenceSchedule(net, max(len(x) // BATCH, 1), epochs, count=1), np.random.default_rng(seed)

    def observe(net: Sequential, updater: OutputUpdater, y: np.ndarray, noise: np.ndarray) -> None:
        observe_values(net, updater, y, (noise / schedule.weight).astype(np.float32))

    for _ in range(epochs):
        run_epoch(net, BATCH, rng, observe, x, y, noise)
    schedule.remove()
    return net


def mixture(networks: list[Sequential], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the mean output: variances of the networks, and of their means."""
    mu, var = zip(*(net.predict(x, PREDICTED) for net in networks), strict=True)
    each, within = np.array(mu, np.float64), np.array(var, np.float64).mean(0)
    return each.mean(0), within + each.var(0, ddof=1) if len(each) > 1 else within


def filled(windows: Windows, longest: int, cut: Cut, ahead: Callable[[Windows, np.ndarray], np.ndarray]) -> Windows:
    """The windows with forecasts in place of the values after the last known one, a horizon at a time.

    Args:
        longest: the largest number of such values; where there are more, they stay missing.
        ahead: returns (n, horizon) values after windows, which have these numbers among `windows`.
    """
    past, left = windows.past.copy(), np.where(windows.age <= longest, windows.age, 0)
    lags, horizon = past.shape[1], windows.future.shape[1]
    while len(rows := np.flatnonzero(left)):
        gap = left[rows, None]
        some = cut(windows.series[rows], windows.origin[rows] - left[rows])
        column = np.arange(lags) - gap
        own = np.take_along_axis(past[rows], np.maximum(column, 0), 1)
        found = ahead(some._replace(past=np.where(column < 0, some.past, own)), rows)
        row, step = np.nonzero(np.arange(horizon) < gap)
        past[rows[row], (lags - gap + np.arange(horizon))[row, step]] = found[row, step]
        left[rows] = np.maximum(left[rows] - horizon, 0)
    return windows._replace(past=past)


def by_missing(networks: list[Sequential], scaling: Scaling, windows: Windows) -> np.ndarray:
    """(n, horizon) variances of the mean output that missing inputs cause."""
    found, rows = np.zeros(windows.future.shape), scaling.missing(windows).any(1)
    if rows.any():
        some = windows.some(rows)
        filled = mixture(networks, scaling.x(some))[0]
        for x in scaling.drawn(some, DRAWS):
            found[rows] += (mixture(networks, x)[0] - filled) ** 2 / DRAWS
    return found


def ages(windows: Windows) -> np.ndarray:
    """The ages of the last known value at which the noise is estimated: 0, 1, 2, 4 ... lags - 1."""
    lags = windows.past.shape[1]
    return np.unique([0, lags - 1, *(2 ** np.arange(lags.bit_length() - 1))])


def between(values: np.ndarray) -> np.ndarray:
    """The rows, with linear interpolation between their known values; NaN stays before the first and after the last."""
    steps, known = np.arange(values.shape[1]), np.isfinite(values)
    before = np.maximum.accumulate(np.where(known, steps, -1), 1)
    after = np.minimum.accumulate(np.where(known, steps, len(steps))[:, ::-1], 1)[:, ::-1]
    row, step = np.nonzero(~known & (before >= 0) & (after < len(steps)))
    first, last = before[row, step], after[row, step]
    low, high = values[row, first], values[row, last]
    found = values.copy()
    found[row, step] = low + (high - low) * (step - first) / (last - first)
    return found


def known_or(otherwise: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, otherwise)


def evenly(number: int, most: int) -> np.ndarray:
    """At most this many of the numbers 0 ... number - 1, spread evenly."""
    return np.linspace(0, number - 1, min(most, number)).astype(int)


def means_of_series(values: np.ndarray, series: np.ndarray, number: int) -> np.ndarray:
    """(series, horizon) means of the values of each series."""
    return np.stack([means(values[series == k]) for k in range(number)])


def squares_of_series(residuals: np.ndarray, series: np.ndarray, number: int) -> np.ndarray:
    """(series, horizon) mean squares of each series; where few are known, they are drawn to those of all series."""
    of_all, found = means(residuals**2), np.empty((number, residuals.shape[1]))
    for k in range(number):
        some = residuals[series == k]
        own, count = np.maximum(means(some**2), 1e-30), np.isfinite(some).sum(0)
        found[k] = own * (np.maximum(of_all, 1e-30) / own) ** (SHARED / (count + SHARED))
    return found


def correlations(residuals: np.ndarray) -> np.ndarray:
    """(horizon, horizon) correlations between the residuals of steps, shrunk towards 0; positive definite."""
    known = np.isfinite(residuals)
    filled = np.where(known, residuals, 0)
    products, pairs = filled.T @ filled, known.T.astype(np.float64) @ known
    values, vectors = np.linalg.eigh(products / np.maximum(pairs, 1))  # some below 0, where pairs are missing
    covariance = (vectors * np.maximum(values, 0)) @ vectors.T
    std = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    found = (1 - SHRINKAGE) * covariance / (std * std[:, None])
    np.fill_diagonal(found, 1)
    return found


def means(values: np.ndarray) -> Any:
    """Means of the known values of each column; 0 where none is known."""
    known = np.isfinite(values)
    return np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1)


def spread(values: np.ndarray, otherwise: float) -> float:
    """The standard deviation of the known values; `otherwise` if all of them are the same."""
    known = values[np.isfinite(values)]
    std = float(known.std()) if known.size else 0.0
    return std if std > 1e-14 * np.abs(known).max(initial=0) else otherwise

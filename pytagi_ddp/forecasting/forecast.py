"""Forecasts: a distribution for each time step ahead, and paths through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from pytagi_ddp import plot
from pytagi_ddp.forecasting.counts import CountPrediction
from pytagi_ddp.forecasting.series import Panel, check_zones, names_of, times_of
from pytagi_ddp.forecasting.times import NUMBERS, Times
from pytagi_ddp.likelihoods.prediction import GaussianPrediction, LogNormalPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 3  # horizons of the past that a picture shows


FAMILIES = {"Gaussian": GaussianPrediction, "log-normal": LogNormalPrediction, "negative binomial": CountPrediction}


class Forecast(Prediction):
    """Forecasts of one or more series for the next time steps.

    Each step ahead has a Gaussian distribution, a log-normal one if the forecaster has learnt logarithms, or a negative
    binomial one if it has chosen that for counts. Arrays have the shape (horizon,) for one series that was given as a
    column, and (horizon, series) for a table. If all of the last `lags_` values of a series are missing, its forecast
    is NaN.

    Attributes:
        mean, std: of the observations, in the unit of the series. variance: the square of std.
        quantiles: {q: values} for each q in the `quantiles` of the forecaster.
        names: of the series.
        times: (horizon,) datetime64 of the time steps, in UTC if the times of the series have a time zone; their
            numbers if the index of the series holds whole numbers; None: the series have neither.
        steps: (horizon,) numbers of the time steps, counted from the first of the history, which is 0.
        history: (steps,) or (steps, series) values up to the origin.
    """

    def __init__(
        self,
        m: np.ndarray,
        std: np.ndarray,
        correlation: np.ndarray,
        family: str,
        quantiles: Sequence[float],
        panel: Panel,
        origin: int,
        times: Times | None,
    ):
        """m, std: (horizon, series), of the logarithm if "log-normal"; correlation: (horizon, horizon).

        panel: the series, of which the steps up to `origin` are known. times: of all steps, to the last one ahead.
        """
        self._m, self._std, self._correlation = m, std, correlation
        self._flat, self._quantiles, self._times = panel.flat, tuple(quantiles), times
        self._each: Prediction = FAMILIES[family](self._shaped(m), self._shaped(std**2))
        self.discrete = self._each.discrete
        self.names, self.history = panel.names, self._shaped(panel.values[: origin + 1])
        self.steps = np.arange(origin + 1, origin + 1 + len(m))
        self.times = None if times is None else times.values[self.steps]

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self._flat else values

    @property
    def mean(self) -> np.ndarray:
        return self._each.mean

    @property
    def variance(self) -> np.ndarray:
        return self._each.variance

    @property
    def quantiles(self) -> dict[float, np.ndarray]:
        return {q: self.quantile(q) for q in self._quantiles}

    def _at_steps(self, y: Any) -> Any:
        """Observations y; raises ValueError if they have other series, or other times than the steps ahead."""
        names = None if self._flat else names_of(y)
        if names not in (None, self.names) and self.names != list(range(len(self.names))):
            raise ValueError(f"y has the series {names}, and the forecast has {self.names}: give these in their order")
        times = times_of(y, "y")
        if times is None or self._times is None or not times.comparable(self._times):
            return y
        check_zones(times, "y", self._times, "the forecast")
        ahead = self._times.values[self.steps]
        if not np.array_equal(times.values, ahead):
            raise ValueError(
                f"y has the times {times.values[0]} to {times.values[-1]}, and the forecast is for {ahead[0]} to "
                f"{ahead[-1]}: give the observations of these, such as y.loc[...], in their order"
                + ", or an array (.to_numpy()) if its numbers mean nothing"
                * (times.unit == NUMBERS)
            )
        return y

    def log_prob(self, y: Any) -> np.ndarray:
        return self._each.log_prob(self._at_steps(y))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._each.cdf(self._at_steps(y))

    def quantile(self, q: float) -> np.ndarray:
        return self._each.quantile(q)

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of observations of the steps, in their unit; smaller is better.

        It is the integral over all u of (P(observation <= u) - [y <= u])^2. For a forecast without error bars it is the
        absolute error. It is NaN if y is missing.

        Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
        """
        return self._each.crps(self._at_steps(y))

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        """n paths for each series, (n, horizon) or (n, horizon, series).

        The errors of the steps of a path are correlated as they were in the held-out stretches. Errors of different
        series are independent.
        """
        rng, (horizon, series) = np.random.default_rng(seed), self._m.shape
        drawn = rng.standard_normal((n, series, horizon)) @ np.linalg.cholesky(self._correlation).T
        drawn = self._shaped(drawn.swapaxes(1, 2))
        if isinstance(self._each, CountPrediction):
            return self._each.at(ndtr(drawn))
        paths = self._shaped(self._m) + self._shaped(self._std) * drawn
        return np.exp(paths) if isinstance(self._each, LogNormalPrediction) else paths

    def to_frame(self) -> Any:
        """A table of pandas: mean, standard deviation and quantiles of each step, with one block for each series.

        The index contains the times, in their time zone, or as periods if those of the series are; or the numbers of
        the steps.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pandas, index, columns = import_module("pandas"), self._index(), self._columns()  # it is not a requirement
        if self._flat:
            return pandas.DataFrame(columns, index)
        one = {
            name: pandas.DataFrame({key: values[:, k] for key, values in columns.items()}, index)
            for k, name in enumerate(self.names)
        }
        return pandas.concat(one, axis=1)

    def _index(self) -> Any:
        """The times of the steps, or their numbers, as an index of pandas."""
        pandas, times = import_module("pandas"), self._times
        if times is None:
            return pandas.Index(self.steps)
        index = pandas.Index(self.times, name=times.name)
        if times.period is not None:
            return index.to_period(times.period)
        return index if times.zone is None else index.tz_localize("UTC").tz_convert(times.zone)

    def _columns(self) -> dict[str, np.ndarray]:
        """The numbers that a table contains, in the shape of `mean`."""
        quantiles = {f"{q:.10g}": values for q, values in self.quantiles.items()}
        return {"mean": self.mean, "std": self.std} | quantiles

    def plot(
        self,
        ax: Axes,
        truth: ArrayLike | None = None,
        *,
        level: float = 0.9,
        series: Any = 0,
        past: int | None = None,
    ) -> Axes:
        """Draws the last part of the history, the forecast, and its central interval.

        Args:
            ax: axes of matplotlib. truth: observations of the steps, of the shape of `mean`. level: of the interval.
            series: its name, or its number. past: time steps of the history that are shown; None: three horizons.

        Raises:
            ValueError: another series, other times than the steps ahead, or another number of them.
        """
        if series not in self.names and series not in range(len(self.names)):
            raise ValueError(f"series must be one of {self.names}, or its number, got {series!r}")
        number = self.names.index(series) if series in self.names else series

        def column(values: ArrayLike) -> np.ndarray:
            array = np.asarray(values, np.float64)
            return array if self._flat else array[:, number]

        low, high = self.interval(level)
        first = max(self.steps[0] - (SHOWN * len(self.steps) if past is None else past), 0)
        x = np.arange(self.steps[-1] + 1) if self._times is None else self._times.local
        return plot.forecast(
            ax,
            x[self.steps],
            column(self.mean),
            column(low),
            column(high),
            truth=None if truth is None else column(self._at_steps(truth)),
            past=(x[first : self.steps[0]], column(self.history)[first:]),
            label=f"{level:.0%} interval",
        )

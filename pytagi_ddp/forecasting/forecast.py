"""What a forecast says: a distribution for each time step ahead, and paths through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp import plot
from pytagi_ddp.likelihoods.prediction import GaussianPrediction, LogNormalPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = (np.arange(99) + 1) / 100


def ranked_score(prediction: Prediction, y: ArrayLike) -> np.ndarray:
    """Continuous ranked probability score of each observation, in units of y; NaN where y is missing.

    Twice the mean quantile loss at 0.01, 0.02, ..., 0.99, of which the score is the limit for more levels.

    Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
    """
    observed = np.asarray(y, np.float64)
    total = np.zeros(np.broadcast_shapes(observed.shape, prediction.mean.shape))
    for q in LEVELS:
        error = observed - prediction.quantile(q)
        total += np.maximum(q * error, (q - 1) * error)
    return 2 * total / len(LEVELS)


class Forecast(Prediction):
    """Forecasts of one or more series for the coming time steps.

    Arrays have the shape (horizon,) for one series that was given as a column, and (horizon, series) for a table.

    Attributes:
        mean, variance, std: moments of the observations. quantiles: {q: values} of the `quantiles` of the forecaster.
        names: of the series. times: datetime64 of the time steps; None where the forecaster knows none.
        steps: numbers of the time steps, counted from the first one of the history.
    """

    def __init__(
        self,
        m: np.ndarray,
        covariance: np.ndarray,
        log: bool,
        quantiles: Sequence[float],
        names: list[Any],
        flat: bool,
        first: int,
        times: np.ndarray | None,
    ):
        """m: (horizon, series), covariance: (series, horizon, horizon), of the logarithm if `log`."""
        self._m, self._covariance, self._flat, self._log = m, covariance, flat, log
        kind = LogNormalPrediction if log else GaussianPrediction
        self._each = kind(self._shaped(m), self._shaped(np.einsum("shh->hs", covariance)))
        self.names, self.times, self.steps = names, times, np.arange(first, first + len(m))
        self._quantiles = tuple(quantiles)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self._flat else values

    @property
    def mean(self) -> np.ndarray:
        return self._each.mean

    @property
    def variance(self) -> np.ndarray:
        return self._each.variance

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.variance)

    @property
    def quantiles(self) -> dict[float, np.ndarray]:
        return {q: self.quantile(q) for q in self._quantiles}

    def log_prob(self, y: Any) -> np.ndarray:
        return self._each.log_prob(y)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._each.cdf(y)

    def quantile(self, q: float) -> np.ndarray:
        return self._each.quantile(q)

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each observation: see `ranked_score`."""
        return ranked_score(self._each, y)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        """n paths for each series, (n, horizon) or (n, horizon, series).

        The errors of the steps of a path depend on each other, as they did in the samples that were held back.
        """
        rng, (horizon, series) = np.random.default_rng(seed), self._m.shape
        paths = np.empty((n, horizon, series))
        for k, covariance in enumerate(self._covariance):
            paths[..., k] = rng.multivariate_normal(self._m[:, k], covariance, n, method="eigh")
        return self._shaped(np.exp(paths) if self._log else paths)

    def to_frame(self) -> Any:
        """A table of pandas: mean, standard deviation and quantiles of each step; with several series, a block of each.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        import pandas

        index = self.steps if self.times is None else self.times
        columns = {"mean": self.mean, "std": self.std} | {f"{q:g}": values for q, values in self.quantiles.items()}
        if self._flat:
            return pandas.DataFrame(columns, index)
        one = {
            name: pandas.DataFrame({key: values[:, k] for key, values in columns.items()}, index)
            for k, name in enumerate(self.names)
        }
        return pandas.concat(one, axis=1)

    def plot(
        self,
        ax: Axes,
        past: ArrayLike | None = None,
        truth: ArrayLike | None = None,
        level: float = 0.9,
        series: int = 0,
    ) -> Axes:
        """Draws a forecast, its central interval, and what is known of the past and of the truth.

        Args:
            ax: axes of matplotlib. past: observations before the forecast; the last one is that just before it.
            truth: observations of the steps of the forecast. level: of the interval. series: its number.
        """
        column = (lambda values: values) if self._flat else (lambda values: np.asarray(values)[..., series])
        low, high = self.interval(level)
        return plot.forecast(
            ax,
            self.steps if self.times is None else self.times,
            column(self.mean),
            column(low),
            column(high),
            None if past is None else column(np.asarray(past, np.float64)),
            None if truth is None else column(np.asarray(truth, np.float64)),
            f"{level:.0%} interval",
        )

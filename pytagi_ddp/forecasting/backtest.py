"""How good forecasts from earlier origins have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytagi_ddp.forecasting.forecast import Forecast


@dataclass(frozen=True)
class Backtest:
    """Forecasts from several origins, and what was observed then.

    Attributes:
        forecasts: one for each origin. truth: (origins, horizon) or (origins, horizon, series); NaN: missing.
    """

    forecasts: Sequence[Forecast]
    truth: np.ndarray

    def _mean(self, values: np.ndarray, by_step: bool) -> np.ndarray | float:
        known = np.isfinite(self.truth)
        axes = tuple(axis for axis in range(values.ndim) if not (by_step and axis == 1))
        with np.errstate(invalid="ignore"):
            found = np.where(known, values, 0).sum(axes) / known.sum(axes)
        return found if by_step else float(found)

    @property
    def errors(self) -> np.ndarray:
        """Observations less means, of the shape of `truth`."""
        return self.truth - np.stack([forecast.mean for forecast in self.forecasts])

    def rmse(self, by_step: bool = False) -> np.ndarray | float:
        """Root mean squared error, of all or of each step ahead."""
        return np.sqrt(self._mean(self.errors**2, by_step))

    def crps(self, by_step: bool = False) -> np.ndarray | float:
        """Mean continuous ranked probability score (`Forecast.crps`), of all or of each step ahead."""
        scores = [forecast.crps(y) for forecast, y in zip(self.forecasts, self.truth, strict=True)]
        return self._mean(np.stack(scores), by_step)

    def coverage(self, level: float = 0.9, by_step: bool = False) -> np.ndarray | float:
        """The share of observations in central intervals of this level, of all or of each step ahead."""
        low, high = (np.stack(ends) for ends in zip(*(f.interval(level) for f in self.forecasts), strict=True))
        return self._mean((low <= self.truth) & (self.truth <= high), by_step)

    def summary(self) -> dict[str, float]:
        """RMSE, CRPS, mean error, and coverage of 50 and 90 % intervals."""
        return {
            "rmse": float(self.rmse()),
            "crps": float(self.crps()),
            "bias": float(self._mean(self.errors, False)),
            "coverage_50": float(self.coverage(0.5)),
            "coverage_90": float(self.coverage(0.9)),
        }

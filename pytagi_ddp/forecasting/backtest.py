"""Scores of forecasts from earlier origins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytagi_ddp.forecasting.forecast import Forecast

AXES = {"origin": 0, "step": 1, "series": 2}
By = Literal["origin", "step", "series"]


@dataclass(frozen=True)
class Backtest:
    """Forecasts from several origins, and the observations that followed.

    Scores are floats over all observations or, with `by`, arrays: the scores of each origin, of each step ahead, or of
    each series (of a table). Missing observations do not count. If all are missing, a score is NaN.

    Attributes:
        forecasts: one for each origin.
        truth: (origins, horizon) or (origins, horizon, series) observations; NaN: missing.
    """

    forecasts: Sequence[Forecast]
    truth: np.ndarray

    def _mean(self, values: np.ndarray, by: By | None) -> Any:
        if by is not None and AXES.get(by, values.ndim) >= values.ndim:
            raise ValueError(f"by must be None or one of {list(AXES)[: values.ndim]}, got {by!r}")
        known = np.isfinite(self.errors)
        axes = tuple(axis for axis in range(values.ndim) if by is None or axis != AXES[by])
        with np.errstate(invalid="ignore"):
            found = np.where(known, values, 0).sum(axes) / known.sum(axes)
        return float(found) if by is None else found

    @property
    def errors(self) -> np.ndarray:
        """Observations minus means, in the shape of `truth`."""
        return self.truth - np.stack([forecast.mean for forecast in self.forecasts])

    def rmse(self, by: By | None = None) -> Any:
        """Root mean squared error, in the unit of the series."""
        return np.sqrt(self._mean(self.errors**2, by))

    def crps(self, by: By | None = None) -> Any:
        """Mean continuous ranked probability score (`Forecast.crps`), in the unit of the series."""
        scores = [forecast.crps(y) for forecast, y in zip(self.forecasts, self.truth, strict=True)]
        return self._mean(np.stack(scores), by)

    def coverage(self, level: float = 0.9, by: By | None = None) -> Any:
        """The share of observations in central intervals of this level."""
        low, high = (np.stack(ends) for ends in zip(*(f.interval(level) for f in self.forecasts), strict=True))
        return self._mean((low <= self.truth) & (self.truth <= high), by)

    def summary(self) -> dict[str, float]:
        """RMSE, CRPS, mean error ("bias"), and coverage of 50 and 90 % intervals, over all observations."""
        return {
            "rmse": float(self.rmse()),
            "crps": float(self.crps()),
            "bias": float(self._mean(self.errors, None)),
            "coverage_50": float(self.coverage(0.5)),
            "coverage_90": float(self.coverage(0.9)),
        }

"""Scores of forecasts from earlier origins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
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
        season: time steps of a season, for `mase`.
    """

    forecasts: Sequence[Forecast]
    truth: np.ndarray
    season: int = 1

    def _mean(self, values: np.ndarray, by: By | None) -> Any:
        if by is not None and AXES.get(by, values.ndim) >= values.ndim:
            raise ValueError(f"by must be None or one of {list(AXES)[: values.ndim]}, got {by!r}")
        known = np.isfinite(self.errors) & np.isfinite(values)
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

    def mae(self, by: By | None = None) -> Any:
        """Mean absolute error, in the unit of the series."""
        return self._mean(np.abs(self.errors), by)

    def mase(self, by: By | None = None) -> Any:
        """Mean absolute scaled error, which has no unit: compare or average series of different sizes by it.

        Errors are divided by the mean absolute difference of two values that are a season apart, before the first
        origin. This is the error of the forecast that repeats the last season, by one step at a time: 1 is as good as
        that. Series that do not change from season to season, or are no longer than one, do not count.

        Source: Hyndman & Koehler (2006), "Another look at measures of forecast accuracy", International Journal of
        Forecasting 22.
        """
        past = self.forecasts[0].history
        changes = np.abs(past[self.season :] - past[: -self.season])
        known = np.isfinite(changes)
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.where(known, changes, 0).sum(0) / known.sum(0)
            return self._mean(np.abs(self.errors) / scale, by)

    def crps(self, by: By | None = None) -> Any:
        """Mean continuous ranked probability score (`Forecast.crps`), in the unit of the series."""
        scores = [forecast.crps(y) for forecast, y in zip(self.forecasts, self.truth, strict=True)]
        return self._mean(np.stack(scores), by)

    def coverage(self, level: float = 0.9, by: By | None = None) -> Any:
        """The share of observations in central intervals of this level."""
        low, high = (np.stack(ends) for ends in zip(*(f.interval(level) for f in self.forecasts), strict=True))
        return self._mean((low <= self.truth) & (self.truth <= high), by)

    def summary(self) -> dict[str, float]:
        """RMSE, CRPS, mean error ("bias"), and coverage of 50 and 90 % intervals, over all observations.

        Large series dominate the first three. `mase` gives each series the same weight.
        """
        return {
            "rmse": float(self.rmse()),
            "crps": float(self.crps()),
            "bias": float(self._mean(self.errors, None)),
            "coverage_50": float(self.coverage(0.5)),
            "coverage_90": float(self.coverage(0.9)),
        }

    def to_frame(self) -> Any:
        """A table of pandas, with a row for each origin, step ahead and series.

        The columns are origin (the number of the last time step that is known, counted from 0), step (from 1), time (if
        there are times), series (if there are many), observed, mean, std, and the quantiles.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pandas = import_module("pandas")  # here, because it is not a requirement
        origins, horizon = self.truth.shape[:2]
        series = self.forecasts[0].names if self.truth.ndim == 3 else [None]
        columns: dict[str, Any] = {
            "origin": np.repeat([forecast.steps[0] - 1 for forecast in self.forecasts], horizon * len(series)),
            "step": np.tile(np.repeat(np.arange(1, horizon + 1), len(series)), origins),
        }
        if self.forecasts[0].times is not None:
            first, *others = (forecast._index() for forecast in self.forecasts)
            columns["time"] = first.append(others).repeat(len(series))
        if self.truth.ndim == 3:
            columns["series"] = pandas.Index(series, tupleize_cols=False).to_numpy()[
                np.tile(np.arange(len(series)), origins * horizon)
            ]
        columns["observed"] = self.truth.ravel()
        each = [forecast._columns() for forecast in self.forecasts]
        return pandas.DataFrame(columns | {key: np.stack([one[key] for one in each]).ravel() for key in each[0]})

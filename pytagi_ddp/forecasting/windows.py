"""Windows: the inputs of a network at one time step of one series, and its targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.forecasting.series import Panel
from pytagi_ddp.forecasting.times import waves


class Windows(NamedTuple):
    """The known values at some origins, and the values that followed. NaN: missing.

    Attributes:
        past: (n, lags) values up to the origin. more: (n, k) calendar, covariates from the origin on, and which series
            it is. earlier: (n, k) covariates before the origin. again: (n, k) values one long cycle before the future.
        series, origin: (n,) numbers of the series, and of the last time step that is known.
        future: (n, horizon) values after the origin.
    """

    past: np.ndarray
    more: np.ndarray
    earlier: np.ndarray
    again: np.ndarray
    series: np.ndarray
    origin: np.ndarray
    future: np.ndarray

    def some(self, rows: Any) -> Windows:
        return Windows(*(part[rows] for part in self))

    @property
    def age(self) -> np.ndarray:
        """(n,) numbers of values that are missing between the last known one and the origin."""
        return np.isfinite(self.past[:, ::-1]).argmax(1)

    def without_last(self, steps: int) -> Windows:
        """The windows as if the last values of the past were missing."""
        kept = np.arange(self.past.shape[1]) < self.past.shape[1] - steps
        return self._replace(past=np.where(kept, self.past, np.nan))


class Layout(NamedTuple):
    """The parts of windows, set by the data that a forecaster learns.

    Attributes:
        names: of the series. lags, horizon: numbers of values up to an origin and after it.
        shortest: least number of time steps after the origin of a window that is learnt.
        season: time steps of a season that is not a cycle of the calendar; 1: there is none.
        cycles: {name: time steps} of the calendar's cycles. step: the time of a step, in words; None: there is none.
        columns: {"known", "observed": names of the columns} of the covariates. own: those of them that each series has
            for itself.
    """

    names: list[Any]
    lags: int
    horizon: int
    shortest: int
    season: int
    cycles: dict[str, float]
    step: str | None
    columns: dict[str, list[Any]]
    own: frozenset[str] = frozenset()

    def check(self, panel: Panel, covariates: dict[str, Panel], last: int) -> None:
        """Checks that these can be divided into windows, up to the origin `last`.

        Raises:
            ValueError: they cannot be.
        """
        unnamed = list(range(len(self.names)))
        if panel.width != len(self.names) or not (panel.flat or panel.names in (self.names, unnamed)):
            raise ValueError(f"y has the series {panel.names}, and those of fit are {self.names}")
        if panel.steps < self.lags:
            raise ValueError(f"y has {panel.steps} time steps, and networks look {self.lags} back: give earlier ones")
        step = None if panel.times is None else panel.times.step_in_words()
        if (step is None) != (self.step is None):
            raise ValueError("y must have times if that of fit had them, and none otherwise")
        if step != self.step:
            raise ValueError(f"the time steps of y are {step}, and those of fit were {self.step}")
        if covariates.keys() != self.columns.keys():
            raise ValueError(f"covariates are {sorted(covariates)}, and those of fit are {sorted(self.columns)}")
        for name, covariate in covariates.items():
            needed = last + 1 + (self.horizon if name == "known" else 0)
            columns = self.columns[name]
            if (covariate.values.ndim == 3) != (name in self.own):
                each, every = "for each series", "for all series"
                now, then = (each, every) if covariate.values.ndim == 3 else (every, each)
                raise ValueError(f"{name} has covariates {now}, and those of fit were {then}")
            if covariate.width != len(columns):
                raise ValueError(f"{name} has {covariate.width} columns, and had {len(columns)} in fit")
            if covariate.names != columns and list(range(len(columns))) not in (covariate.names, columns):
                raise ValueError(
                    f"{name} has the columns {covariate.names}, and those of fit are {columns}: give them in this order"
                )
            if covariate.steps < needed:
                which = ": those of y, and of the horizon after it" if name == "known" else ", one for each of y"
                raise ValueError(f"{name} has {covariate.steps} time steps, and {needed} are needed{which}")

    def to_learn(self, panel: Panel, most: int) -> tuple[np.ndarray, np.ndarray]:
        """(series, origin) of windows with a value in past and future: at most this number, spread evenly.

        A series that has such windows has at least one of these.
        """
        counts = np.concatenate([np.zeros((1, panel.width)), np.cumsum(np.isfinite(panel.values), 0)])
        origins = np.arange(self.lags - 1, panel.steps - self.shortest)
        past = counts[origins + 1] > counts[origins + 1 - self.lags]
        future = counts[np.minimum(origins + 1 + self.horizon, panel.steps)] > counts[origins + 1]
        series, place = np.nonzero((past & future).T)
        some = np.linspace(0, len(series) - 1, min(most, len(series))).astype(int)
        some = np.unique(np.append(some, np.searchsorted(series, np.setdiff1d(series, series[some]))))
        return series[some], origins[place[some]]

    def cut(self, panel: Panel, covariates: dict[str, Panel], series: np.ndarray, origin: np.ndarray) -> Windows:
        """The windows at these origins; values before the first time step and after the last one are NaN."""
        before, ahead = origin[:, None] + np.arange(1 - self.lags, 1), origin[:, None] + np.arange(1, self.horizon + 1)
        more, earlier = [self._calendar(panel)[origin]], [np.empty((len(origin), 0))]
        for name, covariate in covariates.items():
            steps = np.concatenate([before, ahead], 1) if name == "known" else before
            found = at_steps(covariate.values, steps, series if name in self.own else None)
            more.append(found[:, self.lags - 1 :].reshape(len(origin), -1))
            earlier.append(found[:, : self.lags - 1].reshape(len(origin), -1))
        if len(self.names) > 1:
            more.append(np.eye(len(self.names))[series])
        return Windows(
            at_steps(panel.values, before, series),
            np.concatenate(more, 1),
            np.concatenate(earlier, 1),
            self._again(panel, series, ahead),
            series,
            origin,
            at_steps(panel.values, ahead, series),
        )

    def _again(self, panel: Panel, series: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """(n, k) values one cycle before the steps `ahead`, or some cycles; NaN before the beginning."""
        found = [np.empty((len(series), 0))]
        for steps in self.long_cycles:
            back = steps * -(-np.arange(1, self.horizon + 1) // steps)
            found.append(at_steps(panel.values, ahead - back, series))
        return np.concatenate(found, 1)

    @property
    def long_cycles(self) -> list[int]:
        """Time steps of the cycles that are longer than the lags, as multiples of the shortest one."""
        cycles = sorted({self.season, *map(round, self.cycles.values())} - {1})
        return [cycles[0] * round(steps / cycles[0]) for steps in cycles if steps > self.lags]

    def _calendar(self, panel: Panel) -> np.ndarray:
        """(steps, k): waves of the calendar's cycles, and of the season, at each time step."""
        if panel.times is None:
            columns, numbers = [], np.arange(panel.steps)
        else:
            phases, numbers = panel.times.phases(), panel.times.numbers()
            columns = [wave for name, steps in self.cycles.items() for wave in waves(phases[name], steps)]
        columns += waves(numbers / self.season, self.season)
        return np.stack(columns, 1) if columns else np.empty((panel.steps, 0))


def at_steps(values: np.ndarray, steps: np.ndarray, series: np.ndarray | None = None) -> np.ndarray:
    """The values of (n, k) time steps, of one series for each of the n; NaN where there is no such step."""
    near = np.clip(steps, 0, len(values) - 1)
    found = values[near] if series is None else values[near, series[:, None]]
    there = near == steps
    return np.where(there.reshape(there.shape + (1,) * (found.ndim - 2)), found, np.nan)

"""The forecaster: reads series, chooses a model by forecasts of stretches that it has not seen, and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from pytagi_ddp.forecasting.backtest import Backtest
from pytagi_ddp.forecasting.forecast import Forecast
from pytagi_ddp.forecasting.model import Kind, Model, Windows, fit
from pytagi_ddp.forecasting.series import Panel, read
from pytagi_ddp.forecasting.times import waves

LARGEST_SEED = 2**31 - 1
SEASONS, LEAST_LAGS = 3, 8  # the network sees so many seasons, and at least so many time steps
HIDDEN = (50,)
WINDOWS = 150_000  # an ensemble's networks see about so many windows each, in 10 to 100 epochs
FEWEST, MOST = 10, 100
TRAINED = 20_000  # windows, spread evenly, of which a model learns


class Forecaster(BaseEstimator):
    """Forecasts one or many time series over a horizon, with error bars, by an ensemble of TAGI networks.

        forecaster = Forecaster(horizon=24).fit(y)             # an array, or a frame with a time index
        forecast = forecaster.predict()                        # the 24 steps behind y
        low, high = forecast.interval(0.9)
        print(forecaster.backtest(y).summary())                # how good such forecasts were

    A network takes the last `lags` values, the calendar and covariates, and gives all steps of the horizon at once, as
    differences to the last value. It is linear, or has a hidden layer. With the hidden layer, and with two more choices
    (logarithms of values, the level of the series as an input), it is what forecasts best: stretches of time are held
    back from `n_folds` ensembles in turn, and the choice is by their CRPS. The errors on these stretches also give the
    noise of each step, which is added to what the networks do not know. All series are learnt by the same networks, in
    units of their own.

    Training is the evidence-weighted step (`nn.EvidenceSchedule`), in which each window counts once.

    Args:
        horizon: time steps of a forecast.
        season: time steps of a season. None: the shortest cycle of the calendar that has three steps or more (of the
            hours a day, of days a week, of months a year); without times 1: none.
        lags: time steps of the past that a network sees; None: three seasons, at least eight, at most a third of all.
        hidden_layer_sizes: units of each hidden layer, () for none; None: chosen from () and (50,).
        transform: "log" learns logarithms of values, which must be above 0; None: values; "auto" chooses.
        quantiles: probabilities of `Forecast.quantiles` and `to_frame`.
        epochs: None: as many as show a network about 150,000 windows, from 10 to 100.
        n_folds: stretches, at least 2. n_seeds: networks of each.
        n_jobs: networks trained at a time, as in scikit-learn. random_state: of everything that is drawn.

    Attributes:
        season_, lags_: as used. kind_: what was chosen. score_: the CRPS by which it was chosen, in units of each
            series' standard deviation. noise_: (horizon,) variances of the noise, in units of the targets.

    Gaps are NaN, in the series and in covariates observed; a window may hold some. Regular times are needed, with NaN
    for what is missing.

    Source: Goulet, Nguyen & Amiri (2021), "Tractable approximate Gaussian inference for Bayesian neural networks",
    JMLR 22; all steps at once: Ben Taieb et al. (2012), "A review and comparison of strategies for multi-step ahead
    time series forecasting", Expert Systems with Applications 39.
    """

    _model: Model

    def __init__(
        self,
        horizon: int,
        *,
        season: int | None = None,
        lags: int | None = None,
        hidden_layer_sizes: Sequence[int] | None = None,
        transform: str | None = "auto",
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        epochs: int | None = None,
        n_folds: int = 4,
        n_seeds: int = 2,
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.horizon = horizon
        self.season = season
        self.lags = lags
        self.hidden_layer_sizes = hidden_layer_sizes
        self.transform = transform
        self.quantiles = quantiles
        self.epochs = epochs
        self.n_folds = n_folds
        self.n_seeds = n_seeds
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, y: Any, *, known: Any = None, observed: Any = None, times: Any = None) -> Forecaster:
        """Learns from one or many series.

        Args:
            y: (steps,) or (steps, series) numbers, NaN where missing; or a mapping from names to arrays that end at the
                same time. Columns and tables of pandas bring their times as the index.
            known: (steps, k) covariates that are known in advance (holidays, prices); `predict` needs their future.
            observed: (steps, k) covariates that are known up to the present only (weather).
            times: dates of the steps, in place of an index.

        Raises:
            ValueError: too few time steps, wrong shapes, irregular times, values that are not above 0 for logarithms.
            TypeError: what holds no numbers or dates.
        """
        self._check()
        panel = read(y, "y", times)
        if panel.times is not None:
            self._cycles, season = panel.times.cycles(), panel.times.season()
        else:
            self._cycles, season = [], 1
        self.season_ = self.season or season
        longest = max((panel.steps - self.horizon) // 3, 1)
        self.lags_ = self.lags or min(max(SEASONS * self.season_, LEAST_LAGS), longest)
        given = {"known": known, "observed": observed}
        covariates = {name: read(data, name) for name, data in given.items() if data is not None}
        self._widths = {name: covariate.values.shape[1] for name, covariate in covariates.items()}
        self._names, self._first = panel.names, None if panel.times is None else panel.times.values[0]
        windows = self._windows(panel, covariates, np.arange(self.lags_ - 1, panel.steps - self.horizon), True)
        folds = np.unique(windows.origin)
        if len(folds) < self.n_folds * 2 or len(folds) < self.horizon + 2 * self.n_folds:
            raise ValueError(
                f"y has {panel.steps} time steps, of which {len(folds)} can be the last one before a forecast: with "
                f"horizon={self.horizon} and lags={self.lags_} at least {self.horizon + 2 * self.n_folds} of them are "
                "needed; give more of the past, or fewer lags"
            )
        for k, name in enumerate(panel.names):
            if not (windows.series == k).any():
                raise ValueError(f"series {name!r} has no {self.lags_ + self.horizon} time steps with any values")
        positive = not (panel.values <= 0).any()
        if self.transform == "log" and not positive:
            step, column = np.argwhere(panel.values <= 0)[0]
            raise ValueError(f'transform="log" needs values above 0: series {panel.names[column]!r} at step {step}')
        windows = windows.rows(np.unique(np.linspace(0, len(windows.origin) - 1, TRAINED).astype(int)))
        self._model = self._chosen(windows, len(panel.names), positive)
        self.kind_, self.score_, self.noise_ = self._model.scaling.kind, self._model.score, self._model.noise
        self._panel, self._covariates = panel, covariates
        return self

    def predict(self, y: Any = None, *, known: Any = None, observed: Any = None, times: Any = None) -> Forecast:
        """The forecast of the `horizon` time steps behind y.

        Args:
            y: the past, of the same series as in `fit`; None: that of `fit`. Without times, its first step is that of
                `fit`, or whole seasons away from it.
            known: (steps + horizon, k): of the past and of the time steps to come. After `fit(y, known=...)` with
                y=None, (horizon, k) of the time steps to come are enough.
            observed: (steps, k) of the past; None with y=None: those of `fit`. times: as in `fit`.

        Raises:
            ValueError: other series, or covariates, than in `fit`. NotFittedError: before `fit`.
        """
        check_is_fitted(self, "_model")
        panel = self._panel if y is None else read(y, "y", times)
        covariates = dict(self._covariates) if y is None else {}
        if known is not None:
            ahead = read(known, "known")
            if y is None and ahead.steps == self.horizon:
                before = (
                    self._covariates["known"].values[: panel.steps] if "known" in self._covariates else ahead.values
                )
                ahead = ahead._replace(values=np.concatenate([before, ahead.values]))
            covariates["known"] = ahead
        if observed is not None:
            covariates["observed"] = read(observed, "observed")
        return self._at(panel, covariates, np.array([panel.steps - 1]))[0]

    def backtest(
        self,
        y: Any,
        *,
        known: Any = None,
        observed: Any = None,
        times: Any = None,
        start: float = 0.7,
        stride: int | None = None,
        refit: int | None = None,
    ) -> Backtest:
        """Forecasts from origins in the last part of y, each by a forecaster that has seen only what was before.

        Args:
            y, known, observed, times: as in `fit`; y holds what was observed after each origin.
            start: the part of y that is learnt first. stride: time steps from an origin to the next; None: `horizon`.
            refit: origins after which the forecaster is trained anew; None: it is trained once.

        Returns:
            Forecasts and truth, with scores. This forecaster itself does not change.

        Raises:
            ValueError: as `fit`; or no origin is left.
        """
        if not (isinstance(start, Real) and 0 < start < 1):
            raise ValueError(f"start is the part of y that is learnt first, between 0 and 1; got {start!r}")
        panel = read(y, "y", times)
        given = {"known": known, "observed": observed}
        covariates = {name: read(data, name) for name, data in given.items() if data is not None}
        begin = round(start * panel.steps)
        origins = np.arange(begin - 1, panel.steps - self.horizon, stride or self.horizon)
        if not len(origins):
            raise ValueError(
                f"no forecast of {self.horizon} steps fits behind the first {begin} of {panel.steps} time steps"
            )
        forecasts: list[Forecast] = []
        size = refit or len(origins)
        for k in range(0, len(origins), size):
            some = origins[k : k + size]
            learnt = some[0] + 1
            model = type(self)(**self.get_params()).fit(
                panel.values[:learnt, 0] if panel.flat else panel.values[:learnt],
                times=None if panel.times is None else panel.times.values[:learnt],
                **{name: covariate.values[:learnt] for name, covariate in covariates.items()},
            )
            forecasts += model._named(panel)._at(panel, covariates, some)
        truth = np.stack([panel.values[o + 1 : o + 1 + self.horizon] for o in origins])
        return Backtest(forecasts, truth[..., 0] if panel.flat else truth)

    def _named(self, panel: Panel) -> Forecaster:
        self._names = panel.names
        return self

    def _check(self) -> None:
        counts = {"horizon": self.horizon, "n_seeds": self.n_seeds, "n_folds": self.n_folds}
        counts |= {name: value for name in ("season", "lags", "epochs") if (value := getattr(self, name)) is not None}
        for name, value in counts.items():
            least = 2 if name == "n_folds" else 1
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.transform not in ("auto", "log", None):
            raise ValueError(f'transform must be "auto", "log" or None, got {self.transform!r}')
        for q in self.quantiles:
            if not (isinstance(q, Real) and 0 < q < 1):
                raise ValueError(f"quantiles are probabilities between 0 and 1, got {q!r}")

    def _chosen(self, windows: Windows, number: int, positive: bool) -> Model:
        """The best model: each choice is made in turn, and taken if it makes the score better."""
        random = check_random_state(self.random_state)
        epochs = self.epochs or int(np.clip(WINDOWS / len(windows.origin), FEWEST, MOST))

        def seeds(count: int) -> list[int]:
            return random.randint(LARGEST_SEED, size=count).tolist()

        def trained(kind: Kind, noise: np.ndarray | None, count: int) -> Model:
            return fit(kind, windows, number, self.n_folds, noise, epochs, seeds, count, self._run)

        hidden = () if self.hidden_layer_sizes is None else tuple(self.hidden_layer_sizes)
        best = trained(Kind(self.transform == "log", False, hidden), None, 1)
        others: list[dict[str, Any]] = [{"level": True}]
        others += [{"log": True}] if self.transform == "auto" and positive else []
        others += [{"hidden": HIDDEN}] if self.hidden_layer_sizes is None else []
        for other in others:
            tried = trained(best.scaling.kind._replace(**other), best.noise, 1)
            best = tried if tried.better_than(best) else best
        return trained(best.scaling.kind, best.noise, self.n_seeds)

    def _run(self, function: Callable[..., Any], tasks: Iterable[tuple]) -> list:
        return list(Parallel(n_jobs=self.n_jobs)(delayed(function)(*task) for task in tasks))

    def _at(self, panel: Panel, covariates: dict[str, Panel], origins: np.ndarray) -> list[Forecast]:
        """Forecasts from each of the origins, the numbers of the last time steps that are known."""
        if panel.names != self._names or panel.values.shape[1] != len(self._names):
            raise ValueError(f"y has the series {panel.names}, and those of fit are {self._names}")
        windows = self._windows(panel, covariates, origins, False)
        m, covariance = self._model.moments(windows)
        times = None if panel.times is None else panel.times.extended(self.horizon).values
        found = []
        for origin in origins:
            rows = windows.origin == origin
            steps = slice(origin + 1, origin + 1 + self.horizon)
            ahead = None if times is None else times[steps]
            log = self._model.scaling.kind.log
            found.append(
                Forecast(m[rows].T, covariance[rows], log, self.quantiles, panel.names, panel.flat, origin + 1, ahead)
            )
        return found

    def _windows(self, panel: Panel, covariates: dict[str, Panel], origins: np.ndarray, learnt: bool) -> Windows:
        """The windows up to each origin, for all series; `learnt`: those in which nothing is known are left out."""
        lags, horizon = self.lags_, self.horizon
        if panel.steps < lags:
            raise ValueError(f"y has {panel.steps} time steps, and the networks look {lags} back")
        before, ahead = origins[:, None] + np.arange(1 - lags, 1), origins[:, None] + np.arange(1, horizon + 1)
        parts = [self._calendar(panel)[origins]]
        if covariates.keys() != self._widths.keys():
            raise ValueError(f"covariates are {sorted(covariates)}, and those of fit are {sorted(self._widths)}")
        for name, covariate in covariates.items():
            steps, needed = (ahead, int(ahead.max()) + 1) if name == "known" else (before, int(origins.max()) + 1)
            if covariate.values.shape[1] != self._widths[name]:
                raise ValueError(f"{name} has {covariate.values.shape[1]} columns, and had {self._widths[name]} in fit")
            if covariate.steps < needed:
                raise ValueError(
                    f"{name} has {covariate.steps} time steps, and {needed} are needed"
                    + (": those of y, and of the horizon behind it" if name == "known" else ", one for each of y")
                )
            parts.append(covariate.values[steps].reshape(len(origins), -1))
        more, number = np.concatenate(parts, 1), panel.values.shape[1]
        future = np.full((len(origins), horizon, number), np.nan)
        if learnt:
            future = panel.values[ahead]
        past = panel.values[before]
        series, origin = np.repeat(np.arange(number), len(origins)), np.tile(origins, number)
        which = np.eye(number)[series] if number > 1 else np.empty((len(series), 0))
        windows = Windows(
            past.transpose(2, 0, 1).reshape(-1, lags),
            np.concatenate([np.tile(more, (number, 1)), which], 1),
            series,
            origin,
            future.transpose(2, 0, 1).reshape(-1, horizon),
        )
        empty = ~np.isfinite(windows.past).any(1)
        if learnt:
            return windows.rows(~empty & np.isfinite(windows.future).any(1))
        if empty.any():
            k = int(np.flatnonzero(empty)[0])
            raise ValueError(
                f"series {panel.names[series[k]]!r} has no value in the {lags} time steps up to step {origin[k]}"
            )
        return windows

    def _calendar(self, panel: Panel) -> np.ndarray:
        """(steps, k): phases of the calendar's cycles, or of the season, at each time step."""
        if (panel.times is None) != (self._first is None):
            raise ValueError("y must have times if that of fit had them, and none otherwise")
        if panel.times is not None:
            return panel.times.features(self._cycles)
        columns = waves(np.arange(panel.steps) / self.season_, self.season_)
        return np.stack(columns, 1) if columns else np.empty((panel.steps, 0))

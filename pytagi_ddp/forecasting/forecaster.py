"""The forecaster: reads series, chooses a model by cross-validation over stretches of time, and forecasts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from pytagi_ddp.estimators.ensemble import LARGEST_SEED
from pytagi_ddp.estimators.inputs import extremes
from pytagi_ddp.estimators.locks import lock_of
from pytagi_ddp.forecasting.backtest import Backtest
from pytagi_ddp.forecasting.forecast import Forecast
from pytagi_ddp.forecasting.model import Cut, Kind, Model, Stretch, fit, means, stretches
from pytagi_ddp.forecasting.series import Panel, aligned, continued, read, read_covariates
from pytagi_ddp.forecasting.times import NUMBERS, Times
from pytagi_ddp.forecasting.windows import Layout, Windows
from pytagi_ddp.validate import as_integers, as_numbers
from pytagi_ddp.warn import warn

SECONDS_OF_1973 = 100_000_000
SEASONS, LEAST_LAGS, MOST_LAGS = 3, 8, 400  # seasons that a network sees, and limits on the number of time steps
HIDDEN, FEW = (50,), 2  # units, and number of past values, that are tried
SEEN, FEWEST, MOST = 150_000, 10, 100  # windows that a network sees in all epochs, in 10 to 100 epochs,
LEAST_SEEN = 20_000  # or in more epochs, so that it sees at least this number
MOST_COUNTED = 100  # mean of the series of smallest counts up to which forecasts may be negative binomial
KNOWN = 0.5  # share of windows from which values of a long cycle ago must be known to be tried as inputs
BEYOND = 1000  # times the range of four fifths of a covariate, from which a number is likely to be a code
WINDOWS = 20_000  # largest number of windows that a model learns; they are spread evenly


class Forecaster(BaseEstimator):
    """Forecasts one or many time series over a horizon, with error bars, by an ensemble of TAGI networks.

        forecaster = Forecaster(horizon=24).fit(y)             # an array, or a frame with a time index
        forecast = forecaster.predict()                        # the 24 steps after y
        low, high = forecast.interval(0.9)
        print(forecaster.backtest(y).summary())                # scores of forecasts in the past

    A network takes the last `lags` values, the calendar and covariates. It returns all H steps of the horizon at once,
    as differences to the last value y_t:

        (y_(t+h) - y_t)/scale = f_h(y_(t-lags+1) ... y_t, calendar_t, covariates) + e_h,  e_h ~ N(0, noise_h),  h = 1..H

    The forecaster starts with a linear f. Then it tries, one after the other, the last value itself as an input, only
    two values of the past, values of a longer cycle ago (a week ago for hourly data), covariates of earlier steps,
    logarithms of all values, and a hidden layer. It keeps a change if the mean CRPS of `n_folds` stretches of time
    improves, each of which is forecast by networks that have not seen it. The errors in these stretches also give the
    noise of each step, which is added to the variance of the networks.

    All series are learnt by the same networks, and each is standardised separately. Networks are trained with an
    `nn.EvidenceSchedule`, in which each window counts once.

    **Missing values** are NaN, in the series and in covariates. In a window they are interpolated between two values of
    the past. At the end they are forecast, if this is better. Other missing inputs are replaced by their mean. The
    error bars include what this costs: for values at the end, the noise is that of forecasts of held-out stretches
    without as many values at the end; other inputs add the variance of f over their values.

    **Threads** may share a forecaster; predictions wait for each other.

    **Times** must have a constant step: a fixed time, months, or business days from Monday to Friday. Whole numbers
    with a constant distance name the steps, too, without a calendar. Inputs include sines and cosines of the calendar's
    day, week and year, if the series covers at least two of these periods. If there is a time zone, the calendar is
    that of local time.

    Args:
        horizon: H, time steps of a forecast.
        season: time steps of a season. None: the shortest cycle of the calendar that has three steps or more (a day for
            hourly data, a week for daily data, a year for monthly data); without times 1 (no season).
        lags: time steps of the past that a network sees; None: three seasons, at least 8, at most 400 and a third of
            the series; fewer if the series is too short for these.
        hidden_layer_sizes: units of each hidden layer, () for none; None: chosen from () and (50,).
        transform: "log" learns logarithms of values, which must be above 0. None: values, with Gaussian forecasts.
            "auto" chooses: logarithms of values that are all above 0; or, of whole numbers from 0 on with a mean of at
            most 100 in any series, whether forecasts are negative binomial.
        quantiles: probabilities of `Forecast.quantiles` and `Forecast.to_frame`.
        epochs: None: 150,000 divided by the number of windows, from 10 to 100, or more if there are less than 200
            windows.
        n_folds: number of held-out stretches by which the model is chosen, at least 2.
        n_networks: networks of the chosen model, each trained without one stretch of time; at least 2.
        n_jobs: networks trained at once, as in scikit-learn; more processes than networks are not started.
        random_state: seed or `np.random.RandomState` of all random numbers, as in scikit-learn.

    Attributes:
        season_, lags_: the values that are used.
        kind_: what was chosen: `past` (number of past values that are inputs), `log`, `level` (whether the last value
            itself is one), `again` (whether values of a longer cycle ago are), `earlier` (whether covariates before the
            last step are), `hidden` (the layers) and `counts` (whether forecasts are negative binomial).
        score_: the CRPS by which it was chosen, in units of each series' standard deviation.
        noise_: (horizon,) or, of many series, (series, horizon) variances of the noise, in units of `scale` squared.

    Source: Goulet, Nguyen & Amiri (2021), "Tractable approximate Gaussian inference for Bayesian neural networks",
    JMLR 22. For all steps at once: Ben Taieb et al. (2012), "A review and comparison of strategies for multi-step ahead
    time series forecasting", Expert Systems with Applications 39.
    """

    season_: int
    lags_: int
    kind_: Kind
    score_: float
    noise_: np.ndarray
    _layout: Layout
    _model: Model
    _panel: Panel
    _covariates: dict[str, Panel]

    def __init__(
        self,
        horizon: int,
        *,
        season: int | None = None,
        lags: int | None = None,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        transform: str | None = "auto",
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        epochs: int | None = None,
        n_folds: int = 4,
        n_networks: int = 8,
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
        self.n_networks = n_networks
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, y: Any, *, known: Any = None, observed: Any = None, times: Any = None) -> Forecaster:
        """Learns from one or many series.

        Args:
            y: (steps,) or (steps, series) numbers, NaN where missing; or a mapping from names to arrays that end at the
                same time step. Columns and tables of pandas and arrays of xarray bring their times as the index: dates,
                text such as 2020-01-31, or whole numbers of the steps, which have no calendar.
            known: (steps, k) or (steps,) covariates that are known in advance (holidays, prices). A network sees those
                of the last step and of the horizon, and of the last `lags` steps if this improves forecasts. They may
                be longer than y: `predict` uses the rest.
            observed: (steps, k) or (steps,) covariates that are known only for the past (weather). A network sees those
                of the last step, or of the last `lags` steps.
            times: dates or whole numbers of the steps, instead of an index. Covariates may have an index, too: those of
                the same times are taken. Arrays begin at the first step of y, and so do numbers if y has dates.

        Of many series with names, each may have covariates of its own: a mapping from the names to arrays or tables
        that end at the same time step, or for one covariate a table with the columns of y. Otherwise all series have
        the same covariates.

        Raises:
            ValueError: too few time steps, wrong shapes, irregular times, an index without dates, two series of the
                same name, infinite values, values that are not above 0 with transform="log", or a parameter out of its
                range.
            TypeError: data that are not numbers or dates, or a parameter that is not a number.

        Warns:
            UserWarning: a series or covariate with extremes, compared with which most of its values are nearly equal;
                whole numbers as times that are probably seconds since 1970, without season.
        """
        self._check()
        panel, covariates = _read(y, known, observed, times)
        self._learn(panel, covariates)
        _warn_of_extremes(panel, covariates)
        if self.season is None:
            _warn_of_seconds(panel.times)
        return self

    def predict(self, y: Any = None, *, known: Any = None, observed: Any = None, times: Any = None) -> Forecast:
        """The forecast of the `horizon` time steps after y.

        Args:
            y: the past of the same series as in `fit`; None: that of `fit`. Without times or numbers, its first step
                must be that of `fit`, or whole seasons away from it.
            known: (steps + horizon, k), of the past and of the forecast steps. With y=None, (horizon, k) of the
                forecast steps are sufficient; it can be left out if those of `fit` include them. With an index it may
                have more.
            observed: (steps, k) of the past; None with y=None: those of `fit`. times: as in `fit`.

        Raises:
            ValueError: other series, time zones or covariates than in `fit`, too few time steps, no value among the
                last `lags_` of any series, or values that are not above 0 with transform="log". NotFittedError: before
                `fit`.

        Warns:
            UserWarning: values that are not above 0, which count as missing because logarithms were chosen.
        """
        check_is_fitted(self, "_model")
        if y is not None:
            panel, covariates = _read(y, known, observed, times, self._panel)
            panel = continued(panel, self._panel)
        else:
            panel, covariates = self._panel, self._covariates | _covariates(self._panel, observed=observed)
            if known is not None:
                covariates |= {"known": self._with_past(read_covariates(known, "known", panel))}
            if observed is not None:
                covariates["observed"] = aligned(covariates["observed"], "observed", panel.times)
        (found,) = self._at(panel, covariates, np.array([panel.steps - 1]))
        if not np.isfinite(found.mean).any():
            raise ValueError(f"y has no value among the last {self.lags_} time steps, from which a forecast begins")
        return found

    def backtest(
        self,
        y: Any,
        *,
        known: Any = None,
        observed: Any = None,
        times: Any = None,
        start: Any = 0.7,
        stride: int | None = None,
        refit: int | None = None,
    ) -> Backtest:
        """Forecasts from origins in the last part of y. No forecaster has seen data after its origin.

        Args:
            y, known, observed, times: as in `fit`; y includes the observations after each origin.
            start: the part of y that is learnt first, between 0 and 1; or the first time step that is forecast: its
                time or number, counted from 0 if y has neither.
            stride: time steps from an origin to the next; None: `horizon`.
            refit: number of origins after which the forecaster is trained again; None: it is trained once.

        Returns:
            Forecasts and truth, with scores. This forecaster does not change, and need not be fitted.

        Raises:
            ValueError, TypeError: as `fit`. ValueError: no origin is left.
        """
        self._check()
        (stride,) = as_integers("backtest", 1, stride=self.horizon if stride is None else stride)
        panel, covariates = _read(y, known, observed, times)
        whole = isinstance(start, Integral) and not isinstance(start, bool)
        part = isinstance(start, Real) and not whole
        if part and 0 < start < 1:
            begin = round(start * panel.steps)
        elif panel.times is None and whole and start > 0:
            begin = int(start)
        elif part or panel.times is None:
            raise ValueError(
                "start is the part of y that is learnt first, between 0 and 1, or the first time step that is "
                f"forecast, got {start!r}"
            )
        else:
            begin = panel.times.number_before(start)
        origins = np.arange(max(begin, 1) - 1, panel.steps - self.horizon, stride)
        if not len(origins):
            raise ValueError(
                f"no forecast of {self.horizon} steps fits after the first {begin} of {panel.steps} time steps"
            )
        forecasts: list[Forecast] = []
        (size,) = as_integers("backtest", 1, refit=len(origins) if refit is None else refit)
        for k in range(0, len(origins), size):
            some = origins[k : k + size]
            seen = int(some[0]) + 1
            past = {name: covariate.first(seen) for name, covariate in covariates.items()}
            learnt = clone(self)._learn(
                panel.first(seen), past, f"before an origin (start=), after {seen} time steps, "
            )
            forecasts += learnt._at(panel, covariates, some)
        _warn_of_extremes(panel, covariates)
        if self.season is None:
            _warn_of_seconds(panel.times)
        truth = panel.values[origins[:, None] + np.arange(1, self.horizon + 1)]
        return Backtest(forecasts, truth[..., 0] if panel.flat else truth, learnt.season_)

    def _check(self) -> None:
        optional = {"season": self.season, "lags": self.lags, "epochs": self.epochs}
        given = {name: value for name, value in optional.items() if value is not None}
        layers = {f"hidden_layer_sizes[{k}]": units for k, units in enumerate(self._layers() or ())}
        as_integers("Forecaster", 1, horizon=self.horizon, **given, **layers)
        as_integers("Forecaster", 2, n_folds=self.n_folds, n_networks=self.n_networks)
        if self.transform not in ("auto", "log", None):
            raise ValueError(f'transform must be "auto", "log" or None, got {self.transform!r}')
        if not isinstance(self.quantiles, Iterable):
            raise ValueError(f"quantiles must be a sequence of probabilities, got {self.quantiles!r}")
        for q in self.quantiles:
            as_numbers("Forecaster", "(0, 1)", quantile=q)

    def _layers(self) -> tuple[int, ...] | None:
        sizes = self.hidden_layer_sizes
        return None if sizes is None else tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _learn(self, panel: Panel, covariates: dict[str, Panel], when: str = "") -> Forecaster:
        """when: where messages begin that say that something is too short."""
        layout = self._layout_of(panel, covariates)
        series, origin = layout.to_learn(panel, WINDOWS)
        for k, name in enumerate(panel.names):
            if panel.steps >= layout.lags + self.horizon and k not in series:
                raise ValueError(
                    f"{when}series {name!r} has no value that is followed by another one within {self.horizon} time "
                    f"steps, and lies {self.horizon} steps or more before the end"
                )
        if not self._long_enough(panel, layout):
            raise ValueError(when + self._too_short(panel))
        if self.transform == "log":
            _check_positive(panel)
        cut = partial(layout.cut, panel, covariates)
        model = self._chosen(cut(series, origin), panel, cut)
        self._panel, self._covariates, self._layout, self._model = panel, covariates, layout, model
        self.lags_, self.season_ = layout.lags, int(self.season or _season(panel))
        self.kind_, self.score_ = model.scaling.kind, model.score
        self.noise_ = model.noise[0] if panel.width > 1 else model.noise[0, 0]
        return self

    def _long_enough(self, panel: Panel, layout: Layout) -> bool:
        """Whether enough windows are left to learn from when each stretch is held out."""
        _, origin = layout.to_learn(panel, WINDOWS)
        return all(stretches(origin, self.horizon, number) for number in (self.n_folds, self.n_networks))

    def _too_short(self, panel: Panel) -> str:
        """Says that a series is too short, and which changes would be enough."""

        def enough(more: int) -> bool:  # time steps before the first, all with values
            longer = panel._replace(values=np.pad(panel.values, ((more, 0), (0, 0))))
            return self._long_enough(longer, self._layout_of(longer, {}))

        def fails(name: str, value: int) -> bool:
            other = clone(self).set_params(**{name: value})
            return not other._long_enough(panel, other._layout_of(panel, {}))

        most = 1
        while not enough(most):
            most *= 2
        needed = panel.steps + bisect_left(range(most), True, key=enough)
        changes = ["give more of the past"]
        for name, value in (("horizon", self.horizon), ("lags", self._layout_of(panel, {}).lags)):
            if largest := bisect_left(range(1, value), True, key=partial(fails, name)):
                changes.append(f"set {name}={largest}" + " or less" * (largest > 1))
        return (
            f"y is too short: it has {panel.steps} time steps, and {needed} are needed with horizon={self.horizon}, "
            f"lags={self.lags}, n_folds={self.n_folds} and n_networks={self.n_networks}; {', or '.join(changes)}"
        )

    def _layout_of(self, panel: Panel, covariates: dict[str, Panel]) -> Layout:
        """The layout of windows. Of short series it includes those with a shorter future, and has fewer lags."""
        season, times = int(self.season or _season(panel)), panel.times
        cycles = {} if times is None else times.cycles()
        in_calendar = any(round(steps) == season for steps in cycles.values())
        most = min(max(SEASONS * season, LEAST_LAGS), MOST_LAGS, max((panel.steps - self.horizon) // 3, 1))
        layout = Layout(
            names=panel.names,
            lags=self.lags or most,
            horizon=self.horizon,
            shortest=self.horizon,
            season=1 if in_calendar or (times is not None and self.season is None) else season,
            cycles=cycles,
            step=None if times is None else times.step_in_words(),
            columns={name: covariate.names for name, covariate in covariates.items()},
            own=frozenset(name for name, covariate in covariates.items() if covariate.values.ndim == 3),
        )
        fewer = range(layout.lags, 0, -1) if self.lags is None else [layout.lags]
        for tried in (layout, *(layout._replace(lags=lags, shortest=1) for lags in fewer)):
            if self._long_enough(panel, tried):
                return tried
        return tried

    def _chosen(self, windows: Windows, panel: Panel, cut: Cut) -> Model:
        """The best model: each choice is tried in turn, and kept if the score improves."""
        automatic = self.transform == "auto"
        counts = automatic and _are_counts(panel)  # each model chooses its family
        random = check_random_state(self.random_state)
        epochs = self.epochs or default_epochs(len(windows.origin))

        def trained(kind: Kind, noise: np.ndarray | None, parts: list[Stretch], cut: Cut | None = None) -> Model:
            seeds = random.randint(LARGEST_SEED, size=len(parts)).tolist()
            return fit(kind, windows, panel.width, parts, noise, epochs, seeds, self._run, cut, counts)

        parts, lags = stretches(windows.origin, self.horizon, self.n_folds), windows.past.shape[1]
        best = trained(Kind(lags, self.transform == "log", hidden=self._layers() or ()), None, parts)
        others: list[dict[str, Any]] = [{"level": True}]
        others += [{"past": FEW}] if lags > FEW else []
        others += [{"again": True}] if np.isfinite(windows.again).any(1).mean() > KNOWN else []
        others += [{"earlier": True}] if windows.earlier.size else []
        others += [{"log": True}] if automatic and not (panel.values <= 0).any() else []
        others += [{"hidden": HIDDEN}] if self.hidden_layer_sizes is None else []
        for other in others:
            tried = trained(best.scaling.kind._replace(**other), best.noise[0], parts)
            best = tried if tried.better_than(best) else best
        return trained(best.scaling.kind, best.noise[0], stretches(windows.origin, self.horizon, self.n_networks), cut)

    def _run(self, function: Callable[..., Any], tasks: Iterable[tuple]) -> list:
        from pytagi_ddp.kernels.cpu.runtime.threads import on_one_thread  # here, so that imports load no kernels

        calls = (delayed(on_one_thread)(function, *task) for task in tasks)
        most = max(self.n_folds, self.n_networks)  # joblib starts all, also for fewer tasks
        return list(on_one_thread(Parallel(n_jobs=min(effective_n_jobs(self.n_jobs), most)), calls))

    def _with_past(self, known: Panel) -> Panel:
        """Covariates of the past and of the horizon, from those of the horizon alone or of both."""
        before, times, horizon = self._covariates.get("known"), self._panel.times, self._layout.horizon
        whole, dated = known.steps >= self._panel.steps + horizon, False
        if known.times is not None and times is not None and known.times.comparable(times):
            whole, dated = known.times.covers(times), True
        if before is None or before.values.shape[1:] != known.values.shape[1:] or whole:
            return aligned(known, "known", times)
        ahead = aligned(known, "known", times, self._panel.steps)
        if ahead.steps < horizon or (ahead.steps > horizon and not dated):
            raise ValueError(
                f"known must have the {horizon} time steps of the horizon, or {self._panel.steps + horizon} with those "
                f"of y before it, got {ahead.steps}"
            )
        past = before.first(self._panel.steps)
        return past._replace(values=np.concatenate([past.values, ahead.values[:horizon]]), names=known.names)

    def _at(self, panel: Panel, covariates: dict[str, Panel], origins: np.ndarray) -> list[Forecast]:
        """Forecasts from each of the origins, the numbers of the last time steps that are known."""
        layout, model = self._layout, self._model
        layout.check(panel, covariates, int(origins[-1]))
        log, number = model.scaling.kind.log, panel.width
        past = panel
        if log:
            known = panel.first(int(origins[-1]) + 1)
            if self.transform == "log":
                _check_positive(known)
            elif (low := known.values <= 0).any():
                warn(
                    f"{np.count_nonzero(low)} values of y are not above 0, and the forecaster has chosen to learn "
                    "logarithms: they count as missing; transform=None learns values"
                )
            past = panel._replace(values=np.where(panel.values > 0, panel.values, np.nan))
        cut = partial(layout.cut, past, covariates)
        windows = cut(np.tile(np.arange(number), len(origins)), np.repeat(origins, number))
        with lock_of(self):
            both = model.moments(windows, cut)
        m, std = (moments.reshape(len(origins), number, -1).swapaxes(1, 2) for moments in both)
        std = np.where(np.isfinite(m), std, np.nan)
        times = None if panel.times is None else panel.times.extended(layout.horizon)
        named = panel if panel.names == self._panel.names else panel._replace(names=self._panel.names)
        return [
            Forecast(
                m[k], std[k], model.correlation, model.scaling.kind.family, self.quantiles, named, int(origin), times
            )
            for k, origin in enumerate(origins)
        ]


def _read(y: Any, known: Any, observed: Any, times: Any, learnt: Panel | None = None) -> tuple[Panel, dict[str, Panel]]:
    """The series, and the covariates that are given, which begin at the same time step.

    learnt: the series of `fit`, whose names those without names have.
    """
    panel = read(y, "y", times)
    names = panel if panel.named or learnt is None or learnt.width != panel.width else learnt
    covariates = _covariates(names, known=known, observed=observed)
    if twice := [name for k, name in enumerate(panel.names) if name in panel.names[:k]]:
        raise ValueError(f"y has more than one series {twice[0]!r}: give each its own name")
    for name, covariate in covariates.items():
        covariates[name] = covariate = aligned(covariate, name, panel.times)
        if covariate.steps < panel.steps:
            raise ValueError(f"{name} has {covariate.steps} time steps, and y has {panel.steps}")
    return panel, covariates


def _covariates(panel: Panel, **given: Any) -> dict[str, Panel]:
    return {name: read_covariates(data, name, panel) for name, data in given.items() if data is not None}


def default_epochs(windows: int) -> int:
    return round(max(np.clip(SEEN / windows, FEWEST, MOST), LEAST_SEEN / windows))


def _season(panel: Panel) -> int:
    """Time steps of the season according to the calendar."""
    return 1 if panel.times is None else panel.times.season()


def _warn_of_seconds(times: Times | None) -> None:
    """Warns of whole numbers that are probably dates, of which nothing says the season."""
    if times is None or times.unit != NUMBERS or times.values[0] < SECONDS_OF_1973:
        return
    first = int(times.values[0])
    unit = ("s", "ms", "us", "ns")[min((len(str(first)) - 9) // 3, 3)]
    warn(
        f"times are whole numbers from {first} on, which have no calendar, so that no season is learnt: if they count "
        f"from 1970, give pd.to_datetime(times, unit={unit!r}), and otherwise season= (1: there is none)"
    )


def _are_counts(panel: Panel) -> bool:
    known = panel.values[np.isfinite(panel.values)]
    return bool((known >= 0).all() and (known % 1 == 0).all() and means(panel.values).min() <= MOST_COUNTED)


def _warn_of_extremes(panel: Panel, covariates: dict[str, Panel]) -> None:
    for step, k, found in extremes(panel.values, np.nanstd(panel.values, 0)):
        warn(f"step {step} of {panel.names[k]!r}: {found}, or write NaN instead")
    for what, some in covariates.items():
        for k, values in enumerate(some.values.reshape(some.steps, -1).T):
            if not np.isfinite(values).any():
                continue
            low, median, high = np.nanquantile(values, (0.1, 0.5, 0.9))
            step = int(np.nanargmax(np.abs(values - median)))
            if 0 < BEYOND * (high - low) < np.abs(values[step] - median):
                warn(
                    f"step {step} of {some.names[k % some.width]!r}: {what} has {values[step]:.6g}, and four of five "
                    f"of its numbers are between {low:.6g} and {high:.6g}: write NaN if it means that one is missing"
                )


def _check_positive(panel: Panel) -> None:
    if (panel.values <= 0).any():
        step, column = np.argwhere(panel.values <= 0)[0]
        raise ValueError(
            f"logarithms need values above 0, but series {panel.names[column]!r} has {panel.values[step, column]:g} at "
            f"step {step}; transform=None learns values"
        )

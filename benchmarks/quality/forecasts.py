"""Forecasts of six series many steps ahead, compared with classical methods: `python -m benchmarks.quality forecasts`.

Every method forecasts from the same origins in the last 30 % of each series, and has seen what was before the origin.
Scores are the continuous ranked probability score (CRPS), the root mean squared error (RMSE) and how many observations
90 % intervals hold. `Forecaster` and gradient boosting are trained again at every seventh origin, the others at each.
A method that is done with a series is a line of JSON: a run that ends early continues where it was.

The series, ETS, ARIMA and AutoReg are those of statsmodels, which is not a requirement of the library:
`pip install statsmodels`.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quality.done import Runs, of, parser_of, with_error
from benchmarks.report import table

START, ORIGINS, REFIT = 0.7, 20, 7  # the part that is learnt first; number of origins; origins between two fits
LEVEL = 0.9
MOST_LAGS = 36  # of AutoReg
FOLDS = 4  # of gradient boosting, whose residuals come from what was held back


class Series(NamedTuple):
    """A column of pandas with regular times, time steps of a season (1: none), and steps of a forecast."""

    y: Any
    season: int
    horizon: int

    @property
    def values(self) -> np.ndarray:
        return self.y.to_numpy(np.float64)

    def origins(self) -> range:
        """How many values are known at each origin."""
        first, last = round(START * len(self.y)), len(self.y) - self.horizon
        return range(first, last + 1, max(1, (last - first) // ORIGINS))


class Scores(NamedTuple):
    """Of each origin: the mean CRPS, the mean squared error, and the share of observations in 90 % intervals."""

    crps: list[float]
    squared: list[float]
    inside: list[float]


def load() -> dict[str, Series]:
    pd = import_module("pandas")  # which statsmodels brings
    sets = import_module("statsmodels.api").datasets
    macro = sets.macrodata.load_pandas().data
    months = sets.elnino.load_pandas().data.iloc[:, 1:].to_numpy().ravel()
    spots, nile = sets.sunspots.load_pandas().data.SUNACTIVITY, sets.nile.load_pandas().data.volume

    def column(values: Any, first: str, step: str) -> Any:
        values = np.asarray(values, np.float64)
        return pd.Series(values, pd.date_range(first, periods=len(values), freq=step, unit="s"))

    co2 = sets.co2.load_pandas().data.co2.resample("MS").mean().interpolate()
    return {
        "co2": Series(co2, 12, 12),
        "elnino": Series(column(months, "1950", "MS"), 12, 12),
        "sunspots": Series(column(spots, "1700", "YS"), 11, 10),
        "realgdp": Series(column(macro.realgdp, "1959", "QS"), 4, 8),
        "unemp": Series(column(macro.unemp, "1959", "QS"), 4, 8),
        "nile": Series(column(nile, "1871", "YS"), 1, 5),
    }


Moments = tuple[np.ndarray, np.ndarray]
Method = Callable[[Any, int, int], Moments]  # (past, season, horizon) -> means, standard deviations


def naive(y: Any, season: int, horizon: int) -> Moments:
    """The value of a season ago, with the errors that this has made."""
    past, ahead = y.to_numpy(), np.arange(horizon)
    before = ahead % season - season
    origins = np.arange(season, len(past) - horizon)[:, None]
    errors = past[origins + ahead] - past[origins + before]
    return past[len(past) + before], np.sqrt(np.mean(errors**2, 0))


def ets(y: Any, season: int, horizon: int) -> Moments:
    """Exponential smoothing: additive errors and season, and a damped trend."""
    model = import_module("statsmodels.tsa.exponential_smoothing.ets").ETSModel
    seasonal = {"seasonal": "add", "seasonal_periods": season} if season > 1 else {}
    found = model(y, error="add", trend="add", damped_trend=True, **seasonal).fit(disp=False, maxiter=200)
    ahead = found.get_prediction(start=len(y), end=len(y) + horizon - 1)
    return np.asarray(ahead.predicted_mean), np.sqrt(np.asarray(ahead.forecast_variance))


def arima(y: Any, season: int, horizon: int) -> Moments:
    """ARIMA (1, 1, 1)(0, 1, 1) of the season, or (2, 0, 1) without one."""
    model = import_module("statsmodels.tsa.arima.model").ARIMA
    orders = ((1, 1, 1), (0, 1, 1, season)) if season > 1 else ((2, 0, 1), (0, 0, 0, 0))
    found = model(y.to_numpy(), order=orders[0], seasonal_order=orders[1]).fit(method_kwargs={"maxiter": 50})
    ahead = found.get_forecast(horizon)
    return ahead.predicted_mean, ahead.se_mean


def autoreg(y: Any, season: int, horizon: int) -> Moments:
    """A linear autoregression with a trend, whose order has the least AIC."""
    module = import_module("statsmodels.tsa.ar_model")
    most = min(MOST_LAGS, len(y) // 4)
    options = {"seasonal": season > 1, "period": season if season > 1 else None, "trend": "ct"}
    order = module.ar_select_order(y.to_numpy(), most, ic="aic", **options).ar_lags
    found = module.AutoReg(y.to_numpy(), order or 0, **options).fit()
    ahead = found.get_prediction(start=len(y), end=len(y) + horizon - 1)
    return ahead.predicted_mean, ahead.se_mean


CLASSICAL: dict[str, Method] = {"seasonal naive": naive, "ETS": ets, "ARIMA": arima, "AutoReg": autoreg}


def scores_of(series: Series, method: Method) -> Scores:
    """Of Gaussian forecasts, made anew at each origin."""
    from pytagi_ddp.estimators.student_t import quantile, ranked_score

    scores = Scores([], [], [])
    for known in series.origins():
        mean, std = method(series.y.iloc[:known], series.season, series.horizon)
        error = series.values[known : known + series.horizon] - mean
        scores.crps.append(float(np.mean(std * ranked_score(error / std, math.inf))))
        scores.squared.append(float(np.mean(error**2)))
        scores.inside.append(float(np.mean(np.abs(error) <= std * quantile(0.5 + LEVEL / 2, math.inf))))
    return scores


def boosting(series: Series) -> Scores:
    """Gradient boosting of lags and season, for each step by itself, with the residuals of blocks that were held back.

    It learns differences to the last value, as `Forecaster` does.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    values, season, horizon = series.values, series.season, series.horizon
    lags, steps = max(3 * season, 8), np.arange(1, horizon + 1)

    def features(origins: np.ndarray) -> np.ndarray:
        past = values[origins[:, None] - np.arange(lags)]
        return np.column_stack([past - past[:, :1], past[:, 0], origins % season])

    scores = Scores([], [], [])
    for k, known in enumerate(series.origins()):
        if k % REFIT == 0:
            origins = np.arange(lags - 1, known - horizon)
            x = features(origins)
            targets = values[origins[:, None] + steps] - values[origins, None]
            models = [HistGradientBoostingRegressor(max_iter=100, random_state=0) for _ in steps]
            folds = KFold(FOLDS)
            residuals = np.stack(
                [y - cross_val_predict(model, x, y, cv=folds) for model, y in zip(models, targets.T, strict=True)]
            )
            models = [model.fit(x, y) for model, y in zip(models, targets.T, strict=True)]
            spread = np.abs(residuals[:, :, None] - residuals[:, None]).mean((1, 2))
            ends = np.quantile(residuals, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=1)
        row = features(np.array([known - 1]))
        error = values[known - 1 + steps] - values[known - 1] - np.concatenate([model.predict(row) for model in models])
        scores.crps.append(float(np.mean(np.abs(residuals - error[:, None]).mean(1) - 0.5 * spread)))
        scores.squared.append(float(np.mean((error - residuals.mean(1)) ** 2)))
        scores.inside.append(float(np.mean((ends[0] <= error) & (error <= ends[1]))))
    return scores


QUICK = {"n_folds": 2, "n_networks": 2, "hidden_layer_sizes": ()}


def ours(series: Series, seed: int, jobs: int | None, **settings: Any) -> Scores:
    """`Forecaster` with its defaults; the season of sunspots is no cycle of the calendar, and is given."""
    from pytagi_ddp.forecasting import Forecaster

    origins = series.origins()
    options = settings | ({"season": series.season} if series.season == 11 else {})
    forecaster = Forecaster(series.horizon, n_jobs=jobs, random_state=seed, **options)
    found = forecaster.backtest(series.y, start=START, stride=origins.step, refit=REFIT)
    assert len(found.forecasts) == len(origins)
    by_origin = (found.crps("origin"), np.square(found.rmse("origin")), found.coverage(LEVEL, "origin"))
    return Scores(*(np.asarray(values).tolist() for values in by_origin))


OURS = "Forecaster"
METHODS = (OURS, *CLASSICAL, "boosting")


def measure(series: Series, method: str, seed: int, jobs: int | None, **settings: Any) -> dict[str, Any]:
    start, used = time.perf_counter(), time.process_time()
    if method == OURS:
        scores = ours(series, seed, jobs, **settings)
    else:
        from threadpoolctl import threadpool_limits  # which scikit-learn brings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optimisers that stop before they have converged
            with threadpool_limits(1):  # small tables, for which threads take longer
                scores = boosting(series) if method == "boosting" else scores_of(series, CLASSICAL[method])
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - used}
    return {"origins": len(scores.crps), **seconds, **scores._asdict()}


def report(done: list[dict[str, Any]], seed: int = 0) -> str:
    """A table for each score; of Forecaster with this seed."""
    done = [one for one in done if one.get("seed", seed) == seed]
    methods = [name for name in METHODS if of(done, method=name)]
    names = list(dict.fromkeys(one["series"] for one in done))
    parts = []
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        "CRPS, mean and standard error over origins": lambda one: with_error(one["crps"], digits(one)),
        "RMSE": lambda one: f"{math.sqrt(np.mean(one['squared'])):.{digits(one)}f}",
        "Share of observations in 90 % intervals": lambda one: f"{np.mean(one['inside']):.1%}",
        "Seconds of processor time for all origins": lambda one: f"{one['cpu_seconds']:.1f}",
    }
    for title, cell in cells.items():
        rows = []
        for name in names:
            found = {one["method"]: one for one in of(done, series=name)}
            origins = str(max(one["origins"] for one in found.values()))
            rows.append([name, origins, *(cell(found[method]) if method in found else "-" for method in methods)])
        parts.append(f"{title}\n\n" + table(("series", "origins", *methods), rows))
    return "\n\n".join(parts)


def digits(one: dict[str, Any]) -> int:
    """As many as show three digits of the CRPS."""
    return int(np.clip(2 - math.floor(math.log10(np.mean(one["crps"]))), 0, 4))


def main(argv: list[str] | None = None) -> None:
    parser = parser_of("quality forecasts", __doc__)
    parser.add_argument("--series", action="append", metavar="NAME", help="may be repeated; all, if left out")
    parser.add_argument("--method", action="append", choices=METHODS, help="may be repeated; all, if left out")
    parser.add_argument("--seed", type=int, default=0, help="of Forecaster (0)")
    parser.add_argument("--jobs", type=int, help="networks trained at a time")
    parser.add_argument("--quick", action="store_true", help="two linear networks, to see that it runs")
    args = parser.parse_args(argv)
    done = Runs(args.results, args.quick)
    if not args.report:
        if find_spec("statsmodels") is None:
            sys.exit("error: the series and the classical methods are those of statsmodels: pip install statsmodels")
        every = load()
        if unknown := set(args.series or ()) - every.keys():
            parser.error(f"there is no series {', '.join(sorted(unknown))}; there are {', '.join(every)}")
        for name in args.series or every:
            for method in args.method or METHODS:
                one = {"series": name, "method": method, "quick": args.quick}
                one |= {"seed": args.seed} if method == OURS else {}
                if not of(done, **one):
                    one |= measure(every[name], method, args.seed, args.jobs, **QUICK if args.quick else {})
                    crps, inside = np.mean(one["crps"]), np.mean(one["inside"])
                    done.add(one, f"{name}, {method}: CRPS {crps:.4g}, {inside:.1%} in 90 %")
    if done:
        print("\n" + report(done, args.seed))

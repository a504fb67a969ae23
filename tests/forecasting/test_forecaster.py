"""Forecasts: that they are good, of whatever is given, and what is refused."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
import joblib
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.parallel import Parallel

from pytagi_ddp.forecasting import Forecaster, model
from pytagi_ddp.forecasting.series import read
from pytagi_ddp.forecasting.windows import Layout, Windows

QUICK = {"n_folds": 2, "n_networks": 2, "hidden_layer_sizes": (), "random_state": 0}


def seasonal(steps, period=12, noise=0.1, seed=0):
    """A season and an autoregression."""
    rng, level = np.random.default_rng(seed), 0.0
    y = np.sin(2 * np.pi * np.arange(steps) / period)
    for k, new in enumerate(rng.normal(scale=noise, size=steps)):
        level = 0.8 * level + new
        y[k] += level
    return y


def quick(horizon, **options):
    return Forecaster(horizon, **QUICK | options)


def rough(horizon, **options):
    """Learns in 40 epochs what is plain in the data; by default there are at least 100 for few windows."""
    return quick(horizon, epochs=40, **options)


def test_a_season_goes_on_with_intervals_that_hold():
    y = seasonal(1200)
    found = Forecaster(12, season=12, n_networks=4, epochs=60, random_state=0).backtest(y, stride=2)
    assert len(found.forecasts) == 175
    std = 0.1 * np.sqrt(np.cumsum(0.64 ** np.arange(12)))  # of the errors of the true model
    np.testing.assert_allclose(found.rmse("step"), std, rtol=0.2)
    assert found.rmse() < 1.15 * np.sqrt(np.mean(std**2))
    assert 0.85 < found.coverage(0.9) < 0.95 and 0.43 < found.coverage(0.5) < 0.57
    np.testing.assert_allclose(np.mean([forecast.std for forecast in found.forecasts], 0), std, rtol=0.1)


@pytest.mark.parametrize("step", ["MS", "ME", "h", "D", "B"])
def test_frames_bring_their_times(step):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pd.date_range("2020-01-01", periods=130, freq=step)
    season = {"h": 24, "D": 7, "B": 5}.get(step, 12)
    y = pd.Series(seasonal(130, season, 0.02), index, name="sales")
    forecaster = quick(6).fit(y[:120])
    forecast = forecaster.predict()
    assert forecaster.season_ == season and forecast.names == ["sales"]
    np.testing.assert_array_equal(forecast.times, index[120:126].to_numpy())
    np.testing.assert_allclose(forecast.mean, y[120:126], atol=0.25)
    table = forecast.to_frame()
    assert list(table.columns) == ["mean", "std", "0.05", "0.5", "0.95"] and (table.index == index[120:126]).all()
    np.testing.assert_array_equal(forecaster.predict(y[:125]).times, index[125:].append(index[-1:] + index.freq)[:6])


def test_times_beside_arrays_periods_and_zones_are_the_same():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pl = pytest.importorskip("polars", reason="polars is not installed")
    y, index = seasonal(90), pd.date_range("2020-01-01", periods=90, freq="MS")
    plain = rough(6).fit(y, times=index).predict()
    frame = pl.DataFrame({"month": index.values, "y": y})
    for other in (
        rough(6).fit(frame["y"], times=frame["month"]),
        rough(6).fit(pd.Series(y, index.to_period("M"))),
        rough(6).fit(y, times=list(index)),
        rough(6).fit({"y": pd.Series(y, index)}),
    ):
        np.testing.assert_array_equal(other.predict().mean.ravel(), plain.mean)
        np.testing.assert_array_equal(other.predict().times, plain.times)
    zoned = rough(6).fit(pd.Series(y, index.tz_localize("Europe/Berlin"))).predict().to_frame()
    assert (zoned.index == pd.date_range("2027-07-01", periods=6, freq="MS", tz="Europe/Berlin")).all()
    np.testing.assert_array_equal(zoned["mean"], plain.mean)


def test_a_season_that_the_calendar_does_not_have_is_given():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    y = pd.Series(seasonal(231, 11, 0.01), pd.date_range("1700", periods=231, freq="YS", unit="s"))
    forecast = quick(11, season=11, lags=2).fit(y[:220]).predict()
    np.testing.assert_allclose(forecast.mean, y[220:], atol=0.15)
    later = quick(11, season=11, lags=2).fit(y[:220]).predict(y[7:220])
    np.testing.assert_allclose(later.mean, forecast.mean, rtol=1e-5)


def test_many_series_of_different_sizes_and_lengths():
    short, long = seasonal(120, seed=1), 1e6 + 1e5 * seasonal(200, seed=2)
    forecaster = quick(6, season=12).fit({"small": 1e-6 * short[:114], "large": long[:194]})
    forecast = forecaster.predict()
    assert forecast.mean.shape == forecast.interval()[0].shape == (6, 2) and forecast.names == ["small", "large"]
    np.testing.assert_allclose(forecast.mean[:, 0], 1e-6 * short[114:], atol=0.5e-6)
    np.testing.assert_allclose(forecast.mean[:, 1], long[194:], atol=0.5e5)
    assert forecast.sample(3, 0).shape == (3, 6, 2)
    table = np.stack([1e-6 * short[4:114], long[84:194]], 1)  # seven seasons later
    np.testing.assert_allclose(forecaster.predict(table).mean, forecast.mean, rtol=1e-5, atol=1e-12)
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert list(forecast.to_frame()["large"].columns) == ["mean", "std", "0.05", "0.5", "0.95"]


def test_each_series_has_noise_of_its_own():
    rng = np.random.default_rng(0)
    tide = 3 * np.sin(np.arange(500) * 2 * np.pi / 12) + 0.05 * rng.normal(size=500)
    table = np.stack([tide, np.cumsum(rng.normal(size=500)), np.full(500, 5.0)], 1)
    forecaster = rough(2, season=12).fit(table)
    std = forecaster.predict().std
    assert forecaster.noise_.shape == (3, 2) and np.all(std[:, 0] < 0.12) and np.all(std[:, 2] < 0.05)
    assert np.all(std[:, 1] > [0.9, 1.3])
    assert rough(2, season=12).fit(tide[:, None]).noise_.shape == (2,)


@pytest.mark.parametrize("unit", [1e-9, 1e12])
def test_the_unit_changes_nothing(unit):
    y = 3 + seasonal(150)
    plain, other = (rough(5, season=12, transform=None).fit(unit * y).predict() for unit in (1, unit))
    np.testing.assert_allclose(other.mean, unit * plain.mean, rtol=1e-5)
    np.testing.assert_allclose(other.std, unit * plain.std, rtol=1e-4)
    far = rough(5, season=12, transform=None).fit(y - 1e7).predict()
    np.testing.assert_allclose(far.mean + 1e7, plain.mean, atol=0.1)


@pytest.mark.parametrize("value", [0.0, 5.0, -3e-9, 1e12])
def test_a_constant_series_stays_constant(value):
    forecast = quick(4).fit(np.full(60, value)).predict()
    np.testing.assert_allclose(forecast.mean, value, rtol=1e-3, atol=1e-3)
    assert np.all(forecast.std > 0) and np.all(forecast.std < 0.01 * (abs(value) or 1))
    both = quick(4).fit(np.stack([np.full(80, value), seasonal(80)], 1)).predict()
    assert np.isfinite(both.mean).all() and both.mean[:, 0] == pytest.approx(value, rel=0.2, abs=0.2)


def test_a_line_goes_on():
    forecast = quick(5).fit(2.0 * np.arange(80)).predict()
    np.testing.assert_allclose(forecast.mean, 2 * np.arange(80, 85), rtol=0.01)


def test_the_pull_back_to_the_mean_is_limited_to_the_levels_that_were_learnt():
    rng, y = np.random.default_rng(0), np.zeros(400)
    for k in range(1, 400):
        y[k] = 0.8 * y[k - 1] + rng.normal()
    forecaster = quick(5).fit(y)
    assert forecaster.kind_.level
    back = [forecaster.predict(y + level).mean[-1] - (y[-1] + level) for level in (3, 50, 500)]
    assert back[0] > back[1] == pytest.approx(back[2], rel=1e-3)


def test_forecasts_stay_near_a_new_level():
    months, rng = np.arange(212), np.random.default_rng(3)
    y = 100 + 10 * np.sin(2 * np.pi * months / 12) + 2 * rng.normal(size=212) + 25 * (months >= 182)
    forecast = Forecaster(12, season=12, random_state=0).fit(y[:200]).predict()
    assert np.abs(forecast.mean - y[200:]).mean() < 5 and forecast.coverage(y[200:], 0.9) > 0.8


@pytest.mark.parametrize("width", [1, 20])
def test_four_years_of_months_are_enough_for_one_ahead(width):
    months, rng = np.arange(60)[:, None], np.random.default_rng(2)
    y = 10 * np.sin(2 * np.pi * (months + rng.integers(0, 12, width)) / 12) + 2 * rng.normal(size=(60, width))
    forecaster = Forecaster(12, season=12, random_state=0).fit(y[:48])
    forecast = forecaster.predict()
    assert forecaster.lags_ < 12 or width == 20
    assert np.mean((forecast.mean - y[48:]) ** 2) < np.mean((y[36:48] - y[48:]) ** 2)
    assert forecast.coverage(y[48:], 0.9) > 0.8


def driven(steps=400, seed=0):
    """A series that follows a covariate of the same time step."""
    rng = np.random.default_rng(seed)
    price = rng.normal(size=(steps, 1))
    return 2 * price[:, 0] + 0.1 * rng.normal(size=steps), price


def test_covariates_known_in_advance_help():
    y, price = driven()
    with_price = quick(4).fit(y[:396], known=price[:396])
    forecast = with_price.predict(known=price[396:])
    assert np.abs(forecast.mean - y[396:]).max() < 1 and forecast.std.max() < 0.6
    assert quick(4).fit(y[:396]).predict().std.min() > 1.5
    for other in (
        with_price.predict(known=price),
        with_price.predict(y[:396], known=price),
        quick(4).fit(y[:396], known=price).predict(),
    ):
        np.testing.assert_array_equal(other.mean, forecast.mean)
    scores = quick(4).backtest(y, known=price)
    assert scores.rmse() < 0.4 * quick(4).backtest(y).rmse()


def test_covariates_of_a_short_series_help():
    """Few values of the past are sufficient, and there are 168 inputs otherwise."""
    rng = np.random.default_rng(5)
    prices = rng.normal(size=(156, 3))
    y = 20 * prices[:, 0] + rng.normal(size=156)
    forecaster = Forecaster(6, season=12, random_state=0)
    assert forecaster.backtest(y, known=prices, stride=2).rmse() < 2.5
    assert forecaster.fit(y[:150], known=prices).kind_.past == 2


def test_each_series_has_covariates_of_its_own():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng, names = np.random.default_rng(0), [f"store {k}" for k in range(8)]
    promotion = pd.DataFrame((rng.random((206, 8)) < 0.3).astype(float), columns=names)
    sales = 20 * promotion + rng.normal(size=(206, 8))
    found = rough(6).backtest(sales, known=promotion, stride=12)
    assert found.rmse() < 1.5 < 5 < rough(6).backtest(sales, known=promotion.to_numpy(), stride=12).rmse()
    forecaster = rough(6).fit(sales[:200], known=promotion)
    mean = forecaster.predict().mean
    each = {name: promotion[name].to_numpy()[:, None] for name in reversed(names)}
    np.testing.assert_array_equal(rough(6).fit(sales[:200], known=each).predict().mean, mean)
    np.testing.assert_array_equal(
        forecaster.predict(known={name: rows[200:] for name, rows in each.items()}).mean, mean
    )
    begun = {name: column[50 * (name == names[1]) :] for name, column in each.items()}
    series = {name: sales[name][50 * (name == names[1]) : 200].to_numpy() for name in names}
    assert np.isfinite(rough(6).fit(series, known=begun, observed=begun).predict().mean).all()
    forecaster.predict(sales[:200].to_numpy(), known=promotion)  # which has the names of fit
    assert rough(6).fit(sales["store 0"][:200], known={"store 0": promotion[["store 0"]]})._layout.own == {"known"}
    numbered = dict(enumerate(sales.to_numpy().T)), {k: promotion[name].to_numpy() for k, name in enumerate(names)}
    assert rough(6).backtest(numbered[0], known=numbered[1], stride=12).rmse() < 1.5
    days = {name: promotion[name].set_axis(pd.date_range("2020-01-01", periods=206)) for name in names}
    with pytest.raises(ValueError, match=r"known\['store 1'\] and the longest ones of known must end at the same time"):
        rough(6).fit({name: day[:200] for name, day in days.items()}, known=days | {names[1]: days[names[1]][:-1]})
    for known, message in (
        (promotion.to_numpy()[200:], "known has covariates for all series, and those of fit were for each series"),
        (
            each | {names[2]: np.ones((206, 2))},
            r"known must have the same columns for each series, got \[0\] and \[0, 1\]",
        ),
        ({name: np.ones((6, 2)) for name in names}, "known has 2 columns, and had 1 in fit"),
    ):
        with pytest.raises(ValueError, match=message):
            forecaster.predict(known=known)


def test_series_may_be_named_by_whole_numbers():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)
    promotion = pd.DataFrame({store: (rng.random(207) < 0.3).astype(float) for store in (1, 2, 3)})
    sales = 20 * promotion + rng.normal(size=(207, 3))
    forecaster = rough(7).fit(sales[:200], known=promotion)
    assert forecaster._layout.own == {"known"}
    forecast = forecaster.predict()
    np.testing.assert_array_equal(rough(7).fit(sales[:200], known=dict(promotion)).predict().mean, forecast.mean)
    numbered = {store - 1: column for store, column in promotion.items()}  # an array has no names
    assert not rough(7).fit(sales[:200].to_numpy(), known=numbered)._layout.own
    with pytest.warns(UserWarning, match=r"known has the series \[1, 2\], and not 3: so these are .* of all series"):
        assert not rough(7).fit(sales[:200], known=promotion[[1, 2]])._layout.own
    assert not rough(7).fit(sales[:200], known=promotion[[1]])._layout.own
    forecast.crps(sales[200:])
    for score in (forecast.crps, forecast.log_prob, forecast.cdf):
        with pytest.raises(ValueError, match=r"y has the series \[3, 2, 1\], and the forecast has \[1, 2, 3\]"):
            score(sales[200:][[3, 2, 1]])


def test_known_covariates_may_end_with_a_short_series():
    known = np.random.default_rng(0).normal(size=(40, 2))
    forecaster = rough(12, season=12).fit(seasonal(40), known=known)
    assert np.isfinite(forecaster.predict(known=known[:12]).mean).all()


def test_values_of_a_longer_cycle_ago_help():
    """A pattern of 200 steps, of which a network would see 40, and waves show little."""
    rng, pattern = np.random.default_rng(0), np.random.default_rng(1).normal(size=200)
    y = 5 * pattern[np.arange(1400) % 200] + rng.normal(size=1400)
    forecaster = quick(10, season=200, lags=40)
    assert forecaster.backtest(y[:1200], stride=20).rmse() < 1.7  # that of the value one cycle ago is 1.4
    fitted = forecaster.fit(y[:1200])
    assert fitted.kind_.again
    later, short = fitted.predict(y[:1390]), fitted.predict(y[1200:1390])
    assert np.sqrt(np.mean((later.mean - y[1390:]) ** 2)) < 2 and (short.std > 2 * later.std).all()
    assert not quick(10, season=200, lags=40, epochs=1).fit(y[:300]).kind_.again


def test_covariates_observed_so_far_help():
    rng = np.random.default_rng(1)
    weather = rng.normal(size=(400, 2))
    y = np.concatenate([[0, 0], weather[:-2, 1]]) + 0.1 * rng.normal(size=400)  # follows two steps behind
    forecast = quick(3).fit(y[:390], observed=weather[:390]).predict()
    np.testing.assert_allclose(forecast.mean[:2], y[390:392], atol=0.7)
    assert forecast.std[:2].max() < 0.6 < forecast.std[2]
    later = quick(3).fit(y[:390], observed=weather[:390]).predict(y[:395], observed=weather[:395])
    np.testing.assert_allclose(later.mean[:2], y[395:397], atol=0.7)
    weather[rng.random(weather.shape) < 0.1] = np.nan
    assert np.isfinite(quick(3).fit(y, observed=weather).predict().mean).all()


def test_logarithms_are_chosen_where_they_help():
    y = np.exp(0.01 * np.arange(300) + 0.5 * seasonal(300))
    forecaster = quick(6, season=12).fit(y[:294])
    assert forecaster.kind_.log
    forecast = forecaster.predict()
    assert np.all(forecast.quantile(0.001) > 0)
    np.testing.assert_allclose(forecast.mean, y[294:], rtol=0.3)
    assert not quick(6, transform=None).fit(y).kind_.log and quick(6, transform="log").fit(3 + seasonal(99)).kind_.log
    negative, missing = (np.where(np.arange(294) == 290, value, y[:294]) for value in (-1, np.nan))
    with pytest.warns(UserWarning, match="1 values of y are not above 0, .*they count as missing"):
        found = forecaster.predict(negative)
    np.testing.assert_array_equal(found.mean, forecaster.predict(missing).mean)
    assert found.history[290] == -1
    with pytest.raises(ValueError, match=r"logarithms need values above 0, but series 0 has -1 at step 290"):
        quick(6, transform="log").fit(y).predict(negative)
    with pytest.raises(ValueError, match=r"logarithms need .* at step 0; transform=None"):
        quick(6, transform="log").fit(np.arange(99.0))


def test_counts_that_are_mostly_0_have_no_negative_forecasts():
    rng = np.random.default_rng(0)
    y = rng.poisson(3, 400) * (rng.random(400) < 0.15)
    found = quick(7).backtest(y)
    assert found.crps() < 0.8 * quick(7, transform=None).backtest(y).crps()
    forecast = quick(7).fit(y).predict()
    assert forecast.discrete and (forecast.quantile(0.01) == 0).all() and (forecast.mean > 0).all()
    paths = forecast.sample(1000, 0)
    assert (paths >= 0).all() and (paths % 1 == 0).all() and 0.7 < (paths == 0).mean() < 0.95


def test_both_distributions_of_counts_are_those_of_the_same_networks():
    counts = np.random.default_rng(2).poisson(1.5, 250)
    assert quick(3).fit(counts).predict().discrete  # networks with other seeds may be better, but Gaussian
    assert not rough(3).fit(30 + np.arange(250) % 2).predict().discrete  # far less noise than a Poisson distribution's


@pytest.mark.parametrize(("unit", "length"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_seconds_since_1970_are_named(unit, length):
    y, hours = seasonal(100, period=24), 3600 * (450_000 + np.arange(100))
    with pytest.warns(UserWarning, match=rf"from 1620000000.* on, .* pd.to_datetime\(times, unit='{unit}'\)") as found:
        quick(2).fit(y, times=length * hours)
    assert len(found) == 1
    quick(2, season=24).fit(y, times=length * hours)  # as warnings are errors, there are none
    quick(2).fit(y, times=20_000_000 + np.arange(100))


def test_extremes_of_a_series_are_named():
    y = 5 + seasonal(120)
    y[7] = np.nan
    both = {"good": y, "bad": np.where(np.arange(120) == 60, -999999, y)}
    with pytest.warns(UserWarning, match="step 60 of 'bad': y has -999999, and four of five .*write NaN") as found:
        rough(2).fit(both)
    assert len(found) == 1
    covariates = np.random.default_rng(0).normal(size=(120, 2))
    covariates[30, 1] = -999999
    rebates = np.where(np.arange(120) % 9, 9.99 + 0.01 * covariates[:, 0], 4.99)
    holidays = np.column_stack([np.arange(120) == 60, rebates])  # neither is a code
    for learn in (rough(2).fit, rough(2).backtest):
        with pytest.warns(UserWarning, match="step 30 of 1: observed has -999999") as found:
            learn(5 + seasonal(120), observed=covariates, known=holidays)
        assert len(found) == 1
    both["bad"] = np.where(np.arange(120) % 60 == 5, -9999, 100 * y)
    with pytest.warns(UserWarning, match="step 5 of 'bad': y has -9999 in 2 rows.*write NaN") as found:
        rough(2).fit(both)
    assert len(found) == 1


def test_an_outlier_at_the_end_leaves_forecasts_of_logarithms_finite():
    y = 100 + 5 * seasonal(150)
    y[-1] = 1e4
    with pytest.warns(UserWarning, match="step 149 of 0: y has 10000"):
        forecast = quick(6, season=12, transform="log").fit(y).predict()
    assert np.all(forecast.mean <= np.exp(np.log(1e4 / y.min()) ** 2 / 4) * forecast.quantile(0.5))  # variance: twice


def test_a_hidden_layer_is_chosen_where_it_helps():
    y = [0.3]
    for _ in range(700):
        y.append(3.8 * y[-1] * (1 - y[-1]))  # the logistic map
    y = np.array(y) + 0.01 * np.random.default_rng(0).normal(size=701)
    found = Forecaster(1, lags=2, n_folds=2, n_networks=2, epochs=40, transform=None, random_state=0).fit(y[:700])
    assert found.kind_.hidden == (50,) and found.score_ < 0.2
    assert quick(1, lags=2).fit(y).score_ > 0.3


def test_one_step_ahead_and_another_history():
    y = seasonal(300)
    forecaster = quick(1, season=12).fit(y[:250])
    assert forecaster.predict().mean.shape == (1,) and forecaster.noise_.shape == (1,)
    errors = [forecaster.predict(y[:k]).mean[0] - y[k] for k in range(252, 300)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.14
    np.testing.assert_array_equal(forecaster.predict(y[:250]).mean, forecaster.predict().mean)
    assert forecaster.predict(y[:262]).steps[0] == 262


def test_a_forecaster_is_an_estimator():
    y = seasonal(120)
    forecaster = quick(4, season=12, transform=None)
    first = forecaster.fit(y).predict()
    np.testing.assert_array_equal(clone(forecaster).fit(y).predict().mean, first.mean)
    assert not np.array_equal(clone(forecaster).set_params(random_state=1).fit(y).predict().mean, first.mean)
    assert clone(forecaster).get_params() == forecaster.get_params() and forecaster.get_params()["horizon"] == 4
    forecaster.set_params(horizon=9)  # which takes effect with the next fit
    np.testing.assert_array_equal(forecaster.predict().mean, first.mean)
    again = pickle.loads(pickle.dumps(forecaster)).predict()
    np.testing.assert_array_equal(again.mean, first.mean)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).quantile(0.1), first.quantile(0.1))
    with joblib.parallel_config("threading"):  # whose workers start at once
        parallel = quick(4, season=12, transform=None, n_jobs=2).fit(y).predict()
    np.testing.assert_array_equal(parallel.mean, first.mean)


def test_no_more_processes_than_networks(monkeypatch):
    asked = []

    def recorded(n_jobs):
        asked.append(n_jobs)
        return Parallel(n_jobs=n_jobs)

    monkeypatch.setattr("pytagi_ddp.forecasting.forecaster.Parallel", recorded)
    with joblib.parallel_config("threading"):
        quick(4, n_folds=2, n_networks=3, n_jobs=100).fit(seasonal(100))
    assert set(asked) == {3}


def test_a_fit_that_is_refused_changes_nothing():
    forecaster = quick(4).fit(seasonal(100))
    before = forecaster.predict().mean
    with pytest.raises(ValueError, match="y is too short"):
        forecaster.fit(seasonal(12))
    np.testing.assert_array_equal(forecaster.predict().mean, before)
    assert forecaster.lags_ == 8


def test_networks_learn_nothing_of_the_stretch_that_they_forecast():
    """No observation of a stretch that is held back lies in a window from which its networks learn."""
    layout = Layout([0], 5, 7, 7, 1, {}, None, {})
    panel = read(np.arange(200.0), "y")
    windows = layout.cut(panel, {}, *layout.to_learn(panel, 10_000))
    parts = model.stretches(windows.origin, 7, 4)
    assert sum(part.held_out.astype(int) for part in parts).tolist() == [1] * 189
    for part in parts:
        assert not np.isin(windows.future[part.learnt], windows.future[part.held_out]).any()
        assert part.learnt.sum() >= 189 - 48 - 12


def test_windows_are_thinned_before_they_are_made():
    layout = Layout([0, 1], 3, 2, 2, 1, {}, None, {})
    values = np.random.default_rng(0).normal(size=(1000, 2))
    values[100:900, 0] = np.nan
    series, origin = layout.to_learn(read(values, "y"), 50)
    assert len(series) == 50 and 5 < (series == 0).sum() < 15
    many = np.random.default_rng(0).normal(size=(1000, 30))
    many[:-7, 7] = np.nan  # with few windows
    found, _ = layout.to_learn(read(many, "y"), 50)
    assert set(found) == set(range(30)) and len(found) <= 51
    windows: Windows = layout.cut(read(values, "y"), {}, series, origin)
    assert np.isfinite(windows.past).any(1).all() and np.isfinite(windows.future).any(1).all()


Y = seasonal(100)
REFUSED = [
    ({}, (Y[:6],), {}, "y is too short: it has 6 time steps, and 27 are needed with horizon=6, lags=None, n_folds=2"),
    (
        {"lags": 90},
        (Y,),
        {},
        "y is too short: .* and 116 are .*; give more of the past, or set lags=74 or less",
    ),
    ({}, (np.where(np.arange(100) == 3, np.inf, Y),), {}, "y is infinite at step 3"),
    ({}, (np.full(100, np.nan),), {}, "series 0 has no value that is followed by another one within 6 time steps"),
    ({}, (Y,), {"known": Y[:99]}, "known has 99 time steps, and y has 100"),
    ({"horizon": 0}, (Y,), {}, "horizon must be at least 1, got 0"),
    ({"horizon": 1.5}, (Y,), {}, "horizon must be an integer, got 1.5"),
    ({"n_folds": 1}, (Y,), {}, "n_folds must be at least 2, got 1"),
    ({"lags": True}, (Y,), {}, "lags must be an integer, got True"),
    ({"hidden_layer_sizes": 2.5}, (Y,), {}, "hidden_layer_sizes\\[0\\] must be"),
    ({"hidden_layer_sizes": (0,)}, (Y,), {}, "hidden_layer_sizes\\[0\\] must be"),
    ({"transform": "sqrt"}, (Y,), {}, 'transform must be "auto", "log" or None'),
    ({"quantiles": [0.5, 1]}, (Y,), {}, r"quantile must be in \(0, 1\), got 1"),
    ({"quantiles": 0.5}, (Y,), {}, "quantiles must be a sequence of probabilities, got 0.5"),
    ({}, (6,), {}, r"y must have the shape \(steps,\) or .* got \(\). The number of time steps is .* horizon"),
]


@pytest.mark.parametrize(("options", "given", "more", "message"), REFUSED)
def test_what_cannot_be_learnt_is_refused(options, given, more, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Forecaster(**{"horizon": 6} | QUICK | options).fit(*given, **more)


@pytest.mark.parametrize(
    ("options", "width"),
    [({}, 1), ({"n_folds": 4, "n_networks": 8}, 1), ({"lags": 20, "n_folds": 3}, 1), ({"season": 6}, 3)],
)
def test_the_changes_that_a_message_names_are_enough_and_just_so(options, width):
    options = {"epochs": 1} | options
    y = np.random.default_rng(0).normal(size=(200, width))

    def message(steps, **changes):
        with pytest.raises(ValueError, match="y is too short") as error:
            quick(**{"horizon": 6} | options | changes).fit(y[:steps])
        return str(error.value)

    needed = int(re.search("and ([0-9]+) are needed", message(10)).group(1))
    quick(6, **options).fit(y[:needed])
    for name, value in re.findall("set ([a-z]+)=([0-9]+)", text := message(needed - 1)):
        quick(**{"horizon": 6} | options | {name: int(value)}).fit(y[: needed - 1])
        message(needed - 1, **{name: int(value) + 1})
    assert "horizon=5 or less" in text and f"and {needed} are needed" in text


def test_two_series_of_one_name_are_refused():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame(np.stack([Y] * 3, 1), columns=["b", "a", "a"])
    with pytest.raises(ValueError, match="y has more than one series 'a': give each its own name"):
        quick(6).fit(table)


def test_what_cannot_be_forecast_is_refused():
    with pytest.raises(NotFittedError):
        quick(6).predict()
    forecaster = quick(6).fit(Y, known=np.stack([Y, Y], 1))
    both = np.stack([np.r_[Y, Y[:6]]] * 2, 1)
    for given, message in (
        ({}, "known has 100 time steps, and 106 are needed: those of y, and of the horizon"),
        ({"known": both[:105]}, "known must have the 6 time steps of the horizon, or 106 with those of y .* got 105"),
        ({"known": both[:5]}, "known must have the 6 time steps of the horizon, or 106 with those of y .* got 5"),
        ({"y": Y, "known": both[:105]}, "known has 105 time steps, and 106 are needed: those of y, and of the horizon"),
        ({"known": both[:, :1]}, "known has 1 columns, and had 2 in fit"),
        ({"known": both, "observed": Y}, r"covariates are \['known', 'observed'\], and those of fit are \['known'\]"),
        ({"y": Y}, r"covariates are \[\], and those of fit are \['known'\]"),
        ({"y": both, "known": both}, r"y has the series \[0, 1\], and those of fit are \[0\]"),
        ({"y": Y[:7], "known": both}, "y has 7 time steps, .* look 8 back: give earlier ones"),
        ({"y": np.r_[Y[:90], [np.nan] * 10], "known": both}, "y has no value among the last 8 time steps"),
    ):
        with pytest.raises(ValueError, match=message):
            forecaster.predict(**given)


def test_columns_of_covariates_must_be_those_of_fit():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"rain": np.arange(106) % 7, "temperature": np.arange(106) % 5})
    forecaster = rough(6).fit(Y, known=table[:100])
    for known in (table, table[100:], table.to_numpy()):
        assert np.isfinite(forecaster.predict(known=known).mean).all()
    for known in (
        table[["temperature", "rain"]],
        table[["temperature", "rain"]][100:],
        table.set_axis(list("ab"), axis=1),
    ):
        with pytest.raises(ValueError, match=r"those of fit are \['rain', 'temperature'\]: give them in this order"):
            forecaster.predict(known=known)
    assert np.isfinite(rough(6).fit(Y, known=table.to_numpy()).predict(Y, known=table).mean).all()


def test_times_of_covariates_must_fit():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pd.date_range("2020-01-01", periods=106, freq="D")
    y, holiday = pd.Series(Y, index[:100]), pd.Series(np.arange(106) % 7 == 0, index)
    forecaster = quick(6).fit(y, known=holiday[:100])
    np.testing.assert_array_equal(forecaster.predict(known=holiday[100:]).mean, forecaster.predict(known=holiday).mean)
    with pytest.raises(ValueError, match=r"known must begin at 2020-04-10T.*, got 2020-01-01T.* to 2020-01-06T"):
        forecaster.predict(known=holiday[:6])
    with pytest.raises(ValueError, match="times of known have the time zone UTC, and those of y have no time zone"):
        forecaster.predict(known=holiday.tz_localize("UTC"))
    with pytest.raises(ValueError, match=r"known must have the 6 time steps of the horizon, .* got 4"):
        forecaster.predict(known=holiday[100:104])
    for index in (holiday.index, holiday.index.astype(str)):
        with pytest.raises(ValueError, match=r"known must begin at 2020-01-01T.*, got 2020-01-02"):
            quick(6).fit(y[:99], known=holiday.set_axis(index)[1:])
    weekly = holiday.set_axis(pd.date_range("2020-01-01", periods=106, freq="7D"))
    with pytest.raises(ValueError, match=r"known must have the times of y, and be at 2020-01-02.* at its step 1, got"):
        quick(6).fit(y, known=weekly)
    later = weekly[:6].set_axis(pd.date_range("2020-04-10", periods=6, freq="7D"))
    with pytest.raises(ValueError, match=r"known must have the times of y, and be at 2020-04-11T"):
        forecaster.predict(known=later)
    with pytest.raises(ValueError, match=r"index of known, .* holds no dates"):
        quick(6).fit(y, known=holiday.set_axis(holiday.index.strftime("%d/%m/%Y")))
    with pytest.raises(ValueError, match="y must have times if that of fit had them"):
        forecaster.predict(Y, known=holiday)
    with pytest.raises(ValueError, match="the time steps of y are 1:00:00, and those of fit were 1 day, 0:00:00"):
        forecaster.predict(y.set_axis(pd.date_range("2020-01-01", periods=100, freq="h")), known=holiday.to_numpy())


def test_threads_share_a_forecaster():
    forecaster = quick(3, hidden_layer_sizes=5, epochs=2).fit(Y)
    assert forecaster.kind_.hidden == (5,)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: forecaster.predict(Y[: 90 + k % 5]).mean, range(40)))
    for k, mean in enumerate(found):
        np.testing.assert_array_equal(mean, found[k % 5])


def test_covariates_are_taken_by_their_times():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    for index in (pd.date_range("2019-12-22", periods=130, freq="D"), pd.RangeIndex(-10, 120)):
        table = pd.DataFrame({"holiday": np.arange(130) % 7 == 0, "rain": np.arange(130) % 5}, index)
        y, part = pd.Series(Y, index[10:110]), table[10:116]
        forecaster = rough(6, season=7).fit(y, known=part[:100], observed=part[:100])
        expected = forecaster.predict(known=part[100:]).mean
        for other in (
            forecaster.predict(known=table),
            forecaster.predict(known=table[90:]),
            forecaster.predict(known=table[110:], observed=table),
            forecaster.predict(y, known=table, observed=table),
            rough(6, season=7).fit(y, known=table, observed=table).predict(),
        ):
            np.testing.assert_array_equal(other.mean, expected)
        later = forecaster.predict(y[30:], known=table, observed=table)
        np.testing.assert_allclose(later.mean, expected, rtol=1e-5)
        with pytest.raises(ValueError, match=r"known must have the 6 time steps of the horizon, .* got 5"):
            forecaster.predict(known=table[90:115])
        with pytest.raises(ValueError, match="known must begin at"):
            rough(6).fit(y, known=table[11:])


def test_an_index_of_numbers_says_which_steps_these_are():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    y = pd.Series(seasonal(240), name="y")
    known = pd.DataFrame({"price": np.arange(240) % 3})
    forecaster = rough(6, season=12).fit(y[15:228], known=known)
    found = forecaster.predict()
    np.testing.assert_array_equal(found.times, range(228, 234))
    np.testing.assert_array_equal(found.steps, range(213, 219))
    np.testing.assert_array_equal(found.to_frame().index, found.times)
    for other in (
        rough(6, season=12).fit(y[15:228], known=known[15:]).predict(),
        forecaster.predict(y[15:228], known=known),
        forecaster.predict(y[15:228].to_numpy(), known=known[15:].to_numpy()),
        forecaster.predict(y[110:228], known=known),
    ):
        np.testing.assert_allclose(other.mean, found.mean, rtol=1e-5)
        np.testing.assert_array_equal(other.times, found.times)
    np.testing.assert_array_equal(found.crps(y[228:234]), found.crps(y[228:234].to_numpy()))
    with pytest.raises(ValueError, match=r"y has the times 100 to 105, and the forecast is for 228 to 233.*to_numpy"):
        found.crps(y[100:106])
    with pytest.raises(ValueError, match=r"known must begin at 228, got 0.*to_numpy"):
        forecaster.predict(known=known[228:].reset_index(drop=True))
    with pytest.raises(ValueError, match="the numbers of y grow by 2, and those of fit by 1"):
        forecaster.predict(y[::2], known=known[::2])
    with pytest.raises(ValueError, match="y must have times if that of fit had them"):
        forecaster.predict(y[:216].set_axis(pd.date_range("2020", periods=216)), known=known)
    array = rough(6, season=12).fit(y[:216].to_numpy(), known=known)  # steps of arrays count from 0
    np.testing.assert_array_equal(array.predict(y[:216], known=known).mean, array.predict().mean)
    with pytest.raises(ValueError, match=r"the index of y begins at 105, and that of fit had none: give an array"):
        array.predict(y[105:216], known=known)
    years = pd.Series(seasonal(60), range(1964, 2024))
    assert rough(3).fit(years).predict().to_frame().index.tolist() == [2024, 2025, 2026]
    np.testing.assert_array_equal(rough(3).fit(years.to_numpy(), times=years.index).predict().times, [2024, 2025, 2026])
    beside = rough(6).fit(y[:216].set_axis(pd.date_range("2020", periods=216)), known=known)
    assert np.isfinite(beside.predict(known=known[:6]).mean).all()  # numbers say nothing of dates


@pytest.mark.parametrize(
    ("learnt", "given", "message"),
    [
        (None, "UTC", "the times of y have the time zone UTC, and those of fit have no time zone: use tz_localize"),
        ("UTC", None, "the times of y have no time zone, and those of fit have the time zone UTC: use tz_localize"),
        ("UTC", "Asia/Tokyo", "the times of y have the time zone Asia/Tokyo, and those of fit .* UTC: use tz_convert"),
    ],
)
def test_another_time_zone_is_refused(learnt, given, message):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    y = pd.Series(Y, pd.date_range("2020-01-01", periods=100, freq="D"))
    with pytest.raises(ValueError, match=message):
        quick(6, epochs=2).fit(y.tz_localize(learnt)).predict(y.tz_localize(given))


def test_a_season_may_be_an_array_without_dimensions():
    options = {"horizon": 2, "hidden_layer_sizes": (), "n_folds": 2, "n_networks": 2, "epochs": 1, "random_state": 0}
    learnt = [Forecaster(season=season, **options).fit(np.arange(40.0) % 4) for season in (4, np.array(4))]
    assert [forecaster.season_ for forecaster in learnt] == [4, 4]
    np.testing.assert_array_equal(*[forecaster.predict().mean for forecaster in learnt])

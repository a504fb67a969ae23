"""Missing values, in series and in covariates."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting import Forecaster
from tests.forecasting.test_forecaster import driven, quick, seasonal


def test_gaps_are_bridged():
    y = seasonal(600, noise=0.05)
    rng, gappy = np.random.default_rng(0), y.copy()
    gappy[rng.random(600) < 0.2] = np.nan
    gappy[200:260] = np.nan  # whole windows
    gappy[587:589] = np.nan
    found = quick(6, season=12).fit(gappy[:590]).predict()
    assert np.sqrt(np.mean((found.mean - y[590:596]) ** 2)) < 0.3  # of a season of 0.7
    every_second = np.where(np.arange(300) % 2, np.nan, seasonal(300))
    assert np.isfinite(quick(3).fit(every_second).predict().mean).all()
    ended = np.stack([y, np.where(np.arange(600) < 500, y, np.nan)], 1)
    forecast = quick(6).fit(ended).predict()
    assert np.isfinite(forecast.mean[:, 0]).all()
    for numbers in (forecast.mean, forecast.std, forecast.quantile(0.9), forecast.sample(2, 0)[0]):
        assert np.isnan(numbers[:, 1]).all()


def test_gaps_cost_little():
    """Values between two others are interpolated."""
    months, rng = np.arange(180), np.random.default_rng(0)
    y = 10 * np.sin(2 * np.pi * months / 12) + 0.2 * months + rng.normal(size=180)
    gappy = np.where(rng.random(180) < 0.2, np.nan, y)
    found = Forecaster(6, season=12, random_state=0).backtest(gappy, start=0.8, stride=2)
    errors = y[[forecast.steps for forecast in found.forecasts]] - [forecast.mean for forecast in found.forecasts]
    assert np.sqrt(np.mean(errors**2)) < 1.4


def test_values_that_are_missing_at_the_end_are_forecast():
    week = np.array([0, 5, 10, 20, 60, 90, 40])
    y = 200 + week[np.arange(520) % 7] + 3 * np.random.default_rng(0).normal(size=520)
    forecaster, ends = quick(7, season=7).fit(y[:400]), range(400, 510, 5)
    truth = np.array([y[end : end + 7] for end in ends])

    def forecasts(missing, first=0):
        gappy = [np.where(np.arange(first, end) < end - missing, y[first:end], np.nan) for end in ends]
        return [forecaster.predict(past) for past in gappy]

    for missing in (0, 1, 3, 5, 7, 12):
        found = forecasts(missing)
        assert np.sqrt(np.mean((np.array([one.mean for one in found]) - truth) ** 2)) < 3.6
        assert 0.8 < np.mean([one.coverage(y, 0.9) for one, y in zip(found, truth, strict=True)]) < 1
    past = np.where(np.arange(forecaster.lags_) < forecaster.lags_ - 3, y[7 : 7 + forecaster.lags_], np.nan)
    short = forecaster.predict(past)  # as long as a window: what is before the last known value is cut off
    np.testing.assert_allclose(short.mean, 200 + week[(7 + forecaster.lags_ + np.arange(7)) % 7], atol=6)


@pytest.mark.parametrize("seed", [1, 4])
def test_long_gaps_at_the_end_of_a_walk_do_not_explode(seed):
    y = np.exp(0.1 * np.cumsum(np.random.default_rng(seed).normal(size=500)))
    forecaster = quick(1, lags=64, epochs=10).fit(y)
    for missing in (20, 60):
        forecast = forecaster.predict(np.where(np.arange(500) < 500 - missing, y, np.nan))
        last = y[499 - missing]
        assert last / 5 < forecast.mean[0] < 5 * last and forecast.quantile(0.95)[0] < 30 * last


def test_a_missing_value_is_that_of_the_line_between_its_neighbours():
    y = np.cumsum(np.cumsum(np.random.default_rng(0).normal(size=300)))
    forecaster = quick(3, lags=4).fit(y[:297])
    gappy = np.where(np.arange(297) == 295, np.nan, y[:297])
    by_hand = np.where(np.isnan(gappy), (y[294] + y[296]) / 2, gappy)
    np.testing.assert_allclose(forecaster.predict(gappy).mean, forecaster.predict(by_hand).mean, rtol=1e-5)


def test_missing_values_widen_the_error_bars():
    walk = np.cumsum(np.random.default_rng(0).normal(size=800))
    forecaster = quick(2).fit(walk)
    for age in (1, 3, 6):
        ended = np.where(np.arange(800) < 800 - age, walk, np.nan)
        expected = forecaster.predict().std * np.sqrt([1 + age, 1 + age / 2])
        np.testing.assert_allclose(forecaster.predict(ended).std, expected, rtol=0.15)
    table = np.stack([walk, ended], 1)  # one with, and one without the last value
    std = quick(2).fit(np.stack([walk, walk], 1)).predict(table).std
    assert np.all(std[:, 1] > 1.7 * std[:, 0])
    y, price = driven()
    gappy = np.where(np.random.default_rng(0).random(price.shape) < 0.4, np.nan, price)
    for learnt in (price, gappy):
        std = quick(2).fit(y, known=learnt).predict(known=[[np.nan], [0]]).std
        assert 1.5 < std[0] < 2.5 and std[1] < 0.8 * std[0]

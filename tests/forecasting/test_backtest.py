"""Backtests: what they see, and their scores."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting import Forecaster

RNG = np.random.default_rng(0)
Y = np.sin(np.arange(160) / 2) + 0.1 * RNG.normal(size=160)


def quick(**options):
    some = {"epochs": 5, "n_folds": 2, "n_networks": 2, "hidden_layer_sizes": (), "random_state": 0}
    return Forecaster(4, **some | options)


@pytest.mark.parametrize("refit", [None, 2])
def test_nothing_of_the_future_is_seen(refit):
    weather = RNG.normal(size=(160, 1))
    plain = quick().backtest(Y, observed=weather, stride=5, refit=refit)
    steps = np.array([forecast.steps[0] for forecast in plain.forecasts])
    np.testing.assert_array_equal(steps, np.arange(112, 157, 5))
    at = 4
    other, storm = Y.copy(), weather.copy()
    other[steps[at] :], storm[steps[at] :] = -99, 99
    changed = quick().backtest(other, observed=storm, stride=5, refit=refit)
    for k, (one, two) in enumerate(zip(plain.forecasts, changed.forecasts, strict=True)):
        same = np.array_equal(one.mean, two.mean) and np.array_equal(one.std, two.std)
        assert same == (k <= at)
    np.testing.assert_array_equal(plain.truth[0], Y[112:116])


def test_forecasts_are_those_of_a_forecaster_that_was_fitted_at_the_origin():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    y = pd.DataFrame({"a": Y, "b": Y[::-1]}, pd.date_range("2020-01-01", periods=160, freq="MS"))
    known = RNG.normal(size=160)
    found = quick().backtest(y, known=known, start=0.8, stride=10, refit=1)
    assert len(found.forecasts) == 3 and found.truth.shape == (3, 4, 2)
    for forecast in found.forecasts:
        seen = forecast.steps[0]
        alone = quick().fit(y[:seen], known=known[:seen]).predict(known=known[seen : seen + 4])
        np.testing.assert_allclose(forecast.mean, alone.mean, rtol=1e-5)
        np.testing.assert_array_equal(forecast.times, alone.times)
        assert forecast.names == ["a", "b"]


def test_scores():
    y = np.stack([Y, 100 * Y], 1)
    y[150, 0] = np.nan
    found = quick().backtest(y, stride=4)
    errors = found.truth - np.stack([forecast.mean for forecast in found.forecasts])
    assert np.isnan(errors).sum() == 1
    assert found.rmse() == pytest.approx(np.sqrt(np.nanmean(errors**2)))
    for by, axes in (("origin", (1, 2)), ("step", (0, 2)), ("series", (0, 1))):
        np.testing.assert_allclose(found.rmse(by), np.sqrt(np.nanmean(errors**2, axes)))
        assert found.crps(by=by).shape == found.coverage(by=by).shape == found.rmse(by).shape
    np.testing.assert_allclose(found.crps("series")[1], 100 * found.crps("series")[0], rtol=0.5)
    low, high = found.forecasts[2].interval(0.5)
    inside = (low <= found.truth[2]) & (found.truth[2] <= high)
    assert found.coverage(0.5, "origin")[2] == pytest.approx(inside.mean())
    summary = found.summary()
    assert summary.keys() == {"rmse", "crps", "bias", "coverage_50", "coverage_90"}
    assert summary["bias"] == pytest.approx(np.nanmean(errors)) and summary["crps"] == found.crps()
    with pytest.raises(ValueError, match=r"by must be None or one of \['origin', 'step'\], got 'series'"):
        quick().backtest(Y).rmse("series")


def test_scaled_errors_have_no_unit():
    y = np.stack([Y, 1e6 * Y, np.full(160, 3.0)], 1)
    y[[20, 150], 0] = np.nan
    found = quick(season=12).backtest(y, stride=4)
    past = y[:112]
    scale = np.nanmean(np.abs(past[12:] - past[:-12]), 0)
    assert found.season == 12 and scale[2] == 0
    errors = np.abs(found.errors)
    np.testing.assert_allclose(found.mae("series"), np.nanmean(errors, (0, 1)))
    np.testing.assert_allclose(found.mase("series")[:2], found.mae("series")[:2] / scale[:2])
    assert np.isnan(found.mase("series")[2])
    assert found.mase() == pytest.approx(np.nanmean(errors[..., :2] / scale[:2])) and found.mase("step").shape == (4,)
    one = quick(season=12).backtest(Y)
    assert one.mase() == pytest.approx(one.mae() / np.abs(Y[12:112] - Y[:100]).mean())
    assert np.isnan(quick(season=120).backtest(Y).mase())  # the past is shorter than a season


def test_a_table_of_all_forecasts():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pd.date_range("2020-01-01", periods=160, freq="h", tz="Europe/Berlin")
    found = quick().backtest(pd.Series(Y, index), stride=10)
    table = found.to_frame()
    assert list(table.columns) == ["origin", "step", "time", "observed", "mean", "std", "0.05", "0.5", "0.95"]
    assert len(table) == found.truth.size and table["origin"].tolist()[:5] == [111] * 4 + [121]
    assert table["step"].tolist()[:5] == [1, 2, 3, 4, 1]
    assert (table["time"] == index[table["origin"] + table["step"]]).all()
    np.testing.assert_array_equal(table["observed"], Y[table["origin"] + table["step"]])
    np.testing.assert_array_equal(table["mean"], np.ravel([forecast.mean for forecast in found.forecasts]))
    two = quick().backtest(np.stack([Y, -Y], 1), stride=10)
    table = two.to_frame()
    assert list(table.columns)[:4] == ["origin", "step", "series", "observed"] and len(table) == two.truth.size
    second = table[table["series"] == 1]
    np.testing.assert_array_equal(second["observed"], -Y[second["origin"] + second["step"]])
    np.testing.assert_array_equal(second["0.95"], np.ravel([f.quantiles[0.95][:, 1] for f in two.forecasts]))


def test_the_first_forecast_is_at_a_time():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pd.date_range("2020-01-01", periods=160, freq="D")
    zoned, periods = index.tz_localize("Asia/Tokyo"), index.to_period()
    for times, start in (
        (index, "2020-05-20"),
        (index, index[140]),
        (index, index[140].date()),
        (periods, index[140]),
        (zoned, "2020-05-20"),
        (zoned, zoned[140]),
        (zoned, zoned[140].tz_convert("UTC")),
        (pd.RangeIndex(1000, 1160), 1140),
    ):
        found = quick(epochs=2).backtest(pd.Series(Y, times), start=start)
        assert [forecast.steps[0] for forecast in found.forecasts] == [140, 144, 148, 152, 156]
    for times, start, message in (
        (index, 140, "start must be a date, as the times of y; got 140"),
        (index, "soon", "start must be a date, as the times of y: "),
        (index, zoned[140], "start has the time zone Asia/Tokyo, and the times of y have none"),
        (pd.RangeIndex(160), "2020-05-20", "start must be a whole number, as the times of y; got '2020-05-20'"),
        (index, "2021-01-01", "no forecast of 4 steps fits after the first 160 of 160"),
        (index, "2019-01-01", "y is too short"),
    ):
        with pytest.raises(ValueError, match=message):
            quick().backtest(pd.Series(Y, times), start=start)


def test_origins_without_a_value_before_them_do_not_count():
    y = Y.copy()
    y[115:135] = np.nan
    found = quick().backtest(y, stride=1)
    missing = np.isnan([forecast.mean[0] for forecast in found.forecasts])
    assert 5 < missing.sum() < 15
    assert np.isfinite(list(found.summary().values())).all()
    assert np.isnan(found.rmse("origin")).sum() == (np.isnan(found.errors).all(1)).sum() > 0


def test_a_forecaster_is_not_changed():
    forecaster = quick().fit(Y)
    before = forecaster.predict().mean
    forecaster.backtest(Y + 7)
    np.testing.assert_array_equal(forecaster.predict().mean, before)


def test_a_backtest_of_an_array_begins_at_a_number():
    found = quick().backtest(Y, start=140)
    assert found.forecasts[0].steps[0] == 140
    np.testing.assert_array_equal(found.forecasts[0].mean, quick().backtest(Y, start=140 / 160).forecasts[0].mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1.5}, "start is the part of y that is learnt first, between 0 and 1, or .* step .* got 1.5"),
        ({"start": 0}, "start is the part of y .* step that is forecast, got 0"),
        ({"start": "2020-01-01"}, "start is the part of y .* step that is forecast, got '2020-01-01'"),
        ({"start": 0.99}, "no forecast of 4 steps fits after the first 158 of 160 time steps"),
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"refit": 0}, "refit must be at least 1, got 0"),
        ({"start": 0.05}, r"before an origin \(start=\), after 8 time steps, y is too short"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quick().backtest(Y, **options)

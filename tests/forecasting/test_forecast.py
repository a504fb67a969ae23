"""What a forecast says of each step, of paths, and how it is scored."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting import Forecaster
from pytagi_ddp.forecasting.counts import CountPrediction
from pytagi_ddp.forecasting.forecast import FAMILIES, Forecast
from pytagi_ddp.forecasting.model import correlations
from pytagi_ddp.forecasting.series import read

M, STD = np.array([[1.0, 2.0], [1.5, 0.0], [2.0, -1.0]]), np.array([[0.5, 1.0], [0.6, 2.0], [0.8, 3.0]])
CORRELATION = np.array([[1, 0.6, 0.3], [0.6, 1, 0.5], [0.3, 0.5, 1]])


def forecast(family="Gaussian", flat=False):
    panel = read(np.arange(10.0) if flat else np.arange(20.0).reshape(10, 2), "y")
    m, std = (M[:, :1], STD[:, :1]) if flat else (M, STD)
    return Forecast(m, std, CORRELATION, family, (0.1, 0.9), panel, 9, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_paths_have_the_stated_moments(family):
    found = forecast(family, flat=True)
    paths = found.sample(100_000, seed=0)
    assert paths.shape == (100_000, 3)
    np.testing.assert_allclose(paths.mean(0), found.mean, rtol=0.02)
    np.testing.assert_allclose(paths.std(0), found.std, rtol=0.05)
    discrete, log = found.discrete, family == "log-normal"
    np.testing.assert_allclose(
        np.corrcoef((np.log(paths) if log else paths).T), CORRELATION, atol=0.02 + 0.1 * discrete
    )
    for q in (0.05, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(paths, q, 0), found.quantile(q), rtol=0.03, atol=0.02)
        if discrete:
            assert (found.cdf(found.quantile(q)) >= q).all() and (found.cdf(found.quantile(q) - 1) < q).all()
        else:
            np.testing.assert_allclose(found.cdf(found.quantile(q)), q)
    np.testing.assert_array_equal(found.sample(5, seed=3), found.sample(5, seed=3))


@pytest.mark.parametrize(("mean", "variance"), [(0.45, 1.5), (20, 25), (3, 3.05), (90, 2000), (500, 505.5), (2, 400)])
def test_counts_are_negative_binomial(mean, variance):
    from scipy.stats import nbinom  # here, as it takes half a second

    p = mean / variance
    true, found = nbinom(mean * p / (1 - p), p), CountPrediction(np.full(3, mean * 1.0), np.full(3, variance * 1.0))
    y, all_counts = np.array([0, mean // 1, 3 * mean // 1 + 2]), np.arange(100_000)
    np.testing.assert_allclose(found.log_prob(y), true.logpmf(y), rtol=1e-9)
    np.testing.assert_allclose(found.cdf(y), true.cdf(y), rtol=1e-9)
    np.testing.assert_array_equal(found.log_prob([-1, 0.5, np.nan]), [-np.inf, -np.inf, np.nan])
    for q in (1e-6, 0.3, 0.9, 1 - 1e-6):
        np.testing.assert_array_equal(found.quantile(q), true.ppf(q))
    scores = [((true.cdf(all_counts) - (all_counts >= value)) ** 2).sum() for value in y]
    np.testing.assert_allclose(found.crps(y), scores, rtol=2e-3)


def test_counts_have_a_mean_above_0_and_more_variance_than_a_poisson_distribution():
    at_0 = CountPrediction(np.array([0.0, -1.0]), np.zeros(2))
    np.testing.assert_allclose([at_0.quantile(0.9), at_0.crps([0, 0]), at_0.crps([2, 2]) - 2], 0, atol=1e-6)
    found = CountPrediction(np.array([-1.0, 4.0, np.nan]), np.array([4.0, 1.0, np.nan]))
    np.testing.assert_allclose(found.mean, [0.1, 4, np.nan])
    np.testing.assert_allclose(found.variance, [4, 4.04, np.nan])
    assert np.isnan([found.quantile(0.5)[2], found.sample(1, 0)[0, 2], found.crps([0, 0, 0])[2]]).all()


def test_paths_of_series_are_independent():
    paths = forecast().sample(50_000, seed=0)
    assert paths.shape == (50_000, 3, 2)
    np.testing.assert_allclose(paths.mean(0), M, atol=0.04)
    np.testing.assert_allclose(paths.std(0), STD, rtol=0.02)
    assert abs(np.corrcoef(paths[:, 0, 0], paths[:, 0, 1])[0, 1]) < 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranked_score_is_that_of_the_quantiles(family):
    found, levels = forecast(family, flat=True), (np.arange(4000) + 0.5) / 4000
    for y in ([0.5, 1.5, 9], [-1, 0, 3]):
        errors = np.array(y) - np.stack([found.quantile(q) for q in levels])
        pinball = np.where(errors > 0, levels[:, None] * errors, (levels[:, None] - 1) * errors)
        np.testing.assert_allclose(found.crps(y), 2 * pinball.mean(0), rtol=0.01)
    assert np.isnan(found.crps([np.nan, 1, 1])).tolist() == [True, False, False]


def test_the_ranked_score_of_a_gaussian_is_the_closed_form():
    from scipy.stats import norm  # here, as it takes half a second

    y = np.array([0.3, 1.5, 4])
    z = (y - M[:, 0]) / STD[:, 0]
    expected = STD[:, 0] * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(forecast(flat=True).crps(y), expected)
    np.testing.assert_allclose(forecast(flat=True).log_prob(y), norm(M[:, 0], STD[:, 0]).logpdf(y))


def test_what_stands_in_it():
    found = forecast()
    np.testing.assert_array_equal(found.mean, M)
    np.testing.assert_allclose(found.variance, STD**2)
    assert found.quantiles.keys() == {0.1, 0.9} and found.times is None
    np.testing.assert_array_equal(found.steps, [10, 11, 12])
    np.testing.assert_array_equal(found.history, np.arange(20).reshape(10, 2))
    low, high = found.interval(0.9)
    np.testing.assert_allclose(high - low, 2 * 1.6448536 * STD)
    pytest.importorskip("pandas", reason="pandas is not installed")
    table = found.to_frame()
    assert table.index.tolist() == [10, 11, 12]
    np.testing.assert_allclose(table[1]["0.9"], found.quantile(0.9)[:, 1])


def test_correlations_of_errors_are_found_and_can_be_drawn_from():
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(5000, 3)) @ np.linalg.cholesky(CORRELATION).T
    np.testing.assert_allclose(correlations(errors), 0.9 * CORRELATION + 0.1 * np.eye(3), atol=0.03)
    errors[rng.random(errors.shape) < 0.6] = np.nan
    found = correlations(errors[:12])  # of few pairs, whose table is not positive definite
    assert np.linalg.eigvalsh(found).min() > 0.05 and np.allclose(np.diag(found), 1)
    np.testing.assert_array_equal(correlations(np.zeros((5, 2))), np.eye(2))


def test_errors_of_a_walk_are_correlated():
    walk = np.cumsum(np.random.default_rng(0).normal(size=600))
    forecaster = Forecaster(4, hidden_layer_sizes=(), n_folds=2, n_networks=2, random_state=0)
    paths = forecaster.fit(walk).predict().sample(20_000, seed=0)
    found = np.corrcoef(paths.T)
    expected = np.sqrt(np.minimum.outer(range(1, 5), range(1, 5)) / np.maximum.outer(range(1, 5), range(1, 5)))
    np.testing.assert_allclose(found, 0.9 * expected + 0.1 * np.eye(4), atol=0.1)
    np.testing.assert_allclose(paths.std(0), np.sqrt([1, 2, 3, 4]), rtol=0.15)


def test_a_picture():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from pytagi_ddp import plot

    ax = plot.figure().add_subplot()
    found = forecast()
    assert found.plot(ax, truth=M, series=1, level=0.8, past=4) is ax
    past, line, truth = ax.lines
    np.testing.assert_array_equal(past.get_xdata(), [6, 7, 8, 9])
    np.testing.assert_array_equal(past.get_ydata(), [13, 15, 17, 19])
    np.testing.assert_array_equal(line.get_xydata(), np.stack([[10, 11, 12], M[:, 1]], 1))
    np.testing.assert_array_equal(truth.get_ydata(), M[:, 1])
    low, high = found.interval(0.8)
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.min() == pytest.approx(low[:, 1].min()) and corners.max() == pytest.approx(high[:, 1].max())
    assert [text.get_text() for text in ax.legend().get_texts()] == ["past", "forecast", "80% interval", "observed"]
    with pytest.raises(ValueError, match=r"forecast needs as many steps, .* got \[3, 3, 3, 3, 2\]"):
        found.plot(ax, truth=M[:2])
    named = plot.figure().add_subplot()
    found.names = ["here", "there"]
    for wrong in ("nowhere", 2):
        with pytest.raises(ValueError, match=rf"series must be one of .*'there'.*, got {wrong!r}"):
            found.plot(named, series=wrong)
    found.plot(named, series="there")
    np.testing.assert_array_equal(named.lines[1].get_ydata(), M[:, 1])


def test_a_picture_has_the_times():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from pytagi_ddp import plot

    months = np.arange("2020-01", "2026-01", dtype="M8[M]")
    y = np.sin(np.arange(72) / 2)
    forecaster = Forecaster(3, hidden_layer_sizes=(), n_folds=2, n_networks=2, epochs=3, lags=6, random_state=0)
    ax = forecaster.fit(y[:66], times=months[:66]).predict().plot(plot.figure().add_subplot(), truth=y[66:69])
    for line, expected in zip(ax.lines, (months[57:66], months[66:69], months[66:69]), strict=True):
        np.testing.assert_array_equal(line.get_xdata(orig=True), expected)


def test_observations_of_other_times_have_no_scores():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    times = pandas.date_range("2020-01-01", periods=13, freq="MS")
    y = pandas.Series(np.arange(13.0), times)
    panel = read(y[:10], "y")
    found = Forecast(M[:, :1], STD[:, :1], CORRELATION, "Gaussian", (), panel, 9, panel.times.extended(3))
    np.testing.assert_array_equal(found.crps(y[10:]), found.crps(y[10:].to_numpy()))
    assert found.coverage(y[10:]) == found.coverage(y[10:].to_numpy())
    for score in (found.crps, found.coverage, found.log_prob, found.cdf):
        with pytest.raises(ValueError, match=r"y has the times 2020-01.* to 2020-03.*, .* for 2020-11"):
            score(y[:3])
    with pytest.raises(ValueError, match="must increase"):
        found.crps(y[:9:-1])
    with pytest.raises(ValueError, match="y have the time zone UTC, and those of the forecast have no time zone"):
        found.crps(y[10:].tz_localize("UTC"))
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from pytagi_ddp import plot

    ax = plot.figure().add_subplot()
    np.testing.assert_array_equal(found.plot(ax, y[10:]).lines[2].get_ydata(), y[10:])
    with pytest.raises(ValueError, match=r"y has the times 2020-01.* to 2020-03.*, .* for 2020-11"):
        found.plot(ax, y[:3])


def test_a_table_has_the_index_of_the_series():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for index in (
        pandas.date_range("2020-01-01", periods=13, freq="MS", name="month"),
        pandas.date_range("2020-01-01", periods=13, freq="D", tz="Asia/Tokyo", name="day"),
        pandas.period_range("2020-01", periods=13, freq="M", name="month"),
        pandas.period_range("2020-01", periods=13, freq="Q", name="quarter"),
        pandas.RangeIndex(1964, 1977, name="year"),
    ):
        panel = read(pandas.Series(np.arange(10.0), index[:10]), "y")
        options = CORRELATION, "Gaussian", (0.5, 0.9999999, 0.99999999, 0.1 + 0.2), panel, 9, panel.times.extended(3)
        table = Forecast(M[:, :1], STD[:, :1], *options).to_frame()
        assert table.index.name == index.name and table.index.inferred_type == index.inferred_type
        assert (table.index == index[10:]).all()
        assert list(table.columns) == ["mean", "std", "0.5", "0.9999999", "0.99999999", "0.3"]

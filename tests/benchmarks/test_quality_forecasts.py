"""The comparison of forecasts, on a series that is made here; statsmodels is not needed."""

import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks.quality import forecasts
from benchmarks.quality.__main__ import SUBJECTS

pd = pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture
def waves(monkeypatch):
    """A season of 4 quarters with noise, in the place of the data sets, and no method of statsmodels."""
    y = 10 * np.sin(np.pi / 2 * np.arange(100)) + np.random.default_rng(0).normal(size=100)
    series = forecasts.Series(pd.Series(y, pd.date_range("1990", periods=100, freq="QS")), 4, 4)
    monkeypatch.setattr(forecasts, "load", lambda: {"waves": series})
    monkeypatch.setattr(forecasts, "find_spec", lambda name: name)
    return series


def test_every_method_has_the_same_origins(waves):
    origins = list(waves.origins())
    assert origins[0] == 70 and origins[-1] == 96 and len(origins) == 27
    seen = []

    def method(y, season, horizon):
        seen.append(len(y))
        return np.zeros(horizon), np.ones(horizon)

    scores = forecasts.scores_of(waves, method)
    assert seen == origins and len(scores.crps) == 27
    truth = np.stack([waves.values[known : known + 4] for known in origins])
    np.testing.assert_allclose(scores.squared, np.mean(truth**2, 1))
    np.testing.assert_allclose(scores.inside, np.mean(np.abs(truth) <= 1.6448536, 1))


def test_the_naive_forecast_is_that_of_a_season_ago(waves):
    mean, std = forecasts.naive(waves.y, 4, 6)
    np.testing.assert_array_equal(mean, [*waves.values[-4:], *waves.values[-4:-2]])
    assert std == pytest.approx(np.full(6, np.sqrt(2)), rel=0.2)


def test_runs_are_done_once_and_reported(waves, tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    run = ["--quick", "--results", str(path), "--method", "seasonal naive"]
    forecasts.main(run)
    forecasts.main([*run, "--method", "Forecaster", "--method", "boosting", "--seed", "3"])
    out = capsys.readouterr().out
    assert out.count("waves, seasonal naive: CRPS") == 1 == out.count("waves, Forecaster: CRPS")
    done = {one["method"]: one for one in map(json.loads, path.read_text().splitlines())}
    assert list(done) == ["seasonal naive", "Forecaster", "boosting"] and done["Forecaster"]["seed"] == 3
    crps = {method: np.mean(one["crps"]) for method, one in done.items()}
    assert 0.4 < crps["Forecaster"] < 1.3 * crps["seasonal naive"] < 1.3 and crps["boosting"] < 2
    assert all(0.7 < np.mean(one["inside"]) <= 1 for one in done.values())
    assert out.count("| waves  | 27      |") == 4 + 4  # the tables of both runs
    forecasts.main(["--report", "--results", str(path)])
    assert "waves" not in capsys.readouterr().out  # nothing but quick runs, which are not a measurement
    assert f" {crps['seasonal naive']:.3f} ± " in out


def test_without_statsmodels_a_message_says_so(monkeypatch):
    monkeypatch.setattr(forecasts, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="those of statsmodels: pip install statsmodels"):
        forecasts.main([])
    assert "forecasts" in SUBJECTS


def test_an_unknown_series_is_named(waves, capsys):
    with pytest.raises(SystemExit):
        forecasts.main(["--series", "tides"])
    assert "there is no series tides; there are waves" in capsys.readouterr().err

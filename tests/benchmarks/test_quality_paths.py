"""Forecasts by paths of an LSTM: the series, the scores, and a small run."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the sklearn extra is not installed")

from benchmarks.quality import paths
from benchmarks.quality.paths import main, make_series, score


def test_series_are_standardised():
    series, same = make_series(480), make_series(480, seed=1)
    assert abs(series.signal[:240].mean()) < 1e-5 and abs(series.signal[:240].std() - 1) < 1e-5
    np.testing.assert_array_equal(series.signal, same.signal)
    assert abs(np.std(series.y - series.signal) / series.noise - 1) < 0.1


def test_weather_is_correlated_over_time():
    weather, calm = make_series(4800, noise=0, weather=0.2).signal, make_series(4800, noise=0, weather=1e-9).signal
    x = weather - np.polyval(np.polyfit(calm, weather, 1), calm)  # both are standardised
    assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(0.9, abs=0.03)


def test_scores_are_those_of_the_normal_distribution():
    y = np.array([0.0, np.nan, 3.0])
    found = score(np.zeros(3), np.full(3, 4.0), y)
    assert found.rmse == pytest.approx(np.sqrt(4.5)) and found.coverage == 1
    assert found.log_likelihood == pytest.approx(np.mean(-0.5 * np.log(8 * np.pi) - np.array([0, 9]) / 8))


@pytest.mark.slow
def test_paths_know_how_uncertain_they_are(monkeypatch, capsys):
    few = {"n_folds": 2, "n_networks": 2, "hidden_layer_sizes": ()}
    monkeypatch.setattr(paths, "Forecaster", partial(paths.Forecaster, **few))
    found = main(["--steps", "700", "--epochs", "3", "--paths", "20", "--seeds", "1"])
    assert all(rmse < 1 for rmse, _, _ in found.values())
    assert found["paths"][2] > 0.8
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(found)

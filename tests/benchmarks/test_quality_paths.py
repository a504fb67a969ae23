"""Forecasts by paths of an LSTM: scores, and a small run."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the sklearn extra is not installed")

from benchmarks.quality import paths
from benchmarks.quality.paths import main, score


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

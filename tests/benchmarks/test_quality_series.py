"""The forecasting programs of pytagi and Canari: their series, their scores, and what is left out."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks.quality import series
from benchmarks.quality.done import read


def test_the_series_are_the_published_ones():
    train, test = series.daily_sine()
    assert (len(train), len(test)) == (924, 232)
    np.testing.assert_allclose(train[:2], [5.02064341514581, 5.106649859240599], rtol=0, atol=1e-12)
    published = [4.047653144672138, 3.9633584054522553, 3.87937044195536, 9.27075570165766]
    np.testing.assert_allclose(test[[0, 1, 2, -1]], published, rtol=0, atol=1e-12)
    y = series.hourly_sine()
    np.testing.assert_allclose(y[[0, 1, 2, 6, -1]] * 215, [0, 2 - 0.26 * 215, 4 - 107.5, 12 - 215, 430 + 0.26 * 215])
    np.testing.assert_allclose(np.diff(y.reshape(-1, 24), axis=0), 48 / 215)


def test_runs_are_done_once_and_score_as_with_pytagi(tmp_path, capsys):
    """pytagi 0.2.1 recorded what is expected of seeds 1 and 2."""
    path = tmp_path / "done.jsonl"
    run = ["--job", "pytagi's", "--results", str(path)]
    series.main([*run, "--seed", "2"])
    series.main([*run, "--seed", "1", "2"])
    out = capsys.readouterr().out
    assert out.count("seed 2: MSE") == 1 == out.count("seed 1: MSE")
    done = {one["seed"]: one for one in read(path)}
    for seed, mse, log_likelihood in ((1, 0.5032499, -1.7792293), (2, 0.5916660, -1.7919717)):
        assert done[seed]["mse"] == pytest.approx(mse, rel=1e-3)
        assert done[seed]["log_likelihood"] == pytest.approx(log_likelihood, abs=1e-3)
    mean = np.mean([one["mse"] for one in done.values()])
    assert f"| pytagi's         | pytagi_ddp |     2 | {mean:.5f} ±" in out
    assert "Canari's with pytagi." in out and "noise to 0.01 with pytagi;" not in out


def test_windows_are_learnt():
    """Better than the mean of what was learnt, by which the error would be 12.5 and more."""
    assert series.by_windows("pytagi_ddp", seed=1, epochs=2)["mse"] < 0.5


def test_persistence_is_the_density_of_the_last_value():
    from scipy.stats import norm  # here, as it takes half a second

    train, test = series.daily_sine()
    density = norm(test[:-1], np.sqrt(np.mean(np.diff(train) ** 2))).logpdf(test[1:]).mean()
    assert series.persistence()["log_likelihood"] == pytest.approx(density)
    assert series.persistence()["mse"] == pytest.approx((5 * 2 * np.pi / 365.24) ** 2 / 2, rel=0.1)


def test_without_canari_its_row_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "pandas", None)  # which canari needs; so nothing is put in pytagi's place
    series.main(["--job", "Canari's", "--results", str(tmp_path / "done.jsonl")])
    out = capsys.readouterr().out
    assert out.count("Canari's, pytagi_ddp: left out: ") == 1
    assert "Canari's with pytagi_ddp" in out.partition("Left out, as there are no runs")[2]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("canari") is None, reason="pycanari is not installed")
def test_canari(tmp_path):
    path = tmp_path / "done.jsonl"
    command = [sys.executable, "-m", "benchmarks.quality", "series", "--job", "Canari's", "--seed", "1", "--results"]
    subprocess.run([*command, str(path)], check=True, timeout=200)
    (one,) = read(path)
    assert one["mse"] < 1e-3 and one["log_likelihood"] > 1

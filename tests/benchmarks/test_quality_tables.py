"""The comparison with trees, on small sets that are made here."""

import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks.quality import tables
from pytagi_ddp.data import RegressionSplits


@pytest.fixture(autouse=True)
def small(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    test = np.arange(60) % 20 == np.arange(20)[:, None]
    x[0] = x[2]  # a test sample of split 0 stands among those to learn from
    data = RegressionSplits("concrete", x, x[:, 0] + 0.1 * rng.normal(size=60), test)
    monkeypatch.setattr(tables, "load_uci", lambda name, folder: data)
    quick = {"epochs": 2, "n_folds": 2, "n_seeds": 1}
    monkeypatch.setattr(tables, "VARIANTS", {name: quick | options for name, options in tables.VARIANTS.items()})


def test_models_learn_the_same_splits_and_are_reported(tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    run = ["--set", "concrete", "--results", str(path), "--model", "TAGI", "--model", "ExtraTrees", "--splits", "0"]
    tables.main([*run, "--task", "regression"])
    tables.main([*run, "1", "--task", "regression"])
    done = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["split"], one["model"]) for one in done] == [
        (k, model) for k in (0, 1) for model in ("TAGI", "ExtraTrees")
    ]
    ours, trees = done[:2]
    assert 0 <= ours["coverage"] <= 1 and "log_likelihood" not in trees
    assert trees["rmse"] != trees["rmse_new"] and done[3]["rmse"] == done[3]["rmse_new"]
    out = capsys.readouterr().out
    mean = np.mean([one["rmse"] for one in done if one["model"] == "ExtraTrees"])
    assert "| set      | splits |" in out and f"{mean:.3f} ±" in out and "RMSE without test samples" in out


def test_classes(tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    run = ["--task", "classes", "--set", "iris", "--set", "concrete", "--results", str(path), "--splits", "0"]
    tables.main([*run, "--model", "TAGI", "--model", "logistic", "--model", "TAGI, sigma_v"])
    done = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(done) == 6 and all(0 <= one["error"] <= 1 and one["log_loss"] > 0 for one in done)
    assert "classes: log loss" in capsys.readouterr().out

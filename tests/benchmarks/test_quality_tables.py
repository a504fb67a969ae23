"""The comparison with trees, on small sets that are made here."""

import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks.quality import tables
from benchmarks.quality.__main__ import main as subjects
from benchmarks.quality.published import PRINTED, SOURCES, published
from pytagi_ddp.data import RegressionSplits
from pytagi_ddp.data.uci import UCI_SETS


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
    path.write_text(path.read_text() + '{"cut short')
    tables.main([*run, "1", "--task", "regression"])
    assert "a line that is not JSON is left out" in capsys.readouterr().out
    tables.main([*run, "1", "--task", "regression", "--model", "TAGI, Gaussian", "--model", "TAGI, one hidden layer"])
    done = [json.loads(line) for line in path.read_text().splitlines() if "cut short" not in line]
    assert [(one["split"], one["model"]) for one in done] == [
        *((k, model) for k in (0, 1) for model in ("TAGI", "ExtraTrees")),
        *((k, f"TAGI, {part}") for k in (0, 1) for part in ("Gaussian", "one hidden layer")),
    ]
    ours, trees = done[:2]
    assert 0 <= ours["coverage_50"] <= ours["coverage"] <= ours["coverage_95"] <= 1 and "log_likelihood" not in trees
    assert trees["rmse"] != trees["rmse_new"] and done[3]["rmse"] == done[3]["rmse_new"]
    out = capsys.readouterr().out
    mean = np.mean([one["rmse"] for one in done if one["model"] == "ExtraTrees"])
    assert "| set      | splits |" in out and f"{mean:.3f} ±" in out and "RMSE without test samples" in out
    assert "one part changed: RMSE / mean log-likelihood" in out
    ours = np.mean([one["rmse"] for one in done if one["model"] == "TAGI"])
    at = out.index("RMSE, compared with published results")
    assert f"{ours:.3f} ±" in out[at:] and "6.03 ± 0.13" in out[at:]  # of deep ensembles: 0.58 over 20 splits


def test_classes(tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    run = ["--task", "classes", "--set", "iris", "--set", "concrete", "--results", str(path), "--splits", "0"]
    tables.main([*run, "--model", "TAGI", "--model", "logistic", "--model", "TAGI, sigma_v"])
    done = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(done) == 6 and all(0 <= one["error"] <= 1 and one["log_loss"] > 0 for one in done)
    assert "classes: log loss" in capsys.readouterr().out


def test_published_figures_are_complete():
    assert set(SOURCES) == set(PRINTED)
    for method in PRINTED:
        assert PRINTED[method].count("|") == len(UCI_SETS) - 1
        for name in UCI_SETS:
            rmse, rmse_error, _, error = published(method, name, 20)
            assert 0 <= rmse_error < rmse + 0.01 and 0 <= error < 0.2
    assert published("PBP", "yacht", 20) == (1.02, 0.05, -1.63, 0.02)
    assert published("TAGI", "bostonHousing", 1) == (3.146, 0.910, -2.578, 0.327)
    assert published("deep ensembles", "naval-propulsion-plant", 20)[2] == 5.63


def test_subjects_are_listed(capsys):
    subjects(["--help"])
    assert "tables      regression and classes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"usage: python -m benchmarks\.quality SUBJECT"):
        subjects(["other"])

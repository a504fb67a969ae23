"""The comparison on the UCI sets, on a small one that is made here."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks.quality import uci
from benchmarks.quality.__main__ import main as subjects
from benchmarks.quality.done import read
from benchmarks.quality.published import PRINTED, SOURCES, published
from pytagi_ddp.data import RegressionSplits
from pytagi_ddp.data.uci import UCI_SETS


@pytest.fixture
def yachts(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    test = np.arange(60) % 20 == np.arange(20)[:, None]
    data = RegressionSplits("yacht", x, x[:, 0] + 0.1 * rng.normal(size=60), test)
    monkeypatch.setattr(uci, "load_uci", lambda name, folder: data)


def test_splits_are_done_once_and_reported(yachts, tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    run = ["--quick", "--set", "yacht", "--results", str(path)]
    uci.main([*run, "--splits", "0", "1"])
    path.write_text(path.read_text() + '{"cut short')
    capsys.readouterr()
    uci.main([*run, "--splits", "0", "1", "3", "--variant", "recipe", "--variant", "Gaussian"])
    out = capsys.readouterr().out
    assert "a line that is not JSON is left out" in out
    assert [line.split(":")[0] for line in out.splitlines() if ": RMSE" in line] == [
        "recipe yacht 3",
        *(f"Gaussian yacht {k}" for k in (0, 1, 3)),
    ]
    done = read(path)
    assert len(done) == 6 and all(0 <= share <= 1 for one in done for share in one["coverage"])
    mean = np.mean([one["rmse"] for one in done if one["variant"] == "recipe"])
    assert f"| yacht | 3      | {mean:.3f} ±" in out
    assert "1.58 ± 0.11" in out  # of deep ensembles: a standard deviation of 0.48 over 20 splits
    assert "| yacht | 3      | " in out[out.index("on the splits that every variant has") :]
    uci.main(["--report", "--results", str(path)])
    assert "yacht" not in capsys.readouterr().out  # nothing but quick runs, which are not a measurement
    uci.main([*run, "--splits", "19", "--variant", "one hidden layer"])
    assert read(path)[-1]["split"] == 19


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
    assert "uci         nine regression sets" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"usage: python -m benchmarks\.quality SUBJECT"):
        subjects(["other"])

"""Ranks whose data differ: together they know what none knows alone."""

import importlib.util

import pytest

from examples.federated import main, parse_arguments


def test_together_they_know_what_none_knows_alone(tmp_path, capsys):
    picture = tmp_path / "federated.png"
    found = main(["--quick", "--plot", str(picture)])
    alone, together = [way for name, way in found.items() if "alone" in name], found["precision_weighted, every 20"]
    assert len(alone) == 3 and together.rmse < 0.4 * min(way.rmse for way in alone)
    assert together.log_likelihood > max(way.log_likelihood for way in alone) + 0.8
    assert together.log_likelihood > found["average of every step"].log_likelihood
    assert together.rmse < found["mean, every 20"].rmse
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("precision_weighted"))
    assert line.split()[3] == f"{together.rmse:.3f}"
    assert picture.exists() == bool(importlib.util.find_spec("matplotlib"))


def test_bad_options(capsys):
    for options in (["--every", "1"], ["--epochs", "0"]):
        with pytest.raises(SystemExit):
            main(options)
        assert "must be at least" in capsys.readouterr().err


def test_a_quick_run_takes_the_options_that_are_given():
    args = parse_arguments(["--quick", "--samples", "7"])
    assert (args.samples, args.epochs) == (7, 4)

"""Programs that follow a run are told what the log is."""

import sys
from types import SimpleNamespace

import pytest

from examples.options import parse_arguments
from examples.run_log import RunLog

EPOCH = {"epoch": 3, "train_error": 0.5, "test_error": 0.25}


class Calls(list):
    """Takes down every call of every method."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.append((name, args, kwargs)) or self


def test_tensorboard(tmp_path, monkeypatch):
    calls = Calls()
    monkeypatch.setitem(sys.modules, "tensorboardX", calls)
    log = RunLog(tmp_path, track=["tensorboard"])
    log.write("start", ranks=2)
    log.write("epoch", **EPOCH)
    assert calls[0] == ("SummaryWriter", (str(tmp_path),), {})
    assert [call[1] for call in calls if call[0] == "add_text"] == [("start", "ranks=2")]
    scalars = [call[1] for call in calls if call[0] == "add_scalar"]
    assert scalars == [("train_error", 0.5, 3), ("test_error", 0.25, 3)]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_weights_and_biases(tmp_path, monkeypatch):
    calls, config = Calls(), Calls()
    calls.config = config
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: calls))
    log = RunLog(tmp_path, track=["wandb"])
    log.write("start", ranks=2)
    log.write("epoch", **EPOCH)
    log.write("stop", epoch=3)
    assert config == [("update", ({"ranks": 2},), {"allow_val_change": True})]
    assert calls == [("log", ({"train_error": 0.5, "test_error": 0.25},), {"step": 3}), ("finish", (), {})]


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RuntimeError, match="--track needs wandb, which is not installed: pip install wandb"):
        RunLog(tmp_path, track=["wandb"])


def test_options():
    assert parse_arguments(["--track", "wandb", "--track", "tensorboard"]).track == ["wandb", "tensorboard"]
    assert parse_arguments([]).track == []

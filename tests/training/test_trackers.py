"""Programs that follow a training are told what the log is."""

import sys
from importlib.machinery import ModuleSpec

import pytest

from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.training import Log, Tracker
from tests.training.data import LABELS, TEST, X, network


class Calls(list):
    """Takes down every call of every method."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.append((name, args, kwargs)) or self


@pytest.fixture
def calls(monkeypatch):
    """A program of any of these names; returns what is called."""
    found = Calls()
    for name in ("tensorboardX", "wandb", "mlflow"):
        found.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, found)
    return found


def train(folder, name):
    history = network().fit(X, LABELS, epochs=2, validation=TEST, callbacks=[Log(folder, [name], {"width": 16})])
    assert len((folder / "log.jsonl").read_text().splitlines()) == 3
    return [{name: value for name, value in results.items() if name != "epoch"} for results in history]


def test_tensorboard(tmp_path, calls):
    history = train(tmp_path, "tensorboard")
    assert calls[0] == ("SummaryWriter", (str(tmp_path),), {}) and calls[-1][0] == "close"
    assert [call[1] for call in calls if call[0] == "add_text"] == [("start", "ranks=1, parameters=99, width=16")]
    scalars = [call[1] for call in calls if call[0] == "add_scalar"]
    assert scalars == [(name, value, k) for k, results in enumerate(history, 1) for name, value in results.items()]


def test_weights_and_biases(tmp_path, calls):
    calls.config = config = Calls()
    history = train(tmp_path, "wandb")
    assert config == [("update", ({"ranks": 1, "parameters": 99, "width": 16},), {"allow_val_change": True})]
    assert calls[0] == ("init", (), {"dir": str(tmp_path), "name": tmp_path.name})
    assert calls[1:] == [("log", (results,), {"step": k}) for k, results in enumerate(history, 1)] + [
        ("finish", (), {})
    ]


def test_mlflow(tmp_path, calls):
    history = train(tmp_path, "mlflow")
    assert calls[:2] == [
        ("start_run", (), {"run_name": tmp_path.name}),
        ("log_params", ({"ranks": "1", "parameters": "99", "width": "16"},), {}),
    ]
    metrics = [("log_metrics", (results,), {"step": k}) for k, results in enumerate(history, 1)]
    assert calls[2:] == [*metrics, ("end_run", (), {})]


def test_one_of_your_own_is_closed_whatever_happens(tmp_path):
    class Own(Tracker):
        def __init__(self):
            self.events = []

        def open(self, folder):
            self.events.append(folder)

        def write(self, event, **values):
            self.events.append(event)

        def close(self):
            self.events.append("closed")

    own = Own()
    network().fit(X, LABELS, epochs=1, callbacks=[Log(tmp_path, [own])])
    with pytest.raises(ValueError, match="y must hold classes from 0 to 2"):
        network().fit([(X, LABELS + 1)], likelihood=Categorical(3), callbacks=[Log(tmp_path, [own])])
    assert own.events == [tmp_path, "start", "epoch", "closed", tmp_path, "start", "closed"]


def test_what_is_not_installed_or_known_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="to track by wandb needs wandb, which is not installed: pip install wandb"):
        Log("runs", track=["wandb"])
    with pytest.raises(ValueError, match="track takes 'mlflow', 'tensorboard', 'wandb' or a Tracker, got 'neptune'"):
        Log("runs", track=["neptune"])

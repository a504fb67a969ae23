"""The log of a run and its curves."""

import importlib.util
import json

import pytest

from examples import run_log
from examples.run_log import RunLog


def events(folder):
    return [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_new_run_replaces_the_log_and_a_resumed_one_adds_to_it(tmp_path):
    RunLog(tmp_path).write("start", threads=2, path=None)
    log = RunLog(tmp_path, append=True)
    log.write("epoch", epoch=1)
    assert events(tmp_path) == ["start", "epoch"]
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert (record["threads"], record["path"]) == (2, None)
    RunLog(tmp_path).write("start")
    assert events(tmp_path) == ["start"]


def test_two_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_log.time, "strftime", lambda _: "now")
    assert [str(RunLog(None).folder) for _ in range(3)] == ["runs/now", "runs/now_2", "runs/now_3"]


def test_curves(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    log = RunLog(tmp_path)
    for epoch in (1, 2, 2):  # the second epoch twice: stopped after its log line, and resumed before it
        log.write("epoch", epoch=epoch, train_error=0.5, test_error=0.6)
    assert log.plot() == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_are_no_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    log = RunLog(tmp_path)
    log.write("epoch", epoch=1, train_error=0.5, test_error=0.6)
    assert log.plot() is None
    assert not (tmp_path / "curves.png").exists()

"""The log of a run and its curves."""

import importlib.util
import json
import platform
import re
import time

import pytest

from pytagi_ddp.distributed import run_threads
from pytagi_ddp.plot import MAX_LINE, read_epochs
from pytagi_ddp.training import Callback, Log, Trainer
from pytagi_ddp.training import log as log_module
from pytagi_ddp.training.log import of_ranks
from tests.training.data import LABELS, TEST, WAYS, X, network


def begun(folder, append=False):
    log = Log(folder)
    log.begin(append)
    return log


def events(folder):
    return [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_new_run_keeps_the_log_that_is_there_and_a_resumed_one_adds_to_it(tmp_path):
    begun(tmp_path).write("start", threads=2, path=None)
    log = begun(tmp_path, append=True)
    log.write("epoch", epoch=1)
    assert events(tmp_path) == ["start", "epoch"]
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert (record["threads"], record["path"]) == (2, None)
    begun(tmp_path).write("start")
    assert events(tmp_path) == ["start"]
    begun(tmp_path).write("other")
    assert events(tmp_path) == ["other"]
    kept = [(tmp_path / f"log-{k}.jsonl").read_text().count("event") for k in (1, 2)]
    assert kept == [2, 1] and len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("content", ["mine", None])
def test_a_link_is_no_log(tmp_path, append, content):
    """What it leads to got the lines, or was made."""
    other, folder = tmp_path / "other", tmp_path / "run"
    folder.mkdir()
    if content is not None:
        other.write_text(content)
    (folder / "log.jsonl").symlink_to(other)
    log = begun(folder, append)
    log.write("start")
    assert (other.read_text() if other.exists() else None) == content
    assert events(folder) == ["start"] and (folder / "log-1.jsonl").is_symlink()
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").symlink_to(other)
    with pytest.raises(OSError, match=re.escape(str(folder / "log.jsonl"))):
        log.write("epoch")


def test_a_training_writes_its_settings_and_results(tmp_path):
    history = network().fit(X, LABELS, epochs=2, validation=TEST, callbacks=[Log(tmp_path)])
    started, *epochs = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (started["ranks"], started["parameters"], started["epochs"]) == (1, 16 * 2 + 16 + 3 * 16 + 3, 2)
    assert (started["likelihood"], started["global_batch"]) == ("Categorical(3)", 32)
    assert [{key: epoch[key] for key in history[0]} for epoch in epochs] == history
    assert list(read_epochs(tmp_path / "log.jsonl", ("train_error", "val_error"))) == epochs


class Sleep(Callback):
    """Rank 1 is slow."""

    on_all_ranks = True

    def batch_end(self, trainer):
        time.sleep(0.05 * (trainer.ranks.rank == 1))


@pytest.mark.parametrize("way", ["ddp", "fsdp", "pipeline"])
def test_a_slow_rank_is_named_and_the_waiting_ones_are_not(way, tmp_path):
    def train():
        trainer = Trainer(WAYS[way](network()), epochs=2, batch_size=8, callbacks=[Sleep(), Log(tmp_path)])
        trainer.fit((X, LABELS))

    run_threads(train, 2)
    _, epoch = read_epochs(tmp_path / "log.jsonl", ("train_error",))  # in the first one, kernels are loaded
    fast, slow = epoch["step_seconds"]
    assert slow >= 0.05 > fast
    assert re.fullmatch(rf"rank 1 on {platform.node()} \(\+\d+%\)", epoch["slow_ranks"])


def test_which_ranks_are_slow():
    ranks = [(f"rank {k} on node", seconds) for k, seconds in enumerate((0.1, 0.109, 0.112, 0.1, 0.2))]
    assert of_ranks(ranks)["slow_ranks"] == "rank 4 on node (+83%)"
    assert of_ranks(ranks[:4]) == {"step_seconds": [0.1, 0.109, 0.112, 0.1], "slow_ranks": "rank 2 on node (+12%)"}
    assert of_ranks(ranks[:2]) == {"step_seconds": [0.1, 0.109]}
    assert of_ranks([]) == {}


def test_two_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log_module.time, "strftime", lambda _: "now")
    monkeypatch.setattr(log_module.Path, "exists", lambda _: False)  # as if the other one had come just behind a look
    assert [str(begun(None).folder) for _ in range(3)] == ["runs/now", "runs/now_2", "runs/now_3"]


def test_curves(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    log = begun(tmp_path)
    for epoch in (1, 2, 2):  # the second epoch twice: stopped after its log line, and resumed before it
        log.write("epoch", epoch=epoch, train_error=0.5, test_error=0.6)
    assert log.draw() == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_are_no_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    log = begun(tmp_path)
    log.write("epoch", epoch=1, train_error=0.5, test_error=0.6)
    assert log.draw() is None
    assert not (tmp_path / "curves.png").exists()


EPOCH = {"train_error": 0.5, "test_error": 0.6}


def test_a_line_that_was_cut_short_is_passed_over(tmp_path):
    """A full disk or a kill leaves half a line; the next run begins a new one."""
    log = begun(tmp_path)
    for epoch in (1, 2):
        log.write("epoch", epoch=epoch, **EPOCH)
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    begun(tmp_path, append=True).write("epoch", epoch=3, **EPOCH)
    begun(tmp_path, append=True).write("epoch", epoch=4, **EPOCH)
    assert len(path.read_text().splitlines()) == 4
    assert [record["epoch"] for record in read_epochs(path)] == [1, 3, 4]


def test_lines_of_anything_else_are_passed_over(tmp_path):
    good = json.dumps({"event": "epoch", "epoch": 7, **EPOCH}).encode()
    strange = [
        b"",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"event": "epoch"}',
        b'{"event": "epoch", "epoch": "7", "train_error": 0, "test_error": 0}',
        b'{"event": "epoch", "epoch": 7, "train_error": null, "test_error": 0}',
        b" " * (MAX_LINE + 9) + good,
    ]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([*strange, good, b'{"event": "epo']))
    assert [record["epoch"] for record in read_epochs(tmp_path / "log.jsonl")] == [7, 7]  # one behind many spaces


def test_what_cannot_be_drawn_stops_nothing(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    log = begun(tmp_path)
    log.write("epoch", epoch=10**400, **EPOCH)
    assert log.draw() is None
    (tmp_path / "curves.png").mkdir()
    log = begun(tmp_path)
    log.write("epoch", epoch=1, **EPOCH)
    assert log.draw() is None
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"{tmp_path}/curves.png was not drawn: ") for line in lines] == [True, True]

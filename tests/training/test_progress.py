"""Progress of an epoch: what the lines and the bar say, and that no thread stays behind."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pytagi_ddp.training import Progress
from tests.training.data import LABELS, TEST, X, network


def at(done, error, total=2000, epoch=0):
    """A trainer so far in an epoch."""
    stack = SimpleNamespace(callback=lambda function: None)
    return SimpleNamespace(
        epoch=epoch,
        epochs=2,
        samples_done=done,
        samples_per_epoch=total,
        stack=stack,
        running=lambda: {"nll": 1.0, "error": error},
    )


def test_lines_show_rate_and_time_left(capsys, monkeypatch):
    clock = iter([100.0, 104.0, 110.0, 115.0, 200.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    progress = Progress("lines", unit="images")
    progress.epoch_begin(at(0, 0))
    progress.batch_end(at(400, 0.9))  # after 4 s: too early
    progress.batch_end(at(500, 0.75))
    progress.batch_end(at(600, 0.7))  # 5 s after the line before
    progress.batch_end(at(2000, 0.5))  # the end: the result of the epoch follows
    assert capsys.readouterr().out == "epoch 1/2: 500 of 2,000 images, 50.0 images/s, 0:00:30 left, train error 75.0%\n"


def test_of_an_iterable_nobody_knows_what_is_left(capsys):
    progress = Progress("lines", seconds=0)
    progress.epoch_begin(at(0, 0, None))
    progress.batch_end(at(500, 0.75, None))
    assert "epoch 1/2: 500 samples, " in (out := capsys.readouterr().out) and "left" not in out


def test_bar(capsys):
    before = threading.enumerate()
    progress = Progress("bar")
    progress.epoch_begin(at(0, 0, 50))
    time.sleep(0.2)  # tqdm redraws every 0.1 s
    progress.batch_end(at(20, 0.9, 50))
    assert threading.enumerate() == before
    progress.fit_end(None)
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 1/2:" in err and "20/50" in err and "train error 90.0%" in err
    assert err.rstrip(" \r") != err and err.endswith("\r"), "the bar is wiped out"


def test_a_notebook_gets_all_on_one_stream(capsys, monkeypatch):
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    network().fit(X, LABELS, epochs=2, callbacks=[Progress()])
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and "epoch 2/2: train nll" in out and err == ""


def test_results_of_an_epoch_are_a_line(capsys):
    (results,) = network().fit(X, LABELS, epochs=1, validation=TEST, callbacks=[Progress("lines")])
    expected = (
        f"epoch 1/1: train nll {results['train_nll']:.4g}, train error {results['train_error']:.1%}, "
        f"val nll {results['val_nll']:.4g}, val error {results['val_error']:.1%}, "
        f"{results['samples_per_second']:,.1f} samples/s\n"
    )
    assert capsys.readouterr().out == expected


def test_a_file_gets_nothing_and_a_terminal_or_notebook_a_bar(capsys, monkeypatch):
    network().fit(X, LABELS, epochs=1, callbacks=[Progress()])
    assert capsys.readouterr() == ("", "")
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert Progress().shown == "bar"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert Progress().shown == "nothing"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert Progress().shown == "bar" and Progress("lines").shown == "lines"
    with pytest.raises(ValueError, match="mode must be one of 'auto', 'bar', 'lines', got 'dots'"):
        Progress("dots")

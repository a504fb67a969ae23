"""Progress of an epoch: what the lines and the bar say, and that no thread stays behind."""

import threading
import time

from examples.progress import BarProgress, LineProgress, show_progress


def test_lines_show_rate_and_time_left(capsys, monkeypatch):
    clock = iter([100.0, 104.0, 110.0, 115.0, 200.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    progress = LineProgress("epoch 1/2", total=2000)
    progress.update(400, 0.9)  # after 4 s: too early
    progress.update(500, 0.75)
    progress.update(600, 0.7)  # 5 s after the line before
    progress.update(2000, 0.5)  # the end: the result of the epoch follows
    assert capsys.readouterr().out == "epoch 1/2: 500 of 2,000 images, 50.0 images/s, 0:00:30 left, train error 75.0%\n"


def test_bar(capsys):
    before = threading.enumerate()
    progress = BarProgress("epoch 1/2", total=50)
    time.sleep(0.2)  # tqdm redraws every 0.1 s
    progress.update(20, 0.9)
    assert threading.enumerate() == before
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 1/2:" in err and "20/50" in err and "train error 90.0%" in err
    assert err.rstrip(" \r") != err and err.endswith("\r"), "the bar is wiped out"


def test_a_file_gets_lines(capsys):
    assert isinstance(show_progress("auto", "", 1), LineProgress)
    bar = show_progress("bar", "", 1)
    bar.close()
    assert isinstance(bar, BarProgress)

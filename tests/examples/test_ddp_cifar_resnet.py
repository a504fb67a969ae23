"""The CIFAR-10 job on one rank and on real MPI ranks: what it prints, writes and leaves behind."""

import importlib.util
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import weekly
from tests.examples.jobs import SECONDS, in_threads, read_log, start, train

pytestmark = [
    pytest.mark.slow,  # starts processes of its own
    pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc"),
]
mpi = pytest.mark.mpi
OPTIONS = {
    1: ["--head", "remax", "--bn-batches", 5],  # the fourth one is the last of an epoch
    2: ["--sum", "--average-last", 0.5],
    3: ["--augment", "--bn-batches", 0, "--head", "hierarchical"],
}


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=mpi), 3])
def test_trains_and_reports(tmp_path, np, capsys):
    """Ranks are processes, three of them threads.

    On 3 ranks the last batch of 61 images holds one image: two ranks have an empty share, and step along.
    """
    settings = ["--limit-train", 61, "--limit-test", 31, "--batch-size", 20, *OPTIONS[np]]
    if np < 3:
        stdout, log = train(tmp_path, *settings, np=np)
    else:
        in_threads("--log-dir", tmp_path, *settings, np=np)
        stdout, log = capsys.readouterr().out, read_log(tmp_path)
    started, *epochs = log
    assert [record["event"] for record in log] == ["start", "epoch", "epoch"]
    assert (started["ranks"], started["batch_size"], started["limit_train"]) == (np, 20, 61)
    assert [record["epoch"] for record in epochs] == [1, 2]
    for record in epochs:
        for name, images in (("train_error", 61), ("test_error", 31)):
            wrong = record[name] * images
            assert wrong == pytest.approx(round(wrong)), "every image counts once"
            assert 0 < wrong <= images
        assert record["samples_per_second"] == pytest.approx(61 / record["train_seconds"])
        assert 0 <= record["communication_share"] < 1
        assert ("bn_seconds" in record) == ("bn_mean_shift" in record) == (np < 3)
    assert ["test_error_running" in record for record in epochs] == [False, np < 3]
    lines = [line for line in stdout.splitlines() if " left, " not in line]  # progress, if it took over 10 s
    parameters = "85,787" if np == 3 else "85,722"
    assert lines[0] == f"resnet8: {parameters} parameters, each with a mean and a variance"
    threads = "1" if np < 3 else r"\d+"
    assert re.fullmatch(rf"ranks: {np}, threads per rank: {threads}, images per rank and step: 20", lines[1])
    assert f"test error {epochs[1]['test_error']:.2%}" in lines[4]
    batches = {1: 5, 2: 2}
    assert [f"; BatchNorm statistics of {batches.get(np)} batches per rank in" in line for line in lines[3:5]] == [
        np < 3
    ] * 2
    assert ["test_error_last" in record for record in epochs] == [False, np == 2]
    if np == 2:
        last = lines.pop(5)
        assert last.endswith(f"instead of the average: {epochs[1]['test_error_last']:.2%}")
    if np < 3:
        lagging = lines.pop(5)
        assert lagging.endswith(f"as pytagi evaluates: {epochs[1]['test_error_running']:.2%}")
    assert [line.partition(":")[0] for line in lines[2:]] == ["images", "epoch 1/2", "epoch 2/2", "log and curves"]
    assert (tmp_path / "curves.png").exists() == bool(importlib.util.find_spec("matplotlib"))


def test_a_pipeline_trains_and_reports(tmp_path, capsys):
    settings = ["--parallel", "pipeline", "--limit-train", 45, "--limit-test", 31, "--batch-size", 20, "--epochs", 1]
    in_threads("--log-dir", tmp_path, *settings)
    assert "images per pipeline and step: 20" in capsys.readouterr().out
    for name, images in (("train_error", 45), ("test_error", 31)):
        wrong = read_log(tmp_path)[-1][name] * images
        assert wrong == pytest.approx(round(wrong)), "every image counts once"
        assert 0 < wrong <= images


def test_learns(tmp_path):
    in_threads("--log-dir", tmp_path, "--limit-train", 400, "--limit-test", 50, "--batch-size", 8, "--epochs", 3)
    errors = [record["train_error"] for record in read_log(tmp_path)[1:]]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.65


@mpi
def test_an_error_is_one_line_on_one_rank(tmp_path):
    result = start("--resume", tmp_path / "none.safetensors", np=2).finish(SECONDS)
    assert result.returncode != 0
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if "none.safetensors" in line]
    what = f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/none.safetensors'"
    assert lines == [f"error: the callback Checkpoints failed in fit_begin: {what}"]
    assert "Traceback" not in result.stderr


@mpi
def test_a_bad_option_is_reported_once():
    result = start("--batch-size", "0", np=2).finish(SECONDS)
    assert result.returncode == 2
    assert result.stderr.count("argument --batch-size: must be at least 1, got 0") == 1


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=(mpi, weekly))])
def test_ctrl_c_leaves_no_process(tmp_path, np):
    job = start("--log-dir", tmp_path, "--limit-train", 100, "--limit-test", 20, "--epochs", 1000, np=np)
    wait_for_epoch(tmp_path / "log.jsonl", job)
    job.process.send_signal(signal.SIGINT)
    result = job.finish(10)
    assert result.returncode == 130 if np == 1 else result.returncode != 0
    if np == 1:
        assert result.stderr == "interrupted\n"


def wait_for_epoch(path: Path, job) -> None:
    deadline = time.monotonic() + SECONDS
    while not (path.exists() and '"event": "epoch"' in path.read_text()):
        assert time.monotonic() < deadline and job.process.poll() is None
        time.sleep(0.05)

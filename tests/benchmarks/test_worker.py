"""A library in a process of its own: it answers, it waits without working, and it may fail or be too slow."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers import OWN
from benchmarks.worker import Server, TooSlow, Worker, WorkerError

pytestmark = pytest.mark.slow  # starts processes of its own


@pytest.fixture(scope="module")
def worker():
    with Worker(OWN, 1) as worker:
        worker.ask("versions", timeout=60)
        assert worker.ask("build", timeout=120, workload="conv4-b4")["build"] > 0
        assert worker.ask("start", timeout=120)["parameters"] == 4 * 4 * 9
        yield worker


def test_rounds(worker):
    times = worker.ask("round", seconds=0.02)["times"]
    assert len(times) > 1
    assert 0.01 < sum(times) < 10
    assert len(worker.ask("round", seconds=0)["times"]) == 1


def test_an_idle_worker_uses_no_cpu(worker):
    if not Path("/proc/self/stat").exists():
        pytest.skip("reads CPU times from /proc")

    def used() -> float:
        fields = Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    worker.ask("round", seconds=0.01)
    time.sleep(0.1)
    before = used()
    time.sleep(0.3)
    assert used() - before <= 0.02


def test_peak_memory_is_its_own(worker):
    ballast = bytearray(400_000_000)
    assert 10e6 < worker.ask("memory")["peak"] < len(ballast)


@pytest.mark.parametrize(
    ("missing", "error", "says"),
    [("LSTM", NotImplementedError, "it has no LSTM"), ("size", AttributeError, "no attribute 'size'")],
)
def test_a_layer_that_a_library_lacks_is_named(missing, error, says):
    server = Server(OWN, 1)
    server._peer = SimpleNamespace(Step=lambda *_, **__: getattr(SimpleNamespace(), missing))
    with pytest.raises(error, match=says):
        server.build("lstm-40-t24-b16")


def test_errors_are_told(worker):
    with pytest.raises(WorkerError, match="ValueError: no workload 'no-such'"):
        worker.ask("build", workload="no-such")
    assert worker.ask("round", seconds=0)["times"]


def test_too_slow():
    with Worker(OWN, 1) as worker:
        with pytest.raises(TooSlow, match=r"0\.01 s"):
            worker.ask("versions", timeout=0.01)
        assert worker._process.poll() is not None


def test_a_process_that_ends(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with Worker(OWN, 1, str(python)) as worker, pytest.raises(WorkerError, match="code 3"):
        worker.ask("versions", timeout=30)

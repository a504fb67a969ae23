"""Checkpoints on real ranks: stopped anywhere and resumed, a run ends with the same bits."""

import hashlib
import json
import os
import re
import signal
import time
from functools import partial

import numpy as np
import pytest

from pytagi_ddp.checkpoint import CheckpointManager
from tests.conftest import weekly
from tests.mpi.programs import checkpoints, resize
from tests.mpi.run import fails, mpirun

pytestmark = pytest.mark.mpi

STEPS = 4 * 5


@pytest.fixture
def train(tmp_path):
    """The program that trains, with checkpoints in this test's folder."""
    return partial(checkpoints.train, folder=str(tmp_path))


def ended(result):
    """The number of steps and the parameters at the end, the same on all ranks."""
    assert (result.returncode, result.stderr) == (0, "")
    words = [line.split() for line in result.stdout.splitlines()]
    assert len({(step, bits) for _, step, _, bits in words}) == 1
    return int(words[0][1]), words[0][3], {int(rank): name for rank, _, name, _ in words}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Parameters and statistics after a run without a stop, by the number of ranks."""
    found = {}

    def run(np):
        if np not in found:
            program = partial(checkpoints.train, folder=str(tmp_path_factory.mktemp("whole")))
            step, found[np], _ = ended(mpirun(program, np, timeout=60))
            assert step == STEPS
        return found[np]

    return run


@pytest.mark.parametrize(
    ("name", "to", "np"),
    [
        pytest.param("SIGTERM", "mpirun", 2, marks=weekly),
        pytest.param("SIGTERM", "rank", 1, marks=weekly),
        ("SIGTERM", "rank", 3),
        pytest.param("SIGTERM", "mpirun and rank", 2, marks=weekly),
        ("SIGUSR1", "mpirun", 3),
        pytest.param("SIGUSR1", "rank", 2, marks=weekly),
    ],
)
def test_stopped_by_a_signal(name, to, np, train, straight, mpi_job, hydra):
    job = mpi_job(partial(train, wait_for_signals=True), np)
    ranks = job.wait_ready()
    if "mpirun" in to:
        job.process.send_signal(getattr(signal, name))
    if "rank" in to:
        os.kill(ranks[-1], getattr(signal, name))
    step, _, received = ended(job.finish(20))
    assert 2 <= step < STEPS
    assert received == {rank: name if "mpirun" in to or rank == np - 1 else "None" for rank in range(np)}
    assert ended(mpirun(train, np))[:2] == (STEPS, straight(np))


def test_mpirun_waits_for_the_checkpoint(mpi_job, hydra):
    """However long it takes: SIGTERM is forwarded, and no SIGKILL follows."""
    job = mpi_job(checkpoints.stop_slowly)
    job.wait_ready()
    for _ in range(2):
        job.process.send_signal(signal.SIGTERM)
        time.sleep(1)
    result = job.finish(20)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("written") == 2
    assert result.seconds > 4


def test_another_number_of_ranks_sees_the_same_samples_and_says_that_it_differs(train, straight):
    ended(mpirun(partial(train, stop_after=7), 2))
    result = mpirun(train, 3)
    assert result.returncode == 0
    assert result.stderr.count("another course") == 1, "only rank 0 warns"
    assert "the number of ranks was 2 and is 3" in result.stderr
    (bits,) = {line.split()[-1] for line in result.stdout.splitlines()}
    assert len({bits, straight(2), straight(3)}) == 3


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([(4, [("ddp", 3, 2)]), (2, [("ddp", 6, 5)]), (3, [("ddp", 4, 0)])], marks=weekly),
        [(2, [("ddp", 6, 2), ("fsdp", 6, 4), ("pipeline", 12, 8), ("one", 12, 10), ("ddp", 6, 0)])],
    ],
)
def test_other_ranks_and_other_ways_go_on_in_the_middle_of_an_epoch(jobs, tmp_path):
    """Global batches of 12, of which 61 samples are 6 an epoch: sums over ranks are rounded in another order, no more.

    Other global batches are in `tests.training.test_checkpoints`.
    """
    seen = []
    for ranks, parts in jobs:
        result = mpirun(partial(resize.go_on, folder=str(tmp_path), parts=parts), ranks, timeout=60)
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        seen += [sample for samples, _ in lines for sample in samples]
    ends = [parameters for _, parameters in lines[-ranks:]]
    assert ends == ends[:1] * ranks
    assert sorted(seen) == list(range(resize.EPOCHS * resize.SAMPLES))
    _, expected = resize.train(None, "one", 12)
    np.testing.assert_allclose(ends[0], expected, rtol=1e-4, atol=1e-6)


def test_only_rank_0_needs_the_folder_and_an_error_of_loading_is_raised_on_all_ranks(tmp_path):
    result = mpirun(partial(checkpoints.save_and_load, folder=str(tmp_path / "checkpoints")), 3)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "[Errno 2] No such file or directory: 'none.safetensors'\n" * 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("limit", "[Errno 27] File too large: '"),
        ("no folder", "Not a directory: '"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_ends_the_job(tmp_path, fault, message):
    """One error, that of rank 0, with the path; the checkpoint before is whole, and nothing else is there."""
    result = fails(partial(checkpoints.save_with_a_fault, folder=str(tmp_path), fault=fault), 3, within=10)
    assert result.stderr.count("[rank 0/3] Traceback") == result.stderr.count("[rank ") == 1
    (error,) = re.findall(r"^\w+Error: .*", result.stderr, re.MULTILINE)
    assert f"{message}{tmp_path}/" in error
    assert "reached the end" not in result.stdout
    newest = CheckpointManager(tmp_path).latest()
    assert newest.name.startswith("step-0000000001-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", newest.name]


@pytest.mark.parametrize("np", [pytest.param(1, marks=weekly), 2])  # of two ranks, the first one writes alone
def test_a_kill_while_writing_leaves_the_checkpoint_before(np, mpi_job, tmp_path):
    for delay in (0.0, 0.004, 0.009):
        job = mpi_job(partial(checkpoints.save_for_ever, folder=str(tmp_path)), np)
        time.sleep(delay) or os.kill(job.wait_ready()[0], signal.SIGKILL)
        assert job.finish(20).returncode != 0
        path = CheckpointManager(tmp_path).latest()
        assert int(path.name[5:15]) >= 3
        assert hashlib.sha256(path.read_bytes()).hexdigest()[:8] == path.name[16:24]
    # Killed at most twice before its first checkpoint took everything away, and once since.
    assert len(list(tmp_path.glob(".*.tmp"))) <= 1

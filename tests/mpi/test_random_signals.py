"""A few of the random bursts of signals, and two that once disarmed what ends a job."""

from collections import Counter
from functools import partial

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from tests.conftest import weekly
from tests.mpi.programs import faults, signalled
from tests.mpi.random_signals import TARGETS, Case, draw, run
from tests.mpi.run import mpirun

SAMPLE = (8, 12, 33, pytest.param(35, marks=weekly))  # each went wrong once; the last one is like the training below


@pytest.mark.mpi
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_burst_of_signals_ends_the_job(seed, hydra):
    wrong, story = run(draw(seed))
    assert not wrong, story


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Sequential", "DataParallel"])
def test_a_training_that_catches_ctrl_c_goes_on(way):
    """Also where a second one comes while the first is answered: replicas kept a lock for ever."""
    burst = [("SIGINT", (0.0007, 0.03, 0.002, 0.06)[k % 4]) for k in range(30)]
    wrong, story = run(Case(0, way, 1, "a process", 0, 0.0, burst))
    assert not wrong, story


@pytest.mark.mpi
@pytest.mark.parametrize("gap", [0.0, 0.03])
def test_a_second_interrupt_disarms_nothing(gap):
    """The first comes in a callback from C, of which Python drops the exception: the hook that notices it waits."""
    result = mpirun(partial(faults.interrupt_in_a_callback, again=gap))
    assert result.returncode == 130
    assert result.seconds < 5
    assert result.stderr.count("KeyboardInterrupt") == result.stderr.count("[rank 1/2] ") == 1


def test_cases_follow_from_their_number_and_cover_every_way():
    cases = [draw(seed) for seed in range(300)]
    assert cases == [draw(seed) for seed in range(300)]
    ways = Counter(case.way for case in cases)
    assert set(ways) == {*signalled.WAYS, *signalled.ALONE} and min(ways.values()) >= 5
    assert {case.target for case in cases} == {*TARGETS, "a process"}
    gaps = [gap for case in cases for _, gap in case.burst]
    assert 0.0005 <= min(gaps) < 0.001 and 0.1 < max(gaps) <= 0.121

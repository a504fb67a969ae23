"""Whatever happens to one rank: the job ends soon, its exit code says so, and one message names the rank."""

import os
import signal
from functools import partial

import pytest

from tests.mpi.programs import early, faults
from tests.mpi.run import fails, mpirun

pytestmark = pytest.mark.mpi

SOON = 5.0  # seconds from the fault to the end of the job
STARTING = 5.0  # more of them for a fault in the start, which the other ranks have yet to come to


def test_a_training_may_end_between_any_two_calls():
    """Whatever waits for a step then, also sums that are on their way to other ranks."""
    result = mpirun(faults.stopped_between_calls)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ends\n" * 2, "")


def test_a_slow_rank_in_its_last_collective_is_not_taken_for_deserted():
    # Rank 0 only sends: it is through with both broadcasts, and leaves, while the others are still to receive them.
    result = mpirun(faults.slow_receivers, np=3)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_rank_with_work_of_its_own_after_the_others_have_left():
    result = mpirun(faults.work_of_its_own, np=3, env={"TIMEOUT_ONCE_STARTED": ".5"})
    assert (result.returncode, result.stdout, result.stderr) == (0, "plotted\n", "")


MOMENTS = ("before", "during", "in flight", "after")  # next to a collective, as `beside_a_collective` knows them


def test_a_rank_that_never_comes_to_its_end_ends_the_job_within_the_exit_time_out():
    result = fails(faults.stalled_at_the_end, np=3, env={"PYTAGI_DDP_EXIT_TIMEOUT": "1"})
    assert result.stderr.count("[rank 0/3] came to its end 1 s ago, and rank 2 has not") == 1


@pytest.mark.parametrize(
    ("kind", "moment"), [*(("exception", moment) for moment in MOMENTS), ("in a thread", "during")]
)
def test_exception(kind, moment):
    """At the end of its job, or with more to come, as in `tests.mpi.test_random_faults`, also in a thread."""
    more = moment == "in flight"
    np = 2 if more else 3
    result = fails(partial(faults.beside_a_collective, kind=kind, moment=moment, more=more), np, SOON, timeout=20)
    assert result.stderr.count(f"[rank {np - 1}/{np}] ") == result.stderr.count("[rank ") == 1
    assert result.stderr.count("Traceback") == result.stderr.count("ValueError: no batch 17") == 1


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("before", "[rank 0/2] Traceback"),
        ("during", "[rank 1/2] ends the job: all_reduce #5 was cut short by SystemExit(0)"),
        ("in flight", "[rank 1/2] ends the job: all_reduce #5 (1.2 MB) was started, and nobody waited for it"),
        ("after", "rank 1 has left the job after 5 collectives, while rank 0 waits in all_reduce #6"),
    ],
)
def test_sys_exit_beside_a_collective_ends_the_job(moment, message):
    program = partial(faults.beside_a_collective, kind="exit", moment=moment, more=moment != "during")
    result = fails(program, within=SOON, timeout=20)
    assert message in result.stderr
    assert result.stderr.count("[rank ") == 1


def test_an_error_of_all_ranks_is_printed_once():
    result = fails(faults.error_of_all_ranks, np=3)
    assert result.stderr.count("FileNotFoundError: no data") == 1
    assert "[rank 0/3] Traceback" in result.stderr


def test_a_rank_that_leaves_early_ends_the_job():
    result = fails(faults.leave_early, within=SOON)
    assert "rank 1 has left the job after 4 collectives, while rank 0 waits in all_reduce #5" in result.stderr
    assert result.stderr.count("RankLeftError: ") == result.stderr.count("[rank 0/") == 1
    assert "reached the end" not in result.stdout


def test_fewer_batches_without_join_end_the_job_and_name_join():
    result = fails(faults.fewer_batches, np=3, within=SOON)
    assert result.stderr.count("RankLeftError: ") == result.stderr.count("[rank ") == 1
    assert "rank 2 has left the job after " in result.stderr
    assert "fewer batches (for those there is DDPSequential.join())" in result.stderr


def test_different_networks_end_the_job():
    """Others are in `tests.mpi.test_ddp_combinations`."""
    result = fails(faults.differ, np=3, within=SOON)
    assert result.stderr.count("ValueError: ") == result.stderr.count("[rank ") == 1
    assert "ValueError: ranks 0 and 2 have different networks: layer 1 is " in result.stderr


def test_a_rank_that_missed_a_broadcast_ends_the_job():
    result = fails(faults.miss_a_broadcast)
    assert "[rank 0/2] rank 1 has left the job after 4 collectives, rank 0 after 5" in result.stderr


def test_exit_codes_of_an_orderly_end_are_kept():
    result = mpirun(faults.exit_in_order, np=3)
    assert result.returncode == 3
    assert "[rank " not in result.stderr


def test_a_stalled_rank_ends_the_job_within_the_time_out():
    result = fails(faults.stall, np=3, within=SOON, env={"TIMEOUT_ONCE_STARTED": "1"})
    for rank in range(2):
        assert result.stderr.count(f"[rank {rank}/3] ") == 1
    assert "has waited 1.0 s in all_reduce #5 (1.2 MB)" in result.stderr


def test_ranks_in_different_collectives_wait_instead_of_mixing_data():
    result = fails(faults.different_collectives, env={"TIMEOUT_ONCE_STARTED": "0.5"})
    assert "in all_reduce #5" in result.stderr
    assert "in barrier #5" in result.stderr


def test_an_error_that_the_script_swallows_still_ends_the_job():
    result = fails(faults.swallow_the_error, env={"TIMEOUT_ONCE_STARTED": "0.3"})
    assert result.stdout.startswith("caught\nrank 0 cannot go on with barrier: all_reduce #5 was cut short by ")
    assert result.stderr.count("[rank 0/2] ends the job: all_reduce #5 was cut short") == 1


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_a_rank_that_ends_before_mpi_starts(how, hydra):
    result = mpirun(partial(early.end, how=how), np=3)
    assert result.returncode != 0
    assert result.seconds < SOON + STARTING
    if how != "kill":  # mpirun sees to that one
        assert result.stderr.count("RankLeftError: local rank 1 of 3 ended before MPI was started") == 1
        assert result.stderr.count("[rank ") == 1


def test_a_rank_that_never_starts_mpi(hydra):
    result = mpirun(early.stall, env={"PYTAGI_DDP_TIMEOUT": "0.7"})
    assert result.returncode != 0
    assert "local rank 1 of 2 has not started MPI in time" in result.stderr


def test_hooks_are_chained_and_removed():
    result = mpirun(faults.chain_hooks)
    assert (result.returncode, result.results) == (1, "hook: seen by both\n")
    assert result.stderr.count("[rank 1/2] Traceback") == 1


def test_a_stopped_rank_ends_the_job_within_the_time_out(mpi_job, hydra):
    job = mpi_job(faults.reduce_for_ever, env={"TIMEOUT_ONCE_STARTED": "1"})
    os.kill(job.wait_ready()[1], signal.SIGSTOP)
    result = job.finish(10)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert result.stderr.count("[rank 0/2] Traceback") == result.stderr.count("CollectiveTimeoutError: ") == 1


@pytest.mark.parametrize(
    ("to", "doing"),
    [
        *((to, "reduce_for_ever") for to in ("SIGTERM mpirun", "SIGTERM rank", "SIGINT mpirun", "SIGINT rank")),
        ("SIGKILL mpirun", "reduce_for_ever"),
        *((to, "idle") for to in ("SIGINT mpirun", "SIGINT rank")),
    ],
)
def test_signals_leave_no_process(to, doing, mpi_job, hydra):
    job = mpi_job(getattr(faults, doing))
    ranks = job.wait_ready()
    name, target = to.split()
    os.kill(ranks[1] if target == "rank" else job.process.pid, getattr(signal, name))
    result = job.finish(10)
    assert result.returncode != 0
    assert result.seconds < SOON
    if name == "SIGINT":
        assert result.returncode == 130
        assert result.stderr.count("KeyboardInterrupt") == result.stderr.count("[rank ") == 1


def test_an_interrupt_in_a_callback_from_c_ends_the_job():
    result = fails(faults.interrupt_in_a_callback, within=SOON, code=130)
    assert result.stderr.count("KeyboardInterrupt") == result.stderr.count("[rank 1/2] ") == 1


def test_a_signal_handler_runs_while_its_rank_waits(mpi_job):
    job = mpi_job(faults.asked_to_stop)
    for pid in reversed(job.wait_ready()):
        os.kill(pid, signal.SIGTERM)
    result = job.finish(10)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("asked to stop") == result.stdout.count("reached the end") == 2

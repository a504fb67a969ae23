"""Whatever happens to one rank: the job ends soon, its exit code says so, and one message names the rank."""

import os
import signal
import textwrap

import pytest

from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

SOON = 5.0  # seconds from the fault to the end of the job
STARTING = 5.0  # more of them for a fault in the start, which the other ranks have yet to come to

START = """
import os, signal, sys, threading, time
import numpy as np
from pytagi_ddp.distributed.communicator import create_communicator
comm = create_communicator()
rank, size = comm.rank, comm.world_size
last = rank == size - 1
buffer = np.ones(300_000, np.float32)
for _ in range(3):
    comm.all_reduce(buffer)
comm.timeout = float(os.environ.get("TIMEOUT_ONCE_STARTED", 300))  # starting may be slow
"""
THEN_REDUCE = """
for _ in range(3):
    comm.all_reduce(buffer)
print("reached the end")
"""
BUSY = "while True: comm.all_reduce(buffer)"
IDLE = "comm.barrier() if rank else time.sleep(60)"


def program(fault, rest=THEN_REDUCE):
    return START + "fault()\n" + textwrap.dedent(fault) + rest


@pytest.mark.parametrize("np", [1, 2, 3])
def test_a_normal_end_is_silent(np):
    result = mpirun(program(""), np=np)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("reached the end") == np


@pytest.mark.parametrize("np", [2, 3])
def test_a_slow_rank_in_its_last_collective_is_not_taken_for_deserted(np):
    # Rank 0 only sends: it is through with both broadcasts, and leaves, while the others are still to receive them.
    fault = """
        for seconds in (0.5, 0.0):
            if rank > 0:
                time.sleep(seconds * rank)
            comm.broadcast(buffer, 0)
    """
    result = mpirun(program(fault, rest=""), np=np)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_rank_with_work_of_its_own_after_the_others_have_left():
    result = mpirun(
        program("if rank == 0: time.sleep(1); print('plotted')", rest=""), np=3, env={"TIMEOUT_ONCE_STARTED": ".5"}
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "plotted\n", "")


# One rank's fault next to a collective. The handler of a signal runs in the middle of the one that its rank waits in.
MOMENTS = {
    "before": "if last: fail()",
    "during": """
        if last:
            signal.signal(signal.SIGALRM, lambda *_: fail())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            comm.all_reduce(buffer)
        time.sleep(60)
    """,
    "in flight": """
        handle = comm.start_all_reduce(buffer)
        if last: fail()
        handle.wait()
    """,
    "after": """
        comm.all_reduce(buffer)
        if last: fail()
    """,
}
RAISE = """
def fail():
    raise ValueError("no batch 17")
"""
IN_A_THREAD = """
def fail():
    def target():
        raise ValueError("no batch 17")
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
"""


def beside_a_collective(kind, moment, rest):
    return START + kind + "fault()\n" + textwrap.dedent(MOMENTS[moment]) + rest


def test_a_rank_that_never_comes_to_its_end_ends_the_job_within_the_exit_time_out():
    result = mpirun(program("if last: time.sleep(60)", rest=""), np=3, env={"PYTAGI_DDP_EXIT_TIMEOUT": "1"})
    assert result.returncode == 1
    assert result.stderr.count("[rank 0/3] came to its end 1 s ago, and rank 2 has not") == 1


@pytest.mark.parametrize("rest", ["", THEN_REDUCE], ids=["at the end", "with more to come"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", [RAISE, IN_A_THREAD], ids=["exception", "in a thread"])
def test_exception(kind, moment, rest):
    np = 2 if rest else 3
    result = mpirun(beside_a_collective(kind, moment, rest), np=np, timeout=20)
    assert result.returncode == 1
    assert result.seconds < SOON
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
    rest = "" if moment == "during" else THEN_REDUCE
    result = mpirun(beside_a_collective("def fail(): sys.exit(0)\n", moment, rest), timeout=20)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert message in result.stderr
    assert result.stderr.count("[rank ") == 1


def test_a_return_with_a_collective_in_flight_ends_the_job():
    rest = """
def main():
    handle = comm.start_all_reduce(buffer)
    if last: return
    handle.wait()
main()
"""
    result = mpirun(program("", rest))
    assert result.returncode == 1
    assert result.seconds < SOON
    assert "[rank 1/2] ends the job: all_reduce #5 (1.2 MB) was started, and nobody waited for it" in result.stderr
    assert result.stderr.count("[rank ") == 1


def test_an_error_of_all_ranks_is_printed_once():
    result = mpirun(program("raise FileNotFoundError('no data')"), np=3)
    assert result.returncode == 1
    assert result.stderr.count("FileNotFoundError: no data") == 1
    assert "[rank 0/3] Traceback" in result.stderr


@pytest.mark.parametrize(("leaving", "np"), [("sys.exit(0)", 2), ("sys.exit(0)", 3), ("sys.exit(3)", 2)])
def test_a_rank_that_leaves_early_ends_the_job(leaving, np):
    result = mpirun(program(f"if last: {leaving}"), np=np)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert f"rank {np - 1} has left the job after 4 collectives, while rank 0 waits in all_reduce #5" in result.stderr
    assert result.stderr.count("RankLeftError: ") == result.stderr.count("[rank 0/") == 1
    assert "reached the end" not in result.stdout


@pytest.mark.parametrize("np", [2, 3])
def test_an_early_return_ends_the_job(np):
    rest = """
def main():
    for batch in range(5 - last):
        comm.all_reduce(buffer)
main()
"""
    result = mpirun(program("", rest), np=np)
    assert result.returncode == 1
    assert f"rank {np - 1} has left the job after 8 collectives, while rank 0 waits in all_reduce #9" in result.stderr


FEWER_BATCHES = """
from pytagi_ddp.nn import DDPSequential
from tests.mpi.ddp_networks import backpropagate, batch, dense, nn
ddp = DDPSequential(dense(nn.ReLU()))
x, y = batch(ddp.model, 4, rank)
for step in range(3 - last):
    backpropagate(ddp, x, y)
    ddp.step()
"""


@pytest.mark.parametrize("np", [2, 3])
def test_fewer_batches_without_join_end_the_job_and_name_join(np):
    result = mpirun(program("", FEWER_BATCHES), np=np)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert result.stderr.count("RankLeftError: ") == result.stderr.count("[rank ") == 1
    assert f"rank {np - 1} has left the job after " in result.stderr
    assert "fewer batches (for those there is DDPSequential.join())" in result.stderr


DIFFERENT = """
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.mpi.ddp_networks import dense, nn
net = dense(nn.Sigmoid() if last and KIND == "layer" else nn.ReLU())
if last and KIND == "dtype":
    net.arena.theta = net.arena.theta.astype(np.float64)
DDPSequential(net, DDPConfig(wire_dtype="float16" if last and KIND == "wire" else "float32"))
"""


@pytest.mark.parametrize("np", [2, 3])
@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        ("layer", "different networks: layer 1 is "),
        ("dtype", "different options: parameters is '160 of float32' on rank 0 and '160 of float64' on rank "),
        ("wire", "different options: wire_dtype is 'float32' on rank 0 and 'float16' on rank "),
    ],
)
def test_different_networks_dtypes_and_options_end_the_job(kind, difference, np):
    result = mpirun(program(f"KIND = {kind!r}", DIFFERENT), np=np)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert result.stderr.count("ValueError: ") == result.stderr.count("[rank ") == 1
    assert f"ValueError: ranks 0 and {np - 1} have {difference}" in result.stderr


def test_a_rank_that_missed_a_broadcast_ends_the_job():
    result = mpirun(program("if rank == 0: comm.broadcast(buffer[:1])", rest=""), np=2)
    assert result.returncode == 1
    assert "[rank 0/2] rank 1 has left the job after 4 collectives, rank 0 after 5" in result.stderr


@pytest.mark.parametrize("np", [2, 3])
def test_exit_codes_of_an_orderly_end_are_kept(np):
    result = mpirun(program("sys.exit(3 if last else 0)", rest=""), np=np)
    assert result.returncode == 3
    assert "[rank " not in result.stderr


@pytest.mark.parametrize("np", [2, 3])
def test_a_stalled_rank_ends_the_job_within_the_time_out(np):
    rest = "if last: time.sleep(60)" + THEN_REDUCE
    result = mpirun(program("", rest), np=np, env={"TIMEOUT_ONCE_STARTED": "1"})
    assert result.returncode == 1
    assert result.seconds < SOON
    for rank in range(np - 1):
        assert result.stderr.count(f"[rank {rank}/{np}] ") == 1
    assert "has waited 1.0 s in all_reduce #5 (1.2 MB)" in result.stderr


def test_ranks_in_different_collectives_wait_instead_of_mixing_data():
    fault = """
        if last: comm.barrier()
        else: comm.all_reduce(buffer)
    """
    result = mpirun(program(fault), np=2, env={"TIMEOUT_ONCE_STARTED": "0.5"})
    assert result.returncode == 1
    assert "in all_reduce #5" in result.stderr
    assert "in barrier #5" in result.stderr


def test_an_error_that_the_script_swallows_still_ends_the_job():
    fault = """
        try:
            comm.all_reduce(buffer) if rank == 0 else time.sleep(3)
        except TimeoutError as error:
            print("caught")
            try:
                comm.barrier()
            except RuntimeError as error:
                print(error)
            sys.exit(0)
    """
    result = mpirun(program(fault, rest=""), np=2, env={"TIMEOUT_ONCE_STARTED": "0.3"})
    assert result.returncode == 1
    assert result.stdout.startswith("caught\nrank 0 cannot go on with barrier: all_reduce #5 was cut short by ")
    assert result.stderr.count("[rank 0/2] ends the job: all_reduce #5 was cut short") == 1


@pytest.mark.parametrize("ending", ["raise ImportError('on rank 1')", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_rank_that_ends_before_mpi_starts(ending, hydra):
    result = mpirun("import os\nif os.environ['PMI_RANK'] == '1':\n    fault()\n    " + ending + START, np=3)
    assert result.returncode != 0
    assert result.seconds < SOON + STARTING
    if "kill" not in ending:  # mpirun sees to that one
        assert result.stderr.count("RankLeftError: local rank 1 of 3 ended before MPI was started") == 1
        assert result.stderr.count("[rank ") == 1


def test_a_rank_that_never_starts_mpi(hydra):
    code = "import os, time\nif os.environ['PMI_RANK'] == '1':\n    time.sleep(60)" + START
    result = mpirun(code, np=2, env={"PYTAGI_DDP_TIMEOUT": "0.7"})
    assert result.returncode != 0
    assert "local rank 1 of 2 has not come to start MPI in time" in result.stderr


def test_hooks_are_chained_and_removed():
    fault = """
        def hook(kind, error, trace):
            print("hook:", error, flush=True)
        ours = sys.excepthook
        comm.close()
        assert sys.excepthook is sys.__excepthook__ and threading.excepthook is threading.__excepthook__
        sys.excepthook = hook
        again = create_communicator()
        assert sys.excepthook not in (hook, sys.__excepthook__)
        again.barrier()
        if rank == 1: raise ValueError("seen by both")
        again.barrier()
    """
    result = mpirun(program(fault, rest=""), np=2)
    assert (result.returncode, result.stdout) == (1, "hook: seen by both\n")
    assert result.stderr.count("[rank 1/2] Traceback") == 1


@pytest.mark.parametrize("np", [2, 3])
def test_kill_9_of_a_rank(np, mpi_job):
    job = mpi_job(program("ready(rank)", "\n" + BUSY), np=np)
    os.kill(job.wait_ready()[-1], signal.SIGKILL)
    result = job.finish(10)
    assert result.returncode != 0
    assert result.seconds < SOON


def test_a_stopped_rank_ends_the_job_within_the_time_out(mpi_job, hydra):
    job = mpi_job(program("ready(rank)", "\n" + BUSY), env={"TIMEOUT_ONCE_STARTED": "1"})
    os.kill(job.wait_ready()[1], signal.SIGSTOP)
    result = job.finish(10)
    assert result.returncode == 1
    assert result.seconds < SOON
    assert result.stderr.count("[rank 0/2] Traceback") == result.stderr.count("CollectiveTimeoutError: ") == 1


@pytest.mark.parametrize(
    ("to", "doing"),
    [
        *((to, BUSY) for to in ("SIGTERM mpirun", "SIGTERM rank", "SIGINT mpirun", "SIGINT rank", "SIGKILL mpirun")),
        *((to, IDLE) for to in ("SIGINT mpirun", "SIGINT rank")),
    ],
)
def test_signals_leave_no_process(to, doing, mpi_job, hydra):
    job = mpi_job(program("ready(rank)", "\n" + doing))
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
    fault = """
        import ctypes
        callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
        if last: callback()
    """
    result = mpirun(program(fault, "\n" + BUSY))
    assert result.returncode == 130
    assert result.seconds < SOON
    assert result.stderr.count("KeyboardInterrupt") == result.stderr.count("[rank 1/2] ") == 1


def test_a_signal_handler_runs_while_its_rank_waits(mpi_job):
    fault = """
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1) or print("asked to stop", flush=True))
        ready(rank)
        if rank == 0:
            while not stop: time.sleep(0.01)
    """
    job = mpi_job(program(fault))
    for pid in reversed(job.wait_ready()):
        os.kill(pid, signal.SIGTERM)
    result = job.finish(10)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("asked to stop") == result.stdout.count("reached the end") == 2

"""Collectives under way: several at once, other orders of waiting, and everything that can go wrong with a handle."""

import json

import pytest

from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

START = """
import json, sys, time
import numpy as np
from pytagi_ddp.distributed.engine import mpi
from pytagi_ddp.distributed.communicator import create_communicator
comm = create_communicator("mpi")
rank, size = comm.rank, comm.world_size
"""

SEVERAL = """
SIZES = [3, 0, mpi.WHOLE_BYTES, 5_000_000, 1]
total = size * (size + 1) // 2
results = []
for order in (1, -1 if rank else 1):  # first alike, then ranks wait in opposite orders
    buffers = [np.full(n, rank + 1, np.float32) for n in SIZES]
    last = np.full(1000, rank, np.int64)
    handles = [comm.start_all_reduce(buffer, op) for buffer, op in zip(buffers, ["sum", "sum", "max", "mean", "min"])]
    handles.append(comm.start_broadcast(last, size - 1))
    through = np.ones(2)
    comm.all_reduce(through)  # a blocking one in between comes after them
    for handle in handles[::order]:
        handle.wait()
        handle.wait()
        assert handle.test()
    expected = [total, 0, size, total / size, 1]
    results.append([bool((buffer == value).all()) for buffer, value in zip(buffers, expected)])
    results.append([bool((last == size - 1).all()), bool((through == size).all())])
buffer = np.full(3_000_000, 1.0, np.float32)
handle = comm.start_all_reduce(buffer)
polls = 0
start = time.monotonic()
if rank == size - 1:
    time.sleep(0.3)
while not handle.test():
    polls += 1
results.append([bool((buffer == size).all())])
results.append([comm.reduce_calls == 13, comm.reduce_bytes == 2 * sum(4 * n for n in SIZES) + 2 * 16 + 12_000_000])
waited = comm.all_gather_object(polls)
if size > 1:
    results.append([waited[0] > 10])
failed = comm.all_gather_object(results)
if rank == 0:
    print(json.dumps(failed))
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_several_in_flight(np):
    result = mpirun(START + SEVERAL, np=np)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(all(row) for rank in json.loads(result.stdout) for row in rank), result.stdout


RANDOM = """
from pytagi_ddp.distributed.engine import mpi
mpi.PIECE_BYTES, mpi.LEAD_BYTES, mpi.WHOLE_BYTES = 4096, 256, 1024  # many pieces
shared, own = np.random.default_rng(5), np.random.default_rng(rank)
flying = []
def finish(index):
    handle, buffer, expected = flying.pop(index)
    if own.random() < 0.5:
        while not handle.test():
            pass
    handle.wait()
    assert (buffer == expected).all(), (rank, handle.what, buffer, expected)
for _ in range(400):  # started alike on every rank; waited for, polled and left alone as each likes
    n, kind, root = int(shared.integers(0, 3000)), shared.integers(5), int(shared.integers(size))
    buffer = np.full(n, rank, np.int64)
    if kind < 2:
        flying.append((comm.start_all_reduce(buffer), buffer, size * (size - 1) // 2))
    elif kind == 2:
        flying.append((comm.start_broadcast(buffer, root), buffer, root))
    elif kind == 3:
        comm.all_reduce(buffer, "max")
        assert (buffer == size - 1).all()
    else:
        assert comm.all_gather_object(rank) == list(range(size))
    if flying and own.random() < 0.4:
        finish(int(own.integers(len(flying))))
    if flying and own.random() < 0.3:
        flying[int(own.integers(len(flying)))][0].test()
    while len(flying) > 12:
        finish(-1)
while flying:
    finish(int(own.integers(len(flying))))
counts = comm.all_gather_object(comm._job.operations.completed)
if rank == 0:
    print(len(set(counts)), counts[0] > 400)
"""


@pytest.mark.parametrize("np", [2, 3])
def test_every_rank_waits_in_an_order_of_its_own(np):
    result = mpirun(START + RANDOM, np=np)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "1 True\n"


def test_a_dropped_handle_makes_the_next_collective_raise():
    code = """
    try:
        comm.start_all_reduce(np.ones(300_000, np.float32))
        comm.barrier()
    except RuntimeError as error:
        sys.stdout.write(f"{error}\\n")
    """
    result = mpirun(START + code.replace("\n    ", "\n"), np=2)
    assert result.returncode == 1  # the handle was never waited for, whoever catches the error
    message = "the handle of start_all_reduce of 1.2 MB was dropped before it was done; keep it, and call its wait()"
    assert sorted(result.stdout.splitlines()) == [f"barrier on rank {rank}: {message}" for rank in range(2)]


def test_a_handle_nobody_waits_for_ends_the_job():
    result = mpirun(
        START
        + "handle = comm.start_all_reduce(np.ones(7)); handle.test(); comm.barrier()\nhandle.test()"
        + "\nother = comm.start_broadcast(np.ones(5))",
        np=2,
    )
    assert result.returncode == 1
    assert "ends the job: broadcast #4 (4e-05 MB) was started, and nobody waited for it" in result.stderr
    assert result.stderr.count("[rank ") == 1


@pytest.mark.parametrize("waiting", ["handle.wait()", "while not handle.test(): time.sleep(0.001)"])
def test_a_rank_that_left_ends_the_wait(waiting):
    code = "if rank: sys.exit(0)\nhandle = comm.start_all_reduce(np.ones(9))\n" + waiting
    result = mpirun(START + code, np=3)
    assert result.returncode == 1 and result.seconds < 10
    assert "RankLeftError: rank " in result.stderr and "while rank 0 waits in all_reduce #2" in result.stderr


@pytest.mark.parametrize("waiting", ["handle.wait()", "while not handle.test(): pass"])
def test_a_stalled_rank_ends_the_wait(waiting):
    code = """
comm.timeout = 0.5
if rank: time.sleep(30)
handle = comm.start_broadcast(np.ones(9), 1)
try:
    {}
except TimeoutError as error:
    print(error, flush=True)
try:
    handle.wait()
except RuntimeError as error:
    print(error, flush=True)
"""
    result = mpirun(START + code.format(waiting), np=2)
    assert result.returncode == 1 and result.seconds < 10
    assert "rank 0 has waited 0.5 s in broadcast #2 (7.2e-05 MB)" in result.stdout
    assert "rank 0 cannot go on with broadcast #2 (7.2e-05 MB): broadcast #2 was cut short" in result.stdout


def test_work_between_two_polls_is_not_waiting():
    code = """
comm.timeout = 1.2
handle = comm.start_all_reduce(np.ones(9))
if rank:
    time.sleep(2.5)
else:
    handle.test()
    time.sleep(2)  # longer than the time-out, but this rank was at work
    handle.test()
handle.wait()
print("fine", flush=True)
"""
    result = mpirun(START + code, np=2)
    assert (result.returncode, result.stdout.count("fine")) == (0, 2), result.stderr


def test_a_rank_that_missed_a_started_one_ends_the_job():
    code = "handle = comm.start_broadcast(np.ones(9)) if rank == 0 else None\nif rank == 0: handle.wait()"
    result = mpirun(START + code, np=2)
    assert result.returncode == 1
    assert "rank 1 has left the job after 1 collectives, rank 0 after 2: it ended early" in result.stderr


def test_a_barrier_with_a_time_out_of_its_own():
    code = "if rank == 0: comm.barrier(timeout=0.3)\nelse: time.sleep(20)"
    result = mpirun(START + code, np=2)
    assert result.returncode == 1 and result.seconds < 10
    assert "rank 0 has waited 0.3 s in barrier #2" in result.stderr

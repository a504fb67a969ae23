"""Messages from one rank to another: values, order, several under way, beside collectives, and how they fail."""

import time
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp.distributed import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RankLeftError,
    create_communicator,
    initialize,
    run_threads,
)
from tests.mpi.ddp_networks import error_of
from tests.mpi.rank import say
from tests.mpi.run import fails, mpirun
from tests.mpi.shared import on_ranks

KIND = np.dtype([("a", "f2"), ("b", "i4")])
SIZES = [("f4", 3), ("u1", 0), (KIND, 5), ("f8", 300_000), ("?", 1)]


def letter(sender, receiver, number, dtype, n):
    """What one rank sends another, as everyone knows."""
    rng = np.random.default_rng([sender, receiver, number])
    return np.frombuffer(rng.integers(0, 2, n * np.dtype(dtype).itemsize).astype(np.uint8), dtype)


def everyone_to_everyone(comm):
    """Five messages each way between any two ranks, all under way, and a collective amidst; then the bytes sent."""
    rank, others, before = comm.rank, [r for r in range(comm.world_size) if r != comm.rank], comm.sent_bytes
    received = {(peer, k): np.empty(n, dtype) for peer in others for k, (dtype, n) in enumerate(SIZES)}
    handles = []
    if rank % 2:
        handles += [comm.start_receive(array, peer) for (peer, _), array in received.items()]
    for k, size in enumerate(SIZES):
        handles += [comm.start_send(letter(rank, peer, k, *size), peer) for peer in others]
    total = np.full(70_000, rank + 1.0)
    comm.all_reduce(total)
    if rank % 2 == 0:
        handles += [comm.start_receive(array, peer) for (peer, _), array in received.items()]
    for handle in handles[:: 1 - 2 * (rank % 2)]:
        handle.wait()
        assert handle.test()
    right = [array.tobytes() == letter(peer, rank, k, *SIZES[k]).tobytes() for (peer, k), array in received.items()] + [
        (total == sum(range(comm.world_size + 1))).all()
    ]
    sent = sum(np.dtype(dtype).itemsize * n for dtype, n in SIZES) * len(others)
    return [all(right), len(right), comm.sent_bytes - before == sent]


@on_ranks(everyone_to_everyone, 2, 3, 4)
def test_everyone_to_everyone(results):
    assert results == [[True, 5 * (len(results) - 1) + 1, True]] * len(results)


def pass_on(comm):
    """A number goes once around, each rank adding its own, while the others wait or poll."""
    number = np.array([1.0])
    if comm.rank == 0:
        comm.send(number, 1)
        comm.receive(number, comm.world_size - 1)
    else:
        handle = comm.start_receive(number, comm.rank - 1)
        while not handle.test():
            time.sleep(0)
        number += comm.rank
        comm.send(number, (comm.rank + 1) % comm.world_size)
    return number[0]


@on_ranks(pass_on, 2, 3)
def test_once_around(results):
    assert results[0] == sum(range(len(results))) + 1


BAD_ARGUMENTS = {  # by what is said about them
    "not list": lambda comm: comm.send([1.0], 0),
    "not an array of object": lambda comm: comm.start_send(np.array([None]), 0),
    "has strides": lambda comm: comm.send(np.zeros((3, 3))[:, 0], 0),
    "read-only": lambda comm: comm.receive(np.frombuffer(b"12", np.uint8), 0),
    "no other rank|other than this one": lambda comm: comm.receive(np.zeros(2), comm.rank),
    "no other rank|got -1": lambda comm: comm.send(np.zeros(2), -1),
    "no other rank|got 3": lambda comm: comm.start_receive(np.zeros(2), 3),
}


def bad_arguments(comm):
    return {message: error_of(partial(call, comm), TypeError, ValueError) for message, call in BAD_ARGUMENTS.items()}


@on_ranks(bad_arguments, "serial", "nccl", 1, 2)
def test_bad_arguments_are_refused(results):
    for result in results:
        wrong = [said for words, said in result.items() if not any(word in said for word in words.split("|"))]
        assert wrong == [] and len(result) == len(BAD_ARGUMENTS)


def compared(comm):
    """Messages with their headings, as PYTAGI_DDP_DEBUG sends them; several under way."""
    expected = np.arange(210_000.0).reshape(3, -1)
    rows = np.zeros_like(expected) if comm.rank else expected
    with patch.object(comm, "debug", True):
        start = comm.start_receive if comm.rank else comm.start_send
        for handle in [start(row, 1 - comm.rank) for row in rows]:
            handle.wait()
    return (rows == expected).all()


@on_ranks(compared, 2)
def test_messages_with_headings(results):
    assert results == [True, True]


MISMATCHES = {  # of a message from rank 0: what is sent, what is received, whether to debug, and what is said
    1: (np.zeros(3), np.zeros(2), False, "bytes to rank 1, which receives 16 bytes"),
    2: (np.zeros(1), np.zeros(2), False, "rank 0 sends 8 bytes to rank 2, which receives 16 bytes"),
    3: (
        np.zeros(3, "f4"),
        np.zeros((1, 3), "f4"),
        True,
        "float32 of shape (3,) to rank 3, which receives float32 of shape (1, 3)",
    ),
}


def mismatches(comm):
    """Messages that are not what the others receive; what each of those says."""
    if comm.rank:
        _, array, comm.debug, _ = MISMATCHES[comm.rank]
        return error_of(lambda: comm.receive(array, 0), CollectiveMismatchError)
    handles = []
    for peer, (array, _, debug, _) in MISMATCHES.items():
        with patch.object(comm, "debug", debug):
            handles.append(comm.start_send(array, peer))
    time.sleep(0.5)
    for handle in handles:
        handle._settled = True
    return ""


def mismatches_in_a_job():
    comm = create_communicator("mpi", timeout=20)
    say(comm.rank, mismatches(comm))


# What follows ends its job: a launch each, and as threads.
def receive_from_one_that_left(comm):
    if comm.rank == 0:
        comm.send(np.zeros(3), 1)
        return
    comm.receive(np.zeros(3), 0)  # sent before
    time.sleep(0.1)
    comm.receive(np.zeros(3), 0)


def send_to_one_that_left(comm):
    if comm.rank == 0:
        comm.receive(np.zeros(3), 1)
        return
    comm.send(np.zeros(3), 0)
    comm.send(np.zeros(3_000_000), 0)


def send_what_nobody_receives(comm):
    if comm.rank == 0:
        comm.send(np.zeros(1), 1)  # MPI may keep it for the other rank


def stalled(comm):
    comm.timeout = 0.5
    if comm.rank == 1:
        comm.receive(np.zeros(3), 0)
    time.sleep(1 if comm.backend == "threads" else 20)


FAILURES = {  # what is raised, and what is said
    receive_from_one_that_left: (
        RankLeftError,
        "rank 0 has left the job after 1 messages to this one, while rank 1 waits in receive from rank 0 #2",
    ),
    send_to_one_that_left: (
        RankLeftError,
        "rank 0 has left the job after 1 messages from this one, while rank 1 waits in send to rank 0 #2 (24 MB)",
    ),
    send_what_nobody_receives: (RankLeftError, "rank 1 has left the job after "),
    stalled: (CollectiveTimeoutError, "rank 1 has waited 0.5 s in receive from rank 0 #1 (2.4e-05 MB)"),
}


def as_a_job(name):
    globals()[name](create_communicator("mpi", timeout=20))


@pytest.mark.mpi
def test_messages_of_other_sizes_and_kinds():
    result = fails(mismatches_in_a_job, np=4)  # whoever catches the errors
    lines = sorted(result.stdout.splitlines())
    assert all(MISMATCHES[rank][3] in lines[rank] for rank in MISMATCHES), lines


def test_messages_of_other_sizes_and_kinds_between_threads():
    said = {}

    def program():
        comm = initialize(timeout=20)
        said[comm.rank] = mismatches(comm)

    with pytest.raises(CollectiveMismatchError):  # though they have caught it
        run_threads(program, 4)
    assert all(MISMATCHES[rank][3] in said[rank] for rank in MISMATCHES), said


@pytest.mark.mpi
@pytest.mark.parametrize("program", FAILURES)
def test_failures_of_messages_end_the_job(program):
    result = mpirun(partial(as_a_job, name=program.__name__))
    _, said = FAILURES[program]
    assert result.returncode == 1 and result.seconds < 10
    assert said in result.stderr and result.stderr.count("[rank ") == 1, result.stderr


@pytest.mark.parametrize("program", FAILURES)
def test_failures_of_messages_between_threads(program):
    error, said = FAILURES[program]
    with pytest.raises(error) as raised:
        run_threads(lambda: program(initialize(timeout=20)), 2)
    assert said in str(raised.value)

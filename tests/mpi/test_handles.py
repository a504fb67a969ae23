"""Collectives under way: several at once, other orders of waiting, and everything that can go wrong with a handle."""

import sys
import time
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.engine import mpi
from tests.mpi.ddp_networks import error_of
from tests.mpi.rank import say
from tests.mpi.run import fails
from tests.mpi.shared import on_ranks


def in_flight(comm):
    rank, size, results = comm.rank, comm.world_size, []
    sizes = [3, 0, mpi.WHOLE_BYTES, 5_000_000, 1]
    ops = ["sum", "sum", "max", "mean", "min"]
    expected = [size * (size + 1) // 2, 0, size, (size + 1) / 2, 1]
    for order in (1, -1 if rank else 1):  # first alike, then ranks wait in opposite orders
        buffers = [np.full(n, rank + 1, np.float32) for n in sizes]
        last = np.full(1000, rank, np.int64)
        handles = [comm.start_all_reduce(buffer, op) for buffer, op in zip(buffers, ops, strict=True)]
        handles.append(comm.start_broadcast(last, size - 1))
        through = np.ones(2)
        comm.all_reduce(through)  # a blocking one in between comes after them
        for handle in handles[::order]:
            handle.wait()
            handle.wait()
            assert handle.test()
        results.append([(buffer == value).all() for buffer, value in zip(buffers, expected, strict=True)])
        results.append([(last == size - 1).all(), (through == size).all()])
    counted = 2 * sum(4 * n for n in sizes) + 2 * 16
    results.append([comm.reduce_calls == 12, comm.reduce_bytes == counted])
    return results


@on_ranks(in_flight, "serial", "nccl", 1, 2, 3)
def test_several_in_flight(results):
    for result in results:
        assert len(result) == 5
        assert all(all(row) for row in result), result


def waits_until(comm):
    beside, buffer, late = comm.split(0), np.full(3, 1.0, np.float32), comm.rank == comm.world_size - 1 > 0
    if late:
        beside.barrier()
    handle, before, start = comm.start_all_reduce(buffer), comm.waited_seconds, time.monotonic()
    in_time = late or handle.wait_until(start + 0.03)
    took, waited = time.monotonic() - start, comm.waited_seconds - before
    if not late:
        beside.barrier()
    there = handle.wait_until(time.monotonic() + 60)
    handle.wait()
    beside.close()
    return [bool(in_time), took, waited, there, (buffer == comm.world_size).all()]


@on_ranks(waits_until, "serial", "nccl", 1, 2, 3)
def test_a_handle_is_waited_for_until_a_time(results):
    for rank, (in_time, took, waited, there, right) in enumerate(results):
        assert there and right
        assert in_time == (rank == len(results) - 1)
        assert in_time or (took >= 0.03 and 0 < waited <= took)  # on a busy machine, it may begin to wait late


def polls_of_a_late_one(comm):
    buffer = np.full(3_000_000, 1.0, np.float32)
    handle = comm.start_all_reduce(buffer)
    polls = 0
    if comm.rank == comm.world_size - 1:
        time.sleep(0.3)
    while not handle.test():
        polls += 1
    return [polls, (buffer == comm.world_size).all(), comm.reduce_calls, comm.reduce_bytes]


@on_ranks(polls_of_a_late_one, "serial", 1, 2, 3, threads=False)
def test_polling(results):
    for _, right, *counted in results:
        assert right
        assert counted == [1, 12_000_000]
    assert len(results) == 1 or results[0][0] > 10


def random_orders(comm):
    """400 collectives, started alike on every rank; waited for, polled and left alone as each likes."""
    rank, size = comm.rank, comm.world_size
    shared, own = np.random.default_rng(5), np.random.default_rng(rank)
    flying, before = [], comm._group.collectives.completed

    def finish(index):
        handle, buffer, expected = flying.pop(index)
        if own.random() < 0.5:
            while not handle.test():
                pass
        handle.wait()
        assert (buffer == expected).all(), (rank, handle.what, buffer, expected)

    for _ in range(400):
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
    return comm._group.collectives.completed - before


def in_many_pieces(comm):
    with patch.multiple(mpi, PIECE_BYTES=4096, LEAD_BYTES=256, WHOLE_BYTES=1024):
        return random_orders(comm)


@on_ranks(in_many_pieces, 2, 3, threads=False)
def test_every_rank_waits_in_an_order_of_its_own(results):
    assert len(set(results)) == 1 and results[0] >= 400


# What follows ends its job, or may not end well: a launch each.
def started():
    """A communicator, made as the first collective of its job."""
    return create_communicator("mpi")


def drop_a_handle():
    comm = started()

    def drop():
        comm.start_all_reduce(np.ones(300_000, np.float32))
        comm.barrier()

    say(error_of(drop, RuntimeError))


@pytest.mark.mpi
def test_a_dropped_handle_makes_the_next_collective_raise():
    result = fails(drop_a_handle)  # the handle was never waited for, whoever catches the error
    message = "the handle of start_all_reduce of 1.2 MB was dropped before it was done; keep it, and call its wait()"
    assert sorted(result.stdout.splitlines()) == [f"barrier on rank {rank}: {message}" for rank in range(2)]


def poll(handle, pause=0.0):
    while not handle.test():
        time.sleep(pause)


def poll_for_a_rank_that_left():
    comm = started()
    if comm.rank:
        sys.exit(0)
    poll(comm.start_all_reduce(np.ones(9)), pause=0.001)


@pytest.mark.mpi
def test_a_rank_that_left_ends_the_polls():
    result = fails(poll_for_a_rank_that_left, 3, 10)
    assert "RankLeftError: rank " in result.stderr and "while rank 0 waits in all_reduce #2" in result.stderr


def poll_for_a_stalled_rank():
    comm = started()
    comm.timeout = 0.5
    if comm.rank:
        time.sleep(30)
    handle = comm.start_broadcast(np.ones(9), 1)
    say(error_of(lambda: poll(handle), TimeoutError))
    say(error_of(handle.wait, RuntimeError))


@pytest.mark.mpi
def test_a_stalled_rank_ends_the_polls():
    result = fails(poll_for_a_stalled_rank, within=10)
    assert "rank 0 has waited 0.5 s in broadcast #2 (7.2e-05 MB)" in result.stdout
    assert "rank 0 cannot go on with broadcast #2 (7.2e-05 MB): broadcast #2 was cut short" in result.stdout


def work_between_polls(comm):
    comm.timeout = 1.2
    buffer = np.ones(9)
    handle = comm.start_all_reduce(buffer)
    if comm.rank:
        time.sleep(2.5)
    else:
        handle.test()
        time.sleep(2)  # longer than the time-out, but this rank was at work
        handle.test()
    handle.wait()
    return buffer.tolist()


@on_ranks(work_between_polls, 2)
def test_work_between_two_polls_is_not_waiting(results):
    assert results == [[2] * 9] * 2


def wait_for_a_late_barrier():
    comm = started()
    if comm.rank == 0:
        comm.barrier(timeout=0.3)
    else:
        time.sleep(20)


@pytest.mark.mpi
def test_a_barrier_with_a_time_out_of_its_own():
    result = fails(wait_for_a_late_barrier, within=10)
    assert "rank 0 has waited 0.3 s in barrier #2" in result.stderr

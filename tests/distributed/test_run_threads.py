"""Ranks that are threads of this process. What all engines have in common is tested in tests/mpi."""

import signal
import threading
import time

import numpy as np
import pytest

from pytagi_ddp.distributed import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DataParallel,
    LaunchError,
    RankLeftError,
    create_communicator,
    initialize,
    is_initialized,
    run_threads,
)
from pytagi_ddp.distributed.engine.combine import tree_sum
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.nn import Linear, Sequential


def test_nothing_of_the_ranks_is_left():
    before, threads = get_threads(), threading.active_count()
    set_threads(4)
    try:
        assert run_threads(lambda: (initialize().backend, get_threads()), 2) == [("threads", 2)] * 2
        assert get_threads() == 4
    finally:
        set_threads(before)
    assert not is_initialized()
    assert threading.active_count() <= threads  # those of a test before may have ended since
    with pytest.raises(LaunchError, match="run_threads"):
        create_communicator("threads")


def test_ranks_that_overlap_give_the_threads_back_in_any_order():
    """DataParallel and run_threads divide the threads of the kernels while their ranks are there."""
    before = get_threads()

    def replicas():
        return DataParallel(Sequential(Linear(4, 2)), ["cpu"] * 2)

    def job(seconds):
        run_threads(lambda: time.sleep(seconds), 2)

    try:
        set_threads(8)
        for order in (1, -1):
            pair = [replicas(), replicas()]
            assert get_threads() == 2
            for at_this_point, net in zip((4, 8), pair[::order], strict=True):
                net.close()
                assert get_threads() == at_this_point
        jobs = [threading.Thread(target=job, args=(seconds,)) for seconds in (0.1, 0.3)]
        jobs[0].start()
        time.sleep(0.05)
        jobs[1].start()
        for thread in jobs:
            thread.join()
        assert get_threads() == 8
        assert run_threads(lambda: run_threads(get_threads, 1), 2) == [[4]] * 2
        assert get_threads() == 8
        pair = [replicas(), replicas()]
        set_threads(3)  # stays, as it is newer
        for net in pair:
            net.close()
        assert get_threads() == 3
        run_threads(lambda: set_threads(1), 2)  # what a rank sets is the ranks'
        assert get_threads() == 3
    finally:
        set_threads(before)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8])
def test_sums_are_added_in_a_tree_of_neighbours(ranks):
    """As `add_places` does: where there are more than a power of two, the first ones are pairs."""
    parts = [np.float32([10.0**k, 1 / (k + 3)]) for k in range(ranks)]
    pairs = {1: 0, 2: 0, 3: 1, 4: 0, 5: 1, 6: 2, 7: 3, 8: 0}[ranks]
    row = [parts[2 * i] + parts[2 * i + 1] for i in range(pairs)] + parts[2 * pairs :]
    while len(row) > 1:
        row = [row[i] + row[i + 1] for i in range(0, len(row), 2)]
    assert np.array_equal(tree_sum(parts), row[0])
    assert np.array_equal(run_threads(lambda: reduced(parts), ranks)[-1], row[0])


def reduced(parts):
    comm = initialize()
    mine = parts[comm.rank].copy()
    comm.all_reduce(mine)
    return mine


def test_an_error_of_one_rank_is_raised_and_the_others_hear_of_it():
    heard = []

    def program():
        comm = initialize()
        comm.barrier()
        if comm.rank == 1:
            raise KeyError("of rank 1")
        try:
            comm.barrier()
        except RankLeftError as error:
            heard.append(str(error))
            raise

    with pytest.raises(KeyError, match="of rank 1"):
        run_threads(program, 3)
    assert len(heard) == 2 and all("rank 1 has left the job after 1 collectives" in text for text in heard)


def test_a_rank_that_does_not_come_is_late():
    def program():
        comm = initialize(timeout=0.3)
        if comm.rank:
            time.sleep(1.0)
        else:
            comm.all_reduce(np.ones(3))

    with pytest.raises(CollectiveTimeoutError, match=r"rank 0 has waited 0\.[3-9] s in all_reduce #1"):
        run_threads(program, 2)


def test_one_that_gave_up_is_everyones_error():
    said = {}

    def program():
        comm = initialize(timeout=0.3 if rank_of_thread() == 0 else 30)
        try:
            if comm.rank < 2:
                comm.barrier()
            else:
                time.sleep(1.5)
        except CollectiveTimeoutError as error:
            said[comm.rank] = str(error)

    with pytest.raises(CollectiveTimeoutError):  # though they have caught it: their results are of no use
        run_threads(program, 3)
    assert "rank 0 has waited" in said[0] and said[1] == "rank 0 gave up; rank 1 was waiting in barrier #1 (0 MB)"


def test_an_interrupted_program_is_said_to_be_interrupted():
    heard, said = threading.Event(), []

    def program():
        comm = initialize()
        if comm.rank == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            heard.wait(20)
            return
        try:
            comm.barrier()
        except RankLeftError as error:
            said.append(str(error))
            heard.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_threads(program, 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard.wait(20)
    assert said == ["the program was interrupted (Ctrl-C), while rank 0 was waiting in barrier #1 (0 MB)"]


def rank_of_thread():
    return int(threading.current_thread().name.split()[-1])


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (lambda c: c.barrier(), lambda c: c.all_reduce(np.ones(2)), "is 'barrier' on rank 0 and 'all_reduce'"),
        (lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(3)), "size is 2 on rank 0 and 3"),
        (lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(2), "max"), "op is 'sum' on rank 0"),
        (lambda c: c.broadcast(np.ones(2)), lambda c: c.broadcast(np.ones(2), 1), "root is 0 on rank 0 and 1"),
    ],
)  # fmt: skip
def test_different_collectives_are_every_ranks_error(one, other, difference):
    said = []

    def program():
        comm = initialize()
        try:
            (other if comm.rank else one)(comm)
        except CollectiveMismatchError as error:
            said.append(str(error))

    with pytest.raises(CollectiveMismatchError):
        run_threads(program, 2)
    assert len(said) == 2 and all(difference in text for text in said)


def test_a_handle_that_nobody_waits_for_is_an_error():
    kept = []

    def program():
        kept.append(initialize().start_all_reduce(np.ones(3)))

    with pytest.raises(RuntimeError, match=r"all_reduce #1 .* nobody waited for it"):
        run_threads(program, 2)
    for handle in kept:
        handle._settled = True


def test_fewer_than_one_rank():
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        run_threads(print, 0)

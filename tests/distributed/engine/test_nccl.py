"""The NCCL engine as far as it goes without a GPU: places, the exchange of the id, calls, errors and time-outs.

What it does with arrays in host memory is tested with the other engines, in `tests/mpi/test_collectives.py`.
"""

import importlib.util
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import cuda
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.engine import nccl as engine
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, LaunchError
from pytagi_ddp.distributed.engine.launcher import detect_launcher
from pytagi_ddp.distributed.engine.placement import Place, check_places, choose_device
from pytagi_ddp.distributed.engine.watchdog import Watchdog
from tests.distributed.engine.nccl_stand_in import FakeArray, nccl_stand_in
from tests.mpi import run
from tests.mpi.rank import say

PLACES = [Place("a", 0, "11"), Place("a", 1, "22"), Place("b", 0, "11")]


def test_the_local_rank_picks_the_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "get_device_count", lambda: 2)
    assert [choose_device(rank, None) for rank in range(4)] == [0, 1, 0, 1]
    assert [choose_device(rank, [3, 1]) for rank in range(2)] == [3, 1]
    for ids in ([0], [0, -1]):
        with pytest.raises(ValueError, match=r"device_ids \[.*\] names no GPU for local rank 1"):
            choose_device(1, ids)


def test_two_ranks_on_one_gpu_are_refused_by_identity(monkeypatch):
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    with pytest.raises(LaunchError, match=r"ranks 0 and 2 are on one GPU \(b, cuda:0 and cuda:0, 11\)"):
        check_places(PLACES, 23203)
    check_places(PLACES[:2], 23203)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    check_places(PLACES, 23203)
    with pytest.raises(LaunchError, match="ranks 0 and 2"):
        check_places(PLACES, 22907)


def test_a_rank_without_a_gpu_is_named():
    with pytest.raises(LaunchError, match=r"cannot be used on rank 1 \(b\): no driver"):
        check_places([PLACES[0], Place("b", 0, "", "no driver")], 23203)


def test_without_a_gpu_the_reason_is_given():
    reason = cuda.why_not()
    if reason is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(LaunchError, match="cannot be used on rank 0") as error:
        engine.NCCLCommunicator(create_communicator(), 5)
    assert reason in str(error.value)


@pytest.fixture
def nccl():
    with nccl_stand_in() as library:
        yield library


def test_calls_of_one_rank(nccl):
    """One allReduce for the whole buffer, in place, on the communication stream."""
    communicator = engine.NCCLCommunicator(create_communicator(), 5)
    assert (communicator.world_size, communicator.device_index) == (1, 0)
    buffer = FakeArray([1, 2, 3])
    communicator.all_reduce(buffer)
    communicator.broadcast(buffer)
    communicator.close()
    communicator.close()
    pointer = buffer.data.ptr
    assert nccl.calls == [
        ("init", 1, b"id", 0),
        ("allReduce", pointer, pointer, 3, "float32", "sum", 99),
        ("broadcast", pointer, pointer, 12, "char", 0, 99),
        ("abort",),
    ]
    assert communicator.reduce_calls == 1
    with pytest.raises(RuntimeError, match="closed"):
        communicator.all_reduce(buffer)


def test_blocks_apart_and_in_place(nccl):
    communicator = engine.NCCLCommunicator(create_communicator(), 5)
    communicator.world_size, communicator.rank = 4, 2
    nccl.calls.clear()
    whole = FakeArray(np.ones(8))
    own, apart = FakeArray(whole.values[4:6]), FakeArray([0, 0])
    for block in (own, apart):
        communicator.reduce_scatter(whole, block, "max")
        communicator.all_gather(block, whole)
    a, b = whole.data.ptr, apart.data.ptr
    assert nccl.calls == [
        ("reduceScatter", a, a + 16, 2, "float32", "max", 99),
        ("allGather", a + 16, a, 8, "char", 99),
        ("reduceScatter", a, b, 2, "float32", "max", 99),
        ("allGather", b, a, 8, "char", 99),
    ]
    for wrong in (FakeArray(whole.values[2:4]), FakeArray(whole.values[5:7])):
        with pytest.raises(ValueError, match="this rank's block"):
            communicator.all_gather(wrong, whole)
    with pytest.raises(TypeError, match="one array is on a GPU, the other in host memory"):
        communicator.all_gather(np.ones(2, np.float32), whole)
    assert communicator.gather_bytes == 64 and communicator.reduce_bytes == 64
    communicator.close()


def test_messages_are_calls_in_the_order_in_which_they_are_started(nccl):
    communicator = engine.NCCLCommunicator(create_communicator(), 5)
    communicator.world_size = 3
    nccl.calls.clear()
    buffer = FakeArray([1, 2, 3])
    communicator.send(buffer, 2)
    communicator.start_receive(buffer, 1).wait()
    pointer = buffer.data.ptr
    assert nccl.calls == [("send", pointer, 12, "char", 2, 99), ("recv", pointer, 12, "char", 1, 99)]
    assert communicator.sent_bytes == 12
    communicator.close()


def test_a_group_has_an_engine_of_its_own(nccl):
    communicator = engine.NCCLCommunicator(create_communicator(), 5)
    assert communicator.split(None) is None
    group = communicator.split(4)
    assert (group.device_index, group.timeout) == (communicator.device_index, 5)
    group.close()
    communicator.all_reduce(FakeArray([1]))
    assert [call[0] for call in nccl.calls] == ["init", "init", "abort", "allReduce"]
    communicator.close()


def test_other_ops_reductions_to_one_rank_and_handles(nccl):
    communicator = engine.NCCLCommunicator(create_communicator(), 5)
    communicator.world_size = 4
    nccl.calls.clear()
    buffer = FakeArray([4, 8])
    pointer = buffer.data.ptr
    communicator.all_reduce(buffer, "mean")
    communicator.reduce(buffer, "max", 0)
    communicator.reduce(buffer, "max", 3)
    handle = communicator.start_all_reduce(buffer, "max")
    assert handle.test()
    joined = communicator._stream.joined
    assert len(joined) == 3  # what is queued next does not wait for the handle
    communicator.start_all_reduce(buffer, "max").wait()
    assert len(joined) == 4
    assert nccl.calls == [
        ("allReduce", pointer, pointer, 2, "float32", "average", 99),
        ("reduce", pointer, pointer, 2, "float32", "max", 0, 99),
        ("reduce", pointer, 0, 2, "float32", "max", 3, 99),
        ("allReduce", pointer, pointer, 2, "float32", "max", 99),
        ("allReduce", pointer, pointer, 2, "float32", "max", 99),
    ]
    with pytest.raises(TypeError, match="takes NumPy arrays, in host memory"):
        communicator.all_to_all(buffer, buffer)
    communicator.close()


def test_a_status_that_is_not_success_reaches_the_caller(nccl):
    communicator = engine.NCCLCommunicator(create_communicator(), 5)

    def fail(*arguments):
        raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT")

    communicator._comm.allReduce = fail
    with pytest.raises(RuntimeError, match="NCCL_ERROR_INVALID_ARGUMENT"):
        communicator.all_reduce(FakeArray([1]))
    communicator.close()


def test_a_communicator_that_cannot_be_made_is_watched_no_longer(nccl, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")

    monkeypatch.setattr(nccl, "NcclCommunicator", fail)
    with pytest.raises(RuntimeError, match="NCCL_ERROR_SYSTEM_ERROR"):
        engine.NCCLCommunicator(create_communicator(), 5)
    assert not any(isinstance(thread, Watchdog) for thread in threading.enumerate())


@pytest.fixture
def seen(monkeypatch):
    """Exceptions that left a thread."""
    errors = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
    return errors


def wait_for(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_late_operation_is_aborted_and_the_rank_named(seen):
    aborted = []
    watchdog = Watchdog(3, 0.05, lambda: None, lambda: aborted.append(1))
    watchdog.watch("broadcast #1", SimpleNamespace(done=True))
    watchdog.watch("all_reduce #2 (94 MB)", SimpleNamespace(done=False))
    wait_for(lambda: seen)
    assert isinstance(seen[0], CollectiveTimeoutError) and aborted == [1]
    assert "rank 3 has waited 0.1 s in all_reduce #2 (94 MB)" in str(seen[0])
    with pytest.raises(RuntimeError, match=r"rank 3 cannot go on with all_reduce #3") as error:
        watchdog.watch("all_reduce #3", SimpleNamespace(done=True))
    assert error.value.__cause__ is seen[0]
    watchdog.join(5)
    assert not watchdog.is_alive()


def test_an_asynchronous_error_aborts(seen):
    aborted = []

    def check():
        raise RuntimeError("NCCL_ERROR_REMOTE_ERROR")

    watchdog = Watchdog(0, 60, check, lambda: aborted.append(1))
    watchdog.watch("all_reduce", SimpleNamespace(done=False))
    wait_for(lambda: seen)
    assert str(seen[0]) == "NCCL_ERROR_REMOTE_ERROR" and aborted == [1]


def test_the_watchdog_ends_with_its_communicator(seen):
    watchdog = Watchdog(0, 60, lambda: None, lambda: None)
    watchdog.watch("all_reduce", SimpleNamespace(done=False))
    watchdog.stop()
    assert not watchdog.is_alive() and not seen


def meet(gpus):
    """Makes an NCCL communicator whose library only writes down what it is asked for."""
    with nccl_stand_in(gpus, b"id of %d" % detect_launcher().rank) as library:
        communicator = engine.NCCLCommunicator(create_communicator(), 10)
        say(library.calls, communicator.device_index, communicator.all_gather_object(communicator.rank))
        communicator.close()


@pytest.mark.mpi
def test_the_id_of_rank_0_reaches_all_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = run.mpirun(partial(meet, gpus=2))
    assert result.returncode == 0, result.stderr
    made = (f"[('init', 2, b'id of 0', {rank})] {rank} [0, 1]" for rank in range(2))
    assert sorted(result.stdout.splitlines()) == [*made]


@pytest.mark.mpi
def test_two_ranks_on_one_gpu_end_before_nccl_starts():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = run.mpirun(partial(meet, gpus=1))
    assert result.returncode != 0 and not result.stdout
    assert "ranks 0 and 1 are on one GPU" in result.stderr


def test_the_installed_nccl():
    """Real NCCL: an id can be had without a GPU, a communicator cannot."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    from cupy.cuda import nccl as library

    if not library.available:
        pytest.skip("CuPy finds no NCCL (nvidia-nccl-cu13 is not installed)")
    unique_id = library.get_unique_id()
    assert len(unique_id) == 128 and library.get_version() >= 20800
    if cuda.is_available():
        pytest.skip("this machine has a GPU: communicators are tested by python -m benchmarks.gpu")
    with pytest.raises(library.NcclError, match="CUDA"):
        library.NcclCommunicator(1, unique_id, 0)

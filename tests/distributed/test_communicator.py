"""The choice of an engine, and what it does before ranks meet; its collectives: `tests/mpi/test_collectives.py`."""

import subprocess
import sys

import numpy as np
import pytest

from pytagi_ddp.distributed import CollectiveMismatchError, NonFiniteError
from pytagi_ddp.distributed import communicator as engines
from pytagi_ddp.distributed.communicator import SerialCommunicator, create_communicator
from pytagi_ddp.distributed.engine.debug import compare, fingerprint


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTAGI_DDP_TIMEOUT", raising=False)
    monkeypatch.delenv("PYTAGI_DDP_DEBUG", raising=False)


@pytest.mark.parametrize("backend", ["auto", "serial"])
def test_one_process(backend):
    comm = create_communicator(backend, rank=0, world_size=1)
    assert (comm.backend, comm.rank, comm.world_size) == ("serial", 0, 1)
    assert (comm.local_rank, comm.local_world_size) == (0, 1)


def test_a_dropped_handle_makes_the_next_collective_raise():
    comm = create_communicator("serial")
    comm.start_all_reduce(np.ones(3))
    with pytest.raises(
        RuntimeError, match=r"barrier on rank 0: the handle of start_all_reduce of 2.4e-05 MB was dropped"
    ):
        comm.barrier()


def test_debug_looks_for_values_that_are_not_finite(monkeypatch):
    monkeypatch.setenv("PYTAGI_DDP_DEBUG", "1")
    comm = create_communicator("serial")
    comm.all_reduce(np.ones(3, np.int64))
    with pytest.raises(NonFiniteError, match=r"after all_reduce of 1.6e-05 MB: 1 of 4 values are not finite") as error:
        comm.all_reduce(np.array([1, 2, np.inf, 3], np.float32))
    assert error.value.index == 2 and isinstance(error.value, FloatingPointError)
    with pytest.raises(NonFiniteError, match="the first is nan at flat index 0"):
        comm.reduce(np.array([np.nan]))


def test_fingerprints_are_compared_part_by_part():
    ours = fingerprint("all_reduce", [np.ones((2, 3), np.float32)], {"op": "sum"})
    assert ours == {"collective": "all_reduce", "dtype": "float32", "shape": (2, 3), "bytes": 24, "op": "sum"}
    compare(1, [ours, dict(ours)])
    with pytest.raises(
        CollectiveMismatchError, match=r"#7 .* between ranks 0 and 2: op is 'sum' on rank 0 and 'max' on"
    ):
        compare(7, [ours, ours, ours | {"op": "max"}])
    with pytest.raises(CollectiveMismatchError, match="root is 'absent' on rank 0 and 3 on rank 1"):
        compare(7, [ours, ours | {"root": 3}])


def test_a_closed_communicator_refuses():
    comm = create_communicator()
    comm.close()
    comm.close()
    with pytest.raises(RuntimeError, match="barrier on rank 0: this communicator is closed"):
        comm.barrier()


@pytest.mark.parametrize("asked", [{"rank": 1}, {"world_size": 4}, {"rank": 0, "world_size": 2}])
def test_rank_and_world_size_must_agree(asked):
    with pytest.raises(ValueError, match=r"=\d was asked for, but .* \(rank 0 of 1\)"):
        create_communicator("serial", **asked)


def test_unknown_backend_lists_the_known():
    with pytest.raises(ValueError, match="'gloo'; known are 'auto', 'serial', 'threads', 'mpi', 'nccl'"):
        create_communicator("gloo")


def test_time_out_comes_from_the_argument_or_the_environment(monkeypatch):
    limits = []
    monkeypatch.setattr(engines, "_start", lambda name, timeout, *gpu: limits.append(timeout) or SerialCommunicator())
    create_communicator("serial")
    monkeypatch.setenv("PYTAGI_DDP_TIMEOUT", "12.5")
    create_communicator("serial")
    create_communicator("serial", timeout=3)
    assert limits == [300.0, 12.5, 3.0]
    for text in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv("PYTAGI_DDP_TIMEOUT", text)
        with pytest.raises(ValueError, match=f"PYTAGI_DDP_TIMEOUT .* got '{text}'"):
            create_communicator("serial")


@pytest.mark.parametrize(("size", "engine"), [("2", "mpi"), ("1", "serial")])
def test_auto_follows_the_launcher(monkeypatch, size, engine):
    made = []
    monkeypatch.setattr(engines, "_start", lambda name, *_: made.append(name) or SerialCommunicator())
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", size)
    create_communicator()
    assert made == [engine]


def test_importing_and_serial_use_touch_no_mpi_and_no_numba_and_start_no_thread():
    code = (
        "import sys, threading, pytagi_ddp.doctor\n"
        "import pytagi_ddp.distributed.engine.mpi, pytagi_ddp.distributed.engine.job\n"
        "from pytagi_ddp.distributed.communicator import create_communicator\n"
        "create_communicator().barrier()\n"
        "from pytagi_ddp.distributed import *\n"
        "initialize(); synchronize('auto', [1]); barrier()\n"
        "print([name for name in ('mpi4py.MPI', 'cupy', 'matplotlib', 'numba') if name in sys.modules],\n"
        "      threading.active_count(), sys.excepthook is sys.__excepthook__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[] 1 True\n", result.stderr

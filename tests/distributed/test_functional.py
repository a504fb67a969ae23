"""The functional API without MPI: one process, no launcher. `tests/mpi/test_functional.py` tests what it does."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import distributed as dist
from pytagi_ddp.distributed import backends


@pytest.fixture(autouse=True)
def _nothing_initialised(monkeypatch):
    monkeypatch.setattr(backends, "_initialized", {})
    for name in ("PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_backend_is_initialised_once():
    assert not dist.is_initialized() and not dist.is_initialized("serial")
    communicator = dist.initialize()
    assert dist.initialize("serial") is communicator is dist.get_distributed_backend()
    assert dist.is_initialized() and dist.is_initialized("auto") and not dist.is_initialized("mpi")
    with pytest.raises(RuntimeError, match="'serial' is initialised already, so rank, timeout would have no effect"):
        dist.initialize(rank=0, timeout=3)
    communicator.close()
    assert not dist.is_initialized()
    assert dist.initialize(timeout=3) is not communicator


@pytest.mark.parametrize("backend", ["auto", "serial", "mpi"])
def test_functions_name_initialize(backend):
    functions = [
        dist.rank,
        dist.local_rank,
        dist.world_size,
        dist.barrier,
        lambda backend: dist.all_reduce(backend, np.ones(1)),
        lambda backend: dist.broadcast(backend, np.ones(1)),
        lambda backend: dist.reduce(backend, np.ones(1)),
        lambda backend: dist.start_all_reduce(backend, np.ones(1)),
        lambda backend: dist.start_broadcast(backend, np.ones(1)),
        lambda backend: dist.synchronize(backend, 1),
        lambda backend: dist.all_reduce_metrics(backend, {"a": 1}),
        lambda backend: dist.DistributedDataContainer(backend, [1]),
        lambda backend: dist.all_reduce_deltas(backend, nn_linear()),
    ]
    for function in functions:
        with pytest.raises(
            RuntimeError, match=rf"backend '{backend}' is not initialised: call initialize\('{backend}'\)"
        ):
            function(backend)
    with pytest.raises(ValueError, match="unknown backend 'gloo'"):
        dist.barrier("gloo")


def nn_linear():
    from pytagi_ddp import nn

    return nn.Sequential(nn.Linear(1, 1))


def test_second_names_are_the_documented_ones():
    text = (Path(__file__).parents[2] / "docs/distributed.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", text, re.M)
    assert len(table) == 6
    for name, second in table:
        assert getattr(dist, second) is getattr(dist, name)
    functions = {name for name in dist.__all__ if inspect.isfunction(getattr(dist, name))}
    assert {name for name in functions if getattr(dist, name).__name__ != name} == {second for _, second in table}


def test_rank_zero(capsys, monkeypatch):
    assert dist.rank_zero_only(lambda: 7)() == 7  # before initialize
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert dist.rank_zero_only(lambda: 7)() is None
    dist.rank_zero_print("not this")
    with monkeypatch.context() as started_by_a_rank:
        started_by_a_rank.setenv("PMI_FD", "none")
        assert dist.rank_zero_only(lambda: 7)() == 7
    dist.rank_zero_print("this", end="!", backend=dist.SerialCommunicator())
    assert capsys.readouterr().out == "this!"
    with pytest.raises(OSError, match="no network"), dist.rank_zero_first(dist.SerialCommunicator()):
        raise OSError("no network")
    assert dist.run_threads(dist.rank_zero_only(lambda: 7), 3) == [7, None, None]

"""Which processes are ranks, by what their environments and open files say."""

import os
import socket

import pytest

from pytagi_ddp.distributed.engine import child_process
from pytagi_ddp.distributed.engine.child_process import mark_rank, why_no_rank


@pytest.fixture(autouse=True)
def in_a_job(monkeypatch):
    """The environment of a rank under Hydra's proxy 50; a function that puts another one there."""
    monkeypatch.setenv(child_process.RANK_VARIABLE, "")  # and take it away afterwards
    proxy = ["50"]
    monkeypatch.setattr(child_process, "_proxy_above", lambda: proxy[0])
    return lambda other: proxy.__setitem__(0, other)


def test_a_rank_and_what_it_starts(monkeypatch, in_a_job):
    assert why_no_rank() is None
    mark_rank()
    assert why_no_rank() is None
    rank = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: rank + 1)
    assert why_no_rank() == f"process {rank} is, which has started this one"
    in_a_job("60")  # by an mpirun, which starts ranks of its own
    assert why_no_rank() is None


@pytest.mark.parametrize("name", ["PMIX_NAMESPACE", "PMI_PORT", "SLURM_STEP_ID"])
def test_jobs_differ_by_what_their_launcher_says(monkeypatch, in_a_job, name):
    in_a_job(None)
    monkeypatch.setenv(name, "1")
    mark_rank()
    rank = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: rank + 1)
    assert why_no_rank() is not None
    monkeypatch.setenv(name, "2")
    assert why_no_rank() is None


def test_a_process_without_the_launchers_connection_is_no_rank(tmp_path):
    def why(connection):
        return why_no_rank({"PMI_FD": str(connection)})

    told = "is not the connection to the launcher here, but in a process above this one"
    here, there = socket.socketpair()
    with here, there, (tmp_path / "log").open("w") as log:
        assert why(here.fileno()) is None
        file = log.fileno()
        assert why(file) == f"PMI_FD={file} {told}"
    closed = file
    assert why(closed) == f"PMI_FD={closed} {told}"
    assert why("none") == f"PMI_FD=none {told}"

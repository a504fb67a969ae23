"""Which processes are ranks, by what their environments and open files say."""

import os

import pytest

from pytagi_ddp.distributed.engine import offspring
from pytagi_ddp.distributed.engine.offspring import mark_rank, why_no_rank


@pytest.fixture(autouse=True)
def in_a_job(monkeypatch):
    """The environment of a rank under Hydra's proxy 50; a function that puts another one there."""
    monkeypatch.setenv(offspring.RANK_VARIABLE, "")  # and take it away afterwards
    proxy = ["50"]
    monkeypatch.setattr(offspring, "_proxy_above", lambda: proxy[0])
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


def test_a_process_without_the_launchers_connection_is_no_rank():
    read, write = os.pipe()
    assert why_no_rank({"PMI_FD": str(read)}) is None
    os.close(read)
    os.close(write)
    assert why_no_rank({"PMI_FD": str(read)}).startswith(f"PMI_FD={read}, the connection to the launcher, is not open")
    assert why_no_rank({"PMI_FD": "none"}).startswith("PMI_FD=none, ")

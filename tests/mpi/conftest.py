"""Fixtures of the tests that start real ranks: ``mpirun`` (run to the end) and ``mpi_job`` (signals in between)."""

import sys

import pytest

from pytagi_ddp.distributed.engine.launcher import mpirun_version
from tests.mpi import run


@pytest.fixture(scope="session", autouse=True)
def _mpi_is_here():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if sys.platform != "linux":
        pytest.skip("finds the ranks through /proc")


@pytest.fixture
def mpirun():
    """`tests.mpi.run.mpirun`: (program, np=2, timeout=30, env=None) -> Result."""
    return run.mpirun


@pytest.fixture
def hydra():
    """Skips where the installed MPI's mpirun is not MPICH's: others end a job, and say so, in ways of their own."""
    if "HYDRA" not in mpirun_version(run.mpirun_command()[0]):
        pytest.skip("what it checks is particular to MPICH's mpirun")


@pytest.fixture
def mpi_job():
    """`tests.mpi.run.MpiJob`; a job that the test has not finished is killed."""
    jobs = []

    def start(*args, **kwargs):
        jobs.append(run.MpiJob(*args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()

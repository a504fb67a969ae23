"""Fixtures of the tests that start real ranks: ``results`` of a program, and ``mpi_job`` for signals in between."""

import sys

import pytest

from pytagi_ddp.distributed.engine.launcher import mpirun_version
from tests.mpi import run, shared


@pytest.fixture(autouse=True)
def _mpi_is_here(request):
    if request.node.get_closest_marker("mpi") is None:
        return
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if sys.platform != "linux":
        pytest.skip("finds the ranks through /proc")


@pytest.fixture(scope="session")
def _outcomes():
    """The results of the calls that have run so far, see `tests.mpi.shared.run_all`."""
    return {}


@pytest.fixture
def results(request, np, _outcomes):
    """What the program of this test (`tests.mpi.shared.on_ranks`) returned, rank by rank."""
    call = shared.Call.of(request.node)
    if isinstance(np, str):
        return shared.run_serial(call)
    if call not in _outcomes:
        calls = dict.fromkeys(filter(None, map(shared.Call.of, request.session.items)))
        _outcomes.update(shared.run_all(shared.job_of(call, calls)))
    if isinstance(_outcomes[call], str):
        pytest.fail(_outcomes[call], pytrace=False)
    return _outcomes[call]


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

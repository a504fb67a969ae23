"""Rank programs of `tests.mpi.test_child_process`: a rank starts other processes, and the job goes on."""

import json
import multiprocessing
import os
import subprocess
import sys
import warnings

import numpy as np

from pytagi_ddp.distributed import initialize, is_initialized
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.engine.child_process import RANK_VARIABLE
from tests.mpi.ddp_networks import error_of
from tests.mpi.programs.faults import with_fault
from tests.mpi.rank import job_folder, note
from tests.mpi.run import mpirun_command


def place() -> list:
    """Where this process finds itself, and what it is told; a collective of its own works."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        comm = create_communicator()
    total = np.ones(2, np.float32)
    comm.all_reduce(total)
    assert (total == comm.world_size).all()
    return [comm.backend, comm.rank, comm.world_size, *[str(warning.message) for warning in told]]


def refused() -> str:
    return error_of(lambda: create_communicator("mpi"), RuntimeError)


def fork(child) -> int:
    """The exit code of a forked process that runs ``child()`` and then comes to the end of the interpreter."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        child()
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fail() -> None:
    raise ValueError("in the child")


@with_fault
def forks(job):
    initialize()
    handle = job.comm.start_all_reduce(job.buffer)

    def speak() -> None:
        calls = {
            "blocking": lambda: job.comm.all_reduce(job.buffer),
            "handle": handle.wait,
            "mpi": lambda: create_communicator("mpi"),
        }
        told = {name: error_of(call, RuntimeError) for name, call in calls.items()}
        note("results", json.dumps({"told": told, "initialized": is_initialized(), "place": place()}))

    if job.last:
        codes = {
            "end": fork(lambda: None),
            "fail": fork(fail),
            "speak": fork(speak),
            "_exit": fork(lambda: os._exit(5)),
        }
        with multiprocessing.get_context("fork").Pool(2) as pool:
            codes["pool"] = pool.map(abs, [-1, 2])
        found = json.loads((job_folder() / "results").read_text())
        note("results", json.dumps(found | {"codes": codes, "rank": [os.getpid(), job.rank]}))
    handle.wait()
    job.go_on()


@with_fault
def programs(job):
    if job.last:
        code = "from tests.mpi.programs.child_process import *; print(json.dumps([place(), refused()]))"
        command = [sys.executable, "-c", code]
        found = {"subprocess": json.loads(subprocess.run(command, capture_output=True, check=True).stdout)}
        found["os.popen"] = json.loads(os.popen(f"{sys.executable} -c '{code}'").read())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found["spawn"] = [pool.apply(place), pool.apply(refused)]
        other_socket = f"import os, socket; os.dup2(socket.socket().detach(), {os.environ['PMI_FD']}); {code}"
        before_mpi = {name: value for name, value in os.environ.items() if name != RANK_VARIABLE}
        command = [sys.executable, "-c", other_socket]
        result = subprocess.run(command, capture_output=True, check=True, env=before_mpi)
        found["its own socket"] = json.loads(result.stdout)
        code = "from tests.mpi.programs.child_process import *; from tests.mpi.rank import say; say(*place())"
        nested = [*mpirun_command(), "-np", "2", sys.executable, "-c", code]
        found["mpirun"] = sorted(subprocess.run(nested, capture_output=True, text=True, check=True).stdout.splitlines())
        note("results", json.dumps(found | {"rank": os.getpid()}))
    job.go_on()

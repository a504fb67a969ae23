"""Rank programs of `tests.mpi.test_launchers`: jobs that are refused, or killed while they start."""

import os
import time

from tests.mpi.rank import say


def train(backend: str = "auto") -> None:
    from pytagi_ddp.distributed.communicator import create_communicator

    comm = create_communicator(backend)
    say("training", comm.rank, comm.world_size)


def be_killed() -> None:
    from pytagi_ddp.distributed.communicator import create_communicator

    create_communicator().barrier()
    os.kill(os.getpid(), 9)


def be_killed_in_the_start(victim: str) -> None:
    """Ends between the start of MPI and the moment when it removes the names of its files."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    MPI.Init()  # makes the file; its name goes when all ranks have it
    MPI.COMM_WORLD.Barrier()
    with open(f"/proc/{os.getppid()}/stat") as file:
        proxy = file.read().rpartition(")")[2].split()
    if MPI.COMM_WORLD.rank == 0:
        os.kill(int(proxy[1]) if victim == "mpirun" else os.getpid(), 9)
    time.sleep(30)

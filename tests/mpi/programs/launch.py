"""Rank programs of `tests.mpi.test_launchers`: jobs that are refused, or killed while they start."""

import os
import time
from pathlib import Path

from tests.mpi.rank import fault, say


def train(backend: str = "auto") -> None:
    from pytagi_ddp.distributed.communicator import create_communicator

    comm = create_communicator(backend)
    say("training", comm.rank, comm.world_size)


def train_after_the_end() -> None:
    from mpi4py import MPI

    MPI.Finalize()
    train("mpi")


def fit_alone(starts: bool) -> None:
    from pytagi_ddp.distributed import initialize
    from pytagi_ddp.likelihoods import Gaussian
    from pytagi_ddp.nn import Linear, Sequential

    if starts:
        initialize("serial")
    for _ in range(2):
        Sequential(Linear(1, 1)).fit([[0.1], [0.9]], [1.0, 0.5], Gaussian(), epochs=1, batch_size=1)


def be_killed() -> None:
    from pytagi_ddp.distributed.communicator import create_communicator

    create_communicator().barrier()
    os.kill(os.getpid(), 9)


def die_beside_a_child() -> None:
    """Rank 1 dies, and a process that it has forked lives as long as rank 0, which waits for rank 1."""
    from pytagi_ddp.distributed.communicator import create_communicator
    from pytagi_ddp.process_tree import is_alive

    comm = create_communicator()
    other = comm.all_gather_object(os.getpid())[0]
    if comm.rank == 1:
        if os.fork() == 0:
            while is_alive(Path(f"/proc/{other}")):
                time.sleep(0.02)
            os._exit(0)
        fault()
        os.kill(os.getpid(), 9)
    comm.barrier()


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

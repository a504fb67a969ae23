"""Rank programs with a fault before MPI starts. They import the library after it."""

import os
import sys
import time

from tests.mpi.rank import fault


def end(how: str) -> None:
    """Rank 1 ends before MPI starts."""
    if os.environ["PMI_RANK"] == "1":
        fault()
        if how == "raise":
            raise ImportError("on rank 1")
        if how == "exit":
            sys.exit(0)
        os.kill(os.getpid(), 9)
    _start()


def stall() -> None:
    """Rank 1 never starts MPI."""
    if os.environ["PMI_RANK"] == "1":
        time.sleep(60)
    _start()


def _start() -> None:
    from tests.mpi.programs.faults import Started

    Started()

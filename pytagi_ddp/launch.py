"""Starts the mpirun that belongs to the installed MPI library.

``python -m pytagi_ddp.launch -np 2 [mpirun options] script.py [arguments]`` runs ``script.py`` on two ranks with this
Python; ``-m module [arguments]`` in place of the script runs a module. A machine often has another MPI's mpirun first
on PATH, and that one starts two unconnected processes, or none.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import find_mpirun, load_mpi, mpi_family

USAGE = "usage: python -m pytagi_ddp.launch -np RANKS [mpirun options] (script.py | -m module) [arguments]"


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the command line into mpirun's options and the program.

    The program begins at the first ``-m`` or the first name that ends in ``.py``, or after ``--``.

    Raises:
        ValueError: there is no program, or -np is not followed by a number of ranks.
    """
    for k, argument in enumerate(arguments):
        if argument == "--":
            begin = k + 1
        elif argument == "-m" or argument.endswith(".py"):
            begin = k
        else:
            continue
        if begin + (arguments[begin : begin + 1] == ["-m"]) < len(arguments):
            _check_ranks(arguments[:k])
            return list(arguments[:k]), list(arguments[begin:])
        break
    raise ValueError(f"no script and no -m module among the arguments {' '.join(arguments)!r}\n{USAGE}")


def _check_ranks(options: Sequence[str]) -> None:
    """Raises ValueError if -np has no valid number, where MPICH's mpirun starts one rank silently, or none."""
    for name, value in itertools.pairwise([*options, "nothing"]):
        if name in ("-np", "-n") and not (value.isdecimal() and int(value)):
            raise ValueError(f"{name} takes a number of ranks, got {value}\n{USAGE}")


def main(arguments: Sequence[str]) -> None:
    """Replaces this process by mpirun, so that mpirun gets the signals and determines the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    try:
        options, program = split_arguments(arguments)
        mpirun = find_mpirun(mpi_family(load_mpi(None).Get_library_version()))
    except (LaunchError, ValueError) as error:
        sys.exit(str(error))
    os.execv(mpirun, [str(mpirun), *options, sys.executable, *program])


if __name__ == "__main__":
    main(sys.argv[1:])

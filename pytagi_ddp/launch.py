"""Starts the mpirun that belongs to the installed MPI library.

``python -m pytagi_ddp.launch -np 2 [mpirun options] script.py [arguments]`` runs ``script.py`` on two ranks with this
Python; ``-m module [arguments]`` instead of the script runs a module. The first mpirun on PATH often belongs to another
MPI library. It would start two unconnected processes, or none.

Options before the script, in addition to those of mpirun:

``--max-restarts N``
    Starts a failed job again after a pause, up to N times. The program has to resume from its checkpoints:
    ``Checkpoints(folder, every=..., resume=True)`` of a Trainer. If an error occurs twice in the same place, the job
    ends.
``--min-ranks M``
    Restarts the job with the remaining ranks, if there are at least M. With ``-hosts`` or ``-f`` these are the ranks
    of the hosts that answer. Otherwise there is one rank less after a rank was killed. By default, all ranks start
    again.
``--pause SECONDS``
    The pause before the first restart (1 s). Each further pause is twice as long, up to a minute.
``--write-slurm FILE``
    Writes a batch script for ``sbatch``, and starts no job. The other options are then those of sbatch, such as
    ``-N 4 --ntasks-per-node 8 --time 12:00:00``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import OPEN_MPI, find_mpirun, load_mpi, mpi_family
from pytagi_ddp.distributed.engine.slurm import batch_script, script_name
from pytagi_ddp.distributed.engine.supervisor import Supervisor
from pytagi_ddp.text import whole_number

USAGE = """\
usage: python -m pytagi_ddp.launch -np RANKS [mpirun options] (script.py | -m module) [arguments]
       with --max-restarts N [--min-ranks M] [--pause SECONDS], a job that has died starts again
       python -m pytagi_ddp.launch --write-slurm FILE [sbatch options] (script.py | -m module) [arguments]"""


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the command line into options and the program.

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
        if name in ("-np", "-n") and not whole_number(value):
            raise ValueError(f"{name} takes a number of ranks, got {value}\n{USAGE}")


def _own_options(options: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of this program, and the others."""
    parser = argparse.ArgumentParser(usage=USAGE.removeprefix("usage: "), add_help=False, allow_abbrev=False)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--min-ranks", type=int)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--write-slurm", type=Path)
    return parser.parse_known_args(options)


def main(arguments: Sequence[str]) -> None:
    """Runs mpirun in the place of this process, which gives it the signals and the exit code; or under a supervisor."""
    if not arguments:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    if arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    try:
        options, program = split_arguments(arguments)
        own, options = _own_options(options)
        family = mpi_family(load_mpi(None).Get_library_version())
        command = [sys.executable, *program]
        if own.write_slurm:
            if own.max_restarts or own.min_ranks is not None or "-np" in options:
                raise ValueError(
                    "--write-slurm writes a script in which Slurm starts the ranks, and the job again: leave out "
                    "--max-restarts and --min-ranks, and give -N and --ntasks-per-node instead of -np"
                )
            interface = "pmix" if family == OPEN_MPI else "pmi2"
            script = batch_script(options, command, interface, script_name(program))
            own.write_slurm.write_bytes(os.fsencode(script))  # the bytes of names of files, as they were given
            return
        mpirun = find_mpirun(family)
        if own.max_restarts or own.min_ranks is not None:
            sys.exit(Supervisor(mpirun, options, command, own.max_restarts, own.min_ranks, own.pause).run())
    except (LaunchError, ValueError, OSError) as error:
        sys.exit(str(error))
    os.execv(mpirun, [str(mpirun), *options, *command])


if __name__ == "__main__":
    main(sys.argv[1:])

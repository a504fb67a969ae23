"""What every rank of a test's job runs: ``python -m tests.mpi.rank MODULE:FUNCTION [ARGUMENTS]``, arguments in JSON.

A rank program is a function. This module imports nothing of the library, as some programs test what comes before that.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def note(name: str, text: object) -> None:
    """Writes a file into the job's folder; it appears with the text in it."""
    own = job_folder() / f"{name}.{os.getpid()}"
    own.write_text(str(text))
    own.rename(job_folder() / name)


def job_folder() -> Path:
    """Returns the folder that this job has to itself."""
    return Path(os.environ["TEST_JOB_FOLDER"])


def ready(rank: int) -> None:
    """Tells the test that this rank has come so far (`tests.mpi.run.MpiJob.wait_ready`)."""
    note(str(rank), os.getpid())


def fault() -> None:
    """Tells the test that this rank's fault is about to happen."""
    note("fault", time.monotonic())


def say(*words: object) -> None:
    """Prints a line in one piece: those of `print` mix with the lines of other ranks."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def find(program: str):
    """Returns the function ``module:name``."""
    module, _, name = program.partition(":")
    return getattr(importlib.import_module(module), name)


def run_module(module: str, arguments: list[str], without: Sequence[str] = ()) -> None:
    """Runs a module as ``python -m`` does; unlike there, Ctrl-C always works, and some modules cannot be imported."""
    sys.argv[1:] = arguments
    sys.modules.update(dict.fromkeys(without))
    runpy.run_module(module, run_name="__main__")


def in_json(results: list) -> str:
    """Returns what programs returned as a text; NumPy's numbers are numbers."""
    return json.dumps(results, default=lambda number: number.item())


def several(calls: list[tuple[str, dict]], end: Callable[[], None] = lambda: None) -> None:
    """Runs rank programs one after the other, each as if it were the only one.

    Each gets a communicator of its own, and its arguments. What they return is written to the job's folder as
    ``results``: for each call a list over the ranks. The job ends if a program raises, or `end`, which is called after
    each of them.
    """
    from pytagi_ddp import manual_seed
    from pytagi_ddp.distributed.communicator import create_communicator

    results, timeout = [], 60 + 10 * int(os.environ.get("TEST_RANKS", 0))
    for program, arguments in calls:
        communicator = create_communicator("mpi", timeout=timeout)
        manual_seed(communicator.rank)  # replicas are to be made equal by what is tested
        result = find(program)(communicator, **arguments)
        end()
        results.append(communicator.all_gather_object(result))
        communicator.close()
    if communicator.rank == 0:
        note("results", in_json(results))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignored"
    find(sys.argv[1])(**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))

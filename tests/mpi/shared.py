"""Runs the rank programs of many tests in one job, as each start of mpirun takes a while.

A rank program is a function that each rank calls with its communicator. A test names it and numbers of ranks, and gets
what each rank returned:

def total(communicator, op):
    array = np.full(3, communicator.rank)
    communicator.all_reduce(array, op)
    return array.tolist()

@on_ranks(total, "serial", 1, 2, 3)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_total(results, op): ...

The first test that needs a result starts a job with the programs of all collected tests that take as many ranks,
whatever their modules, 80 at a time (`job_of`). If a job fails, its programs are run again in halves, until those that
are at fault are alone (`run_all`).
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed.communicator import SerialCommunicator, create_communicator
from pytagi_ddp.distributed.run_threads import run_threads
from tests.conftest import weekly
from tests.distributed.engine.nccl_stand_in import nccl_communicator
from tests.mpi import rank
from tests.mpi.run import Hang, Outlived, mpirun, name_of

MANY = int(os.environ.get("TEST_RANKS", 0))  # `make many` runs the programs on so many ranks


def on_ranks(
    program: Callable,
    *numbers: int | str,
    threads: bool = True,
    several: Callable = rank.several,
    once_a_week: Sequence[int] = (),
    real: int | None = None,
):
    """Marks a test whose fixture `results` is a list of what `program(communicator, ...)` returned on each rank.

    Args:
        program: a function after which all ranks have made the same collectives, and which returns what JSON can hold.
            It may take parameters of the test, by their names.
        numbers: numbers of ranks; each makes a test of its own. Two strings stand for this process alone: "serial" with
            the communicator for one rank, and "nccl" with that of a stand-in for a GPU.
        threads: whether to test it with ranks that are threads as well, as many as the largest of the numbers. False
            if a program is about processes, or changes what all threads of a process have in common.
        several: what runs the programs of a job, see `tests.mpi.rank.several`.
        once_a_week: further numbers of ranks, with which the test takes long, see `tests.conftest.weekly`.
        real: of a program that tests networks, and no engine, the number of ranks that are processes each time; with
            the other numbers, ranks are threads, and once a week processes.
    """
    most = max((np for np in numbers if isinstance(np, int)), default=0)
    numbers = (*numbers, f"{most} threads") if threads and most else numbers
    if real is not None:
        once_a_week = [np for np in numbers if isinstance(np, int) and np != real]
        numbers = (*dict.fromkeys(f"{np} threads" if np in once_a_week else np for np in numbers),)
    # Threads are not in `make check`, which has the tests of tests/distributed on them.
    marks = [pytest.mark.mpi if isinstance(np, int) else pytest.mark.slow if "threads" in np else () for np in numbers]
    cases = [pytest.param(np, marks=mark) for np, mark in zip(numbers, marks, strict=True)]
    cases += [pytest.param(np, marks=(pytest.mark.mpi, weekly)) for np in once_a_week]
    if MANY:  # programs for three ranks and another number work with any
        sizes = {int(str(np).split()[0]) for np in (*numbers, *once_a_week) if str(np)[0].isdigit()} - {1}
        cases = [pytest.param(MANY, marks=pytest.mark.mpi)] if 3 in sizes and len(sizes) > 1 else []

    def mark(test):
        return pytest.mark.rank_program.with_args(program, several)(pytest.mark.parametrize("np", cases)(test))

    return mark


def check(results: Sequence[dict], count: int | None = None, at_least: int = 1):
    """Asserts that each rank returned checks by name, as many as these, and that all of them hold."""
    for result in results:
        assert [name for name, passed in result.items() if not passed] == []
        assert len(result) == count if count is not None else len(result) >= at_least


def backend_of(np: int | str) -> str:
    """The name of the engine behind one of the numbers of `on_ranks`."""
    return "mpi" if isinstance(np, int) else np.split()[-1]


@dataclass(frozen=True)
class Call:
    """A run of a rank program: its name, its arguments in JSON, the ranks (see `on_ranks`), and what runs its job."""

    program: str
    arguments: str
    ranks: int | str
    several: Callable = rank.several

    @classmethod
    def of(cls, item: pytest.Item) -> Call | None:
        """The call whose results a test needs; None if it is not marked by `on_ranks`, or will be skipped."""
        marker = item.get_closest_marker("rank_program")
        if marker is None or any(skip.args[0] is True for skip in item.iter_markers("skipif")):
            return None
        program, several = marker.args
        values = item.callspec.params
        arguments = {name: values[name] for name in inspect.signature(program).parameters if name in values}
        return cls(name_of(program), json.dumps(arguments), values["np"], several)


def run_serial(call: Call) -> list:
    """Runs a call in this process: on threads, or on one rank. Returns what each rank returned."""
    arguments = json.loads(call.arguments)
    if "threads" in call.ranks:
        with TemporaryDirectory() as folder, patch.dict(os.environ, TEST_JOB_FOLDER=folder):
            return json.loads(rank.in_json(run_threads(in_thread, int(call.ranks[0]), call.program, arguments)))
    stand_in = nccl_communicator() if call.ranks == "nccl" else nullcontext(SerialCommunicator())
    with stand_in as communicator:
        result = rank.find(call.program)(communicator, **arguments)
    return json.loads(rank.in_json([result]))


def in_thread(program: str, arguments: dict) -> Any:
    """Runs a program on a rank that is a thread."""
    communicator = create_communicator("threads", timeout=60)
    manual_seed(communicator.rank)
    return rank.find(program)(communicator, **arguments)


SECONDS = 240 + 60 * MANY  # of a job
PER_JOB = 80  # calls in one job, which take two minutes on two busy cores


def job_of(call: Call, calls: Iterable[Call]) -> list[Call]:
    """The calls that run in the same job as `call`: of those with as many ranks, `PER_JOB` at a time."""
    alike = [other for other in calls if (other.ranks, other.several) == (call.ranks, call.several)]
    begin = alike.index(call) // PER_JOB * PER_JOB
    return alike[begin : begin + PER_JOB]


def run_all(calls: Sequence[Call]) -> dict[Call, list | str]:
    """Runs calls in one job. If it fails or prints anything, runs each half again, so that only calls at fault fail.

    Returns:
        For each call a list of what the ranks returned, or, if it failed by itself, a text that says how.
    """
    try:
        program = partial(calls[0].several, calls=[(call.program, json.loads(call.arguments)) for call in calls])
        result = mpirun(program, calls[0].ranks, timeout=SECONDS)
        if (result.returncode, result.stdout, result.stderr) == (0, "", ""):
            return dict(zip(calls, json.loads(result.results), strict=True))
        failure = f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    except (Hang, Outlived) as error:
        failure = str(error)
    if len(calls) == 1:
        return {calls[0]: failure}
    middle = len(calls) // 2
    return run_all(calls[:middle]) | run_all(calls[middle:])

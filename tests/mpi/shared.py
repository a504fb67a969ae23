"""Rank programs that share a job: tests that run on so many ranks wait for one mpirun, whatever their modules.

def total(communicator, op):
    array = np.full(3, communicator.rank)
    communicator.all_reduce(array, op)
    return array.tolist()

@on_ranks(total, "serial", 1, 2, 3)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_total(results, op): ...
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


def on_ranks(
    program: Callable,
    *numbers: int | str,
    threads: bool = True,
    several: Callable = rank.several,
    once_a_week: Sequence[int] = (),
):
    """Marks a test whose ``results`` are what ``program(communicator, ...)`` returned, rank by rank.

    Args:
        program: a function that leaves all ranks in step and returns what JSON can carry. It may take parameters of
            the test, by their names.
        numbers: how many ranks, each of them a test. Or this process alone: "serial" with the communicator for one,
            "nccl" with that of a stand-in for a GPU.
        threads: whether to test it with ranks that are threads, too (the largest of the numbers); not where a program
            is about processes, or changes what belongs to all threads.
        several: what runs the programs of a job, see `tests.mpi.rank.several`.
        once_a_week: other numbers of ranks, with which a test takes long, see `tests.conftest.weekly`.
    """
    cases = [pytest.param(np, marks=() if isinstance(np, str) else pytest.mark.mpi) for np in numbers]
    cases += [pytest.param(np, marks=(pytest.mark.mpi, weekly)) for np in once_a_week]
    most = max((np for np in numbers if isinstance(np, int)), default=0)
    cases += [f"{most} threads"] if threads and most else []

    def mark(test):
        return pytest.mark.rank_program.with_args(program, several)(pytest.mark.parametrize("np", cases)(test))

    return mark


def backend_of(np: int | str) -> str:
    """The name of the engine behind one of the numbers of `on_ranks`."""
    return "mpi" if isinstance(np, int) else np.split()[-1]


@dataclass(frozen=True)
class Call:
    """A program, its arguments in JSON, on how many ranks it runs, and what runs the programs of its job."""

    program: str
    arguments: str
    ranks: int | str
    several: Callable = rank.several

    @classmethod
    def of(cls, item: pytest.Item) -> Call | None:
        """Returns the call that a test waits for, if any."""
        marker = item.get_closest_marker("rank_program")
        if marker is None or any(skip.args[0] is True for skip in item.iter_markers("skipif")):
            return None
        program, several = marker.args
        values = item.callspec.params
        arguments = {name: values[name] for name in inspect.signature(program).parameters if name in values}
        return cls(name_of(program), json.dumps(arguments), values["np"], several)


def run_serial(call: Call) -> list:
    """Runs a call in this process."""
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


PER_JOB = 40  # calls: a minute on two busy cores


def job_of(call: Call, calls: Iterable[Call]) -> list[Call]:
    """Returns the calls, `call` among them, that run in one job: all that can, `PER_JOB` at a time."""
    alike = [other for other in calls if (other.ranks, other.several) == (call.ranks, call.several)]
    begin = alike.index(call) // PER_JOB * PER_JOB
    return alike[begin : begin + PER_JOB]


def run_all(calls: Sequence[Call]) -> dict[Call, list | str]:
    """Runs the calls of one job; if anything is wrong with it, each half by itself, so that the others do not suffer.

    Returns:
        What each program returned, rank by rank; or, if its job did not end well and in silence, what was said.
    """
    try:
        program = partial(calls[0].several, calls=[(call.program, json.loads(call.arguments)) for call in calls])
        result = mpirun(program, calls[0].ranks, timeout=120)
        if (result.returncode, result.stdout, result.stderr) == (0, "", ""):
            return dict(zip(calls, json.loads(result.results), strict=True))
        failure = f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    except (Hang, Outlived) as error:
        failure = str(error)
    if len(calls) == 1:
        return {calls[0]: failure}
    middle = len(calls) // 2
    return run_all(calls[:middle]) | run_all(calls[middle:])

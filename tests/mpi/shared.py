"""Rank programs that share a job: the tests of a module that run on so many ranks wait for one mpirun.

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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pytest

from pytagi_ddp.distributed.communicator import SerialCommunicator
from tests.distributed.engine.nccl_stand_in import nccl_communicator
from tests.mpi import rank
from tests.mpi.run import Hang, Outlived, mpirun, name_of


def on_ranks(program: Callable, *numbers: int | str):
    """Marks a test whose ``results`` are what ``program(communicator, ...)`` returned, rank by rank.

    Args:
        program: a function that leaves all ranks in step and returns what JSON can carry. It may take parameters of
            the test, by their names.
        numbers: how many ranks, each of them a test. Or this process alone: "serial" with the communicator for one,
            "nccl" with that of a stand-in for a GPU.
    """
    cases = [pytest.param(np, marks=() if isinstance(np, str) else pytest.mark.mpi) for np in numbers]

    def mark(test):
        return pytest.mark.rank_program.with_args(program)(pytest.mark.parametrize("np", cases)(test))

    return mark


@dataclass(frozen=True)
class Call:
    """A program, its arguments in JSON, and the job that it is a part of: its test's module and the number of ranks."""

    program: str
    arguments: str
    job: tuple[str, int | str]

    @classmethod
    def of(cls, item: pytest.Item) -> Call | None:
        """Returns the call that a test waits for, if any."""
        marker = item.get_closest_marker("rank_program")
        if marker is None:
            return None
        (program,) = marker.args
        values = item.callspec.params
        arguments = {name: values[name] for name in inspect.signature(program).parameters if name in values}
        return cls(name_of(program), json.dumps(arguments), (item.module.__name__, values["np"]))


def run_serial(call: Call) -> list:
    """Runs a call in this process."""
    stand_in = nccl_communicator() if call.job[1] == "nccl" else nullcontext(SerialCommunicator())
    with stand_in as communicator:
        result = rank.find(call.program)(communicator, **json.loads(call.arguments))
    return json.loads(rank.in_json([result]))


def run_all(calls: Sequence[Call]) -> dict[Call, list | str]:
    """Runs the calls of one job; if anything is wrong with it, each by itself, so that the others do not suffer.

    Returns:
        What each program returned, rank by rank; or, if its job did not end well and in silence, what was said.
    """
    try:
        program = partial(rank.several, calls=[(call.program, json.loads(call.arguments)) for call in calls])
        result = mpirun(program, calls[0].job[1], timeout=120)
        if (result.returncode, result.stdout, result.stderr) == (0, "", ""):
            return dict(zip(calls, json.loads(result.results), strict=True))
        failure = f"exit code {result.returncode}\n{result.stdout}{result.stderr}"
    except (Hang, Outlived) as error:
        failure = str(error)
    if len(calls) == 1:
        return {calls[0]: failure}
    return {call: outcome for alone in calls for call, outcome in run_all([alone]).items()}

"""Programs that share a job: each test gets its own outcome, also where another program fails."""

import json

import numpy as np
import pytest

from tests.mpi import shared
from tests.mpi.run import Result
from tests.mpi.shared import Call, on_ranks, run_all


def add_up(comm, start):
    total = np.array([start + comm.rank])
    comm.all_reduce(total)
    return {"total": total[0]}


def jobs_without_ranks(program, np, timeout):
    """As `mpirun` with two ranks ends: a program may fail, or print something."""
    names = [name for name, _ in program.keywords["calls"]]
    if "fails" in names:
        return Result(1, "", "[rank 1/2] Traceback", 0.1)
    said = "hello\n" * names.count("speaks")
    return Result(0, said, "", 0.1, json.dumps([[name] * np for name in names]))


def test_a_program_that_fails_or_speaks_fails_by_itself(monkeypatch):
    monkeypatch.setattr(shared, "mpirun", jobs_without_ranks)
    calls = [Call(name, "{}", 2) for name in ("one", "fails", "speaks", "other")]
    outcomes = run_all(calls)
    assert [outcomes[call] for call in (calls[0], calls[3])] == [["one"] * 2, ["other"] * 2]
    assert outcomes[calls[1]] == "exit code 1\n[rank 1/2] Traceback"
    assert outcomes[calls[2]] == "exit code 0\nhello\n"


@on_ranks(add_up, "serial", 3)
@pytest.mark.parametrize("start", [0, 7])
def test_arguments_are_those_of_the_test(results, start):
    size = len(results)
    assert results == [{"total": size * start + sum(range(size))}] * size

"""Programs that share a job: each test gets its own outcome, also where another program fails."""

import json
import re

import numpy as np
import pytest

from tests import many
from tests.conftest import weekly
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


@weekly
@pytest.mark.mpi
def test_many_ranks_start_and_say_what_they_take():
    said = many.start_up(4, repeat=1)
    numbers = [float(number) for number in re.findall(r"[\d.]+(?= s\b| MB)", said)]
    imported, joined, trained, own, resident = numbers
    assert 0 < imported < joined < trained < 60 and 10 < own < resident < 1000

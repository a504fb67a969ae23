"""Programs that share a job: each test gets its own outcome, also where another program fails."""

import json
import re

import numpy as np
import pytest

from tests import many
from tests.mpi.rank import say
from tests.mpi.run import name_of
from tests.mpi.shared import Call, on_ranks, run_all


def add_up(comm, start):
    total = np.array([start + comm.rank])
    comm.all_reduce(total)
    return {"total": total[0]}


def fail_on_rank_1(comm):
    if comm.rank == 1:
        raise ValueError("this one fails")
    comm.barrier()


def chat(comm):
    say("hello")


@pytest.mark.mpi
def test_a_program_that_fails_or_speaks_fails_by_itself():
    programs = [(add_up, {"start": 1}), (fail_on_rank_1, {}), (chat, {}), (add_up, {"start": 5})]
    calls = [Call(name_of(program), json.dumps(arguments), 2) for program, arguments in programs]
    outcomes = run_all(calls)
    assert [outcomes[call] for call in (calls[0], calls[3])] == [[{"total": 3}] * 2, [{"total": 11}] * 2]
    failed, spoke = outcomes[calls[1]], outcomes[calls[2]]
    assert failed.startswith("exit code 1\n") and "[rank 1/2] Traceback" in failed
    assert "in fail_on_rank_1" in failed and "ValueError: this one fails" in failed
    assert spoke == "exit code 0\nhello\nhello\n"


@on_ranks(add_up, "serial", 3)
@pytest.mark.parametrize("start", [0, 7])
def test_arguments_are_those_of_the_test(results, start):
    size = len(results)
    assert results == [{"total": size * start + sum(range(size))}] * size


@pytest.mark.mpi
def test_many_ranks_start_and_say_what_they_take():
    said = many.start_up(4, repeat=1)
    numbers = [float(number) for number in re.findall(r"[\d.]+(?= s\b| MB)", said)]
    imported, joined, trained, own, resident = numbers
    assert 0 < imported < joined < trained < 60 and 10 < own < resident < 1000

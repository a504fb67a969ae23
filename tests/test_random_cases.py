"""Two generators of random cases; those of `tests/mpi` are tested there."""

import pytest

from tests.distributed import random_ways
from tests.training import random_kills


@pytest.mark.parametrize("generator", [random_ways, random_kills])
def test_cases_of_every_way_are_drawn_and_one_is_right(generator, capsys):
    drawn = [generator.draw(seed) for seed in range(100)]
    assert {case.way for case in drawn} == {*generator.WAYS}
    assert generator.main(["--count", "2", "--seed", "4"]) == 0
    assert " 0 of " in capsys.readouterr().out

"""A generator of random cases; those of `tests/mpi` are tested there."""

from tests.distributed import random_ways


def test_cases_of_every_way_are_drawn_and_two_are_right(capsys):
    drawn = [random_ways.draw(seed) for seed in range(100)]
    assert {case.way for case in drawn} == {*random_ways.WAYS}
    assert random_ways.main(["--count", "2", "--seed", "4"]) == 0
    assert " 0 of " in capsys.readouterr().out

"""The command that runs every generator of random trials."""

import pytest

from tests.attack import COMMANDS, main, tried
from tests.distributed import random_ways
from tests.training import random_kills


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("files", "idx: 40 files, 20 refused, 90 MB at most, 3 s\ncsv: 2 files, 1 refused, 90 MB at most, 0 s\n", 42),
        ("threads", "7 cases, the same on one thread and on several, 5 s: Linear 7\n", 7),
        ("faults", "table\n10 cases in 60 s, 0 of them wrong; files left in /dev/shm: none\n", 10),
        ("restarts", "10 cases in 60 s, 0 of them wrong\n", 10),
        ("signals", "10 cases in 60 s, 1 of them wrong\n", 10),
        ("calls", "200 sequences of calls\n", 200),
        ("ways", "5 cases in 3 s, 0 of them wrong\n", 5),
        ("kills", "24 cases in 92 s, 2 of them wrong; 36 kills\n", 24),
        ("calls", "Traceback\n", 0),
    ],
)
def test_what_generators_say_is_counted(name, text, count):
    assert tried(name, text) == count
    assert name in COMMANDS


@pytest.mark.slow
def test_a_generator_runs_and_is_counted(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "threads", lambda seed, seconds: ["tests.kernels.threads", "--cases", "2"])
    assert main(["threads", "--minutes", "0.001"]) == 0
    words = capsys.readouterr().out.split()
    assert words[0] == "threads" and int(words[1]) > 0 and words[-4:] == ["wrong", "in", "0", "rounds"]


def test_a_generator_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such generator: nothing" in capsys.readouterr().err


@pytest.mark.parametrize("generator", [random_ways, random_kills])
def test_cases_of_every_way_are_drawn_and_one_is_right(generator, capsys):
    drawn = [generator.draw(seed) for seed in range(100)]
    assert {case.way for case in drawn} == {*generator.WAYS}
    assert generator.main(["--count", "2", "--seed", "4"]) == 0
    assert " 0 of " in capsys.readouterr().out

"""Jobs that die and start again by `pytagi_ddp.launch --max-restarts`: a few of the random ones, signals, lost nodes."""

import os
import signal
import sys
from collections import Counter
from functools import partial

import pytest

from tests.mpi.programs import restarted
from tests.mpi.random_restarts import LIMIT, VICTIMS, WAYS, draw, judge, run, start, table
from tests.mpi.run import MpiJob, Result

SAMPLE = (3, 8)  # TODO


def supervised(program, *options: str, ranks: int = 2) -> MpiJob:
    return MpiJob(program, ranks, launcher=[sys.executable, "-m", "pytagi_ddp.launch", "-np", str(ranks), *options])


@pytest.mark.mpi
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_job_that_is_killed_ends_as_if_it_had_not_been(seed, hydra):
    wrong, story = run(draw(seed))
    assert not wrong, story


@pytest.mark.mpi
def test_an_error_that_comes_again_ends_the_job(tmp_path, hydra):
    result = start("ddp", 2, [], str(tmp_path), "--max-restarts", "5", "--pause", "0.05", fail_at=5).finish(LIMIT)
    assert result.returncode == 1
    assert [line for line in result.stdout.splitlines() if line.startswith("from")] == ["from 0", "from 3"]
    said = [line for line in result.stderr.splitlines() if line.startswith("[launch] ")]
    assert len(said) == 2 and "as before. It would end so again, and is not restarted" in said[1]
    where = "in step 5, of epoch 1" if sys.version_info >= (3, 11) else ""
    assert "ValueError: the fault of this program" in said[0] and where in said[0] and "Restart 1 of 5" in said[0]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "code"), [("SIGUSR1", 0), ("SIGTERM", 15), ("SIGHUP", 129), ("SIGKILL", -signal.SIGKILL)]
)
def test_signals_end_the_job_and_not_only_the_launcher(name, code, hydra):
    job = supervised(restarted.wait, "--max-restarts", "3")
    job.wait_ready()
    os.kill(job.process.pid, getattr(signal, name))
    result = job.finish()
    assert result.returncode == code, result.stderr
    assert "[launch]" not in result.stderr


REMOTE_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
[ "$host" = 127.0.0.2 ] && [ -e {down} ] && exit 255
exec sh -c "exec $*"
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("least", "code"), [(2, 0), (3, 9)])
def test_a_node_that_is_lost_is_left_out(least, code, tmp_path, hydra):
    shell, down = tmp_path / "shell", tmp_path / "down"
    shell.write_text(REMOTE_SHELL.format(down=down))
    shell.chmod(0o700)
    remote = ("-launcher", "ssh", "-launcher-exec", str(shell), "-hosts", "127.0.0.1:2,127.0.0.2:2")
    options = (*remote, "--max-restarts", "2", "--min-ranks", str(least), "--pause", "0.05")
    result = supervised(partial(restarted.lose_a_node, down=str(down)), *options, ranks=4).finish()
    assert result.returncode == code, result.stderr
    assert "[launch] 127.0.0.2 does not answer" in result.stderr
    if code:
        assert "and fewer than 3 ranks are left" in result.stderr
    else:
        assert "follows in 0.05 s on 2 ranks" in result.stderr
        assert result.stdout.splitlines() == ["ranks 2", "ranks 2"]


def test_cases_follow_from_their_number_and_cover_every_way():
    cases = [draw(seed) for seed in range(200)]
    assert cases == [draw(seed) for seed in range(200)]
    assert min(Counter(case.way for case in cases).values()) >= 20 and {case.way for case in cases} == set(WAYS)
    deaths = [death for case in cases for death in case.deaths]
    assert {death[1] for death in deaths} == set(VICTIMS)
    assert min(Counter(death[2] for death in deaths).values()) >= 40
    assert len(table([(case, [], 1) for case in cases]).splitlines()) == len(WAYS) + 2


@pytest.mark.parametrize(
    ("code", "stdout", "wrong"),
    [
        (0, "from 0\nsaved 3\nfrom 3\nrank 0 a\n", []),
        (9, "from 0\nsaved 3\nfrom 3\nrank 0 a\n", ["exit code 9"]),
        (0, "from 0\nsaved 3\nfrom 3\nrank 0 b\n", ["other parameters"]),
        (0, "from 0\nsaved 3\nsaved 6\nfrom 3\nrank 0 a\n", ["lost steps"]),
    ],
)
def test_the_judge(code, stdout, wrong):
    assert judge(["rank 0 a"], Result(code, stdout, "", 1.0)) == wrong

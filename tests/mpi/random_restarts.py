"""Jobs that are killed and start again: ``python -m tests.mpi.random_restarts --count 200 --seed 0``.

Each case is a training on 2 or 3 ranks, in a way, under ``pytagi_ddp.launch --max-restarts``. One to three of its
starts die, at moments that follow from its number: the kernel kills a rank, or Hydra's proxy or mpirun is killed, while
it starts, behind a step, in an exchange, around a checkpoint, or at its end. The job has to end with code 0 and the
bits of an undisturbed one, resume from its newest checkpoint each time, and leave no process, and for each death at
most the file of each rank that was being written. The exit code is the number of cases that went otherwise (up to 99).
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from tests import random_cases
from tests.mpi.programs import restarted
from tests.mpi.run import MpiJob, Result

AT_ONCE = 2
WAYS = ("ddp", "buckets", "merges", "synchronised", "shards", "whole", "pipeline")
VICTIMS = ("rank", "rank", "rank", "proxy", "mpirun")
LIMIT = 150.0  # seconds after which a case counts as a hang
DELAYS = {"start": 2.0, "step": 0.03, "exchange": 0.003, "save": 0.02, "end": 0.1}  # at most, behind the moment
STEPS = 24
SAVES = sorted({*range(restarted.EVERY, STEPS + 1, restarted.EVERY), *range(8, STEPS + 1, 8)})


@dataclass
class Case:
    """A training whose first starts die.

    Attributes:
        seed: its number. way: one of `WAYS`. ranks: in the job. deaths, keep, average_last: of `restarted.train`.
    """

    seed: int
    way: str
    ranks: int
    deaths: list[list]
    keep: int
    average_last: float


def draw(seed: int) -> Case:
    """Returns case number ``seed``."""
    rng = random.Random(f"restarts {seed}")
    ranks, deaths = rng.choice((2, 2, 3)), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        point = rng.choice(restarted.POINTS)
        step = {"save": rng.choice(SAVES), "step": rng.randint(1, STEPS), "exchange": rng.randint(1, STEPS)}.get(
            point, 0
        )
        delay = round(rng.uniform(0, DELAYS[point]), 5)
        deaths.append([rng.randrange(ranks), rng.choice(VICTIMS), point, step, delay])
    way = rng.choice(WAYS)
    return Case(seed, way, ranks, deaths, rng.randint(1, 3), rng.choice((0, 0.5)) if way == "ddp" else 0)


def start(way: str, ranks: int, deaths: list, folder: str, *options: str, **of_training: Any) -> MpiJob:
    program = partial(restarted.train, folder=folder, way=way, deaths=deaths, **of_training)
    launcher = [sys.executable, "-m", "pytagi_ddp.launch", *options, "-np", str(ranks)]
    return MpiJob(program, ranks, {"PYTAGI_DDP_TIMEOUT": "60"}, launcher)


@cache
def undisturbed(way: str, ranks: int, keep: int = 2, average_last: float = 0.0) -> tuple[list[str], set[str]]:
    """What the ranks of a job say in the end that is not killed, and the files that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        result = start(way, ranks, [], folder, keep=keep, average_last=average_last).finish(LIMIT)
        files = set(os.listdir(folder))
    assert result.returncode == 0, result.stderr
    return ends(result), files


def ends(result: Result) -> list[str]:
    return sorted({line for line in result.stdout.splitlines() if line.startswith("rank ")})


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case; returns what was wrong, and everything that is known about it."""
    of_training = {"keep": case.keep, "average_last": case.average_last}
    wanted, files = undisturbed(case.way, case.ranks, **of_training)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--max-restarts", str(len(case.deaths)), "--pause", "0.05")
        with contextlib.closing(start(case.way, case.ranks, case.deaths, folder, *options, **of_training)) as job:
            result = job.finish(LIMIT)
        more = sorted({*os.listdir(folder)} - files)
    wrong = judge(wanted, result) + ["more files"] * (len(more) > len(case.deaths) * case.ranks)
    return wrong, f"exit code {result.returncode}, more files: {more}\n{result.stdout}{result.stderr}"


def judge(wanted: list[str], result: Result) -> list[str]:
    """Compares how a job ended with how it should have."""
    wrong = [] if result.returncode == 0 else [f"exit code {result.returncode}"]
    wrong += [] if ends(result) == wanted else ["other parameters"]
    saved = 0
    for line in result.stdout.splitlines():
        word, _, step = line.partition(" ")
        if word == "saved":
            saved = int(step)
        elif word == "from" and int(step) < saved:
            wrong.append("lost steps")
    return wrong


def moments(outcomes: Sequence[random_cases.Outcome]) -> str:
    """How many deaths there were by their moment, and restarts."""
    points = Counter(death[2] for outcome in outcomes for death in outcome.case.deaths)
    restarts = sum(outcome.story.count(" follows in ") for outcome in outcomes)
    return f"; {restarts} restarts, deaths by moment: " + ", ".join(
        f"{name} {points[name]}" for name in restarted.POINTS
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return random_cases.main(arguments, "tests.mpi.random_restarts", draw, run, WAYS, at_once=AT_ONCE, more=moments)


if __name__ == "__main__":
    sys.exit(main())

"""Bursts of signals in real jobs: ``python -m tests.mpi.random_signals --count 200 --seed 0``.

Each case is a training on 2 or 3 ranks, in a way, and a burst of one to five signals (Ctrl-C, SIGTERM, SIGHUP), 0.5 to
120 ms apart, to one rank, to all ranks, to mpirun or to its process group, all of which follow from its number; or a
training of one process that catches Ctrl-C and goes on, 20 to 60 times, and has to be sound afterwards. The job
has to end soon, leave no process, and say at most once what happened. After Ctrl-C, however often, it says so exactly
once, and its exit code is 130. The exit code of this program is the number of cases that went otherwise (up to 99).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tests import random_cases
from tests.mpi.programs import signalled
from tests.mpi.run import MpiJob, Result

SOON = 5.0  # seconds from the first signal to the end of the job
LIMIT = 20.0  # seconds after which a case counts as a hang
TARGETS = ("a rank", "all ranks", "mpirun", "the group")
SIGNALS = ("SIGINT", "SIGINT", "SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C most often: Python handles it


@dataclass
class Case:
    """A burst.

    Attributes:
        seed: its number. way: one of `signalled.WAYS`. ranks: in the job. target: one of `TARGETS`. rank: which one.
        delay: seconds from the first step to the first signal. burst: (signal, seconds until the next one).
    """

    seed: int
    way: str
    ranks: int
    target: str
    rank: int
    delay: float
    burst: list[tuple[str, float]]

    @property
    def is_for_python(self) -> bool:
        """Whether the ranks alone have to answer: nothing but Ctrl-C, of which mpirun gets one at most.

        From the second one on, mpirun kills the ranks.
        """
        one = len(self.burst) == 1 or self.target in ("a rank", "all ranks")
        return one and {kind for kind, _ in self.burst} == {"SIGINT"}


def draw(seed: int) -> Case:
    """Returns case number ``seed``."""
    rng = random.Random(f"signals {seed}")
    ranks = rng.choice((2, 2, 3))
    first = rng.choice(SIGNALS)
    kinds = [first if rng.random() < 0.8 else rng.choice(SIGNALS) for _ in range(rng.randint(1, 5))]
    burst = [(kind, 10 ** rng.uniform(-3.3, -0.92)) for kind in kinds]  # 0.5 to 120 ms
    if rng.random() < 0.3:
        burst = [("SIGINT", 10 ** rng.uniform(-3.3, -0.92)) for _ in range(rng.randint(20, 60))]
        return Case(seed, rng.choice(signalled.ALONE), 1, "a process", 0, 0.0, burst)
    way, target = rng.choice([*signalled.WAYS]), rng.choice(TARGETS)
    return Case(seed, way, ranks, target, rng.randrange(ranks), rng.uniform(0, 0.15), burst)


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case; returns what was wrong, and everything that is known about it."""
    if case.way in signalled.ALONE:
        return run_alone(case)
    with contextlib.closing(MpiJob(partial(signalled.train, way=case.way), case.ranks)) as job:
        pids = job.wait_ready(30)
        time.sleep(case.delay)
        begin = time.monotonic()
        for kind, gap in case.burst:
            number = getattr(signal, kind)
            with contextlib.suppress(ProcessLookupError):
                if case.target == "mpirun":
                    os.kill(job.process.pid, number)
                elif case.target == "the group":
                    os.killpg(job.process.pid, number)
                else:
                    for pid in pids if case.target == "all ranks" else pids[case.rank : case.rank + 1]:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
            time.sleep(gap)
        result = job.finish(LIMIT)
        seconds = time.monotonic() - begin
    story = f"exit code {result.returncode}, {seconds:.1f} s\n{result.stdout}{result.stderr}"
    return judge(case, result, seconds), story


def run_alone(case: Case) -> tuple[list[str], str]:
    """`run` of a process that goes on after each Ctrl-C; two that come while it answers may end it, as Ctrl-C does."""
    program = partial(signalled.alone, way=case.way)
    with contextlib.closing(MpiJob(program, 1, launcher=[sys.executable])) as job:
        (pid,) = job.wait_ready(60)
        for _, gap in case.burst:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            time.sleep(gap)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        result = job.finish(LIMIT)
    sound = result.returncode == 0 and result.stdout.startswith("sound ")
    ended = result.returncode == -signal.SIGINT and "\nKeyboardInterrupt" in result.stderr
    return [] if sound or ended else ["UNSOUND"], f"exit code {result.returncode}\n{result.stdout}{result.stderr}"


def judge(case: Case, result: Result, seconds: float) -> list[str]:
    """Compares how a job ended with how it should have."""
    messages, wrong = result.stderr.count("[rank "), []
    if case.is_for_python:
        wrong += [] if result.returncode == 130 else [f"exit code {result.returncode}"]
        once = messages == 1 and "KeyboardInterrupt" in result.stderr and "Error in sys." not in result.stderr
        wrong += [] if once else ["other messages"]
    else:  # the system ends a rank, or mpirun itself, or mpirun kills the ranks; the code is that of mpirun
        wrong += [] if result.returncode else ["exit code 0"]
        wrong += [] if messages <= 1 else ["other messages"]
    wrong += ["late"] if seconds > SOON + sum(gap for _, gap in case.burst) else []
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    kinds = (*signalled.WAYS, *signalled.ALONE)
    return random_cases.main(arguments, "tests.mpi.random_signals", draw, run, kinds)


if __name__ == "__main__":
    sys.exit(main())

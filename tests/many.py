"""The distributed tests on many ranks, which share the cores of this machine: `python -m tests.many --ranks 8 16 32`.

For each number of ranks: the seconds from mpirun's start until the last rank has imported the library, joined the job
and trained three steps; the memory of a rank (Pss: what ranks share is divided among them; Rss: is counted in each);
whether all ranks have the same bits; how long after a fault of one rank the job ends, without a process left; and
whether the tests of `TESTS` pass, with a job of so many ranks for each of their programs (`tests.mpi.shared.on_ranks`).
The exit code is 1 if anything was wrong. `make many` runs it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

from tests.mpi.programs import many
from tests.mpi.run import ROOT, MpiJob

RANKS = (8, 16, 32)
MODULES = (
    *("collectives", "ddp", "ddp_combinations", "ddp_options", "evidence", "fsdp", "functional", "groups", "handles"),
    *("messages", "update_bn"),
)
TESTS = [*(f"tests/mpi/test_{name}.py" for name in MODULES), "tests/mpi/test_pipeline.py::test_bits_of_one_process"]
FAULTS = ("SIGKILL", "exception", "return")
SECONDS_PER_RANK = 20.0  # limit of a job; with a fault, of its end


def start_up(ranks: int, repeat: int) -> str:
    """Medians over jobs.

    Raises:
        AssertionError: a job has failed, or its ranks have different bits.
    """
    rows = []
    for _ in range(repeat):
        job = MpiJob(partial(many.start, began=time.time()), ranks).finish(ranks * SECONDS_PER_RANK)
        lines = [line.split() for line in job.stdout.splitlines()]
        assert (job.returncode, job.stderr, len(lines)) == (0, "", ranks), (job.returncode, job.stderr)
        assert len({line[-1] for line in lines}) == 1, f"{ranks} ranks have different parameters"
        values = [[float(value) for value in line[:-1]] for line in lines]
        rows.append([*map(max, zip(*values, strict=True)), statistics.fmean(value[4] for value in values)])
    imported, joined, trained, rss, _, pss = (statistics.median(column) for column in zip(*rows, strict=True))
    return (
        f"imported after {imported:.1f} s, joined {joined:.1f} s, trained {trained:.1f} s; "
        f"a rank: {pss / 1e3:.0f} MB (Rss {rss / 1e3:.0f} MB); the same bits"
    )


def end_of(ranks: int, kind: str) -> float:
    """Seconds from a fault of one rank in the middle to the end of the job.

    Raises:
        AssertionError: the job goes on, leaves a process, or ends with code 0.
    """
    culprit = ranks // 2
    job = MpiJob(partial(many.train_until, fault_on=culprit, kind=kind), ranks)
    try:
        pids = job.wait_ready(ranks * SECONDS_PER_RANK)
        if kind == "SIGKILL":
            os.kill(pids[culprit], signal.SIGKILL)
        result = job.finish(ranks * SECONDS_PER_RANK)
    finally:
        job.close()
    assert result.returncode != 0, f"{kind}: exit code 0"
    return result.seconds


def battery(ranks: int, extra: Sequence[str]) -> tuple[int, str]:
    """The exit code and the last lines of pytest."""
    limit = ["--timeout", "0"]  # of a test; the first one waits for the jobs of all, which have limits of their own
    command = [sys.executable, "-m", "pytest", "-q", *limit, "-m", "mpi and rank_program", *(extra or TESTS)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TEST_RANKS": str(ranks)}, text=True, stdout=subprocess.PIPE
    )
    lines = done.stdout.splitlines()
    return done.returncode, "\n".join([line for line in lines if line.startswith(("FAILED", "ERROR"))] + lines[-1:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.many", description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--repeat", type=int, default=3, help="starts, of which the median counts")
    parser.add_argument("tests", nargs="*", help="after --: arguments of pytest in place of `TESTS`")
    options = parser.parse_args(arguments)
    wrong = 0
    for ranks in options.ranks:
        print(f"{ranks} ranks on {os.cpu_count()} cores", flush=True)
        try:
            print(f"  {start_up(ranks, options.repeat)}", flush=True)
            for kind in FAULTS:
                print(f"  {kind} of rank {ranks // 2}: the job ended {end_of(ranks, kind):.1f} s later", flush=True)
        except AssertionError as error:
            print(f"  WRONG: {error}", flush=True)
            wrong = 1
        code, text = battery(ranks, options.tests)
        print("  " + text.replace("\n", "\n  "), flush=True)
        wrong |= code != 0
    return wrong


if __name__ == "__main__":
    sys.exit(main())

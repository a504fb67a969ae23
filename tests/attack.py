"""Every generator of random trials there is, in turn, for as long as one likes: `python -m tests.attack --minutes 30`.

    calls      sequences of calls of a network against a twin in NumPy        tests/fuzz/test_api_machine.py
    files      damaged and forged files for every reader                      tests/fuzz
    threads    networks of random sizes on one thread and on several          tests/kernels/threads.py
    faults     faults in jobs of every way of training, on any rank           tests/mpi/random_faults.py
    signals    bursts of Ctrl-C, SIGTERM and SIGHUP                           tests/mpi/random_signals.py
    ways       ways of training on 1 to 3 ranks against one process           tests/distributed/random_ways.py
    kills      trainings that are killed, and go on                           tests/training/random_kills.py
    restarts   jobs that are killed at any moment and start again             tests/mpi/random_restarts.py

Each round gives every generator a share of the time and the seed of the round, so that `--seed` repeats it. What went
wrong is printed with what repeats it by itself, and the exit code is then 1. At the end stands how much was tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARE = 60.0  # seconds of a generator in a round, at most
CALLS = 200  # sequences of calls that run as one piece

COMMANDS: dict[str, Callable[[int, float], list[str]]] = {
    "calls": lambda seed, seconds: ["tests.attack", "--calls", str(seed)],
    "files": lambda seed, seconds: ["tests.fuzz", "--seconds", f"{seconds:.0f}", "--seed", str(seed)],
    "threads": lambda seed, seconds: [
        *("tests.kernels.threads", "--cases", "1000000", "--seconds", f"{seconds:.0f}", "--seed", str(seed)),
    ],
}
CASES = {
    "faults": "tests.mpi.random_faults",
    "signals": "tests.mpi.random_signals",
    "ways": "tests.distributed.random_ways",
    "kills": "tests.training.random_kills",
    "restarts": "tests.mpi.random_restarts",
}


def of_cases(module: str, seed: int, seconds: float) -> list[str]:
    """The arguments of a generator of numbered cases; they begin at a number that no other round reaches."""
    return [module, "--count", "1000000", "--seconds", f"{seconds:.0f}", "--seed", str(seed * 10_000)]


COMMANDS |= {name: partial(of_cases, module) for name, module in CASES.items()}


def tried(name: str, text: str) -> int:
    """How many trials a generator says that it has made."""
    words = {"files": " files, ", "calls": " sequences", "threads": " cases, "}.get(name, " cases in ")
    numbers = [line.partition(words)[0].split()[-1] for line in text.splitlines() if words in line]
    return sum(int(number) for number in numbers if number.isdecimal())


def run_calls(seed: int) -> None:
    """Sequences of calls that follow from the seed."""
    import hypothesis  # here, as only these need it
    from hypothesis.stateful import run_state_machine_as_test

    from tests.fuzz.test_api_machine import Calls

    settings = hypothesis.settings(
        Calls.TestCase.settings, max_examples=CALLS, derandomize=False, database=None, print_blob=True
    )
    run_state_machine_as_test(hypothesis.seed(seed)(Calls), settings=settings)
    print(f"{CALLS} sequences of calls")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.partition("\n")[0])
    parser.add_argument("generators", nargs="*", default=[], help=f"some of: {', '.join(COMMANDS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--calls", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.calls is not None:
        run_calls(options.calls)
        return 0
    names = options.generators or list(COMMANDS)
    if unknown := set(names) - COMMANDS.keys():
        parser.error(f"no such generator: {', '.join(sorted(unknown))}")
    end, seed = time.monotonic() + 60 * options.minutes, options.seed
    counts, seconds, failed = Counter[str](), Counter[str](), Counter[str]()
    with contextlib.suppress(KeyboardInterrupt):  # which ends it early
        while time.monotonic() < end:
            for name in names:
                begin = time.monotonic()
                share = max(5.0, min(SHARE, (end - begin) / len(names)))
                command = [sys.executable, "-m", *COMMANDS[name](seed, share)]
                done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, **PIPES)
                counts[name] += tried(name, done.stdout)
                seconds[name] += round(time.monotonic() - begin)
                if done.returncode:
                    failed[name] += 1
                    print(f"{name}, round {seed}: {' '.join(command[1:])}\n{done.stdout}\n", flush=True)
                if time.monotonic() > end:
                    break
            seed += 1
    for name in names:
        print(f"{name:<10}{counts[name]:>8} trials in {seconds[name]:>6} s, wrong in {failed[name]} rounds")
    return int(failed.total() > 0)


PIPES: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False}

if __name__ == "__main__":
    sys.exit(main())

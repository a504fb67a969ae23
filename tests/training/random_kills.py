"""Kills and resumptions: `python -m tests.training.random_kills --count 100 --seed 0`.

Each case is a training with checkpoints, on one process or on ranks that are threads; way, options and moments follow
from its number (the moments from the clock, too). It is killed up to five times, and started again each time. It has to
end with the bits of a training that nobody has killed, and to leave at most one file more for each kill: the one that
was being written. The exit code is the number of cases that went otherwise (up to 99).
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytagi_ddp.distributed import run_threads
from pytagi_ddp.files import atomic_write
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import DDPSequential
from pytagi_ddp.training import Checkpoints, Trainer
from tests import random_cases
from tests.training import data
from tests.training.data import LABELS, X, network, state_of

WAYS: dict[str, Any] = {
    "one": lambda model: model,
    **data.WAYS,
    "merges": lambda model: DDPSequential(model, every=2),
}
KILLS, LIMIT = 5, 60.0


@dataclass
class Case:
    """A training.

    Attributes:
        seed: its number. way: one of `WAYS`. ranks: how many. epochs, batch_size, average_last: of the trainer.
        every, keep: of the checkpoints. norm: whether the network has a BatchNorm2d.
        kills: when, as shares of the time that the training takes.
    """

    seed: int
    way: str
    ranks: int
    epochs: int
    batch_size: int
    average_last: float
    every: int | None
    keep: int
    norm: bool
    kills: list[float]


def draw(seed: int) -> Case:
    """Returns case number `seed`."""
    rng = random.Random(f"kills {seed}")
    way = rng.choice([*WAYS])
    return Case(
        seed,
        way,
        ranks=1 if way == "one" else rng.choice((1, 2, 2, 3)) if way != "pipeline" else 2,
        epochs=rng.randint(1, 3),
        batch_size=rng.randint(4, 16),
        average_last=rng.choice((0, 0, 0.5)) if way in ("one", "ddp") else 0,
        every=None if way == "merges" else rng.randint(1, 4),  # between merges, there is nothing to save
        keep=rng.randint(1, 3),
        norm=rng.random() < 0.5 and way != "pipeline",
        kills=[rng.random() for _ in range(rng.randint(1, KILLS))],
    )


def train(case: Case, folder: Path) -> str:
    """Trains from the newest checkpoint in `folder`, if there is one; what tells the result from others."""

    def program() -> bytes:
        net = WAYS[case.way](network(norm=case.norm))
        checkpoints = Checkpoints(folder, case.every, case.keep, resume=True)
        options = {"epochs": case.epochs, "batch_size": case.batch_size, "average_last": case.average_last}
        likelihood = None if case.way == "pipeline" else Categorical(3)
        Trainer(net, likelihood, callbacks=[checkpoints], **options).fit((X, LABELS))
        return state_of(net)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*was written after")  # the kill came behind the last checkpoint
        states = [program()] if case.way == "one" else run_threads(program, case.ranks)
    return hashlib.sha256(b"".join(states)).hexdigest()


def in_child(case: Case, folder: Path, said: Path) -> int:
    """Starts `train` in a forked process, which writes what it has found; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    faulthandler.register(signal.SIGUSR2, said.with_name("stacks").open("w"))  # where its threads are, if it hangs
    try:
        text = train(case, folder)
    except BaseException:
        text = traceback.format_exc()
    atomic_write(said, text.encode())  # a kill may come while it is written
    os._exit(0)


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case; returns what was wrong, and what is known about it, first how often it was killed."""
    with tempfile.TemporaryDirectory() as place:
        folder, said = Path(place, "checkpoints"), Path(place, "said")
        begin = time.monotonic()
        expected = train(case, Path(place, "whole"))
        took, killed = time.monotonic() - begin, 0
        for share in [*case.kills, None]:
            pid = in_child(case, folder, said)
            if share is None:
                deadline = time.monotonic() + LIMIT
                while os.waitpid(pid, os.WNOHANG) == (0, 0):
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGUSR2)
                        time.sleep(1)
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                        return ["HANG"], f"{killed} kills\n{said.with_name('stacks').read_text()}"
                    time.sleep(0.002)
            else:
                time.sleep(share * took)
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                killed += os.WIFSIGNALED(status)
            if said.exists():
                break
        found = said.read_text()
        if found != expected:
            return ["OTHER BITS"], f"{killed} kills\n{found}"
        ours = {path.name for path in Path(place, "whole").iterdir()}
        left = {path.name for path in folder.iterdir()} - ours
        return ["FILES"] * (len(left) > killed), f"{killed} kills, more files: {sorted(left)}"


def main(arguments: Sequence[str] | None = None) -> int:
    def kills(outcomes: Sequence[random_cases.Outcome]) -> str:
        numbers = [outcome.story.partition(" kills")[0] for outcome in outcomes]
        return f"; {sum(int(number) for number in numbers if number.isdecimal())} kills"

    return random_cases.main(arguments, "tests.training.random_kills", draw, run, list(WAYS), more=kills)


if __name__ == "__main__":
    sys.exit(main())

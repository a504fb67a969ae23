"""Starts the CIFAR-10 job as a user does, with the small network, few images and few batches of statistics.

`train` draws curves; `start` does without, as matplotlib takes as long to load as all the rest.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from examples import ddp_cifar_resnet
from pytagi_ddp.distributed import run_threads
from tests.mpi.rank import run_module
from tests.mpi.run import MpiJob

SMALL = ["--model", "resnet8", "--data", "synthetic", "--progress", "lines", "--bn-batches", "2"]
SECONDS = 90  # limit for a job; the first one may have to compile the kernels


def start(*arguments, np: int = 1, without: tuple[str, ...] = ("matplotlib",)) -> MpiJob:
    """The job under mpirun, or for one rank without it. without: modules that are not to be found."""
    if np > 1:
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    program = partial(run_module, module="examples.ddp_cifar_resnet", arguments=[*SMALL, *map(str, arguments)])
    program = partial(program, without=list(without))
    if np > 1:
        return MpiJob(program, np)
    return MpiJob(program, np, launcher=[sys.executable])


def in_threads(*arguments, np: int = 2) -> None:
    """The job on ranks that are threads of this process: where what it does is the point, and not how it is started."""
    run_threads(ddp_cifar_resnet.main, np, [*SMALL, *map(str, arguments)])


def exit_codes(main: Callable, *arguments, np: int = 2) -> list:
    """What each rank, a thread, exits with: its line on standard error, or a number."""

    def on_rank():
        with pytest.raises(SystemExit) as caught:
            main([*SMALL, *map(str, arguments)])
        return caught.value.code

    return run_threads(on_rank, np)


def train(folder, *arguments, np: int = 1) -> tuple[str, list[dict]]:
    """Runs the job to its end; returns what it printed and the records of its log in `folder`."""
    result = start("--log-dir", folder, *arguments, np=np, without=()).finish(SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, read_log(folder)


def read_log(folder) -> list[dict]:
    return [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]

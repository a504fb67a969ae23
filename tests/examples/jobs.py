"""Starts the CIFAR-10 job as a user does, with the small network and few images."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.mpi.rank import run_module
from tests.mpi.run import MpiJob

SMALL = ["--model", "resnet8", "--data", "synthetic", "--progress", "lines"]
SECONDS = 90  # limit for a job; the first one may have to compile the kernels


def start(*arguments, np: int = 1) -> MpiJob:
    """The job under mpirun, or for one rank without it."""
    if np > 1:
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    program = partial(run_module, module="examples.ddp_cifar_resnet", arguments=[*SMALL, *map(str, arguments)])
    if np > 1:
        return MpiJob(program, np)
    return MpiJob(program, np, launcher=[sys.executable])


def train(folder, *arguments, np: int = 1) -> tuple[str, list[dict]]:
    """Runs the job to its end; returns what it printed and the records of its log in `folder`."""
    result = start("--log-dir", folder, *arguments, np=np).finish(SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]

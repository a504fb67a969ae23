"""Starts real MPI ranks for a test, and makes sure that none of them outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytagi_ddp.distributed.engine.launcher import OPEN_MPI, find_mpirun, load_mpi, mpi_family

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

# A function, a partial of one with arguments that JSON can carry, or the arguments of the Python interpreter.
Program = Callable[..., None] | Sequence[str]


class Hang(AssertionError):
    """A job was still running when its time was up."""


class Outlived(AssertionError):
    """Processes of a job were still there when its mpirun had ended."""


@dataclass
class Result:
    """How a job ended: exit code of mpirun (minus the signal that killed it), its streams, and how long it took.

    The seconds count from the last rank's fault, or else from `MpiJob.wait_ready`, or else from the start. ``results``
    is what the ranks noted under that name, as `tests.mpi.rank.several` does.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    results: str | None = None


class MpiJob:
    """A job under the environment's own mpirun, in a process group of its own.

    Args:
        program: the function for every rank, or a `functools.partial` of it with arguments that JSON can carry; or a
            list: the arguments of the Python interpreter.
        np: number of ranks.
        env: environment variables to add.
        launcher: replaces ``[mpirun, "-np", np, python]``.

    Attributes:
        process: mpirun.
        folder: of this job alone, for files; its ranks find it in ``TEST_JOB_FOLDER``. Removed with the job.
    """

    def __init__(
        self,
        program: Program,
        np: int = 2,
        env: dict[str, str] | None = None,
        launcher: Sequence[str] | None = None,
    ):
        self._folder = tempfile.TemporaryDirectory(prefix="mpi-job-")
        self.folder = Path(self._folder.name)
        self._mark = uuid.uuid4().hex
        self.np = np
        arguments = rank_arguments(program) if callable(program) else program
        command = [*(launcher or [*mpirun_command(), "-np", str(np), sys.executable]), *arguments]
        marks = {"TEST_JOB_FOLDER": self._folder.name, "TEST_JOB_MARK": self._mark, "PYTHONPATH": str(ROOT)}
        self._stdout, self._stderr = (self.folder / name for name in ("stdout", "stderr"))
        self._start = time.monotonic()
        with self._stdout.open("w") as stdout, self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ONE_THREAD | marks | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def wait_ready(self, timeout: float = 30) -> list[int]:
        """Waits until every rank has called ``ready(rank)``; returns their process ids and restarts the clock."""
        files = [self.folder / str(rank) for rank in range(self.np)]
        deadline = time.monotonic() + timeout
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"the ranks never came to ready():\n{self.texts()}")
            time.sleep(0.02)
        self._start = time.monotonic()
        return [int(file.read_text()) for file in files]

    def finish(self, timeout: float = 30) -> Result:
        """Waits for the job, and fails if it takes longer than ``timeout`` seconds or leaves a process behind."""
        try:
            self.process.wait(timeout)
            seconds = time.monotonic() - self._clock_start()
            deadline = time.monotonic() + 2
            while self._living() and time.monotonic() < deadline:
                time.sleep(0.02)
            left = self._living()
            stdout, stderr = self.texts()
            noted = self.folder / "results"
            results = noted.read_text() if noted.exists() else None
        except subprocess.TimeoutExpired:
            raise Hang(f"the job was still running after {timeout} s:\n{self.texts()}") from None
        finally:
            self.close()
        if left:
            raise Outlived(f"{left} outlived mpirun (exit code {self.process.returncode}):\n{stdout}\n{stderr}")
        return Result(self.process.returncode, stdout, stderr, seconds, results)

    def _clock_start(self) -> float:
        try:
            return float((self.folder / "fault").read_text())  # the monotonic clock is the same in all processes
        except FileNotFoundError:
            return self._start

    def texts(self) -> tuple[str, str]:
        """Returns what the job has written to its standard output and error so far."""
        return self._stdout.read_text(), self._stderr.read_text()

    def close(self) -> None:
        """Kills mpirun, then whatever carries the mark of this job: each rank has a process group of its own."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self._living():
            os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()

    def _living(self) -> list[int]:
        mark = f"TEST_JOB_MARK={self._mark}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes():  # empty for a process that has ended and waits to be reaped
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        return found


def mpirun(program: Program, np: int = 2, timeout: float = 30, env: dict[str, str] | None = None) -> Result:
    """Runs ``program`` on ``np`` ranks to the end: `MpiJob` and `MpiJob.finish` in one."""
    return MpiJob(program, np, env).finish(timeout)


def fails(program: Program, np: int = 2, within: float = 30, code: int = 1, **options) -> Result:
    """`mpirun` of a job that has to end with this exit code, so many seconds after its fault at the latest."""
    result = mpirun(program, np, **options)
    assert result.returncode == code, result.stderr
    assert result.seconds < within
    return result


@cache
def mpirun_command() -> tuple[str, ...]:
    """Returns the mpirun of the installed MPI library, with what it needs to run anywhere."""
    family = mpi_family(load_mpi(None).Get_library_version())
    extra = ("--oversubscribe", "--allow-run-as-root") if family == OPEN_MPI else ()
    return (str(find_mpirun(family)), *extra)


def rank_arguments(program: Callable[..., None]) -> list[str]:
    """Returns the arguments of the Python interpreter that run a function, or a partial of one, on a rank."""
    return ["-m", "tests.mpi.rank", name_of(program), json.dumps(getattr(program, "keywords", {}))]


def name_of(program: Callable[..., object]) -> str:
    """Returns ``module:name`` of a function, or of that in a partial."""
    function = getattr(program, "func", program)
    return f"{function.__module__}:{function.__qualname__}"

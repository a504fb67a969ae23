"""A process that runs one library, and the handle of it.

Libraries run in processes, and if need be in environments, of their own, so that their thread pools and their peak
memories stay apart. A worker waits for lines of JSON on its standard input and uses no CPU while others are measured.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS

ROOT = Path(__file__).resolve().parents[1]


class WorkerError(RuntimeError):
    """A library that is not there, or failed; says why."""


class TooSlow(WorkerError):
    """No answer in time."""


class Worker:
    """A process with one library; `ask` it, and `close` it.

    Args:
        peer: key of `PEERS`. python: the interpreter of the environment that has the library.
        threads: of everything in it. env: more environment variables.
        folder: where it runs, with the package `benchmarks` in it.
    """

    def __init__(
        self,
        peer: str,
        threads: int,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        folder: Path = ROOT,
    ):
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTAGI_DDP_NUM_THREADS")
        settings = dict.fromkeys(names, str(threads)) | {"PYTHONPATH": str(ROOT)} | (env or {})
        self._text = b""
        try:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.worker", peer, str(threads)],
                cwd=folder,
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            raise WorkerError(f"{python} does not start: {error}") from None
        assert self._process.stdin and self._process.stdout  # they are pipes
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, what: str, timeout: float | None = None, **arguments: Any) -> dict:
        """The worker's answer.

        Raises:
            TooSlow: none within `timeout` seconds; the worker was killed. WorkerError: it failed; says why.
        """
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps({"do": what} | arguments).encode() + b"\n")
        end = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._text:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                self.close()
                raise TooSlow(f"no answer within {timeout:g} s")
            found = os.read(self._answers.fileno(), 1 << 16)
            if not found:
                raise WorkerError(f"its process ended with code {self._process.wait()}")
            self._text += found
        line, _, self._text = self._text.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peak_memory() -> int:
    """Bytes of memory that this process had at most at a time (0 where the system does not tell)."""
    # Not getrusage: its peak starts with that of the parent.
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def times_of(step: Callable[[], object], seconds: float, at_least: int = 1) -> list[float]:
    """Times of steps during the given number of seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < at_least or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


class Server:
    """What a worker answers."""

    def __init__(self, peer: str, threads: int):
        self._known, self._threads = PEERS[peer], threads

    def versions(self) -> dict:
        self._peer = importlib.import_module(f"benchmarks.peers.{self._known.module}")
        return self._peer.versions()

    def build(self, workload: str) -> dict:
        """Makes the network."""
        start = time.perf_counter()
        try:
            self._step = self._peer.Step(workload, self._threads, **self._known.settings)
        except AttributeError as error:
            if not str(error.name)[:1].isupper():
                raise
            raise NotImplementedError(f"it has no {error.name}") from None  # a layer
        return {"build": time.perf_counter() - start}

    def start(self, slow: float = 15.0) -> dict:
        """Takes one step, which is timed, and if that took no more than `slow` seconds another one."""
        start = time.perf_counter()
        self._step.step()
        first = time.perf_counter() - start
        if first <= slow:
            self._step.step()
        known = {name: getattr(self._step, name) for name in ("parameters", "floor_flops") if hasattr(self._step, name)}
        return {"first": first} | known

    def round(self, seconds: float) -> dict:
        return {"times": times_of(self._step.step, seconds)}

    def memory(self) -> dict:
        return {"peak": peak_memory()}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    server = Server(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            answer = getattr(server, arguments.pop("do"))(**arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()

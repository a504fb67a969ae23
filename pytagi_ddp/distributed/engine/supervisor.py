"""Restarts a failed job: ``python -m pytagi_ddp.launch --max-restarts N``.

The program has to resume from its checkpoints. ``PYTAGI_DDP_RESTART`` is the number of the restart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pytagi_ddp.process_tree import children
from pytagi_ddp.text import text_of
from pytagi_ddp.validate import as_integers, as_numbers

RESTART_VARIABLE = "PYTAGI_DDP_RESTART"
LONGEST_PAUSE = 60.0
PROBE_SECONDS = 20.0  # time for a host to answer
WATCH_SECONDS = 1.0
TAIL_BYTES = 1 << 18  # of the output of a job, to find its error
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
NP, HOSTS, HOST_FILE = ("-np", "-n"), ("-hosts", "-host", "--host"), ("-f", "-hostfile", "--hostfile", "-machinefile")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# The text after a traceback: MPI_Abort, Hydra's report, and other ranks.
AFTER_ERROR = re.compile(r"^(Abort\(|={10}|\[rank |\[mpiexec|\[proxy|application called)", re.MULTILINE)


class Supervisor:
    """Runs mpirun, and restarts it if the job dies.

    Signals are forwarded to mpirun; after a signal, the job is not restarted. If this process is killed, mpirun is
    killed, too, which ends its ranks.

    Args:
        mpirun: the program. options: its options. program: the command of the ranks.
        min_ranks: the least number of ranks for a restart on fewer ranks: on the hosts that answer, if mpirun has a
            list of hosts; otherwise on one rank less, if a rank died without a Python error. None: always on all ranks.
        pause: seconds before the first restart; each next pause is twice as long, up to a minute.
    """

    def __init__(
        self,
        mpirun: Path,
        options: Sequence[str],
        program: Sequence[str],
        max_restarts: int,
        min_ranks: int | None = None,
        pause: float = 1.0,
    ):
        self.mpirun, self.options, self.program = str(mpirun), list(options), list(program)
        self.max_restarts, self.min_ranks, self.pause = max_restarts, min_ranks, pause
        self.ranks = int(_value(options, NP) or 0)
        if min_ranks is not None and not 1 <= min_ranks <= self.ranks:
            given = self.ranks or "nothing"
            raise ValueError(f"--min-ranks takes a number from 1 to that of -np; got {min_ranks}, and {given} for -np")
        as_integers("a supervisor", 0, **{"--max-restarts": max_restarts})
        as_numbers("a supervisor", "[0, inf)", **{"--pause": pause})
        self._asked: int | None = None  # the last signal
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Runs the job to its end; returns its exit code."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # ranks whose mpirun was killed become children of this process
        before = ""
        for restarts in range(self.max_restarts + 1):
            start = time.monotonic()
            code, error = self._run_once(restarts)
            if code:
                _end_orphans()
            if code == 0 or self._asked is not None:
                break
            reason = _last_words(error) or "no Python error: a rank was killed, or crashed"
            what = f"the job ended with exit code {code} after {time.monotonic() - start:.0f} s ({reason})"
            if error and error == before:
                over = "the same error has come twice"
            elif restarts == self.max_restarts:
                over = f"{restarts} restarts were allowed"
            else:
                over = "" if self._choose_ranks(bool(error)) else f"fewer than {self.min_ranks} ranks are left"
            if over:
                _say(f"{what}. It does not start again: {over}")
                break
            pause, before = min(self.pause * 2**restarts, LONGEST_PAUSE), error
            ranks = f" on {self.ranks} ranks" if self.ranks else ""
            _say(f"{what}. Restart {restarts + 1} of {self.max_restarts} follows in {pause:g} s{ranks}")
            deadline = time.monotonic() + pause
            while self._asked is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._asked is not None:
                return 128 + self._asked
        return code

    def _run_once(self, restarts: int) -> tuple[int, str]:
        """Runs the job once; returns its exit code, and the text of its error."""
        tail = bytearray()
        self._process = process = subprocess.Popen(
            [self.mpirun, *self.options, *self.program],
            env=os.environ | {RESTART_VARIABLE: str(restarts)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches mpirun once, through `_forward`
            preexec_fn=_die_with_parent,
        )
        if self._asked is not None:  # the signal came before the process started
            process.send_signal(self._asked)
        reader = threading.Thread(target=_copy, args=(process.stderr, tail), daemon=True)
        reader.start()
        while process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WATCH_SECONDS)
            if process.returncode is None and _has_orphans(process.pid):
                process.kill()  # it waits for ranks that it cannot end
        code = process.returncode
        reader.join(2.0)
        return (128 - code if code < 0 else code), _error_in(tail.decode(errors="replace"))

    def _forward(self, number: int, frame: Any) -> None:
        self._asked = number
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _choose_ranks(self, in_python: bool) -> bool:
        """Reduces the ranks in the options to those that are left, if allowed; returns whether they are enough."""
        if self.min_ranks is None:
            return True
        hosts = hosts_in(self.options)
        if not hosts:
            self.ranks -= not in_python and self.ranks > self.min_ranks
        else:
            with ThreadPoolExecutor(len(hosts)) as pool:
                answers = dict(zip(hosts, pool.map(self._answers, hosts), strict=True))
            left, slots = [host for host in hosts if answers[host]], sum(hosts.values())
            if missing := [host for host in hosts if not answers[host]]:
                _say(f"{', '.join(missing)} does not answer")
            share = sum(hosts[host] for host in left)
            self.ranks = max(min(self.ranks, share), self.ranks * share // slots)
            self.options = [*_without(self.options, (*HOSTS, *HOST_FILE)), "-hosts"]
            self.options.append(",".join(f"{host}:{hosts[host]}" for host in left))
        self.options = [*_without(self.options, NP), "-np", str(self.ranks)]
        return self.ranks >= self.min_ranks

    def _answers(self, host: str) -> bool:
        """Whether mpirun can start a process on a host."""
        options = [*_without(self.options, (*NP, *HOSTS, *HOST_FILE)), "-hosts", host, "-np", "1", "true"]
        try:
            quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            return subprocess.run([self.mpirun, *options], timeout=PROBE_SECONDS, **quiet).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def hosts_in(options: Sequence[str]) -> dict[str, int]:
    """The number of ranks of each host in mpirun's options, or in the file that they name."""
    if (named := _value(options, HOSTS)) is not None:
        lines = named.split(",")
    elif (file := _value(options, HOST_FILE)) is not None:
        lines = text_of(Path(file)).splitlines()
    else:
        return {}
    words = [line.partition("#")[0].replace("slots=", " ").replace(":", " ").split() for line in lines]
    return {host: int(slots[0]) if slots else 1 for host, *slots in filter(None, words)}


def _value(options: Sequence[str], names: Sequence[str]) -> str | None:
    return next((options[k + 1] for k, name in enumerate(options[:-1]) if name in names), None)


def _without(options: Sequence[str], names: Sequence[str]) -> list[str]:
    return [word for k, word in enumerate(options) if word not in names and (k == 0 or options[k - 1] not in names)]


def _copy(stream: Any, tail: bytearray) -> None:
    """Forwards the output of the job, and keeps its end."""
    while data := stream.read1(1 << 16):
        with contextlib.suppress(OSError, ValueError):  # a closed stream must not prevent the end of the job
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        tail += data
        del tail[:-TAIL_BYTES]


def _error_in(text: str) -> str:
    """The traceback of the first failed rank, without its number; "" if there is none."""
    _, sign, error = text.partition("] Traceback (most recent call last):\n")
    if not sign:  # it failed before MPI started
        _, sign, error = text.rpartition("Traceback (most recent call last):\n")
    return AFTER_ERROR.split(error, maxsplit=1)[0].rstrip() if sign else ""


def _last_words(error: str) -> str:
    """The exception at the end of a traceback, with its notes, in one line."""
    lines = error.splitlines()
    indented = [k for k, line in enumerate(lines) if line.startswith("  ")]
    return "; ".join(filter(None, lines[indented[-1] + 1 if indented else 0 :]))[:500]


def _say(message: str) -> None:
    print(f"[launch] {message}", file=sys.stderr, flush=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC_PRCTL is not None:
        _LIBC_PRCTL(option, value, 0, 0, 0)


_LIBC_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_orphans(mpirun: int) -> bool:
    """Whether a rank has become a child of this process: Hydra's proxy between it and mpirun was killed."""
    for child in _children():
        with contextlib.suppress(OSError, AttributeError):  # it has just ended, or is not a rank
            connection = re.search(rb"\0PMI_FD=(\d+)\0", (child / "environ").read_bytes()).group(1).decode()  # type: ignore[union-attr]
            if child.name != str(mpirun) and (child / "fd" / connection).exists():
                return True
    return False


def _children() -> list[Path]:
    with contextlib.suppress(OSError):
        return children(Path("/proc/self"))
    return []  # the system does not list them


def _end_orphans() -> None:
    """Kills remaining ranks of a job, so that they cannot write into the folder of the next one."""
    while left := _children():
        for process in left:
            os.kill(int(process.name), signal.SIGKILL)
            os.waitpid(int(process.name), 0)

"""Detects child processes of a rank: they inherit the launcher's environment variables, but are not ranks."""

from __future__ import annotations

import functools
import os
import stat
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol

from pytagi_ddp.distributed.engine.launcher import HYDRA_PROXY, Launch, detect_launcher
from pytagi_ddp.process_tree import ancestor, line_up_to

# Set in a rank: its process and its job. Child processes inherit it.
RANK_VARIABLE = "PYTAGI_DDP_RANK"

FORKED = "this process was forked from rank {rank}, and is not a rank itself: it can compute, but not communicate"


class ForkAware(Protocol):
    """An object that a forked child process must not use, because it would communicate instead of the rank."""

    def end_in_child(self) -> None: ...


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def keep_from_children(thing: ForkAware) -> None:
    """Makes every process forked from this one call ``thing.end_in_child()``."""
    _fork_aware.add(thing)


def _end_in_child() -> None:
    with ExitStack() as calls:  # makes all calls, even if one raises
        for thing in _fork_aware:
            calls.callback(thing.end_in_child)


os.register_at_fork(after_in_child=_end_in_child)


def launcher_of_rank() -> Launch | None:
    """As `detect_launcher`, but None in a process that is not itself a rank of that job (`why_no_rank`)."""
    launch = detect_launcher()
    return None if launch is None or why_no_rank() else launch


def why_no_rank(environ: Mapping[str, str] = os.environ) -> str | None:
    """The reason why this process is not a rank of the job in its environment; None if it is a rank.

    A child process of a rank (by subprocess, os.system, fork or multiprocessing) inherits the launcher's variables. If
    it started MPI, it would wait for other ranks forever, or communicate with the launcher instead of the rank.
    """
    rank, _, job = environ.get(RANK_VARIABLE, "").partition(" of ")
    if rank == str(os.getpid()):
        return None
    if rank and job == _job_name(environ):
        return f"process {rank} is, which has started this one"
    connection = environ.get("PMI_FD", "")
    if connection and not _leads_to_launcher(connection):
        return f"PMI_FD={connection} is not the connection to the launcher here, but in a process above this one"
    return None


def _leads_to_launcher(descriptor: str) -> bool:
    """Whether this is the socket that Hydra's proxy gave to its process; without a proxy, whether it is a socket.

    A child process of a rank does not have this socket, but may have another open file with the same number.
    """
    try:
        own = os.fstat(int(descriptor))
    except (OSError, ValueError):
        return False
    if not stat.S_ISSOCK(own.st_mode):
        return False
    try:
        started = line_up_to((HYDRA_PROXY,))[-2]
        return os.path.samestat(own, os.stat(started / "fd" / descriptor))
    except (OSError, IndexError):  # it is closed there, or the parent process is not visible
        return True


def has_joined() -> bool:
    """Whether this process has connected to the other ranks of its job."""
    return os.environ.get(RANK_VARIABLE, "").partition(" of ")[0] == str(os.getpid())


def mark_rank() -> None:
    """Marks this process as the rank, for its child processes."""
    os.environ[RANK_VARIABLE] = f"{os.getpid()} of {_job_name(os.environ)}"


def _job_name(environ: Mapping[str, str]) -> str:
    """A name of the job, which differs from that of a job that a rank starts by its own mpirun."""
    proxy = _proxy_above()
    names = ("PMIX_NAMESPACE", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT")
    return " ".join([f"Hydra {proxy}"] if proxy else [f"{name} {environ[name]}" for name in names if name in environ])


@functools.cache
def _proxy_above() -> str | None:
    proxy = ancestor((HYDRA_PROXY,))
    return proxy.name if proxy else None

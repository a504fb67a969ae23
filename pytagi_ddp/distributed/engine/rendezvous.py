"""The ranks of one node meet before they enter ``MPI_Init``.

``MPI_Init`` waits for every rank, holds Python's lock while it does, and under Hydra waits for ever when a rank has
ended before it came that far: an import that fails on one rank would hang the job. So each rank first waits here, in
Python, until all ranks of its node have arrived or one of them is seen to have ended.

A rank announces itself with a listening socket in Linux's abstract name space, named after the process that started
the ranks; the name vanishes with the process, so nothing is left behind.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError

POLL_SECONDS = 0.01
ARRIVAL_SECONDS = 1.0  # once a rank has ended, for those that are merely late, so that the message names the right one
PROXY = "hydra_pmi_proxy"  # the process on each node that is the parent of its ranks


@contextlib.contextmanager
def meeting(local_rank: int, local_world_size: int, timeout: float) -> Iterator[None]:
    """Waits until every rank of this node is here, and stays reachable for them while the body runs.

    Does nothing under another launcher than Hydra, or without Linux's /proc.

    Args:
        local_rank: rank on this node.
        local_world_size: ranks on this node.
        timeout: seconds to wait.

    Raises:
        RankLeftError: a rank of this node ended before it arrived; names the missing ones.
        CollectiveTimeoutError: some have not arrived in time; names them.
    """
    proxy = _find_proxy()
    if proxy is None:
        yield
        return
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(_address(proxy, local_rank))
        here.listen(local_world_size)
        _await_others(proxy, local_rank, local_world_size, time.monotonic() + timeout)
        yield


def _await_others(proxy: Path, local_rank: int, local_world_size: int, deadline: float) -> None:
    missing = set(range(local_world_size)) - {local_rank}
    ended_at = float("inf")
    while True:
        alive = _living_children(proxy)  # before the calls: a rank that answers and then ends has come this far
        missing = {rank for rank in missing if not _answers(_address(proxy, rank))}
        if not missing:
            return
        now = time.monotonic()
        if alive < local_world_size:
            ended_at = min(ended_at, now)
        names = f"local rank {', '.join(map(str, sorted(missing)))} of {local_world_size}"
        if now > ended_at + ARRIVAL_SECONDS:
            raise RankLeftError(f"{names} ended before MPI was started; look above for its error")
        if now > deadline:
            raise CollectiveTimeoutError(f"{names} has not come to start MPI in time: stalled, or it never asks for it")
        time.sleep(POLL_SECONDS)


def _address(proxy: Path, local_rank: int) -> str:
    return f"\0pytagi_ddp-{proxy.name}-{local_rank}"


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(address) == 0


def _find_proxy() -> Path | None:
    """Walks up from this process to Hydra's proxy on this node; a shell script may stand in between."""
    process = Path("/proc/self").resolve()
    while process.name not in ("proc", "0", "1"):
        try:
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name == PROXY[:15]:  # the kernel keeps 15 characters
            return process
        process = process.parent / rest.split()[1]
    return None


def _living_children(process: Path) -> int:
    """Counts the children of a process that have not ended (a kernel that does not list them hides every end)."""
    try:
        children = (process / "task" / process.name / "children").read_text().split()
    except OSError:
        return sys.maxsize
    return sum(_is_alive(process.parent / child) for child in children)


def _is_alive(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

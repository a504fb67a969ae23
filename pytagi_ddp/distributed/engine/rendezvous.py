"""A barrier of the ranks of one node before they enter ``MPI_Init``.

``MPI_Init`` waits for every rank and holds Python's lock. Under Hydra it waits forever if a rank has ended before: a
failed import on one rank would hang the job. So each rank first waits here, in Python, until all ranks of its node have
arrived, or one of them has ended.

A rank that arrives changes the name of its process, which the others read in Linux's /proc. They read only descendants
of the process that has started the ranks of this job. So other users and other jobs cannot interfere, also in
containers with the same process numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError
from pytagi_ddp.distributed.engine.launcher import HYDRA_PROXY
from pytagi_ddp.process_tree import ancestor, children, is_alive
from pytagi_ddp.text import text_of

POLL_SECONDS = 0.01
POLL_SHARE = 0.1  # the largest share of a core that polling takes
ARRIVAL_SECONDS = 1.0  # wait for late ranks after one has ended, so that the message names the correct one
NAME = "pytagi_ddp "  # name of a process that has arrived; its local rank follows
OWN_NAME = Path("/proc/self/comm")


@contextlib.contextmanager
def node_barrier(local_rank: int, local_world_size: int, timeout: float) -> Iterator[None]:
    """Waits until every rank of this node has arrived, and keeps the name while the body runs.

    Does nothing if the launcher is not Hydra, or without Linux's /proc. If a rank ended before it arrived, or has not
    arrived after `timeout` seconds, it raises RankLeftError or CollectiveTimeoutError with the missing ranks.
    """
    proxy = ancestor((HYDRA_PROXY,))
    try:
        if proxy is not None:
            children(proxy)
            before = OWN_NAME.read_bytes().removesuffix(b"\n")
            OWN_NAME.write_text(f"{NAME}{local_rank}")
    except OSError:  # a kernel that does not list children or change names; the same for all ranks
        proxy = None
    if proxy is None:
        yield
        return
    try:
        _await_others(proxy, local_rank, local_world_size, time.monotonic() + timeout)
        yield
    finally:
        OWN_NAME.write_bytes(before)


def _await_others(proxy: Path, local_rank: int, local_world_size: int, deadline: float) -> None:
    missing = set(range(local_world_size)) - {local_rank}
    ended_at = float("inf")
    while True:
        start = time.monotonic()
        alive = _living(proxy)  # before the search, so that a rank that arrives and then ends is found
        missing -= set(_ranks_below(proxy))
        if not missing:
            return
        now = time.monotonic()
        ended_at = min(ended_at, now) if alive < local_world_size else float("inf")
        names = f"local rank {', '.join(map(str, sorted(missing)))} of {local_world_size}"
        if now > ended_at + ARRIVAL_SECONDS:
            raise RankLeftError(f"{names} ended before MPI was started; look above for its error")
        if now > deadline:
            raise CollectiveTimeoutError(f"{names} has not started MPI in time: it is stalled, or never starts it")
        time.sleep(max(POLL_SECONDS, (now - start) / POLL_SHARE))


def _ranks_below(process: Path) -> Iterator[int]:
    """The local ranks that have arrived; there may be a shell script between a rank and its proxy."""
    with contextlib.suppress(OSError):  # the process has just ended
        for child in children(process):
            with contextlib.suppress(OSError):
                name = text_of(child / "comm").strip()
                rank = name.removeprefix(NAME)
                if rank != name and rank.isdecimal() and is_alive(child):
                    yield int(rank)
                elif name != HYDRA_PROXY:  # another proxy belongs to a job that a rank has started
                    yield from _ranks_below(child)


def _living(proxy: Path) -> int:
    try:
        return sum(map(is_alive, children(proxy)))
    except OSError:  # the proxy has ended, and its ranks will end, too
        return 0

"""The MPI job that this process is a rank of: how it starts, how a rank waits, and how it leaves.

One `Job` per process. Every collective of every communicator goes through its `Operations`, which count them: the
number says which collective a rank is in, and lets a rank that leaves tell the others what it took part in.
"""

from __future__ import annotations

import atexit
import faulthandler
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pytagi_ddp.distributed.engine.abort import AbortHook
from pytagi_ddp.distributed.engine.errors import LaunchError, late, late_elsewhere, left_early
from pytagi_ddp.distributed.engine.launcher import (
    MPICH_LIKE,
    Launch,
    check_launcher,
    detect_launcher,
    load_mpi,
    mpi_family,
)
from pytagi_ddp.distributed.engine.limits import EXIT_TIMEOUT, time_limit
from pytagi_ddp.distributed.engine.offspring import FORKED, keep_from_children, mark_rank, why_no_rank
from pytagi_ddp.distributed.engine.operations import SLEEP_LIMIT, SLEEP_SECONDS, Operations
from pytagi_ddp.distributed.engine.rendezvous import meeting
from pytagi_ddp.distributed.engine.shared_memory import check_space, join_shared_sum, unlink_own_files

if TYPE_CHECKING:
    from pytagi_ddp.distributed.engine._shared_sum import SharedSum

# Collectives of different kinds travel on communicators of their own, so that ranks that have lost step wait for each
# other, and say where, instead of reading each other's data.
KINDS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "gather",
    "all_gather",
    "all_to_all",
    "barrier",
    "debug",
)

LEAVING, GAVE_UP = 1, 2  # tags on the control communicator

_job: Job | None = None


def start_job(timeout: float) -> Job:
    """Initialises MPI, once per process, together with all other ranks; later calls return the same job.

    Args:
        timeout: seconds that starting may take.

    Raises:
        LaunchError: the launcher does not fit the MPI library, mpi4py is missing, or /dev/shm is too small; or this
            process is none of the job's ranks, but was started or forked by one.
        RankLeftError: a rank ended before MPI started.
        CollectiveTimeoutError: a rank did not come in time.
    """
    global _job
    if _job is not None and _job.forked:
        raise LaunchError(f"backend 'mpi': {_job.forked}")
    if _job is None:
        _job = Job(timeout)
        atexit.register(_job.leave)
    return _job


class Job:
    """This process' place in the MPI job.

    Attributes:
        MPI: the module ``mpi4py.MPI``.
        rank, world_size: place among all ranks.
        local_rank, local_world_size: place among the ranks that share this node's memory.
        operations: the collectives of this rank; run one with `operations.start(...)`.
        channels: a private duplicate of ``COMM_WORLD`` for each of `KINDS`.
        shared_sum: adds up short float32 arrays, where all ranks are on one node and share memory; else None.
        hook: the abort hook; installed while a communicator is open.
    """

    def __init__(self, timeout: float):
        launch = detect_launcher()
        if launch and (problem := why_no_rank()):
            raise LaunchError(
                f"backend 'mpi': this process is no rank of the job that its environment tells of: {problem}. Use "
                "backend 'auto' or 'serial', or start it without the launcher's variables (PMI_*, PMIX_*, OMPI_*)"
            )
        if launch:
            mark_rank()
        self.hook = AbortHook(launch.rank, launch.world_size) if launch else AbortHook(0, 1)
        if self.hook.world_size != 1:
            self.hook.install()
        self.MPI = load_mpi(launch)
        if not self.MPI.Is_initialized():
            _initialise(self.MPI, launch, timeout)
        world = self.MPI.COMM_WORLD
        self.rank, self.world_size = world.rank, world.size
        if self.world_size == 1:
            unlink_own_files()  # with more ranks, only once all of them have it
        if launch and launch.world_size not in (None, self.world_size):
            raise LaunchError(
                f"{launch.launcher} started {launch.world_size} ranks ({launch.evidence}), but MPI says that this is "
                f"rank {self.rank} of {self.world_size}: they do not belong together. Under srun, name the process "
                f"interface: srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI"
            )
        if self.world_size > 1:
            self.hook.rank, self.hook.world_size, self.hook.abort = self.rank, self.world_size, world.Abort
            self.hook.install()
        self.operations = Operations(self.rank, self._check_peers, self._raise_timeout)
        self._exit_timeout = time_limit("PYTAGI_DDP_EXIT_TIMEOUT", EXIT_TIMEOUT)
        self.forked = ""
        keep_from_children(self)
        self._sent: list = []  # the last messages, which must outlive their sending
        self._departed: dict[int, int] = {}  # rank -> collectives it took part in
        self._gave_up: int | None = None
        self._control: Any = None
        channels = self._duplicates(world, ("control", *KINDS), timeout)
        self._control = channels[0]
        self.channels = dict(zip(KINDS, channels[1:], strict=True))
        self.shared_sum: SharedSum | None = None
        self.operations.start("start of MPI", 0, iter([self.channels["barrier"].Ibarrier()]), timeout).wait()
        self.local_rank, self.local_world_size = self._place_on_node(world)

    def end_in_child(self) -> None:
        """In a forked child: the job goes on without it."""
        self.forked = FORKED.format(rank=self.rank)
        self.operations.end(self.forked)

    def _duplicates(self, world: Any, kinds: tuple[str, ...], timeout: float) -> list:
        starting = Operations(self.rank, self._check_peers, self._raise_timeout)  # not counted as the job's
        channels = []
        for kind in kinds:
            channel, request = world.Idup()
            starting.start(f"start of MPI: {kind} channel", 0, iter([request]), timeout).wait()
            channels.append(channel)
        return channels

    def _place_on_node(self, world: Any) -> tuple[int, int]:
        node = world.Split_type(self.MPI.COMM_TYPE_SHARED)
        place = node.rank, node.size
        node.Barrier()
        if node.rank == 0:
            unlink_own_files()
        if node.size == self.world_size > 1:
            self.shared_sum = join_shared_sum(node)
        node.Free()
        return place

    def _check_peers(self, what: str) -> None:
        self._listen()
        for rank, count in self._departed.items():
            if count <= self.operations.completed:
                raise left_early(rank, count, self.rank, what)
        if self._gave_up is not None:
            raise late_elsewhere(self._gave_up, self.rank, what)

    def _listen(self) -> None:
        if self._control is None:
            return
        status, count = self.MPI.Status(), np.empty(1, np.int64)
        while self._control.Iprobe(status=status):
            source, tag = status.source, status.tag
            self._control.Recv(count, source=source, tag=tag)
            if tag == LEAVING:
                self._departed[source] = int(count[0])
            else:
                self._gave_up = source

    def _tell_others(self, tag: int) -> list:
        count = np.array([self.operations.completed], np.int64)
        others = (rank for rank in range(self.world_size) if rank != self.rank)
        return [self._control.Isend(count, dest=rank, tag=tag) for rank in others]

    def _raise_timeout(self, what: str, waited: float) -> None:
        if self._control is not None:
            self._sent += self._tell_others(GAVE_UP)
        raise late(self.rank, waited, what)

    def leave(self) -> None:
        """Leaves the job at the end of the interpreter: tells the others, and waits until they leave too.

        A rank may still have work to do that needs no other rank, so the limit is a long one:
        ``PYTAGI_DDP_EXIT_TIMEOUT`` seconds, or an hour; then the job ends, as it must where a node was cut off. A rank
        that waits in a collective which this one did not take part in ends the job (`RankLeftError`).
        """
        if self.world_size == 1 or self.forked or self.MPI.Is_finalized():
            return
        try:
            operations = self.operations
            if operations.broken is not None:
                code = 130 if isinstance(operations.broken, KeyboardInterrupt) else 1
                self.hook.end_with(f"ends the job: {operations.broken_in} was cut short by {operations.broken!r}", code)
            if operations.unclaimed is not None:
                self.hook.end_with(
                    f"ends the job: {operations.unclaimed.what} was started, and nobody waited for it; call wait() on "
                    "the handle that start_all_reduce or start_broadcast returned"
                )
            sent, pause, start = self._tell_others(LEAVING), SLEEP_SECONDS, time.monotonic()
            while len(self._departed) < self.world_size - 1 or not self.MPI.Request.Testall(sent):
                self._listen()
                for rank, count in self._departed.items():
                    if count < operations.completed:
                        self.hook.end_with(
                            f"rank {rank} has left the job after {count} collectives, rank {self.rank} after "
                            f"{operations.completed}: it ended early"
                        )
                if time.monotonic() - start > self._exit_timeout:
                    missing = sorted(set(range(self.world_size)) - {self.rank, *self._departed})
                    names = ", ".join(map(str, missing))
                    self.hook.end_with(
                        f"came to its end {self._exit_timeout:g} s ago, and rank {names} has not: "
                        "stalled or cut off. If it may take longer, set PYTAGI_DDP_EXIT_TIMEOUT to more seconds"
                    )
                time.sleep(pause)
                pause = min(1.5 * pause, SLEEP_LIMIT)
        except KeyboardInterrupt:
            self.hook.end(130)


def _initialise(MPI: Any, launch: Launch | None, timeout: float) -> None:
    if launch is None:
        MPI.Init_thread()
        return
    version = MPI.Get_library_version()
    check_launcher(launch, version)
    if mpi_family(version) in MPICH_LIKE:
        check_space(launch.local_world_size or 1)
    with meeting(launch.local_rank, launch.local_world_size or 1, timeout):
        # MPI_Init holds Python's lock while it waits for other nodes: only a thread in C can end it.
        faulthandler.dump_traceback_later(min(timeout, 1e9), exit=True, file=2)
        MPI.Init_thread()
        faulthandler.cancel_dump_traceback_later()

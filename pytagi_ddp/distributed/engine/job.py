"""The MPI job of this process: its start, and how a rank leaves it.

There is one `Job` in a process. Its communicators use groups of ranks (`MPIGroup`).
"""

from __future__ import annotations

import atexit
import time
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.abort import AbortHook, ignore_interrupts
from pytagi_ddp.distributed.engine.child_process import FORKED, keep_from_children, mark_rank, why_no_rank
from pytagi_ddp.distributed.engine.errors import EXIT_TIMEOUT, FOLLOWED, START, LaunchError, time_limit
from pytagi_ddp.distributed.engine.group import Counts
from pytagi_ddp.distributed.engine.launcher import (
    MPICH_LIKE,
    Launch,
    check_launcher,
    check_starts_mpi,
    detect_launcher,
    load_mpi,
    mpi_family,
    start_command,
)
from pytagi_ddp.distributed.engine.mpi_group import MPIGroup, MPIMember, ended_after
from pytagi_ddp.distributed.engine.operations import SLEEP_LIMIT, SLEEP_SECONDS, Queue
from pytagi_ddp.distributed.engine.rendezvous import node_barrier
from pytagi_ddp.distributed.engine.shared_memory import check_space, unlink_own_files

LEAVING, GAVE_UP = 1, 2  # tags on the control communicator

_job: Job | None = None


def start_job(timeout: float) -> Job:
    """Initialises MPI, once per process, together with all other ranks; later calls return the same job.

    Besides the LaunchError of `create_communicator`, it raises RankLeftError if a rank ended before MPI started, and
    CollectiveTimeoutError if a rank did not arrive in time.
    """
    global _job
    if _job is not None and _job.forked:
        raise LaunchError(f"backend 'mpi': {_job.forked}")
    if _job is None:
        _job = Job(timeout)
        atexit.register(_job.leave)
    return _job


class Job(MPIMember):
    """This process as a rank of the MPI job. `world` is the group of all ranks."""

    def __init__(self, timeout: float):
        launch = detect_launcher()
        check_starts_mpi(launch)
        if launch and (problem := why_no_rank()):
            raise LaunchError(
                f"backend 'mpi': this process is not a rank of the job that its environment tells of: {problem}. Use "
                "backend 'auto' or 'serial', or start it without the launcher's variables (PMI_*, PMIX_*, OMPI_*)"
            )
        if launch:
            mark_rank()
        self.hook = AbortHook(launch.rank, launch.world_size) if launch else AbortHook(0, 1)
        if self.hook.world_size != 1:
            self.hook.install()
        self.MPI = load_mpi(launch)
        if self.MPI.Is_finalized():
            raise LaunchError(
                "backend 'mpi': MPI has ended (MPI.Finalize) and cannot start again in this process: call Finalize at "
                "the end of the program, or leave it out"
            )
        if not self.MPI.Is_initialized():
            _initialise(self.MPI, launch, timeout)
        world = self.MPI.COMM_WORLD
        super().__init__(world.rank)
        self.world_size = world.size
        if self.world_size == 1:
            unlink_own_files()  # with more ranks, only once all of them have it
        if launch and launch.world_size not in (None, self.world_size):
            early = "The program has started MPI by itself: call create_communicator() before it imports mpi4py.MPI. "
            raise LaunchError(
                f"{launch.launcher} started {launch.world_size} ranks ({launch.evidence}), but MPI says that this is "
                f"rank {self.rank} of {self.world_size}: they do not belong together. "
                f"{early if launch.meeting else ''}Under srun, name the process "
                "interface: srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI. Elsewhere, use the launcher of "
                f"the MPI library that mpi4py loads: {start_command(launch)}"
            )
        if self.world_size > 1:
            self.hook.rank, self.hook.world_size, self.hook.abort = self.rank, self.world_size, world.Abort
            self.hook.install()
        self._exit_timeout = time_limit("PYTAGI_DDP_EXIT_TIMEOUT", EXIT_TIMEOUT)
        self.forked = ""
        keep_from_children(self)
        self._sent: list = []  # the last messages, kept until they are sent
        self._control: Any = None
        first = Queue(lambda what: None, self.raise_timeout, self.operations)
        first.start(START, 0, iter([world.Ibarrier()]), timeout).wait()
        asked = world.allgather(debug.is_asked_for())
        self._unlink_on_node(world)  # as soon as all ranks have opened it, so that a killed job leaves no file
        if len(set(asked)) > 1:  # ranks with debug mode would wait for the others in each comparison
            raise LaunchError(
                f"PYTAGI_DDP_DEBUG is set on rank {asked.index(True)}, and not on rank {asked.index(False)}: set it on "
                "all ranks or on none (mpirun takes -genv NAME VALUE or -x NAME)"
            )
        self.world = group = MPIGroup(self, 0, range(self.world_size), world, timeout)
        self._control = group.duplicate(world, f"{START}: control channel", timeout)
        start = iter([group.channels["barrier"].Ibarrier()])
        group.collectives.start(START, 0, start, timeout).wait()
        group.find_node(world.allgather(self.node), world, timeout)
        if group.across is not None:
            group.across.choose(lambda requests: first.start(START, 0, requests, timeout).wait())

    def end_in_child(self) -> None:
        self.forked = FORKED.format(rank=self.rank)

    def _unlink_on_node(self, world: Any) -> None:
        """Finds this node, and removes the name of MPI's file in shared memory, which all its ranks have mapped."""
        node = world.Split_type(self.MPI.COMM_TYPE_SHARED)
        self.node = node.bcast(self.rank)
        node.Barrier()
        if node.rank == 0:
            unlink_own_files()
        node.Free()

    def listen(self) -> None:
        if self._control is None:
            return
        status = self.MPI.Status()
        while self._control.Iprobe(status=status):
            source, tag = status.source, status.tag
            rows = np.empty((status.Get_count(self.MPI.INT64_T) // 4, 4), np.int64)
            self._control.Recv(rows, source=source, tag=tag)
            if tag == LEAVING:
                self.departed[source] = {number: Counts(*counts) for number, *counts in rows.tolist()}
            else:
                self.gave_up = source

    def give_up(self) -> None:
        if self._control is not None:
            self._sent += self._tell_others(GAVE_UP)

    def _tell_others(self, tag: int) -> list:
        requests = []
        for rank in range(self.world_size):
            if rank != self.rank:
                rows = np.array([(number, *counts) for number, counts in self.counts_for(rank).items()], np.int64)
                requests.append(self._control.Isend(rows, dest=rank, tag=tag))
        return requests

    def leave(self) -> None:
        """Leaves the job at the end of the interpreter: notifies the others, and waits until they leave too.

        Other ranks may still compute without communication, so the limit is long: ``PYTAGI_DDP_EXIT_TIMEOUT`` seconds,
        or an hour. Then the job is ended, for example if a node has lost its connection. A rank that waits for this
        rank in a collective ends the job (`RankLeftError`).
        """
        if self.world_size == 1 or self.forked or self.MPI.Is_finalized():
            return
        try:
            if self.hook.unreported:
                raise KeyboardInterrupt
            operations = self.operations
            try:
                operations.finish()
            except FOLLOWED as error:
                self.hook.end_with(f"ends the job: {error}")
            if operations.broken is not None:
                code = 130 if isinstance(operations.broken, KeyboardInterrupt) else 1
                self.hook.end_with(f"ends the job: {operations.broken_in} was cut short by {operations.broken!r}", code)
            if operations.forgotten is not None:
                self.hook.end_with(
                    f"ends the job: {operations.forgotten.what} was started, and nobody waited for it; call wait() on "
                    "the handle that start_all_reduce or its like returned"
                )
            sent, pause, start = self._tell_others(LEAVING), SLEEP_SECONDS, time.monotonic()
            while len(self.departed) < self.world_size - 1 or not self.MPI.Request.Testall(sent):
                self.listen()
                if (problem := self.missed_by_departed()) is not None:
                    self.hook.end_with(problem)
                if time.monotonic() - start > self._exit_timeout:
                    missing = sorted(set(range(self.world_size)) - {self.rank, *self.departed})
                    names = ", ".join(map(str, missing))
                    self.hook.end_with(
                        f"came to its end {self._exit_timeout:g} s ago, and rank {names} has not: "
                        "stalled or cut off. If it may take longer, set PYTAGI_DDP_EXIT_TIMEOUT to more seconds"
                    )
                time.sleep(pause)
                pause = min(1.5 * pause, SLEEP_LIMIT)
        except KeyboardInterrupt:
            ignore_interrupts()
            self.hook.end_with("ends the job: KeyboardInterrupt", 130)


def _initialise(MPI: Any, launch: Launch | None, timeout: float) -> None:
    if launch is None:
        MPI.Init_thread()
        return
    version = MPI.Get_library_version()
    check_launcher(launch, version)
    if mpi_family(version) in MPICH_LIKE:
        check_space(launch.local_world_size or 1)
    # MPI_Init holds Python's lock while it waits for other nodes.
    if launch.meeting and launch.world_size != 1:
        from pytagi_ddp.distributed.engine.meeting import meeting  # Linux only

        together = meeting(launch, timeout)
    else:
        together = node_barrier(launch.local_rank, launch.local_world_size or 1, timeout)
    with together, ended_after(timeout):
        MPI.Init_thread()

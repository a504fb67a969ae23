"""Groups of MPI ranks: MPI communicators for each kind of collective, and shared memory of a node."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytagi_ddp.distributed.engine.abort import AbortHook
from pytagi_ddp.distributed.engine.across_nodes import AcrossNodes, asked_way
from pytagi_ddp.distributed.engine.errors import START
from pytagi_ddp.distributed.engine.group import Group, Member, SplitRequest, new_number, part
from pytagi_ddp.distributed.engine.operations import Queue
from pytagi_ddp.distributed.engine.shared_memory import join_shared_sum

if TYPE_CHECKING:
    from pytagi_ddp.distributed.engine._shared_sum import SharedSum

# Each kind of collective has its own MPI communicator. So ranks in different collectives wait for each other, and
# report it, instead of reading each other's data.
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
    "message",
)


class MPIMember(Member):
    """A rank of an MPI job."""

    MPI: Any  # the module ``mpi4py.MPI``
    world_size: int
    node: int  # the first rank on this node
    hook: AbortHook  # installed while a communicator is open


class MPIGroup(Group):
    """Ranks of an MPI job.

    Args:
        ranks: the numbers, among all ranks, of the ranks of the MPI communicator `ranks_of`.
        timeout: time limit for starting, in seconds.
    """

    member: MPIMember
    local_rank: int  # among the ranks of the group on this node
    local_world_size: int  # their number

    def __init__(self, job: MPIMember, number: int, ranks: Sequence[int], ranks_of: Any, timeout: float):
        super().__init__(job, number, ranks)
        self.shared_sum: SharedSum | None = None  # adds short float32 arrays if all ranks are on one node
        self.across: AcrossNodes | None = None  # makes long sums if the ranks are on several nodes
        starting = START if number == 0 else f"split #{number}"
        kinds = {kind: f"{starting}: {kind} channel" for kind in KINDS}
        self.channels = {kind: self.duplicate(ranks_of, name, timeout) for kind, name in kinds.items()}

    def duplicate(self, ranks_of: Any, name: str, timeout: float) -> Any:
        """A new MPI communicator for the same ranks; the call is not counted as a collective."""
        channel, request = ranks_of.Idup()
        self._queue(self.ranks, 0, self.kind).start(name, 0, iter([request]), timeout).wait()
        return channel

    def close(self) -> None:
        """Frees the MPI communicators and the memory, unless operations of the group are in progress.

        It does not wait for other ranks. The counts of the group are kept, for ranks that leave.
        """
        if not any(queue.first for queue in (self.collectives, *self._messages.values())):
            for channel in self.channels.values():
                channel.Free()
            if self.across is not None:
                self.across.free()
            self.channels, self.shared_sum, self.across = {}, None, None

    def split(self, own: SplitRequest, requests: Sequence[SplitRequest], timeout: float) -> MPIGroup | None:
        """The part of the group with the color of this rank; collective, after the ranks have exchanged requests."""
        job, number, places = self.member, new_number(requests), part(own.color, requests)
        job.next_number = number + 1
        colors = sorted({other.color for other in requests if other.color is not None})
        color = job.MPI.UNDEFINED if own.color is None else colors.index(own.color)
        try:
            with ended_after(timeout):
                ranks_of = self.channels["barrier"].Split(color, places.index(self.rank))
            if own.color is None:
                return None
            group = MPIGroup(job, number, [self.ranks[place] for place in places], ranks_of, timeout)
        except job.MPI.Exception as error:
            raise _no_room(f"split #{number}", error) from error
        group.find_node([requests[place].node for place in places], ranks_of, timeout)
        ranks_of.Free()
        return group

    @classmethod
    def of(cls, job: MPIMember, comm: Any, timeout: float) -> MPIGroup:
        """The group of the ranks of an mpi4py communicator, in their order there; collective over these ranks."""
        own, everyone = comm.Get_group(), job.MPI.COMM_WORLD.Get_group()
        ranks = job.MPI.Group.Translate_ranks(own, list(range(comm.size)), everyone)
        own.Free()
        everyone.Free()
        if job.MPI.UNDEFINED in ranks:
            raise ValueError("this communicator of mpi4py has ranks that are not in COMM_WORLD, as those of Spawn")
        what = f"use of a communicator of mpi4py, of {comm.size} ranks"
        try:
            ranks_of, request = comm.Idup()
            queue = Queue(lambda what: None, job.raise_timeout, job.operations)
            queue.start(what, 0, iter([request]), timeout).wait()
            with ended_after(timeout):
                requests = ranks_of.allgather(SplitRequest(None, 0, job.next_number, job.node))
            group = cls(job, new_number(requests), ranks, ranks_of, timeout)
        except job.MPI.Exception as error:
            raise _no_room(what, error) from error
        group.find_node([request.node for request in requests], ranks_of, timeout)
        ranks_of.Free()
        return group

    def find_node(self, nodes: Sequence[int], ranks_of: Any, timeout: float) -> None:
        """Finds the ranks on this node, from the nodes of all ranks, and joins their shared memory; collective."""
        here = [place for place, node in enumerate(nodes) if node == nodes[self.rank]]
        self.local_rank, self.local_world_size = here.index(self.rank), len(here)
        with ended_after(timeout):
            if len(here) < self.world_size:
                self.across = AcrossNodes(self.member.MPI, self.channels["all_reduce"], nodes[self.rank])
            elif self.world_size > 1:
                asked_way(ranks_of)  # checked, though only several nodes use it
                self.shared_sum = join_shared_sum(ranks_of)


def _no_room(what: str, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"{what}: MPI makes no more communicators; each group takes {len(KINDS)}, of some 2,000 in MPICH: close() "
        f"those that are no longer needed, on every rank ({error})"
    )


@contextmanager
def ended_after(timeout: float) -> Iterator[None]:
    """Ends this process if the body takes longer. MPI holds Python's lock there, so a C thread has to do it."""
    faulthandler.dump_traceback_later(min(timeout, 1e9), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()

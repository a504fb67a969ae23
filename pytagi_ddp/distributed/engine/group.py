"""Groups of ranks: the operations of a rank in each group, and the detection of ranks that have left.

In each group, a rank counts its finished collectives, and its messages to and from each other rank. A rank that leaves
sends its counts to the others, so that they can tell whether it is missing in a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError, late
from pytagi_ddp.distributed.engine.handle import Work
from pytagi_ddp.distributed.engine.interface import Communicator
from pytagi_ddp.distributed.engine.operations import Operation, Operations, Queue

SPELLED = 8  # ranks of a group that an error message names


class Counts(NamedTuple):
    """Finished collectives of a rank in a group, and messages to and from another rank; for errors of mismatch."""

    collectives: int = 0
    sent: int = 0
    received: int = 0


class Member:
    """A rank of a job, with its knowledge of the other ranks, which may be threads of this process (`with_ranks`)."""

    def __init__(self, rank: int, with_ranks: bool = False):
        self.rank = rank
        self.operations = Operations(rank, with_ranks)
        self.groups: dict[int, Group] = {}  # those that it belongs to, by number; 0 is the group of all ranks
        self.next_number = 0  # for a new group; larger than those of its groups
        self.departed: dict[int, dict[int, Counts]] = {}  # of each rank that has left, in the groups shared with it
        self.gave_up: int | None = None  # a rank whose waiting has timed out

    def listen(self) -> None:
        """Updates `departed` and `gave_up`."""

    def give_up(self) -> None:
        """Tells the other ranks that the waiting of this rank has timed out."""

    def counts_for(self, rank: int) -> dict[int, Counts]:
        """The counts that this rank sends to another one when it leaves, by group."""
        return {number: group.counts_with(rank) for number, group in self.groups.items() if rank in group.ranks}

    def missed_by_departed(self) -> str | None:
        """A message if a rank has left without taking part in an operation that this rank took part in; else None."""
        for rank, counts in self.departed.items():
            for number, mine in self.counts_for(rank).items():
                theirs, label = counts.get(number, Counts()), self.groups[number].label
                if theirs.collectives < mine.collectives:
                    return (
                        f"rank {rank} has left the job after {theirs.collectives} collectives{label}, rank {self.rank} "
                        f"after {mine.collectives}: it ended early"
                    )
                if theirs.received < mine.sent:
                    return (
                        f"rank {rank} has left the job after it received {theirs.received} messages{label} of rank "
                        f"{self.rank}, which sent {mine.sent}: it ended early"
                    )
        return None

    def raise_timeout(self, what: str, waited: float) -> NoReturn:
        self.give_up()
        raise late(self.rank, waited, what)

    def check_peers(self, what: str, group: int, ranks: Sequence[int], count: int, completed: int, kind: str) -> None:
        """Raises an error if a rank that this one waits for in `what` has left or timed out.

        Args:
            group: number of the group. ranks: the ranks of the group that this rank waits for.
            count: index of the field of a `Counts` to compare. completed: its value for this rank.
            kind: the kind of the counted operations, for the message.
        """
        self.listen()
        if self.gave_up is not None:  # checked first, because it is the cause if that rank has left since
            raise CollectiveTimeoutError(f"rank {self.gave_up} gave up; rank {self.rank} was waiting in {what}")
        for rank, counts in self.departed.items():  # the first to leave is probably the cause
            theirs = counts.get(group, Counts())[count]
            if rank in ranks and theirs <= completed:
                raise RankLeftError(
                    f"rank {rank} has left the job after {theirs} {kind}, while rank {self.rank} waits in {what}. All "
                    f"ranks must make the same calls: look on rank {rank} for an early return, sys.exit or fewer "
                    "batches (for those there is DDPSequential.join())"
                )


class Group:
    """A group of ranks with its own collectives, and the operations of this rank in it.

    Args:
        member: this rank.
        number: equal on all ranks of the group; no two groups of a rank have the same number.
        ranks: their numbers among all ranks, in the order of the group.
    """

    def __init__(self, member: Member, number: int, ranks: Sequence[int]):
        self.member, self.number, self.ranks = member, number, tuple(ranks)
        self.rank, self.world_size = self.ranks.index(member.rank), len(self.ranks)  # in the group
        shown = [*map(str, self.ranks[:SPELLED]), *(["..."] if self.world_size > SPELLED else [])]
        self.label = f" of ranks {', '.join(shown)}" if number else ""  # for messages
        self.kind = f"collectives{self.label}"
        self.collectives = self._queue(self.ranks, 0, self.kind)
        self._messages: dict[tuple[int, int], Queue] = {}
        member.groups[number] = self
        member.next_number = max(member.next_number, number + 1)

    def sends(self, peer: int) -> Queue:
        """The messages to a rank of the group, which that rank counts as received."""
        return self._messages_with(peer, 2, "messages from this one")

    def receives(self, peer: int) -> Queue:
        """The messages from a rank of the group."""
        return self._messages_with(peer, 1, "messages to this one")

    def counts_with(self, rank: int) -> Counts:
        """The counts of this rank for the rank with this number among all ranks."""
        peer = self.ranks.index(rank)
        messages = [self._messages[peer, count].completed if (peer, count) in self._messages else 0 for count in (2, 1)]
        return Counts(self.collectives.completed, *messages)

    def _messages_with(self, peer: int, count: int, kind: str) -> Queue:
        if (peer, count) not in self._messages:
            self._messages[peer, count] = self._queue([self.ranks[peer]], count, f"{kind}{self.label}", at_once=True)
        return self._messages[peer, count]

    def _queue(self, ranks: Sequence[int], count: int, kind: str, at_once: bool = False) -> Queue:
        member = self.member

        def check(what: str) -> None:
            member.check_peers(what, self.number, ranks, count, queue.completed, kind)

        queue = Queue(check, member.raise_timeout, member.operations, at_once, self.label)
        return queue


class GroupCommunicator(Communicator):
    """The ranks of a group. Collectives and messages are iterators over requests, which run in the group's queues."""

    timeout: float
    _sent: Callable[[np.ndarray, int], Iterator]
    _received: Callable[[np.ndarray, int], Iterator]
    _scatters: Callable[[np.ndarray, np.ndarray, str], Iterator]
    _gathers: Callable[[np.ndarray, np.ndarray], Iterator]

    def __init__(self, group: Group, timeout: float, local_rank: int, local_world_size: int):
        super().__init__(group.rank, group.world_size, local_rank, local_world_size)
        self._group, self.timeout = group, timeout

    @property
    def waited_seconds(self) -> float:
        return self._group.member.operations.waited

    def at_end(self, call: Callable[[], None]) -> None:
        self._group.member.operations.at_end(call)

    def _send(self, array: np.ndarray, peer: int) -> Work:
        queue, name = self._group.sends(peer), f"send to rank {self._group.ranks[peer]}"
        return queue.start(name, array.nbytes, self._sent(array, peer), self.timeout)

    def _receive(self, array: np.ndarray, peer: int) -> Work:
        queue, name = self._group.receives(peer), f"receive from rank {self._group.ranks[peer]}"
        return queue.start(name, array.nbytes, self._received(array, peer), self.timeout)

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, op: str) -> Work:
        return self._start("reduce_scatter", send.nbytes, self._scatters(send, receive, op))

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> Work:
        return self._start("all_gather", receive.nbytes, self._gathers(send, receive))

    def _start(self, name: str, nbytes: int, requests: Iterator, timeout: float | None = None) -> Operation:
        return self._group.collectives.start(name, nbytes, requests, self.timeout if timeout is None else timeout)


class SplitRequest(NamedTuple):
    """A rank's request when a group is split: the part that it joins, and its position there.

    number: a number that this rank has not used for a group. node: its node.
    """

    color: int | None
    key: int
    number: int
    node: Any = None

    @classmethod
    def of(cls, color: int | None, key: int | None, group: Group, node: Any = None) -> SplitRequest:
        """The request of this rank. A key of None means its index in the group."""
        return cls(color, group.rank if key is None else key, group.member.next_number, node)


def part(color: int | None, requests: Sequence[SplitRequest]) -> list[int]:
    """Indices, in the old group, of the ranks of one color, in the order of the new group."""
    places = [place for place, request in enumerate(requests) if request.color == color]
    return sorted(places, key=lambda place: (requests[place].key, place))


def new_number(requests: Sequence[SplitRequest]) -> int:
    """A number for the new groups that no rank has used before."""
    return max(request.number for request in requests)

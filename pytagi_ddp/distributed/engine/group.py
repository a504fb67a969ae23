"""Groups of ranks: what a rank has under way in each, and how it notices that another rank has left.

Each rank counts what has ended in each of its groups: collectives, and messages to and from each other rank. The counts
say which collective a rank is in, and let a rank that leaves tell the others what it took part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pytagi_ddp.distributed.engine.driver import Driver
from pytagi_ddp.distributed.engine.errors import late, late_elsewhere, left_early
from pytagi_ddp.distributed.engine.operations import Operations

SPELLED = 8  # ranks of a group that a message names


class Tally(NamedTuple):
    """In how much of a group a rank has taken part: in collectives, and in messages to and from the one who asks."""

    collectives: int = 0
    sent: int = 0
    received: int = 0


class Member:
    """The place of a rank in its job, and what it knows of the other ranks.

    Args:
        rank: among all ranks.
        with_ranks: whether other ranks are threads of this process.

    Attributes:
        driver: moves what this rank has under way.
        groups: those that it is in, by number; 0 is that of all ranks.
        departed: of each rank that has left, its tally of each group that this rank shares with it.
        gave_up: a rank that has waited too long.
    """

    def __init__(self, rank: int, with_ranks: bool = False):
        self.rank = rank
        self.driver = Driver(rank, with_ranks)
        self.groups: dict[int, Group] = {}
        self.next_number = 0  # of a group; on each rank above those of its groups
        self.departed: dict[int, dict[int, Tally]] = {}
        self.gave_up: int | None = None

    def listen(self) -> None:
        """Brings `departed` and `gave_up` up to date."""

    def give_up(self) -> None:
        """Tells the others that this rank waits no longer."""

    def tallies_for(self, rank: int) -> dict[int, Tally]:
        """What another rank is to know when this one leaves."""
        return {number: group.tally(rank) for number, group in self.groups.items() if rank in group.ranks}

    def missed_by_departed(self) -> str | None:
        """What a rank has left out that has left, though this one took part in it; None if there is nothing."""
        for rank, tallies in self.departed.items():
            for number, mine in self.tallies_for(rank).items():
                theirs, label = tallies.get(number, Tally()), self.groups[number].label
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
        """Raises if a rank that this one waits for in `what` does not come any more, or has given up itself.

        Args:
            group: its number. ranks: those of it that have to come.
            count: which of a `Tally` says how often they did. completed: how often this rank did.
            kind: what is counted.
        """
        self.listen()
        if self.gave_up is not None:  # and has left since, which says less
            raise late_elsewhere(self.gave_up, self.rank, what)
        for rank, tallies in self.departed.items():  # the first to leave is the one to look at
            theirs = tallies.get(group, Tally())[count]
            if rank in ranks and theirs <= completed:
                raise left_early(rank, theirs, self.rank, what, kind)


class Group:
    """Ranks that have collectives of their own, and what this rank has under way among them.

    Args:
        member: this rank.
        number: the same on all of them; no two groups of a rank have the same.
        ranks: among all ranks, in the order of the group.

    Attributes:
        rank: place of this rank in the group. world_size: number of ranks in it.
        operations: its collectives; run one with `operations.start(...)`.
        label: says among which ranks, for messages; of all ranks it says nothing. kind: what `operations` counts.
    """

    def __init__(self, member: Member, number: int, ranks: Sequence[int]):
        self.member, self.number, self.ranks = member, number, tuple(ranks)
        self.rank, self.world_size = self.ranks.index(member.rank), len(self.ranks)
        shown = [*map(str, self.ranks[:SPELLED]), *(["..."] if self.world_size > SPELLED else [])]
        self.label = f" of ranks {', '.join(shown)}" if number else ""
        self.kind = f"collectives{self.label}"
        self.operations = self._queue(self.ranks, 0, self.kind)
        self._messages: dict[tuple[int, int], Operations] = {}
        member.groups[number] = self
        member.next_number = max(member.next_number, number + 1)

    def sends(self, peer: int) -> Operations:
        """The messages to a rank of the group. For it they are those that it receives."""
        return self._messages_with(peer, 2, "messages from this one")

    def receives(self, peer: int) -> Operations:
        """The messages from a rank of the group."""
        return self._messages_with(peer, 1, "messages to this one")

    def tally(self, rank: int) -> Tally:
        """Of this rank, for one among all ranks."""
        peer = self.ranks.index(rank)
        messages = [self._messages[peer, count].completed if (peer, count) in self._messages else 0 for count in (2, 1)]
        return Tally(self.operations.completed, *messages)

    def _messages_with(self, peer: int, count: int, kind: str) -> Operations:
        if (peer, count) not in self._messages:
            self._messages[peer, count] = self._queue([self.ranks[peer]], count, f"{kind}{self.label}", at_once=True)
        return self._messages[peer, count]

    def _queue(self, ranks: Sequence[int], count: int, kind: str, at_once: bool = False) -> Operations:
        member = self.member

        def check(what: str) -> None:
            member.check_peers(what, self.number, ranks, count, queue.completed, kind)

        queue = Operations(member.rank, check, member.raise_timeout, member.driver, at_once, self.label)
        return queue


class Offer(NamedTuple):
    """What a rank says when a group is split: which part it wants to be in, and where there.

    number: one that it could give a new group. node: where it runs.
    """

    color: int | None
    key: int
    number: int
    node: Any = None

    @classmethod
    def of(cls, color: int | None, key: int | None, group: Group, node: Any = None) -> Offer:
        """Of this rank; a key of None stands for its place in the group."""
        return cls(color, group.rank if key is None else key, group.member.next_number, node)


def part(color: int | None, offers: Sequence[Offer]) -> list[int]:
    """Places in the old group of the ranks of one color, in the order of the new one."""
    places = [place for place, offer in enumerate(offers) if offer.color == color]
    return sorted(places, key=lambda place: (offers[place].key, place))


def new_number(offers: Sequence[Offer]) -> int:
    """The number of the new groups, which no rank has had for a group of its own."""
    return max(offer.number for offer in offers)

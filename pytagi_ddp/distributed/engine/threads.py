"""The engine of threads: ranks in one process, for notebooks, tests, and several GPUs in one program.

A `Collective` gathers the contributions of the ranks, and the last rank to contribute computes the result. Sums have
the same order as in the MPI engine. A `Mailbox` has the collectives and messages in progress of a group.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.arguments import bytes_of
from pytagi_ddp.distributed.engine.combine import combined
from pytagi_ddp.distributed.engine.errors import LaunchError, RankLeftError
from pytagi_ddp.distributed.engine.group import Group, GroupCommunicator, Member, SplitRequest, new_number, part
from pytagi_ddp.distributed.engine.handle import Work
from pytagi_ddp.distributed.engine.staging import Staging, copy

_member: ContextVar[ThreadMember | None] = ContextVar("member", default=None)


def current_member() -> ThreadMember | None:
    """The rank of this thread; None in a thread that is not a rank."""
    return _member.get()


class Collective:
    """A collective: the contributions of the ranks, and the result. A `Queue` polls it as a request of mpi4py."""

    def __init__(self) -> None:
        self.contributions: dict[int, tuple[dict[str, Any], Any]] = {}  # by rank: values equal on all ranks, payload
        self._done = False
        self._error: Exception | None = None
        self.result: Any = None

    def finish(self, number: int, combine: Callable[[list], Any]) -> None:
        """Computes `result` from all contributions; an error is raised on every rank."""
        everyone = [self.contributions[rank] for rank in range(len(self.contributions))]
        try:
            debug.compare(number, [same for same, _ in everyone])
            with np.errstate(all="ignore"):
                self.result = combine([payload for _, payload in everyone])
        except Exception as error:
            self._error = error
        self.contributions = {}
        self._done = True

    def Test(self) -> bool:
        if self._done and self._error is not None:
            raise self._error
        return self._done


class Message:
    """A message. The sender polls it as a request of mpi4py; it is done when the other rank has received it."""

    def __init__(self, data: np.ndarray):
        self.data = data
        self.received = False

    def Test(self) -> bool:
        return self.received


class Mailbox:
    """The collectives of a group of ranks, and the messages between them; `ranks` are their numbers among all ranks."""

    def __init__(self, ranks: Sequence[int]):
        self.ranks = tuple(ranks)
        self._collectives: dict[int, Collective] = {}  # unfinished collectives, by number
        self._messages: dict[tuple[int, int], deque[Message]] = {}  # by sender and receiver
        self._lock = threading.Lock()

    def contribute(
        self, rank: int, number: int, same: dict, payload: Any, combine: Callable[[list], Any]
    ) -> Collective:
        """Adds the contribution of `rank` to collective `number`."""
        with self._lock:
            collective = self._collectives.setdefault(number, Collective())
            collective.contributions[rank] = same, payload
            last = len(collective.contributions) == len(self.ranks)
            if last:
                del self._collectives[number]
        if last:
            collective.finish(number, combine)
        return collective

    def messages(self, sender: int, receiver: int) -> deque[Message]:
        """The messages that were not received yet."""
        with self._lock:
            return self._messages.setdefault((sender, receiver), deque())


class World:
    """The state that the ranks of one `run_threads` share."""

    def __init__(self, world_size: int):
        self.mailbox = Mailbox(range(world_size))
        self.departed: dict[int, ThreadMember] = {}  # the ranks that have left
        self.gave_up: int | None = None  # a rank whose waiting has timed out
        self.interrupted = False  # whether Ctrl-C has interrupted the program


class ThreadMember(Member):
    """Makes this thread rank `rank` of a world, until `leave`."""

    def __init__(self, world: World, rank: int):
        super().__init__(rank, with_ranks=True)
        self._world = world
        self.world = ThreadGroup(self, 0, world.mailbox)
        _member.set(self)

    def listen(self) -> None:
        self.gave_up = self._world.gave_up
        self.departed = {rank: other.counts_for(self.rank) for rank, other in list(self._world.departed.items())}

    def give_up(self) -> None:
        self._world.gave_up = self.rank

    def check_peers(self, what: str, *rest: Any) -> None:
        if self._world.interrupted:
            raise RankLeftError(f"the program was interrupted (Ctrl-C), while rank {self.rank} was waiting in {what}")
        super().check_peers(what, *rest)

    def check_end(self) -> None:
        """Raises an error if a collective of this rank was interrupted, or was started and not waited for."""
        if self.operations.broken is not None:
            raise self.operations.broken
        self.operations.finish()
        if (forgotten := self.operations.forgotten) is not None:
            raise RuntimeError(f"{forgotten.what} was started, and nobody waited for it; call wait() on its handle")

    def leave(self) -> None:
        """Makes ranks that wait for this one raise an error."""
        self._world.departed[self.rank] = self


class ThreadGroup(Group):
    """Ranks that are threads, and share a mailbox."""

    def __init__(self, member: ThreadMember, number: int, mailbox: Mailbox):
        super().__init__(member, number, mailbox.ranks)
        self.mailbox = mailbox
        self._started = 0

    def contribute(self, same: dict[str, Any], payload: Any, combine: Callable[[list], Any]) -> Collective:
        """Adds this rank's contribution to its next collective."""
        self._started += 1
        return self.mailbox.contribute(self.rank, self._started, same, payload, combine)


class ThreadCommunicator(GroupCommunicator):
    """The ranks of a `run_threads`, for arrays in host memory; arrays of a GPU are copied there and back.

    As with `MPICommunicator`, ranks detect a rank that has left, and one that is late. Ranks that call different
    collectives raise `CollectiveMismatchError`, with or without ``PYTAGI_DDP_DEBUG``.
    """

    backend = "threads"
    _group: ThreadGroup

    def __init__(self, timeout: float, group: ThreadGroup | None = None):
        member = current_member()
        if member is None:
            raise LaunchError("backend 'threads': this thread is not a rank; start ranks with run_threads(program, 2)")
        self._member, self._staging = member, Staging()
        group = group or member.world
        super().__init__(group, timeout, group.rank, group.world_size)

    def _split(self, color: int | None, key: int | None) -> ThreadCommunicator | None:
        own = SplitRequest.of(color, key, self._group)
        number, mailboxes = self._exchange("split", own, self._divide)
        self._member.next_number = number + 1
        if color is None:
            return None
        return ThreadCommunicator(self.timeout, ThreadGroup(self._member, number, mailboxes[color]))

    def _divide(self, requests: list[SplitRequest]) -> tuple[int, dict[int | None, Mailbox]]:
        """The number of the new groups, and their mailboxes by color."""
        parts = {request.color: part(request.color, requests) for request in requests}
        mailboxes = {color: Mailbox([self._group.ranks[place] for place in places]) for color, places in parts.items()}
        return new_number(requests), mailboxes

    def _sent(self, array: np.ndarray, peer: int) -> Iterator[Message]:
        with Staging().on_host(array, writes=False) as data:  # several messages may be in progress
            message = Message(data)
            self._group.mailbox.messages(self.rank, peer).append(message)
            yield message

    def _received(self, array: np.ndarray, peer: int) -> Iterator[_ReceiveRequest]:
        with Staging().on_host(array, reads=False) as data:
            yield _ReceiveRequest(self._group.mailbox.messages(peer, self.rank), data, peer, self)

    def _all_reduce(self, buffer: np.ndarray, op: str) -> Work:
        return self._start("all_reduce", buffer.nbytes, self._reduction("all_reduce", buffer, op, None))

    def _reduce(self, buffer: np.ndarray, op: str, root: int) -> None:
        self._start("reduce", buffer.nbytes, self._reduction("reduce", buffer, op, root)).wait()

    def _reduction(self, name: str, buffer: np.ndarray, op: str, root: int | None) -> Iterator[Collective]:
        with self._staging.for_mpi(buffer) as data:
            same = {"collective": name, "op": op, "root": root, "dtype": str(data.dtype), "size": data.size}
            collective = self._group.contribute(same, data, partial(combined, op=op))
            yield collective
            if root in (None, self.rank):
                np.copyto(data, collective.result.reshape(data.shape))

    def _broadcast(self, buffer: np.ndarray, root: int) -> Work:
        return self._start("broadcast", buffer.nbytes, self._broadcasts(buffer, root))

    def _broadcasts(self, buffer: np.ndarray, root: int) -> Iterator[Collective]:
        with self._staging.for_mpi(buffer) as data:
            mine = bytes_of(data)
            same = {"collective": "broadcast", "root": root, "bytes": mine.size}
            collective = self._group.contribute(same, mine, lambda payloads: payloads[root].copy())
            yield collective
            if self.rank != root:
                np.copyto(mine, collective.result)

    def _scatters(self, send: np.ndarray, receive: np.ndarray, op: str) -> Iterator[Collective]:
        with self._staging.on_host(send, writes=False) as data:
            same = {"collective": "reduce_scatter", "op": op, "dtype": str(data.dtype), "size": data.size}
            collective = self._group.contribute(same, data.reshape(-1), partial(combined, op=op))
            yield collective
        copy(collective.result.reshape(self.world_size, -1)[self.rank], receive)

    def _gathers(self, send: np.ndarray, receive: np.ndarray) -> Iterator[Collective]:
        with self._staging.on_host(send, writes=False) as data:
            same = {"collective": "all_gather", "bytes": data.nbytes}
            collective = self._group.contribute(same, bytes_of(data), np.concatenate)
            yield collective
        copy(collective.result.view(receive.dtype), receive)

    def _all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        blocks = bytes_of(send).reshape(self.world_size, -1)
        result = self._exchange("all_to_all", blocks, np.stack, bytes=send.nbytes)
        np.copyto(bytes_of(receive).reshape(self.world_size, -1), result[:, self.rank])

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        mine = pickle.dumps(obj) if self.rank == root else b""
        result = self._exchange("broadcast_object", mine, lambda payloads: payloads[root], root=root)
        return obj if self.rank == root else pickle.loads(result)

    def _all_gather_object(self, obj: Any, channel: str = "gather") -> list:
        name = "all_gather_object" if channel == "gather" else f"{channel} of {obj['collective']}"
        return [pickle.loads(theirs) for theirs in self._exchange(name, pickle.dumps(obj), list, collective=channel)]

    def _barrier(self, timeout: float | None) -> None:
        self._exchange("barrier", None, len, timeout=timeout)

    def _exchange(
        self,
        name: str,
        payload: Any,
        combine: Callable[[list], Any],
        collective: str = "",
        timeout: float | None = None,
        **same: Any,
    ) -> Any:
        """`combine` of the payloads of all ranks. collective: the name that ranks compare, or "": `name`."""
        same["collective"] = collective or name
        collectives: list[Collective] = []

        def request() -> Iterator[Collective]:
            collectives.append(self._group.contribute(same, payload, combine))
            yield collectives[0]

        self._start(name, getattr(payload, "nbytes", 0), request(), timeout).wait()
        return collectives[0].result


class _ReceiveRequest:
    """The next message from another rank, polled as a request of mpi4py."""

    def __init__(self, messages: deque[Message], data: np.ndarray, peer: int, comm: ThreadCommunicator):
        self._messages, self._data, self._peer, self._comm = messages, data, peer, comm

    def Test(self) -> bool:
        if not self._messages:
            return False
        message, rank = self._messages.popleft(), self._comm.rank
        if self._comm.debug:
            debug.compare_headings(debug.heading(message.data), self._data, self._peer, rank)
        if message.data.nbytes != self._data.nbytes:
            raise debug.other_length(self._peer, message.data.nbytes, rank, self._data.nbytes)
        np.copyto(bytes_of(self._data), bytes_of(message.data))
        message.received = True
        return True

"""The engine of threads: ranks that share one process, for notebooks, tests, and several GPUs in one program.

What the ranks bring to a collective comes together in a `Meeting`, and the last to come makes the result: as the MPI
engine does, sums in the same order.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.arguments import bytes_of
from pytagi_ddp.distributed.engine.combine import combined
from pytagi_ddp.distributed.engine.errors import LaunchError, interrupted, late, late_elsewhere, left_early
from pytagi_ddp.distributed.engine.handle import Work
from pytagi_ddp.distributed.engine.interface import Communicator
from pytagi_ddp.distributed.engine.operations import Operations
from pytagi_ddp.distributed.engine.staging import Staging, copy

_member: ContextVar[Member | None] = ContextVar("member", default=None)


def current_member() -> Member | None:
    """The place of the rank that this thread is; None in a thread that is no rank."""
    return _member.get()


class Meeting:
    """A collective: what each rank has brought, and what comes of it. `Operations` polls it like requests of mpi4py."""

    def __init__(self, ranks: int):
        self._brought: list = [None] * ranks
        self._missing = ranks
        self._done = False
        self._error: Exception | None = None
        self.result: Any = None

    def bring(self, rank: int, same: dict[str, Any], payload: Any) -> bool:
        """Says whether this rank is the last, who has to `finish`. same: what has to be the same on every rank."""
        self._brought[rank] = same, payload
        self._missing -= 1
        return not self._missing

    def finish(self, number: int, combine: Callable[[list], Any]) -> None:
        """Makes `result` of what all ranks have brought; an error is every rank's."""
        try:
            debug.compare(number, [same for same, _ in self._brought])
            with np.errstate(all="ignore"):
                self.result = combine([payload for _, payload in self._brought])
        except Exception as error:
            self._error = error
        self._brought = []
        self._done = True

    def Test(self) -> bool:
        if self._done and self._error is not None:
            raise self._error
        return self._done


class ThreadGroup:
    """What the ranks of one `run_threads` share.

    Attributes:
        world_size: number of ranks.
        departed: of each rank that has left, in how many collectives it took part.
        gave_up: a rank that has waited too long.
        interrupted: whether the program has been, by Ctrl-C.
    """

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.departed: dict[int, int] = {}
        self.gave_up: int | None = None
        self.interrupted = False
        self._meetings: dict[int, Meeting] = {}  # that not all ranks have come to, by number
        self._lock = threading.Lock()

    def meet(self, rank: int, number: int, same: dict, payload: Any, combine: Callable[[list], Any]) -> Meeting:
        """Brings what `rank` has to collective `number`."""
        with self._lock:
            meeting = self._meetings.setdefault(number, Meeting(self.world_size))
            last = meeting.bring(rank, same, payload)
            if last:
                del self._meetings[number]
        if last:
            meeting.finish(number, combine)
        return meeting


class Member:
    """The place of this thread, rank `rank`, in a group, from now on; `leave` ends it.

    Attributes:
        operations: the collectives of this rank, of all its communicators.
    """

    def __init__(self, group: ThreadGroup, rank: int):
        self.group, self.rank = group, rank
        self.operations = Operations(rank, self._check_peers, self._raise_timeout)
        self._met = 0
        _member.set(self)

    def meet(self, same: dict[str, Any], payload: Any, combine: Callable[[list], Any]) -> Meeting:
        """Brings what this rank has to its next collective."""
        self._met += 1
        return self.group.meet(self.rank, self._met, same, payload, combine)

    def check_end(self) -> None:
        """Raises if this rank, which has come to its end, has left a collective in the middle."""
        operations = self.operations
        if operations.broken is not None:
            raise operations.broken
        if (forgotten := operations.unclaimed) is not None:
            raise RuntimeError(f"{forgotten.what} was started, and nobody waited for it; call wait() on its handle")

    def leave(self) -> None:
        """Whoever waits for this rank gets an error."""
        self.group.departed[self.rank] = self.operations.completed

    def _check_peers(self, what: str) -> None:
        if self.group.interrupted:
            raise interrupted(self.rank, what)
        if self.group.gave_up is not None:  # and has left since, which says less
            raise late_elsewhere(self.group.gave_up, self.rank, what)
        for rank, count in list(self.group.departed.items()):
            if count <= self.operations.completed:
                raise left_early(rank, count, self.rank, what)

    def _raise_timeout(self, what: str, waited: float) -> None:
        self.group.gave_up = self.rank
        raise late(self.rank, waited, what)


class ThreadCommunicator(Communicator):
    """The ranks of a `run_threads`, for arrays in host memory; those of a GPU are copied there and back.

    Waiting is that of `MPICommunicator`: a rank that has left is noticed, and so is one that does not come. Ranks that
    come to different collectives get `CollectiveMismatchError`, with or without ``PYTAGI_DDP_DEBUG``.

    Args:
        timeout: seconds that ranks may wait for each other in a collective.

    Raises:
        LaunchError: this thread is no rank.
    """

    backend = "threads"
    timeout: float

    def __init__(self, timeout: float):
        member = current_member()
        if member is None:
            raise LaunchError("backend 'threads': this thread is no rank; start ranks with run_threads(program, 2)")
        ranks = member.group.world_size
        super().__init__(member.rank, ranks, member.rank, ranks)
        self.timeout = timeout
        self._member, self._staging = member, Staging()

    def _all_reduce(self, buffer: np.ndarray, op: str) -> Work:
        return self._start("all_reduce", buffer.nbytes, self._reduction("all_reduce", buffer, op, None))

    def _reduce(self, buffer: np.ndarray, op: str, root: int) -> None:
        self._start("reduce", buffer.nbytes, self._reduction("reduce", buffer, op, root)).wait()

    def _reduction(self, name: str, buffer: np.ndarray, op: str, root: int | None) -> Iterator[Meeting]:
        with self._staging.for_mpi(buffer) as data:
            same = {"collective": name, "op": op, "root": root, "dtype": str(data.dtype), "size": data.size}
            meeting = self._member.meet(same, data, partial(combined, op=op))
            yield meeting
            if root in (None, self.rank):
                np.copyto(data, meeting.result.reshape(data.shape))

    def _broadcast(self, buffer: np.ndarray, root: int) -> Work:
        return self._start("broadcast", buffer.nbytes, self._broadcasts(buffer, root))

    def _broadcasts(self, buffer: np.ndarray, root: int) -> Iterator[Meeting]:
        with self._staging.for_mpi(buffer) as data:
            mine = bytes_of(data)
            same = {"collective": "broadcast", "root": root, "bytes": mine.size}
            meeting = self._member.meet(same, mine, lambda brought: brought[root].copy())
            yield meeting
            if self.rank != root:
                np.copyto(mine, meeting.result)

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, op: str) -> Work:
        return self._start("reduce_scatter", send.nbytes, self._scatters(send, receive, op))

    def _scatters(self, send: np.ndarray, receive: np.ndarray, op: str) -> Iterator[Meeting]:
        with self._staging.on_host(send, writes=False) as data:
            same = {"collective": "reduce_scatter", "op": op, "dtype": str(data.dtype), "size": data.size}
            meeting = self._member.meet(same, data.reshape(-1), partial(combined, op=op))
            yield meeting
        copy(meeting.result.reshape(self.world_size, -1)[self.rank], receive)

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> Work:
        return self._start("all_gather", receive.nbytes, self._gathers(send, receive))

    def _gathers(self, send: np.ndarray, receive: np.ndarray) -> Iterator[Meeting]:
        with self._staging.on_host(send, writes=False) as data:
            same = {"collective": "all_gather", "bytes": data.nbytes}
            meeting = self._member.meet(same, bytes_of(data), np.concatenate)
            yield meeting
        copy(meeting.result.view(receive.dtype), receive)

    def _all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        blocks = bytes_of(send).reshape(self.world_size, -1)
        result = self._exchange("all_to_all", blocks, np.stack, bytes=send.nbytes)
        np.copyto(bytes_of(receive).reshape(self.world_size, -1), result[:, self.rank])

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        mine = pickle.dumps(obj) if self.rank == root else b""
        result = self._exchange("broadcast_object", mine, lambda brought: brought[root], root=root)
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
        """What `combine` makes of the payloads of all ranks; collective: its name to compare, if that is another."""
        same["collective"] = collective or name
        meetings: list[Meeting] = []

        def request() -> Iterator[Meeting]:
            meetings.append(self._member.meet(same, payload, combine))
            yield meetings[0]

        self._start(name, getattr(payload, "nbytes", 0), request(), timeout).wait()
        return meetings[0].result

    def _start(self, name: str, nbytes: int, requests: Iterator[Meeting], timeout: float | None = None) -> Work:
        return self._member.operations.start(name, nbytes, requests, self.timeout if timeout is None else timeout)

"""The base of all communicators: rank, counts, and whether they may be used."""

from __future__ import annotations

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.child_process import FORKED, keep_from_children


class CommunicatorBase:
    """The rank of this process, and whether it may still take part in collectives."""

    backend: str
    timeout: float | None = None  # seconds that ranks may wait for each other; None: without end

    def __init__(self, rank: int, world_size: int, local_rank: int, local_world_size: int):
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.debug = debug.is_asked_for()
        self.reduce_calls = 0
        self.reduce_bytes = 0
        self.reduce_seconds = 0.0
        self.gather_bytes = 0
        self.sent_bytes = 0
        self._closed = False
        self._forked = ""  # in a forked child process, the reason why it cannot communicate
        self._dropped: str | None = None
        if world_size > 1:
            keep_from_children(self)

    def close(self) -> None:
        """Ends the use of this communicator; not collective, and may be called more than once."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def end_in_child(self) -> None:
        """Called in a forked child process, which cannot take part in collectives."""
        self._closed, self._forked = True, FORKED.format(rank=self.rank)

    def report_dropped(self, what: str) -> None:
        """Makes the next collective raise an error: the handle of `what` was dropped before it was done."""
        self._dropped = self._dropped or what

    def _check_usable(self, name: str) -> None:
        self._check_open(name)
        if self._dropped is not None:
            raise RuntimeError(
                f"{name} on rank {self.rank}: the handle of {self._dropped} was dropped before it was done; keep it, "
                "and call its wait()"
            )

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise RuntimeError(f"{name} on rank {self.rank}: {self._forked or 'this communicator is closed'}")

    def _check_root(self, name: str, root: int) -> None:
        self._check_open(name)
        if not 0 <= root < self.world_size:
            raise ValueError(f"{name}: root must be a rank from 0 to {self.world_size - 1}, got {root}")

    def _check_peer(self, name: str, peer: int) -> None:
        self._check_usable(name)
        if self.world_size == 1:
            raise ValueError(f"{name}: there is no other rank")
        if not 0 <= peer < self.world_size or peer == self.rank:
            others = f"a rank from 0 to {self.world_size - 1} other than this one, {self.rank}"
            raise ValueError(f"{name}: peer must be {others}; got {peer}")

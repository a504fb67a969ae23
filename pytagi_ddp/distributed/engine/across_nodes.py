"""Long sums over the ranks of several nodes, in pieces of which several are under way.

MPI's own all-reduce works step by step: while ranks wait for the last message of a step, the network rests. Several
pieces at once keep it busy. And if the ranks of a node are not a power of two, or the nodes are not, it sends up to
three times the bytes that are needed (`MPI_Iallreduce` of MPICH 5.0.2). Here the ranks of a node add first. Then one
rank of each of N nodes adds a part of n/N bytes, as in a reduce-scatter, and sends its sum to the others. So a node
sends 2 n (N - 1)/N bytes, which is the least possible.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine.arguments import bytes_of
from pytagi_ddp.distributed.engine.combine import combine_rows
from pytagi_ddp.distributed.engine.errors import LaunchError

# Measured on 8 nodes of 2 ranks, with links of 250 and 1000 Mbit/s: `benchmarks.allreduce`.
PIECE_BYTES = 2 << 20
IN_FLIGHT = 8

VARIABLE = "PYTAGI_DDP_ALL_REDUCE"
WAYS = ("mpi", "nodes")
TRIALS = 3
TRIAL_FLOATS = (1 << 20) + 10  # long pieces, and a short one
TRIAL_SECONDS = 0.5
SWAP, GATHER = 1, 2  # tags of messages


def asked_way(ranks_of: Any) -> str | None:
    """The value of ``PYTAGI_DDP_ALL_REDUCE``, which must be one of `WAYS`, or None, on all ranks; collective."""
    everywhere = ranks_of.allgather(os.environ.get(VARIABLE))
    asked = everywhere[0]
    if asked not in (None, *WAYS) or len(set(everywhere)) > 1:
        wrong = next(rank for rank, other in enumerate(everywhere) if other != asked or other not in (None, *WAYS))
        other = f" and {asked!r} on rank 0" if wrong else ""
        raise LaunchError(
            f"{VARIABLE} is {everywhere[wrong]!r} on rank {wrong}{other}: set it to "
            f"{' or '.join(map(repr, WAYS))} on all ranks, or on none"
        )
    return asked


class AcrossNodes:
    """The long sums of a group of ranks on several nodes.

    Args:
        ranks_of: MPI's communicator of the group. It is collective to make this object.
        node: equal for the ranks of a node, and different for those of others.
    """

    def __init__(self, MPI: Any, ranks_of: Any, node: int):
        self.way = "nodes"  # or "mpi": pieces are added by MPI's own all-reduce
        self._MPI, self._all = MPI, ranks_of
        self._node = ranks_of.Split(node, ranks_of.rank)
        self._spread = self._node.Dup()
        self._leads = self._node.rank == 0
        self._leaders = ranks_of.Split(0 if self._leads else MPI.UNDEFINED, ranks_of.rank)
        self._scratch: list[np.ndarray] = []

    def free(self) -> None:
        """Frees the communicators of MPI that it has made."""
        for channel in (self._node, self._spread, *([self._leaders] if self._leads else [])):
            channel.Free()

    def sums(self, numbers: np.ndarray) -> Iterator:
        """Requests, one for each piece, after which `numbers` has the sums of all ranks."""
        flat, length = numbers.reshape(-1), PIECE_BYTES // numbers.itemsize
        pieces = [flat[start : start + length] for start in range(0, flat.size, length)]
        stages = self._stages if self.way == "nodes" else self._stages_of_mpi
        flight = _Flight(map(stages, pieces))
        return (flight for _ in pieces)

    def choose(self, run: Callable[[Iterator], None]) -> None:
        """Takes the faster way, if both give the same bits; collective. `run` runs requests.

        So results never depend on time. If the bits differ, it takes "nodes". ``PYTAGI_DDP_ALL_REDUCE`` overrides it.
        """
        asked = asked_way(self._all)
        if asked is not None:
            self.way = asked
            return
        own = np.random.default_rng(self._all.rank).standard_normal(TRIAL_FLOATS, np.float32)
        best, found = dict.fromkeys(WAYS, np.inf), {}
        begin = time.perf_counter()
        for _ in range(TRIALS):
            for self.way in WAYS:
                found[self.way] = own.copy()
                start = time.perf_counter()
                run(self.sums(found[self.way]))
                seconds = time.perf_counter() - start
                best[self.way] = min(best[self.way], self._all.allreduce(seconds, self._MPI.MAX))
            if self._all.bcast(time.perf_counter() - begin > TRIAL_SECONDS):
                break
        same = self._all.allreduce(found["mpi"].tobytes() == found["nodes"].tobytes(), self._MPI.LAND)
        self.way = min(WAYS, key=best.__getitem__) if same else "nodes"

    def _stages_of_mpi(self, piece: np.ndarray) -> Iterator:
        yield self._all.Iallreduce(self._MPI.IN_PLACE, piece, self._MPI.SUM)

    def _stages(self, piece: np.ndarray) -> Iterator:
        node, in_place, add = self._node, self._MPI.IN_PLACE, self._MPI.SUM
        if node.size > 1:
            yield node.Ireduce(in_place, piece, add) if self._leads else node.Ireduce(piece, None, add)
        if self._leads:
            nodes, own = self._leaders.size, self._leaders.rank
            parts = np.array_split(piece, nodes)
            memory = self._memory(nodes * parts[own].nbytes)
            rows = memory[: nodes * parts[own].nbytes].view(piece.dtype).reshape(nodes, -1)
            yield RequestList(self._MPI, swaps(self._leaders, parts, rows, SWAP))
            rows[own] = parts[own]
            combine_rows(rows, "sum", parts[own])
            self._scratch.append(memory)
            yield RequestList(self._MPI, swaps(self._leaders, [parts[own]] * nodes, parts, GATHER))
        if node.size > 1:
            yield self._spread.Ibcast(piece)

    def _memory(self, nbytes: int) -> np.ndarray:
        """Bytes that no piece uses, at least so many."""
        memory = self._scratch.pop() if self._scratch else np.empty(nbytes, np.uint8)
        return memory if memory.size >= nbytes else np.empty(nbytes, np.uint8)


class _Flight:
    """Up to `IN_FLIGHT` pieces, in stages; on every rank, a stage of one begins after that of the piece before.

    Args:
        pieces: iterators of requests; the next request of each is posted when the one before has ended.
    """

    def __init__(self, pieces: Iterable[Iterator]):
        self._waiting = iter(pieces)
        self._flying: list[_Piece] = []
        self._fill()

    def Test(self) -> bool:
        """Whether the next piece has ended."""
        ahead = np.inf
        for piece in self._flying:
            piece.advance(ahead)
            ahead = piece.stage
        if self._flying and self._flying[0].request is None:
            del self._flying[0]
            self._fill()
            return True
        return False

    def _fill(self) -> None:
        while len(self._flying) < IN_FLIGHT and (stages := next(self._waiting, None)) is not None:
            self._flying.append(_Piece(stages))


class _Piece:
    """A piece under way: its request, None at its end, and the number of its stage."""

    def __init__(self, stages: Iterator):
        self._stages, self.request, self.stage = stages, next(stages, None), 0.0

    def advance(self, ahead: float) -> None:
        """Goes on to later stages, but not beyond the stage `ahead` of the piece before."""
        while self.request is not None and self.stage < ahead and self.request.Test():
            self.request, self.stage = next(self._stages, None), self.stage + 1
        if self.request is None:
            self.stage = np.inf


class RequestList:
    """Several requests that are polled as one."""

    def __init__(self, MPI: Any, requests: Iterable):
        self._testall, self._requests = MPI.Request.Testall, list(requests)

    def Test(self) -> bool:
        return self._testall(self._requests)


def swaps(channel: Any, away: Any, home: Any, tag: int = 0) -> Iterator:
    """Requests that send array `away[r]` to rank r, and receive `home[r]`; `Ialltoallv` takes 3 times as long."""
    others = [(channel.rank + k) % channel.size for k in range(1, channel.size)]
    yield from (channel.Irecv(bytes_of(home[peer]), peer, tag) for peer in others)
    yield from (channel.Isend(bytes_of(away[peer]), peer, tag) for peer in reversed(others))

"""The MPI engine: collectives in non-blocking pieces over mpi4py."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine import debug
from pytagi_ddp.distributed.engine.across_nodes import RequestList, swaps
from pytagi_ddp.distributed.engine.arguments import bytes_of, is_block
from pytagi_ddp.distributed.engine.combine import combine_rows, comparable
from pytagi_ddp.distributed.engine.group import GroupCommunicator, SplitRequest
from pytagi_ddp.distributed.engine.handle import Work
from pytagi_ddp.distributed.engine.job import start_job
from pytagi_ddp.distributed.engine.mpi_group import MPIGroup
from pytagi_ddp.distributed.engine.staging import Staging, copy

# Measured with MPICH 5.0.2 on 2 and 3 ranks of one machine, for 94 MB: pieces of 2 to 16 MB, one after the other, take
# a third of the time of one call. MPI works in a scratch buffer as large as the piece; that of a short piece is kept,
# that of one long call goes back to the system, page by page, each time, and several pieces at once cost that too.
# On a quiet machine the length hardly matters; where other work takes the cores, fewer pieces are better: 8 MB.
PIECE_BYTES = 8 << 20
# A buffer of more than this begins with a short piece, which ends when the last rank has arrived. So a rank can sleep
# until then, and poll without sleeping while the long pieces move.
WHOLE_BYTES = 1 << 20
LEAD_BYTES = 1 << 16

FLOAT32 = np.dtype(np.float32)
HEADING, CONTENT = 1, 2  # tags of messages


class MPICommunicator(GroupCommunicator):
    """Ranks of an MPI job, for arrays in host memory; those of a GPU are copied there and back.

    A collective is cut into non-blocking pieces, and waiting for one is polling it: at first without pause, then with
    sleeps of 0.05 to 1 ms. So a waiting rank does not slow its neighbours down, runs its signal handlers, sees that
    another rank has left, and ends with an error after ``timeout`` seconds. The result has the same bits on every rank.
    Where all ranks are on one node, sums of short float32 arrays are made in memory that they share, not by MPI. Long
    sums of ranks on several nodes are made by `AcrossNodes`.

    While it is open, an exception on any rank, in any thread, ends the whole job (see `abort.AbortHook`).

    Args:
        cuda_aware: pass arrays of a GPU directly to the MPI library. group: the ranks; None: all ranks of the job.
    """

    backend = "mpi"
    _group: MPIGroup

    def __init__(self, timeout: float, cuda_aware: bool = False, group: MPIGroup | None = None):
        group = group or start_job(timeout).world
        self._MPI, self._cuda_aware = group.member.MPI, cuda_aware
        super().__init__(group, timeout, group.local_rank, group.local_world_size)
        self._staging = Staging(cuda_aware)
        self._scratch = np.empty(0, np.uint8)  # for a piece of a reduce-scatter
        _open.add(self)
        if group.member.world_size > 1:
            group.member.hook.install()

    def _split(self, color: int | None, key: int | None) -> MPICommunicator | None:
        group, job = self._group, self._group.member
        request = SplitRequest.of(color, key, group, job.node)
        part = group.split(request, self._all_gather_object(request), self.timeout)
        return None if part is None else MPICommunicator(self.timeout, self._cuda_aware, part)

    def _all_reduce(self, buffer: np.ndarray, op: str) -> Work:
        plain = op == "sum" and isinstance(buffer, np.ndarray)
        requests = self._sums(buffer) if plain else self._reductions("all_reduce", buffer, op, None)
        return self._group.collectives.start("all_reduce", buffer.nbytes, requests, self.timeout)

    def _sums(self, buffer: np.ndarray) -> Iterator:
        """`_reductions` in the most frequent case, kept short because every line of Python delays small arrays."""
        shared = self._group.shared_sum
        if shared is not None and buffer.dtype == FLOAT32 and 0 < buffer.size <= shared.floats:
            yield shared.start(buffer)
            return
        across = self._group.across
        if across is not None and buffer.nbytes > WHOLE_BYTES:
            yield from across.sums(buffer)
            return
        start, in_place, add = self._group.channels["all_reduce"].Iallreduce, self._MPI.IN_PLACE, self._MPI.SUM
        for piece in _pieces(buffer):
            yield start(in_place, piece, add)

    def _reduce(self, buffer: np.ndarray, op: str, root: int) -> None:
        self._run("reduce", buffer.nbytes, self._reductions("reduce", buffer, op, root))

    def _reductions(self, name: str, buffer: np.ndarray, op: str, root: int | None) -> Iterator:
        """The pieces of a reduction to one rank, or (None) to all of them."""
        MPI, channel = self._MPI, self._group.channels[name]
        combine = {"max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}.get(op, MPI.SUM)
        receives = root in (None, self.rank)
        with self._staging.for_mpi(buffer) as data, comparable(data, op, keep=not receives) as numbers:
            if root is None and op in ("sum", "mean") and isinstance(numbers, np.ndarray):
                yield from self._sums(numbers)
            elif root is None:
                yield from (channel.Iallreduce(MPI.IN_PLACE, piece, combine) for piece in _pieces(numbers))
            elif receives:
                yield from (channel.Ireduce(MPI.IN_PLACE, piece, combine, root) for piece in _pieces(numbers))
            else:
                yield from (channel.Ireduce(piece, None, combine, root) for piece in _pieces(numbers))
            if op == "mean" and receives:
                numbers /= self.world_size

    def _broadcast(self, buffer: np.ndarray, root: int, name: str = "broadcast") -> Work:
        return self._start(name, buffer.nbytes, self._broadcasts(buffer, root))

    def _broadcasts(self, buffer: np.ndarray, root: int) -> Iterator:
        with self._staging.for_mpi(buffer) as data:
            for piece in _pieces(bytes_of(data)):
                yield self._group.channels["broadcast"].Ibcast(piece, root)

    def in_background(self) -> AbstractContextManager:
        """Lets a thread drive handles while the body computes, if this MPI can be called from several threads."""
        MPI = self._MPI
        many = MPI.Query_thread() == MPI.THREAD_MULTIPLE and self.world_size > 1
        return self._group.member.operations.in_background() if many else nullcontext()

    def _scatters(self, send: np.ndarray, receive: np.ndarray, op: str) -> Iterator:
        """Each rank adds its own block, in a fixed order; `MPI_Ireduce_scatter` of three ranks may use another one."""
        if self.world_size == 1:
            copy(send, receive)
            return
        channel, size, itemsize = self._group.channels["reduce_scatter"], receive.size, receive.itemsize
        with self._staging.on_host(send, writes=False) as data:
            staged = data is not send
            blocks = data.reshape(self.world_size, size)
            out = blocks[self.rank] if staged else receive.reshape(-1)
            for start, stop in _spans(size, itemsize * self.world_size):
                rows = self._rows(stop - start, data.dtype)
                yield RequestList(self._MPI, swaps(channel, blocks[:, start:stop], rows))
                own = blocks[self.rank, start:stop]
                if self.world_size == 2 and op == "sum":  # there is one order only, and nothing to be copied first
                    with np.errstate(all="ignore"):
                        np.add(own, rows[1 - self.rank], out=out[start:stop])
                    continue
                copy(own, rows[self.rank])
                combine_rows(rows, op, out[start:stop])
            if staged:
                copy(out, receive)

    def _rows(self, length: int, dtype: np.dtype) -> np.ndarray:
        """Memory for `length` numbers of each rank, valid until the next call."""
        nbytes = self.world_size * length * dtype.itemsize
        if self._scratch.size < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch[:nbytes].view(dtype).reshape(self.world_size, length)

    def _gathers(self, send: np.ndarray, receive: np.ndarray) -> Iterator:
        if self.world_size == 1:  # MPICH 4.0.2 ignores displacements with one rank
            copy(send, receive)
            return
        channel, in_place = self._group.channels["all_gather"], self._MPI.IN_PLACE
        with self._staging.for_mpi(receive, reads=False) as data:
            mine, whole, there = bytes_of(send), bytes_of(data), is_block(send, receive, self.rank)
            if data is not receive:
                copy(mine, whole.reshape(self.world_size, -1)[self.rank])
                there = True
            for start, stop in _spans(mine.size, 1):
                yield channel.Iallgatherv(in_place if there else mine[start:stop], self._parts(whole, start, stop))

    def _all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        if self.world_size == 1:
            receive.reshape(-1)[:] = send.reshape(-1)
            return
        away, home = bytes_of(send), bytes_of(receive)
        channel, spans = self._group.channels["all_to_all"], _spans(send.nbytes // self.world_size, 1)
        requests = (channel.Ialltoallv(self._parts(away, a, b), self._parts(home, a, b)) for a, b in spans)
        self._run("all_to_all", send.nbytes, requests)

    def _parts(self, blocks: np.ndarray, start: int, stop: int) -> list:
        """Bytes `start` to `stop` of the block of each rank, as an argument for MPI."""
        offsets = np.arange(self.world_size) * (blocks.size // self.world_size) + start
        return [blocks, np.full(self.world_size, stop - start), offsets, self._MPI.BYTE]

    def _sent(self, array: np.ndarray, peer: int) -> Iterator:
        channel = self._group.channels["message"]
        with Staging(self._cuda_aware).for_mpi(array, writes=False) as data:  # several messages are under way at once
            if self.debug:
                yield channel.Isend(debug.heading(array), peer, HEADING)
            yield channel.Isend(bytes_of(data), peer, CONTENT)

    def _received(self, array: np.ndarray, peer: int) -> Iterator:
        channel = self._group.channels["message"]
        with Staging(self._cuda_aware).for_mpi(array, reads=False) as data:
            if self.debug:
                heading = np.zeros(debug.HEADING_BYTES, np.uint8)
                yield channel.Irecv(heading, peer, HEADING)
                debug.compare_headings(heading, array, peer, self.rank)
            yield _Message(channel.Irecv(bytes_of(data), peer, CONTENT), array.nbytes, peer, self.rank, self._MPI)

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        payload = np.frombuffer(bytearray(pickle.dumps(obj)) if self.rank == root else bytearray(), np.uint8)
        size = np.array([payload.size], np.int64)
        self._broadcast(size, root, "broadcast_object").wait()
        if self.rank != root:
            payload = np.empty(size[0], np.uint8)
        self._broadcast(payload, root, "broadcast_object").wait()
        return obj if self.rank == root else pickle.loads(payload.data)

    def _all_gather_object(self, obj: Any, channel: str = "gather") -> list:
        name = "all_gather_object" if channel == "gather" else f"{channel} of {obj['collective']}"
        through = self._group.channels[channel]
        mine = np.frombuffer(pickle.dumps(obj), np.uint8)
        sizes = np.empty(self.world_size, np.int64)
        size = np.array([mine.size], np.int64)
        self._run(name, sizes.nbytes, (through.Iallgather(size, sizes) for _ in range(1)))
        ends = np.cumsum(sizes)
        gathered = np.empty(ends[-1], np.uint8)
        target = [gathered, sizes, ends - sizes, self._MPI.BYTE]
        self._run(name, gathered.nbytes, (through.Iallgatherv(mine, target) for _ in range(1)))
        return [pickle.loads(gathered[end - size : end].data) for size, end in zip(sizes, ends, strict=True)]

    def _barrier(self, timeout: float | None) -> None:
        channel = self._group.channels["barrier"]
        self._start("barrier", 0, (channel.Ibarrier() for _ in range(1)), timeout).wait()

    def _run(self, name: str, nbytes: int, requests: Iterator) -> None:
        self._start(name, nbytes, requests).wait()

    def close(self) -> None:
        """Ends the use of this communicator; with the last one, the abort hooks are removed.

        A communicator of `split` frees what MPI holds for it. MPI itself ends with the interpreter, when all ranks have
        come to their end.
        """
        if not self._closed and self._group.number:
            self._group.close()
        super().close()
        _open.discard(self)
        if not _open:
            self._group.member.hook.remove()


class _Message:
    """The request for a message, which must be as long as the array that receives it."""

    def __init__(self, request: Any, nbytes: int, peer: int, rank: int, MPI: Any):
        self._request, self._nbytes, self._peer, self._rank, self._MPI = request, nbytes, peer, rank, MPI

    def Test(self) -> bool:
        MPI, status, more = self._MPI, self._MPI.Status(), ""
        try:
            if not self._request.Test(status):
                return False
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            more = "more"
        if more or status.Get_count(MPI.BYTE) != self._nbytes:
            raise debug.other_length(self._peer, more or status.Get_count(MPI.BYTE), self._rank, self._nbytes)
        return True


def communicator_of(comm: Any, timeout: float) -> MPICommunicator:
    """The communicator for the ranks of one of mpi4py, see `distributed.communicator.as_communicator`."""
    from mpi4py import MPI  # here, as this module is loaded without it

    if MPI.Is_finalized():
        raise RuntimeError("MPI has ended (MPI.Finalize), and its communicators with it")
    if comm == MPI.COMM_NULL:
        raise ValueError("this communicator of mpi4py is null: it was freed, or this rank is not one of its ranks")
    job = start_job(timeout)
    if comm.Is_inter():
        raise ValueError("this communicator of mpi4py joins two groups of ranks: Merge() makes one of them")
    key = _attribute(MPI)
    known = comm.Get_attr(key)
    if known is None or known.closed:
        whole = MPI.Comm.Compare(comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
        group = job.world if whole else MPIGroup.of(job, comm, timeout)
        known = MPICommunicator(timeout, group=group)
        comm.Set_attr(key, known)
    return known


@cache
def _attribute(MPI: Any) -> int:
    """Under which a communicator of mpi4py keeps its `MPICommunicator`; a copy of it has none, and none outlives it."""
    return MPI.Comm.Create_keyval()


_open: set[MPICommunicator] = set()


def _pieces(buffer: np.ndarray) -> Iterator[np.ndarray]:
    flat = buffer.reshape(-1)
    return (flat[start:stop] for start, stop in _spans(flat.size, flat.itemsize))


def _spans(count: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of the pieces of `count` items."""
    start, length = 0, (LEAD_BYTES if count * itemsize > WHOLE_BYTES else PIECE_BYTES) // itemsize
    while start < count:
        yield start, min(start + length, count)
        start, length = start + length, PIECE_BYTES // itemsize

"""Collectives between the stand-in GPUs of MPI ranks. Data travel point to point, so that nobody blocks in MPI.

As in NCCL, a collective is work of a stream: it begins when what was queued before it is done, and ends when all ranks
have come to it. A GPU does its work by itself. So here a thread goes on with it, once another rank has come to the
collective, or after a while. What NCCL would hang on or compute wrongly is a problem of the machine: ranks whose n-th
collectives differ, buffers that overlap in part, memory that nobody has written, work of another stream in between.
"""

import atexit
import itertools
import os
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tests.cuda.ptx.machine import Piece, machine, memory_at

from . import order

available = True
version = 23203
NCCL_CHAR, NCCL_INT64, NCCL_FLOAT32, NCCL_FLOAT64 = 0, 4, 7, 8
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 2, 4, 5, 6
PATIENCE, POLL = 0.02, 0.0005  # seconds: until the GPU goes on by itself; between two looks at what has come

_DTYPES = {NCCL_CHAR: np.int8, NCCL_INT64: np.int64, NCCL_FLOAT32: np.float32, NCCL_FLOAT64: np.float64}
_COMBINE = {NCCL_SUM: np.add, NCCL_AVG: np.add, NCCL_PROD: np.multiply, NCCL_MAX: np.fmax, NCCL_MIN: np.fmin}
_NAMES = {
    SYSTEM_ERROR: "SYSTEM_ERROR",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    INVALID_USAGE: "INVALID_USAGE",
    REMOTE_ERROR: "REMOTE_ERROR",
}
_FIRST_TAG = 1000  # of messages: one for each communicator
_ids = itertools.count()


class NcclError(RuntimeError):
    def __init__(self, status: int, detail: str = ""):
        self.status = status
        super().__init__(f"NCCL_ERROR_{_NAMES[status]}: {detail}")


class Misuse(NamedTuple):
    """A problem: what NCCL would not notice."""

    kernel: str
    kind: str


class Call(NamedTuple):
    """What ranks have to agree on."""

    name: str
    count: int
    dtype: int
    op: int = 0
    root: int = 0


def get_version() -> int:
    return version


def get_unique_id() -> tuple[int, ...]:
    number = next(_ids).to_bytes(4, "little") + os.urandom(124)
    return tuple(byte - 256 if byte > 127 else byte for byte in number)


@cache
def _world():
    """All ranks, with messages of their own; collective when first called."""
    from mpi4py import MPI  # here: one rank needs none

    return MPI.COMM_WORLD.Dup()


class NcclCommunicator:
    """The ranks of a job, and a thread for what comes from them.

    Attributes:
        error: status of an asynchronous error: no collective ends any more, until `abort`.
    """

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int):
        self._size, self._rank = ndev, rank
        self._tag = _FIRST_TAG + int.from_bytes(bytes(byte % 256 for byte in commId[4:7]), "little")
        self._of_world: dict[int, int] = {}  # of each rank here its rank among all
        self._begun = itertools.count(1)
        self._queued: list[tuple[Any, Any, int, float]] = []  # number, stream, its place there, time; not done yet
        self._mail: dict[tuple[Any, int], Any] = {}  # by number of the collective, and rank
        self._messages: dict[tuple[str, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))
        self._gone: dict[int, int] = {}  # rank: the last collective that it has come to
        self._made = 0
        self._sent: list = []
        self._receiving = threading.Lock()
        self._aborted = False
        self.error: int | None = None
        self._thread = threading.Thread(target=self._go_on, name="stand-in of NCCL", daemon=True)
        if ndev > 1:
            self._world = _world()
            self._of_world[rank] = self._world.rank
            self._send(("here", rank), [other for other in range(self._world.size) if other != self._world.rank])
            while len(self._of_world) < ndev:
                self._receive()
                time.sleep(POLL)
            self._meet(commId)
            self._thread.start()
            atexit.register(self.abort)  # the thread shall not be in MPI when that ends

    def _meet(self, commId: tuple[int, ...]) -> None:
        from cupy import cuda  # here, as it imports this module

        shared = version >= 23000 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
        places = self._exchange(0, (self._size, commId, cuda.identity))
        if len({place[:2] for place in places}) > 1:
            raise NcclError(INVALID_ARGUMENT, "ranks of different communicators")
        gpus = [gpu for _, _, gpu in places]
        if len(set(gpus)) < self._size and not shared:
            raise NcclError(INVALID_USAGE, f"Duplicate GPU detected: {gpus}")

    # -- calls ------------------------------------------------------------------------------------------------------

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._queue(Call("allReduce", count, datatype, op), sendbuf, recvbuf, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        self._queue(Call("reduceScatter", recvcount, datatype, op), sendbuf, recvbuf, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._queue(Call("allGather", count, datatype), sendbuf, recvbuf, stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        self._queue(Call("reduce", count, datatype, op, root), sendbuf, recvbuf, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._queue(Call("broadcast", count, datatype, 0, root), sendbuff, recvbuff, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._queue_message("send", sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._queue_message("recv", recvbuf, count, datatype, peer, stream)

    def check_async_error(self) -> None:
        if self.error is not None:
            raise NcclError(self.error, "asynchronous")

    def abort(self) -> None:
        """Frees whoever waits, and tells the others that this rank takes part no longer; not collective."""
        if self._aborted or self._size == 1:
            return
        self._aborted = True
        atexit.unregister(self.abort)
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()
        self._send(("gone", self._made))
        until = time.monotonic() + 1
        while self._sent and time.monotonic() < until:
            self._receive()
            time.sleep(POLL)

    def _queue(self, call: Call, send: int, receive: int, stream: int) -> None:
        """Raises NcclError for arguments that can be seen to be wrong."""
        from cupy import cuda  # here, as it imports this module

        if stream not in cuda.streams or call.dtype not in _DTYPES or not 0 <= call.root < self._size:
            raise NcclError(INVALID_ARGUMENT, f"{call}, stream {stream}")
        size, root = call.count * np.dtype(_DTYPES[call.dtype]).itemsize, self._rank == call.root
        try:
            sent = size * (self._size if call.name == "reduceScatter" else 1)
            received = size * (self._size if call.name == "allGather" else 1)
            source = memory_at(send, sent) if call.name != "broadcast" or root else None
            target = memory_at(receive, received) if call.name != "reduce" or root else None
        except ValueError as error:
            raise NcclError(INVALID_ARGUMENT, f"{call.name}: {error}") from error
        own = self._rank * size
        in_place = receive - send == {"reduceScatter": own, "allGather": -own}.get(call.name, 0)
        if source and target and send < receive + received and receive < send + sent and not in_place:
            _report(call, "buffers overlap in part")
        number, on = next(self._begun), cuda.streams[stream]
        on.queue(lambda: self._run(number, call, source, target))
        self._queued.append((number, on, on.queued, time.monotonic()))

    def _queue_message(self, name: str, buffer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        from cupy import cuda  # here, as it imports this module

        if stream not in cuda.streams or dtype not in _DTYPES or not 0 <= peer < self._size:
            raise NcclError(INVALID_ARGUMENT, f"{name} with rank {peer}, stream {stream}")
        try:
            piece = memory_at(buffer, count * np.dtype(_DTYPES[dtype]).itemsize)
        except ValueError as error:
            raise NcclError(INVALID_ARGUMENT, f"{name}: {error}") from error
        number, on = (name, peer, next(self._messages[name, peer])), cuda.streams[stream]
        on.queue(lambda: self._run_message(number, piece))
        self._queued.append((number, on, on.queued, time.monotonic()))

    # -- the work of the stream -------------------------------------------------------------------------------------

    def _run(self, number: int, call: Call, source: Piece | None, target: Piece | None) -> None:
        pieces = [(piece, writes) for piece, writes in ((source, False), (target, True)) if piece is not None]
        order.begin_collective(call.name, *pieces)
        if source is not None and not source.written.all():
            _report(call, "memory that nobody has written")
        sent = None if source is None else source.bytes.tobytes()
        came = self._exchange(number, (call, sent))
        self._queued[:] = [known for known in self._queued if known[0] != number]
        if came is None or target is None:
            return
        if any(other != call for other, _ in came):
            _report(call, f"collective {number} differs: {[tuple(other) for other, _ in came]}")
            target.bytes[:] = 0xFF
            return
        parts = [np.frombuffer(data, _DTYPES[call.dtype]) for _, data in came if data is not None]
        target.bytes[:] = self._combined(call, parts).view(np.uint8)
        target.written[:] = 1

    def _run_message(self, key: tuple[str, int, int], piece: Piece) -> None:
        """One that sends is done when the other has taken it, as NCCL does with what its buffers do not hold."""
        name, peer, number = key[0], self._of_world[key[1]], key[2]
        order.begin_collective(name, (piece, name == "recv"))
        if name == "send":
            if not piece.written.all():
                _report(Call(name, piece.size, NCCL_CHAR), "memory that nobody has written")
            self._send((("message", number), piece.bytes.tobytes()), [peer])
            self._wait_for([(("taken", number), peer)], lambda: peer in self._gone)
        elif self._wait_for([(("message", number), peer)], lambda: peer in self._gone):
            came = np.frombuffer(self._mail.pop((("message", number), peer)), np.uint8)
            if came.size != piece.size:
                _report(Call(name, piece.size, NCCL_CHAR), f"message {number} has {came.size} bytes")
                came = np.full(piece.size, 0xFF, np.uint8)
            piece.bytes[:], piece.written[:] = came, 1
            self._send((("taken", number), None), [peer])
        self._queued[:] = [known for known in self._queued if known[0] != key]

    def _combined(self, call: Call, parts: list[np.ndarray]) -> np.ndarray:
        if call.name == "broadcast":
            return parts[0]
        if call.name == "allGather":
            return np.concatenate(parts)
        share = parts[0].dtype.type(1 / self._size if call.op == NCCL_AVG else 1)  # NCCL multiplies each before
        total = parts[0] * share
        for part in parts[1:]:
            total = _COMBINE[call.op](total, part * share)
        return total.reshape(self._size, -1)[self._rank] if call.name == "reduceScatter" else total

    def _exchange(self, number: int, mine: Any) -> list | None:
        """What each rank says at its collective of this number; None after `abort`."""
        if self._size > 1:
            self._send((number, mine))
            self._made = number
        others = [self._of_world[rank] for rank in range(self._size) if rank != self._rank]
        missed = lambda: any(self._gone.get(rank, number) < number for rank in others)  # noqa: E731
        if not self._wait_for([(number, rank) for rank in others], missed):
            return None
        ranks = range(self._size)
        return [mine if rank == self._rank else self._mail.pop((number, self._of_world[rank])) for rank in ranks]

    def _wait_for(self, keys: list[tuple[Any, int]], is_hopeless: Callable[[], bool]) -> bool:
        """Returns when mail with all these keys is there, or (False) after `abort`."""
        while any(key not in self._mail for key in keys) or self.error is not None:
            if self._aborted:
                return False
            self._receive()
            if self.error is None and is_hopeless():
                self.error = REMOTE_ERROR
            time.sleep(POLL)
        return True

    def _send(self, what: Any, ranks: Sequence[int] | None = None) -> None:
        """To some ranks of all, or (None) to the others of this communicator."""
        data = pickle.dumps(what)
        others = (other for rank, other in self._of_world.items() if rank != self._rank)
        self._sent += [self._world.Isend(data, rank, self._tag) for rank in (others if ranks is None else ranks)]

    def _receive(self) -> None:
        """Takes what has come, if no other thread is about it."""
        if not self._receiving.acquire(blocking=False):
            return
        try:
            from mpi4py import MPI  # here: one rank needs none

            status = MPI.Status()
            while (message := self._world.Improbe(tag=self._tag, status=status)) is not None:
                data = bytearray(status.Get_count())
                message.Recv(data)
                number, what = pickle.loads(data)
                if number == "gone":
                    self._gone[status.source] = what
                elif number == "here":
                    self._of_world[what] = status.source
                else:
                    self._mail[number, status.source] = what
            self._sent[:] = [request for request in self._sent if not request.Test()]
        finally:
            self._receiving.release()

    def _go_on(self) -> None:
        """The thread: does work that another rank waits for, or that has been there for a while."""
        while not self._aborted:
            self._receive()
            for number, stream, place, since in self._queued[:]:
                asked = any(other == number for other, _ in [*self._mail])
                if asked or time.monotonic() - since > PATIENCE:
                    stream.advance(place)
            time.sleep(POLL)


def _report(call: Call, what: str) -> None:
    machine.problems.append(Misuse(call.name, what))

"""The MPI engine: collectives in non-blocking pieces over mpi4py."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.job import start_job
from pytagi_ddp.distributed.staging import Staging

# Measured with MPICH 5.0.2 on 2 and 3 ranks of one machine, for 94 MB: pieces of 2 to 16 MB, one after the other, take
# a third of the time of one call. MPI works in a scratch buffer as large as the piece; that of a short piece is kept,
# that of one long call goes back to the system, page by page, each time, and several pieces at once cost that too.
# On a quiet machine the length hardly matters; where other work takes the cores, fewer meetings are better: 8 MB.
PIECE_BYTES = 8 << 20
# A buffer of more than this is led by a short piece. It ends when the last rank has come, so that a rank can sleep
# until then, and poll without sleeping while the long ones move.
WHOLE_BYTES = 1 << 20
LEAD_BYTES = 1 << 16


class MPICommunicator(Communicator):
    """All ranks of an MPI job, for arrays in host memory; those of a GPU are copied there and back.

    A collective is cut into non-blocking pieces, and waiting for one is polling it: at first without pause, then with
    sleeps of 0.05 to 1 ms. So a waiting rank does not slow its neighbours down, runs its signal handlers, sees that
    another rank has left, and ends with an error after ``timeout`` seconds. The result has the same bits on every rank.

    While it is open, an exception on any rank, in any thread, ends the whole job (`pytagi_ddp.distributed.abort`).

    Args:
        timeout: seconds that the ranks may wait for each other in one piece of a collective.
        cuda_aware: hand arrays of a GPU to the MPI library as they are.

    Raises:
        LaunchError: the job was not started in a way that this MPI library understands, or lacks room in /dev/shm.
    """

    backend = "mpi"

    def __init__(self, timeout: float, cuda_aware: bool = False):
        self._job = job = start_job(timeout)
        super().__init__(job.rank, job.world_size, job.local_rank, job.local_world_size)
        self.timeout = timeout
        self._staging = Staging(cuda_aware)
        _open.add(self)
        if job.world_size > 1:
            job.hook.install()

    def _all_reduce(self, buffer: np.ndarray) -> None:
        channel, in_place = self._job.channels["all_reduce"], self._job.MPI.IN_PLACE
        with self._staging.for_mpi(buffer) as data:
            self._run("all_reduce", data.nbytes, (channel.Iallreduce(in_place, piece) for piece in _pieces(data)))

    def _broadcast(self, buffer: np.ndarray, root: int, name: str = "broadcast") -> None:
        channel = self._job.channels["broadcast"]
        with self._staging.for_mpi(buffer) as data:
            pieces = _pieces(data.reshape(-1).view(np.uint8))
            self._run(name, data.nbytes, (channel.Ibcast(piece, root) for piece in pieces))

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        payload = np.frombuffer(bytearray(pickle.dumps(obj)) if self.rank == root else bytearray(), np.uint8)
        size = np.array([payload.size], np.int64)
        self._broadcast(size, root, "broadcast_object")
        if self.rank != root:
            payload = np.empty(size[0], np.uint8)
        self._broadcast(payload, root, "broadcast_object")
        return obj if self.rank == root else pickle.loads(payload.data)

    def _all_gather_object(self, obj: Any) -> list:
        channel = self._job.channels["gather"]
        mine = np.frombuffer(pickle.dumps(obj), np.uint8)
        sizes = np.empty(self.world_size, np.int64)
        size = np.array([mine.size], np.int64)
        self._run("all_gather_object", sizes.nbytes, (channel.Iallgather(size, sizes) for _ in range(1)))
        ends = np.cumsum(sizes)
        gathered = np.empty(ends[-1], np.uint8)
        target = [gathered, sizes, ends - sizes, self._job.MPI.BYTE]
        self._run("all_gather_object", gathered.nbytes, (channel.Iallgatherv(mine, target) for _ in range(1)))
        return [pickle.loads(gathered[end - size : end].data) for size, end in zip(sizes, ends, strict=True)]

    def _barrier(self) -> None:
        channel = self._job.channels["barrier"]
        self._run("barrier", 0, (channel.Ibarrier() for _ in range(1)))

    def _run(self, name: str, nbytes: int, requests: Iterator) -> None:
        self._job.run(name, nbytes, requests, self.timeout)

    def close(self) -> None:
        """Ends the use of this communicator; with the last one, the abort hooks are removed.

        MPI itself ends with the interpreter, when all ranks have come to their end.
        """
        super().close()
        _open.discard(self)
        if not _open:
            self._job.hook.remove()


_open: set[MPICommunicator] = set()


def _pieces(buffer: np.ndarray) -> Iterator[np.ndarray]:
    flat = buffer.reshape(-1)
    start, length = 0, (LEAD_BYTES if flat.nbytes > WHOLE_BYTES else PIECE_BYTES) // flat.itemsize
    while start < flat.size:
        yield flat[start : start + length]
        start, length = start + length, PIECE_BYTES // flat.itemsize

"""The NCCL engine: collectives between GPUs, on a separate stream."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pytagi_ddp import cuda
from pytagi_ddp.distributed.engine.handle import FinishedWork, Work
from pytagi_ddp.distributed.engine.interface import Communicator
from pytagi_ddp.distributed.engine.placement import Place, check_places, choose_device
from pytagi_ddp.distributed.engine.watchdog import Progress, Watchdog

if TYPE_CHECKING:
    from pytagi_ddp.kernels.cuda.runtime.array import SideStream

_TYPES = {np.float32: "NCCL_FLOAT32", np.float64: "NCCL_FLOAT64", np.int64: "NCCL_INT64"}
_OPS = {"sum": "NCCL_SUM", "mean": "NCCL_AVG", "max": "NCCL_MAX", "min": "NCCL_MIN", "prod": "NCCL_PROD"}


class NCCLCommunicator(Communicator):
    """Ranks with one GPU each, for arrays on these GPUs.

    A collective is one call of NCCL on a communication stream. It runs after the work that was queued before, and work
    queued after it (or after its handle's `wait`) runs after it; the host continues at once. A `Watchdog` polls for
    errors and time-outs. MPI transfers host arrays and objects, and connects the ranks; a single process does not need
    MPI.

    Args:
        host: the same ranks, for host arrays and objects; closed with this communicator.
        timeout: seconds that a collective may take, including the work queued before it.
        device_ids: GPU of each rank of a node; None: the GPUs of the node in turn.

    Attributes:
        device_index: the GPU of this rank.
    """

    backend = "nccl"
    timeout: float

    def __init__(self, host: Communicator, timeout: float, device_ids: Sequence[int] | None = None):
        self._host, self.timeout = host, timeout
        super().__init__(host.rank, host.world_size, host.local_rank, host.local_world_size)
        self.device_index = choose_device(host.local_rank, device_ids)
        place = _place(self.device_index)
        places = host.all_gather_object(place)
        check_places(places, 0 if place.problem else _nccl().get_version())
        self._comm: Any = None
        self._calls = 0
        self._watchdog = Watchdog(self.rank, timeout, self._check, self._abort)
        self._connect()

    def _connect(self) -> None:
        from pytagi_ddp.kernels.cuda.runtime import array  # here, so that CuPy is loaded only if a GPU is used

        nccl = _nccl()
        unique_id = self._host.broadcast_object(nccl.get_unique_id() if self.rank == 0 else None)
        started: Any = SimpleNamespace(done=False)  # it blocks until every rank has arrived
        self._watchdog.watch("start of NCCL", started)
        try:
            with array.on_device(self.device_index):
                self._stream = array.SideStream(self.device_index)
                self._comm = nccl.NcclCommunicator(self.world_size, unique_id, self.rank)
        except BaseException:
            self._watchdog.stop()
            raise
        started.done = True

    def _check(self) -> None:
        if self._comm is not None:
            self._comm.check_async_error()

    def _abort(self) -> None:
        if self._comm is not None:
            self._comm.abort()

    def _engine_of(self, *arrays: Any) -> Communicator:
        return self._host if all(isinstance(array, np.ndarray) for array in arrays) else self

    def _all_reduce(self, buffer: Any, op: str) -> Work:
        pointer = buffer.data.ptr
        kind, combine = _kinds(buffer, op)
        return self._queue("all_reduce", buffer, self._comm.allReduce, pointer, pointer, buffer.size, kind, combine)

    def _reduce(self, buffer: Any, op: str, root: int) -> None:
        pointer = buffer.data.ptr
        target = pointer if self.rank == root else 0
        arguments = pointer, target, buffer.size, *_kinds(buffer, op), root
        self._queue("reduce", buffer, self._comm.reduce, *arguments).wait()

    def _broadcast(self, buffer: Any, root: int) -> Work:
        kind, pointer = _nccl().NCCL_CHAR, buffer.data.ptr
        return self._queue("broadcast", buffer, self._comm.broadcast, pointer, pointer, buffer.nbytes, kind, root)

    def _queue(self, name: str, buffer: Any, call: Callable[..., None], *arguments: int) -> Work:
        """Queues a call of NCCL, whose last argument is the stream; a status other than success raises NcclError."""
        if buffer.size == 0:
            return FinishedWork()
        self._calls += 1
        what = f"{name} #{self._calls} ({buffer.nbytes / 1e6:.3g} MB)"
        done = self._stream.run(lambda stream: call(*arguments, stream))
        self._watchdog.watch(what, done)
        return _StreamWork(self._stream, done)

    def _reduce_scatter(self, send: Any, receive: Any, op: str) -> Work:
        source, target = send.data.ptr, receive.data.ptr
        arguments = source, target, receive.size, *_kinds(send, op)
        return self._queue("reduce_scatter", send, self._comm.reduceScatter, *arguments)

    def _all_gather(self, send: Any, receive: Any) -> Work:
        source, target, kind = send.data.ptr, receive.data.ptr, _nccl().NCCL_CHAR
        return self._queue("all_gather", receive, self._comm.allGather, source, target, send.nbytes, kind)

    def _send(self, array: Any, peer: int) -> Work:
        kind, pointer = _nccl().NCCL_CHAR, array.data.ptr
        return self._queue("send", array, self._comm.send, pointer, array.nbytes, kind, peer)

    def _receive(self, array: Any, peer: int) -> Work:
        kind, pointer = _nccl().NCCL_CHAR, array.data.ptr
        return self._queue("receive", array, self._comm.recv, pointer, array.nbytes, kind, peer)

    def _split(self, color: int | None, key: int | None) -> NCCLCommunicator | None:
        host = self._host.split(color, key)
        if host is None:
            return None
        return NCCLCommunicator(host, self.timeout, [self.device_index] * host.local_world_size)

    def close(self) -> None:
        """Ends the use of this communicator, after its work in progress; not collective."""
        if not self._closed:
            super().close()
            self._stream.synchronize()
            self._watchdog.stop()
            self._abort()  # frees it without waiting for other ranks
            self._host.close()


class _StreamWork:
    """A collective on the GPU. Work that is queued after `wait` runs after it; the host is not blocked."""

    def __init__(self, stream: SideStream, done: Progress):
        self._stream, self._progress = stream, done

    def test(self) -> bool:
        return self._progress.done

    def wait(self) -> None:
        self._stream.join(self._progress)

    def wait_until(self, deadline: float) -> bool:
        while not self.test() and time.monotonic() < deadline:
            time.sleep(2e-4)
        return self.test()


def _place(index: int) -> Place:
    """The node and GPU of this rank, or the problem with it."""
    node, problem = socket.gethostname(), cuda.why_not()
    if problem is None and not cuda.is_nccl_available():
        problem = "CuPy does not find or load NCCL; try pip install nvidia-nccl-cu13 (with CUDA 12: -cu12)"
    if problem is None and not cuda.is_device_available(index):
        problem = f"there is no cuda:{index}, only {cuda.get_device_count()} GPUs"
    return Place(node, index, cuda.get_device_uuid(index) if problem is None else "", problem)


def _kinds(buffer: Any, op: str) -> tuple[int, int]:
    """NCCL's numbers for a dtype and an op."""
    nccl = _nccl()
    return getattr(nccl, _TYPES[buffer.dtype.type]), getattr(nccl, _OPS[op])


def _nccl() -> Any:
    from pytagi_ddp.kernels.cuda.runtime import array  # here, so that CuPy is loaded only if a GPU is used

    return array.nccl()

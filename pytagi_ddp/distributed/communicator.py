"""What the ranks of a job can do together: the interface, the engine for one process, and the choice of an engine."""

from __future__ import annotations

import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytagi_ddp.distributed.launcher import detect_launcher

DEFAULT_TIMEOUT = 300.0
REDUCIBLE = (np.float32, np.float64, np.int64)


class Communicator(ABC):
    """The ranks of a job, and the collectives between them.

    Every rank must call the same collectives in the same order, from one thread at a time.

    Attributes:
        backend: name of the engine, as given to `create_communicator`.
        rank: index of this process in the job, 0 to ``world_size - 1``.
        world_size: number of processes.
        local_rank: index of this process among those of its node.
        local_world_size: number of processes on this node.
        reduce_calls: number of `all_reduce` calls so far.
        reduce_bytes: size of the buffers they reduced, in bytes.
        reduce_seconds: time spent in them, waiting for other ranks included (NCCL: until they are queued).
    """

    backend: str

    def __init__(self, rank: int, world_size: int, local_rank: int, local_world_size: int):
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.reduce_calls = 0
        self.reduce_bytes = 0
        self.reduce_seconds = 0.0
        self._closed = False

    def all_reduce(self, buffer: np.ndarray) -> None:
        """Replaces ``buffer`` by its sum over all ranks; every rank gets the same bits.

        Args:
            buffer: writable, C-contiguous float32, float64 or int64 array of the same size on every rank, in host
                memory or on a GPU.

        Raises:
            TypeError: not such an array.
            ValueError: not contiguous, or read-only.
            RankLeftError: a rank has left the job.
            CollectiveTimeoutError: a rank did not come in time.
        """
        _check_buffer("all_reduce", buffer)
        if buffer.dtype.type not in REDUCIBLE:
            names = ", ".join(np.dtype(kind).name for kind in REDUCIBLE)
            raise TypeError(f"all_reduce adds {names}, not {buffer.dtype}")
        self._check_open("all_reduce")
        start = time.perf_counter()
        self._all_reduce(buffer)
        self.reduce_seconds += time.perf_counter() - start
        self.reduce_calls += 1
        self.reduce_bytes += buffer.nbytes

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Replaces ``buffer`` on every rank by that of rank ``root``.

        Args:
            buffer: writable, C-contiguous array of any fixed-size dtype, of the same size on every rank.
            root: rank that sends.

        Raises:
            TypeError, ValueError, RankLeftError, CollectiveTimeoutError: as `all_reduce`, or a root that is no rank.
        """
        _check_buffer("broadcast", buffer)
        self._check_root("broadcast", root)
        self._broadcast(buffer, root)

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Returns rank ``root``'s ``obj`` (anything that pickles) on every rank; the others' argument is ignored."""
        self._check_root("broadcast_object", root)
        return self._broadcast_object(obj, root)

    def all_gather_object(self, obj: Any) -> list:
        """Returns the ``obj`` (anything that pickles) of every rank, in the order of the ranks, on every rank."""
        self._check_open("all_gather_object")
        return self._all_gather_object(obj)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._check_open("barrier")
        self._barrier()

    def close(self) -> None:
        """Ends the use of this communicator; not collective, and may be called more than once."""
        self._closed = True

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise RuntimeError(f"{name} on rank {self.rank}: this communicator is closed")

    def _check_root(self, name: str, root: int) -> None:
        self._check_open(name)
        if not 0 <= root < self.world_size:
            raise ValueError(f"{name}: root must be a rank from 0 to {self.world_size - 1}, got {root}")

    @abstractmethod
    def _all_reduce(self, buffer: np.ndarray) -> None: ...

    @abstractmethod
    def _broadcast(self, buffer: np.ndarray, root: int) -> None: ...

    @abstractmethod
    def _broadcast_object(self, obj: Any, root: int) -> Any: ...

    @abstractmethod
    def _all_gather_object(self, obj: Any) -> list: ...

    @abstractmethod
    def _barrier(self) -> None: ...


class SerialCommunicator(Communicator):
    """One process on its own; needs no MPI."""

    backend = "serial"

    def __init__(self) -> None:
        super().__init__(rank=0, world_size=1, local_rank=0, local_world_size=1)

    def _all_reduce(self, buffer: np.ndarray) -> None:
        pass

    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        pass

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        return obj

    def _all_gather_object(self, obj: Any) -> list:
        return [obj]

    def _barrier(self) -> None:
        pass


def create_communicator(
    backend: str = "auto",
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float | None = None,
    device_ids: Sequence[int] | None = None,
    cuda_aware_mpi: bool = False,
) -> Communicator:
    """Connects this process to the other ranks of its job.

    ========= ============================== =============================== =========================
    backend   arrays                         where                           needs
    ========= ============================== =============================== =========================
    "serial"  NumPy, CuPy                    one process                     nothing
    "mpi"     NumPy; CuPy by host memory     one or many nodes, any launcher mpi4py and an MPI library
    "nccl"    CuPy                           NVIDIA GPUs, one rank on each   CuPy, NCCL, and MPI above one rank
    "auto"    "mpi" when a launcher such as mpirun has started more than one rank, else "serial"
    ========= ============================== =============================== =========================

    Args:
        backend: which engine.
        rank: rank that this process is expected to have; None takes what the engine says.
        world_size: number of ranks that is expected; None takes what the engine says.
        timeout: seconds that ranks may wait for each other; None takes ``PYTAGI_DDP_TIMEOUT``, or 300.
        device_ids: GPU of each rank of a node, for ``"nccl"``; None: the GPUs of the node in turn.
        cuda_aware_mpi: ``"mpi"`` hands arrays of a GPU to the MPI library as they are.

    Raises:
        ValueError: unknown backend, bad time-out, or a rank or world size that is not the engine's (after MPI has
            started, because MPI is what knows them).
        LaunchError: the launcher does not fit the MPI library, mpi4py is missing, or /dev/shm is too small; for
            ``"nccl"``: a rank without NCCL or a GPU of its own.
    """
    if backend not in ("auto", *ENGINES):
        raise ValueError(f"unknown backend {backend!r}; known are {', '.join(map(repr, ('auto', *ENGINES)))}")
    limit = _time_limit(timeout)
    if backend == "auto":
        launch = detect_launcher()
        backend = "serial" if launch is None or launch.world_size == 1 else "mpi"
    communicator = ENGINES[backend](limit, device_ids, cuda_aware_mpi)
    for name, asked in (("rank", rank), ("world_size", world_size)):
        actual = getattr(communicator, name)
        if asked is not None and asked != actual:
            communicator.close()
            raise ValueError(
                f"{name}={asked} was asked for, but backend {backend!r} has {name} {actual} (rank {communicator.rank} "
                f"of {communicator.world_size}); leave it out, or start that many ranks with mpirun -np"
            )
    return communicator


def _serial(timeout: float, device_ids: Sequence[int] | None, cuda_aware_mpi: bool) -> Communicator:
    return SerialCommunicator()


def _mpi(timeout: float, device_ids: Sequence[int] | None, cuda_aware_mpi: bool) -> Communicator:
    return importlib.import_module("pytagi_ddp.distributed.mpi").MPICommunicator(timeout, cuda_aware_mpi)


def _nccl(timeout: float, device_ids: Sequence[int] | None, cuda_aware_mpi: bool) -> Communicator:
    return importlib.import_module("pytagi_ddp.distributed.nccl").NCCLCommunicator(timeout, device_ids)


# One entry per engine: how to make it, given the time-out in seconds and what concerns GPUs.
ENGINES = {"serial": _serial, "mpi": _mpi, "nccl": _nccl}


def _time_limit(timeout: float | None) -> float:
    text = os.environ.get("PYTAGI_DDP_TIMEOUT", DEFAULT_TIMEOUT) if timeout is None else timeout
    source = "PYTAGI_DDP_TIMEOUT" if timeout is None else "timeout"
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not limit > 0.0:
        raise ValueError(f"{source} must be a number of seconds above 0, got {text!r}")
    return limit


def _check_buffer(name: str, buffer) -> None:
    on_device = hasattr(buffer, "__cuda_array_interface__")
    if not (on_device or isinstance(buffer, np.ndarray)) or buffer.dtype.hasobject:
        kind = f"an array of {buffer.dtype}" if isinstance(buffer, np.ndarray) else type(buffer).__name__
        raise TypeError(f"{name} works in place on a NumPy or CuPy array of numbers, not on {kind}")
    if not (buffer.flags.c_contiguous and (on_device or buffer.flags.writeable)):
        problem = "read-only" if buffer.flags.c_contiguous else f"not contiguous (strides {buffer.strides})"
        raise ValueError(f"{name} works in place on a contiguous, writable array; this one {buffer.shape} is {problem}")

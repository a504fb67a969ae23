"""Communicators: the interface, the engine for one process, and the choice of an engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytagi_ddp.distributed.engine.child_process import launcher_of_rank, why_no_rank
from pytagi_ddp.distributed.engine.errors import TIMEOUT, LaunchError, time_limit
from pytagi_ddp.distributed.engine.interface import Communicator
from pytagi_ddp.distributed.engine.launcher import detect_launcher, looks_like_one_of_many
from pytagi_ddp.distributed.engine.serial import SerialCommunicator
from pytagi_ddp.distributed.engine.threads import ThreadCommunicator, current_member
from pytagi_ddp.warn import warn

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

    Ranks = Communicator | Comm  # type of arguments that give ranks
else:
    Ranks = Communicator

__all__ = ["Communicator", "SerialCommunicator", "ThreadCommunicator", "as_communicator", "create_communicator"]

ENGINES = ("serial", "threads", "mpi", "nccl")


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
    "threads" NumPy, CuPy                    one process, a rank a thread    `run_threads`
    "auto"    "mpi" if a launcher such as mpirun has started more than one rank, "threads" in a rank of `run_threads`,
              otherwise "serial". A child process of a rank uses "serial", with a warning. So does a process for which
              only RANK and WORLD_SIZE indicate several processes
    ========= ============================== =============================== =========================

    Args:
        backend: which engine.
        rank: rank that this process is expected to have; None: the rank that the engine reports.
        world_size: number of ranks that is expected; None: the number that the engine reports.
        timeout: seconds that ranks may wait for each other; None: ``PYTAGI_DDP_TIMEOUT``, or 300.
        device_ids: GPU of each rank of a node, for ``"nccl"``; None: the GPUs of the node in turn.
        cuda_aware_mpi: whether ``"mpi"`` passes arrays on a GPU to the MPI library directly.

    Raises:
        ValueError: unknown backend, bad time-out, or another rank or world size than expected.
        LaunchError: the launcher does not match the MPI library, mpi4py is missing, or /dev/shm is too small; this
            process was started or forked by a rank; for ``"nccl"``: some rank has no NCCL or no GPU of its own.
    """
    if backend == "auto" and current_member() is None and detect_launcher() and (problem := why_no_rank()):
        warn(f"this process is not a rank and works by itself: {problem}", RuntimeWarning)
    if backend == "auto" and current_member() is None and (signs := looks_like_one_of_many()):
        warn(
            f"{signs} suggest that this process is one of several, but no launcher of MPI has started it: it works by "
            "itself, as rank 0 of 1. Start ranks with python -m pytagi_ddp.launch -np 2 ...; or, if it is to work by "
            "itself, use backend 'serial'",
            RuntimeWarning,
        )
    backend = resolve_backend(backend)
    limit = time_limit("PYTAGI_DDP_TIMEOUT", TIMEOUT, timeout)
    communicator = _start(backend, limit, device_ids, cuda_aware_mpi)
    for name, asked in (("rank", rank), ("world_size", world_size)):
        actual = getattr(communicator, name)
        if asked is not None and asked != actual:
            communicator.close()
            raise ValueError(
                f"{name}={asked} was asked for, but backend {backend!r} has {name} {actual} (rank {communicator.rank} "
                f"of {communicator.world_size}); leave it out, or start that many ranks with mpirun -np"
            )
    return communicator


def as_communicator(ranks: Ranks, timeout: float | None = None) -> Communicator:
    """Returns a communicator unchanged; for one of mpi4py, a communicator of the "mpi" engine for the same ranks.

    For mpi4py, the call is collective over the ranks of that communicator, and the first time over all ranks of the
    job. The result uses separate channels in MPI, so that messages do not mix with those of the program. The same
    communicator of mpi4py gives the same result, until that is closed.

    Args:
        ranks: a `Communicator`, or an `mpi4py.MPI.Comm`: COMM_WORLD, COMM_SELF, or a result of Split, Dup or Create.
        timeout: seconds that ranks of a communicator of mpi4py may wait for each other; None as in
            `create_communicator`.

    Raises:
        TypeError: neither. ValueError: one of mpi4py that is null or freed, has two groups, or has ranks that are not
            in COMM_WORLD. LaunchError: as in `create_communicator`. RuntimeError: MPI has ended, or cannot make more
            communicators.
    """
    if isinstance(ranks, Communicator):
        return ranks
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not isinstance(ranks, MPI.Comm):
        raise TypeError(
            "a communicator is what initialize() or create_communicator() returns, or an mpi4py.MPI.Comm; got "
            f"{type(ranks).__name__}"
        )
    limit = time_limit("PYTAGI_DDP_TIMEOUT", TIMEOUT, timeout)
    return importlib.import_module("pytagi_ddp.distributed.engine.mpi").communicator_of(ranks, limit)


def resolve_backend(backend: str) -> str:
    """Returns the name of the engine: the argument, or the engine that "auto" selects.

    Raises:
        ValueError: unknown name.
    """
    if backend not in ("auto", *ENGINES):
        raise ValueError(f"unknown backend {backend!r}; known are {', '.join(map(repr, ('auto', *ENGINES)))}")
    if backend != "auto":
        return backend
    if current_member() is not None:
        return "threads"
    launch = launcher_of_rank()
    return "serial" if launch is None or launch.world_size == 1 else "mpi"


def _start(backend: str, timeout: float, device_ids: Sequence[int] | None, cuda_aware_mpi: bool) -> Communicator:
    if backend == "serial":
        return SerialCommunicator()
    if backend == "threads":
        return ThreadCommunicator(timeout)
    if backend == "mpi":
        return importlib.import_module("pytagi_ddp.distributed.engine.mpi").MPICommunicator(timeout, cuda_aware_mpi)
    host = create_communicator("auto", timeout=timeout)
    engine = importlib.import_module("pytagi_ddp.distributed.engine.nccl")
    try:
        return engine.NCCLCommunicator(host, timeout, device_ids)
    except LaunchError:  # raised on every rank alike
        host.close()
        raise

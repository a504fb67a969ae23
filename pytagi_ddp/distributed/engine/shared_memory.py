"""Free space and left-over files in /dev/shm, which the ranks of one node use to exchange data under MPICH.

If there is too little space, the first access to a missing page kills the rank with a bus error. A job that is killed
leaves its file behind, so that the 64 MB of a container are full after about twenty such jobs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.text import text_of

if TYPE_CHECKING:
    from pytagi_ddp.distributed.engine._shared_sum import SharedSum

SHM = Path("/dev/shm")
HOW_TO_MOUNT = f"Mount it: mkdir -p {SHM} && mount -t tmpfs -o size=256m tmpfs {SHM}"
MPICH_PREFIX = "mpich_shm_"
OWN_PREFIX = "pytagi_ddp_"
PREFIXES = (MPICH_PREFIX, "vader_segment.", "sm_segment.", OWN_PREFIX)  # the second and third are Open MPI's

SUM_BYTES = 1 << 20  # of memory for sums; with 2 ranks they were measured to be faster than MPI's up to twice this size

# Measured with MPICH 5.0.2 on file systems of 1 to 64 MB: each rank takes 5.3 MB (1 MB of MPICH's own, 4.2 MB of
# UCX's); between 16 MB free and that need plus about 12 MB it starts, then dies of a segmentation fault.
BYTES_PER_RANK = 5_500_000
HEADROOM = 12_000_000

# A younger file may belong to a job that is starting: created by one rank, and not yet mapped.
LEFTOVER_SECONDS = 600
RELEASE_SECONDS = 1.0  # the memory of a process that has just ended is freed a little later


def free_bytes(path: Path = SHM) -> int | None:
    """The free space of /dev/shm, or None on a system without one."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def required_bytes(ranks_on_node: int) -> int:
    """Returns the space in /dev/shm that MPICH needs to start ``ranks_on_node`` ranks on one node."""
    return HEADROOM + BYTES_PER_RANK * ranks_on_node


def check_space(ranks_on_node: int) -> None:
    """Raises LaunchError if MPICH would be killed for lack of space, after files of dead jobs were removed."""
    free, required = free_bytes(), required_bytes(ranks_on_node)
    if free is None and sys.platform == "linux" and ranks_on_node > 1:
        raise LaunchError(
            f"there is no {SHM}, through which the {ranks_on_node} ranks on this node exchange data. {HOW_TO_MOUNT}"
        )
    deadline = time.monotonic() + RELEASE_SECONDS
    while free is not None and free < required and time.monotonic() < deadline:
        remove_leftovers()
        free = free_bytes()
        time.sleep(0.05)
    if free is None or free >= required:
        return
    dead = leftovers()
    hint = f" {len(dead)} files there belong to dead jobs: python -m pytagi_ddp.doctor lists them." if dead else ""
    raise LaunchError(
        f"{SHM} has {free / 1e6:.1f} MB free, and {ranks_on_node} ranks on this node need {required / 1e6:.1f} MB."
        f"{hint} In a container give it more room: docker run --shm-size=256m, or fewer ranks per node."
    )


def leftovers() -> list[Path]:
    """Returns MPI's files of this user in /dev/shm that no process on this machine has mapped: those of dead jobs."""
    files = [file for prefix in PREFIXES for file in SHM.glob(f"{prefix}*")]
    if not files:
        return []
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            mapped |= _mapped_files(maps, PREFIXES)
    return [file for file in files if str(file) not in mapped and _is_own(file)]


def _is_own(path: Path) -> bool:
    """Whether it is a file of this user; a link, or the name of another user, may lead anywhere."""
    try:
        status = path.lstat()
    except OSError:  # just removed
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def remove_leftovers() -> None:
    """Removes `leftovers` that are older than `LEFTOVER_SECONDS`."""
    for file in leftovers():
        with contextlib.suppress(OSError):  # another rank of this node removes them, too
            if time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
                file.unlink()


def unlink_own_files() -> None:
    """Removes the name of this job's file once every rank of the node has mapped it.

    The memory exists until the last rank unmaps it, but a killed job leaves no file behind. Call it on one rank per
    node, after a barrier. MPICH removes the name at a normal end, and ignores a missing one.
    """
    if sys.platform != "linux":
        return
    for name in _mapped_files(Path("/proc/self/maps"), (MPICH_PREFIX,)):
        with contextlib.suppress(OSError):
            os.unlink(name)


def join_shared_sum(node: Any) -> SharedSum | None:
    """The memory in which the ranks of `node` (an mpi4py communicator) add short arrays; collective.

    None on every rank if one of them cannot map it. Other users can neither read nor write it. No file is left behind:
    it has no name, or, if ranks cannot access each other's /proc, a name that is removed when all have mapped it.
    """
    from pytagi_ddp.distributed.engine._shared_sum import SharedSum, shared_bytes

    floats = SUM_BYTES // (shared_bytes(node.size, 1) - shared_bytes(node.size, 0)) // 16 * 16
    nbytes = shared_bytes(node.size, floats)
    for named in (False, True):
        with _new_file(nbytes, named) if node.rank == 0 else contextlib.nullcontext() as path:
            memory = _map(*node.bcast((path, path and _identity(path))))
            everyone = all(node.allgather(memory is not None))
        if everyone:
            return SharedSum(memory, node.rank, node.size, floats)
    return None


@contextlib.contextmanager
def _new_file(nbytes: int, named: bool) -> Iterator[Path | None]:
    """A new file of zeros in memory, which only processes of this user can open; None if that is not possible.

    It has no name, or one in /dev/shm until the end of the block.
    """
    with contextlib.ExitStack() as made:
        path = None
        with contextlib.suppress(OSError, AttributeError):  # no space, no /dev/shm, or no memfd_create
            if named:
                here = SHM / f"{OWN_PREFIX}{secrets.token_hex(8)}"
                descriptor = os.open(here, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                made.callback(os.unlink, here)
            else:
                descriptor = os.memfd_create(OWN_PREFIX, os.MFD_CLOEXEC)
                here = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
            made.callback(os.close, descriptor)
            os.posix_fallocate(descriptor, 0, nbytes)
            path = here if here.exists() else None
        yield path


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _map(path: Path | None, identity: tuple[int, int] | None) -> mmap.mmap | None:
    """The memory of a file; None if this rank, in another container, does not have the file, or another one."""
    with contextlib.suppress(OSError):
        if path is not None and _identity(path) == identity:
            with path.open("r+b") as file:
                return mmap.mmap(file.fileno(), 0)
    return None


def _mapped_files(maps: Path, prefixes: tuple[str, ...]) -> set[str]:
    starts = tuple(f"{SHM}/{prefix}" for prefix in prefixes)
    return {line.split()[-1] for line in text_of(maps).splitlines() if line.split()[-1].startswith(starts)}

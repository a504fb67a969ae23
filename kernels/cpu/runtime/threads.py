"""One number of threads for all CPU work: OpenMP and BLAS.

The products (Cython) and the loops that Numba compiles use one OpenMP pool, so their threads do not compete. SciPy's
BLAS is called inside parallel regions and uses one thread; NumPy's, which only user code calls, follows the setting.

A forked process does not have the other threads of its parent, and GNU OpenMP would wait for them forever. So a child
process uses one thread if its parent had started threads. So does a build without OpenMP.
"""

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.process_tree import ancestor
from pytagi_ddp.quota import cpu_quota
from pytagi_ddp.text import whole_number
from pytagi_ddp.validate import as_integers
from pytagi_ddp.warn import warn

_RANKS_ON_NODE = (  # MPICH and Intel MPI, Open MPI, MVAPICH, Cray, Slurm
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
# Programs that start the ranks of a node and bind them to cores. (Slurm's may use more cores than the job has.)
_LAUNCHERS = ("hydra_pmi_proxy", "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted")
WITHOUT_OPENMP = (
    "pytagi_ddp was compiled without OpenMP; for more, install OpenMP for the C compiler (clang: apt install "
    "libomp-dev; macOS: brew install libomp; or gcc), and pytagi-ddp again"
)
MOST_THREADS = max(256, 4 * (os.cpu_count() or 1))  # each thread has scratch memory of some megabytes
_threads: int | None = None
_one_only = False  # True after a fork from a process with threads, which cannot be started again
_dividing = threading.RLock()  # guards the next two; reentrant, because of finalizers
_divisions: list["Division"] = []  # the active ones
_undivided = 1  # number of threads before the first of them


def usable_cores(process: int = 0) -> int:
    """Number of cores for a process (0: this one): its affinity mask, limited by CPU quotas."""
    cores = len(os.sched_getaffinity(process)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())))


def ranks_on_node() -> int:
    """MPI ranks on this node, according to the launcher's environment variables; 1 without them."""
    for name in _RANKS_ON_NODE:
        if (ranks := whole_number(os.environ.get(name, ""))) is not None:
            return max(1, ranks)
    return 1


def cores_of_rank() -> int:
    """Usable cores of this rank: at most an equal share of the cores of all ranks on the node, at least 1.

    A launcher may bind each rank to separate cores, as Open MPI does; then they are not divided again.
    """
    mine = node = usable_cores()
    if (ranks := ranks_on_node()) > 1 and (launcher := ancestor(_LAUNCHERS)):
        with contextlib.suppress(OSError):  # the process has just ended
            node = usable_cores(int(launcher.name))
    return max(1, min(mine, node // ranks))


def default_threads() -> int:
    """`$PYTAGI_DDP_NUM_THREADS`, else `$OMP_NUM_THREADS`, else `cores_of_rank()`.

    Raises:
        ValueError: one of the two variables is set to something other than an integer from 1 to `MOST_THREADS`.
    """
    for name in ("PYTAGI_DDP_NUM_THREADS", "OMP_NUM_THREADS"):
        if value := os.environ.get(name):
            first = whole_number(value.split(",")[0].strip())  # OpenMP allows a list: one number per nesting level
            if first is None or not 1 <= first <= MOST_THREADS:
                raise ValueError(f"{name}={value!r:.100}: expected a number of threads from 1 to {MOST_THREADS}")
            return first
    return cores_of_rank()


def set_threads(n: int) -> None:
    """Makes `n` the number of threads of every CPU kernel of this process, in every Python thread.

    If only one is possible (`why_one`), it stays at 1, with a RuntimeWarning that says what to do.

    Args:
        n: 1 to `MOST_THREADS`. More than the number of cores is slow.

    Raises:
        TypeError: n is not an integer. ValueError: it is out of range.
    """
    (n,) = as_integers("set_threads", 1, MOST_THREADS, n=n)
    if n > 1 and (why := why_one()):
        warn(f"1 thread instead of {n}: {why}", RuntimeWarning)
        n = 1
    with _dividing:
        _divisions.clear()
        _put_in_force(n)


def why_one() -> str:
    """The reason why this process uses one thread, and what to do; "" if it can use more."""
    if _one_only:
        return (
            "this process was forked from one that had threads; for more, start processes by "
            'multiprocessing.get_context("spawn"), or fork before the first network computes'
        )
    return "" if load("products._blas").has_openmp else WITHOUT_OPENMP


def _put_in_force(n: int) -> None:
    global _threads
    _threads = n
    _limit_blas(n)


class Division:
    """Divides the threads of the kernels among ranks of this process, until `end`.

    Several may overlap, and end in any order: the number before the first is restored after the last. A call of
    `set_threads` in between replaces the divided number.

    Args:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int):
        global _undivided
        self.before = get_threads()
        self._ranks = ranks
        with _dividing:
            if not _divisions:
                _undivided = self.before
            _divisions.append(self)
            _divide()

    def end(self, undo: bool = False) -> None:
        """Ends it; with `undo`, calls of `set_threads` by the ranks are also undone."""
        with _dividing:
            if self in _divisions:
                _divisions.remove(self)
                _divide()
            elif undo:
                set_threads(self.before)


def _divide() -> None:
    n = max(1, _undivided // math.prod(division._ranks for division in _divisions))
    if n != _threads:
        _put_in_force(n)


def on_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` while CPU kernels use one thread, so that results do not depend on the number of threads.

    It takes some milliseconds. Inside another call it takes no time.
    """
    division = Division(MOST_THREADS)
    try:
        return function(*arguments)
    finally:
        division.end()


def get_threads() -> int:
    """The number of threads of CPU kernels: the last one of `set_threads`, or else `default_threads()`."""
    if _threads is None:
        set_threads(1 if _one_only else default_threads())
    assert _threads is not None  # by now
    return _threads


def threads_in_force() -> int:
    """Like `get_threads`, but 1 if no number was set or asked for yet, so that copying arrays starts no threads."""
    return _threads or 1


def _after_fork() -> None:
    global _threads, _one_only, _dividing
    _dividing = threading.RLock()
    _divisions.clear()
    numba_pool = sys.modules.get("numba.np.ufunc.parallel")  # of loops of the program: GNU OpenMP's, too
    _one_only = _one_only or _threads is not None or getattr(numba_pool, "_is_initialized", False)
    _threads = None  # also makes recorded passes of several threads invalid


os.register_at_fork(after_in_child=_after_fork)


def _limit_blas(n: int) -> None:
    from threadpoolctl import ThreadpoolController

    load("products._blas")  # loads the library that is limited
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        library.set_num_threads(n if "numpy.libs" in library.filepath else 1)

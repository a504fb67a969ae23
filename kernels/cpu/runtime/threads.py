"""One number of threads for everything that runs on the CPU: OpenMP, Numba and BLAS.

The products (Cython) and the elementwise loops (Numba, its `omp` layer) are regions of one OpenMP pool, so their
threads never compete. SciPy's BLAS is called from inside those regions and therefore stays on one thread; NumPy's,
which only user code calls, follows the setting.

A forked process has its parent's memory, but only one of its threads: GNU OpenMP would wait for the others for ever,
and Numba ends the process. So a child whose parent had set up its threads works on one. So does a build without OpenMP.
"""

import contextlib
import math
import operator
import os
import sys
import threading

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.quota import cpu_quota
from pytagi_ddp.kernels.cpu.runtime.waiting import SHORT, bounded
from pytagi_ddp.process_tree import ancestor
from pytagi_ddp.warn import warn

_RANKS_ON_NODE = (  # MPICH and Intel MPI, Open MPI, MVAPICH, Cray, Slurm
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
# What starts the ranks of a node, and binds them to cores, but not itself. (Slurm's may use more than the job has.)
_LAUNCHERS = ("hydra_pmi_proxy", "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted")
WITHOUT_OPENMP = (
    "pytagi_ddp was compiled without OpenMP; for more, install OpenMP for the C compiler (clang: apt install "
    "libomp-dev; macOS: brew install libomp; or gcc), and pytagi-ddp again"
)
MOST_THREADS = max(256, 4 * (os.cpu_count() or 1))  # each has scratch memory of some megabytes
_threads: int | None = None
_one_only = False  # True after a fork from a process with threads: they are gone and cannot be started again
_applied = threading.local()  # Numba keeps its number per Python thread
_dividing = threading.RLock()  # guards the next two; a finalizer may come back to it in the thread that has it
_divisions: list["Division"] = []  # those in force
_undivided = 1  # threads before the first of them


def usable_cores(process: int = 0) -> int:
    """Cores a process may run on (0: this one): its affinity mask, capped by the CPU quotas of our control groups."""
    cores = len(os.sched_getaffinity(process)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_quota())))


def ranks_on_node() -> int:
    """MPI ranks on this node as the launcher announces them in the environment; 1 if it does not."""
    for name in _RANKS_ON_NODE:
        if os.environ.get(name, "").isdecimal():
            return max(1, int(os.environ[name]))
    return 1


def cores_of_rank() -> int:
    """Usable cores of this rank: at most its equal share of the cores that its node gives to all ranks, at least 1.

    A launcher may bind each rank to cores of its own, as Open MPI does. These are the rank's share already.
    """
    mine = node = usable_cores()
    if (ranks := ranks_on_node()) > 1 and (launcher := ancestor(_LAUNCHERS)):
        with contextlib.suppress(OSError):  # it has just ended
            node = usable_cores(int(launcher.name))
    return max(1, min(mine, node // ranks))


def default_threads() -> int:
    """`$PYTAGI_DDP_NUM_THREADS`, else `$OMP_NUM_THREADS`, else `cores_of_rank()`.

    Raises:
        ValueError: one of the two variables is set to something other than a positive integer.
    """
    for name in ("PYTAGI_DDP_NUM_THREADS", "OMP_NUM_THREADS"):
        if value := os.environ.get(name):
            first = value.split(",")[0].strip()  # OpenMP allows a list: one number per nesting level
            if not first.isdecimal() or int(first) < 1:
                raise ValueError(f"{name}={value!r}: expected a positive number of threads")
            return int(first)
    return cores_of_rank()


def set_threads(n: int) -> None:
    """Makes `n` the number of threads of every CPU kernel of this process, whichever Python thread calls it.

    Where more than one are impossible (`why_one`) it stays at 1, with a RuntimeWarning that says what to do.

    Args:
        n: at least 1. More than the machine's cores is allowed and slow; more than `MOST_THREADS` is not.

    Raises:
        TypeError: n is not an integer. ValueError: it is out of range.
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"set_threads takes a number of threads, got {n!r}") from None
    if n < 1:
        raise ValueError(f"set_threads({n}): a kernel needs at least 1 thread")
    if n > MOST_THREADS:
        raise ValueError(f"set_threads({n}): at most {MOST_THREADS} on this machine; more than its cores are slow")
    if n > 1 and (why := why_one()):
        warn(f"1 thread instead of {n}: {why}", RuntimeWarning)
        n = 1
    with _dividing:
        _divisions.clear()
        _put_in_force(n)


def why_one() -> str:
    """Why this process works on one thread, and what to do for more of them; "" if it can have more."""
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
    _limit_numba(n)


class Division:
    """The kernels' threads divided among ranks of this process, from here until `end`.

    Several may overlap, and end in any order: the number that was there before the first is back after the last. A
    number that is given to `set_threads` meanwhile replaces what they all have made of it.

    Args:
        ranks: how many.
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
        """Ends it; with `undo` also what `set_threads` was given meanwhile, by a program of the ranks."""
        with _dividing:
            if self in _divisions:
                _divisions.remove(self)
                _divide()
            elif undo:
                set_threads(self.before)


def _divide() -> None:
    _put_in_force(max(1, _undivided // math.prod(division._ranks for division in _divisions)))


def get_threads() -> int:
    """The number of threads of CPU kernels: the last one given to `set_threads`, or else `default_threads()`."""
    if _threads is None:
        set_threads(1 if _one_only else default_threads())
    assert _threads is not None  # by now
    if getattr(_applied, "threads", None) != _threads:
        _limit_numba(_threads)
    return _threads


def threads_in_force() -> int:
    """Like `get_threads`, but 1 if no number was set or asked for yet, so that copying arrays starts no threads."""
    return _threads or 1


def _after_fork() -> None:
    global _threads, _one_only, _dividing
    _dividing = threading.RLock()
    _divisions.clear()
    numba_pool = sys.modules.get("numba.np.ufunc.parallel")  # set up by us, or by a program's own loops
    _one_only = _one_only or _threads is not None or getattr(numba_pool, "_is_initialized", False)
    _threads = None  # this also invalidates recorded passes of several threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _limit_numba(n: int) -> None:
    import numba

    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    with bounded(SHORT):  # it loads GNU OpenMP if our kernels do without, or, in a wheel, have a copy of their own
        numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))
    _applied.threads = n


def _limit_blas(n: int) -> None:
    from threadpoolctl import ThreadpoolController

    load("products._blas")  # and with it the library that is to be limited
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        library.set_num_threads(n if "numpy.libs" in library.filepath else 1)

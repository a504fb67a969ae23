"""One number of threads for OpenMP, Numba and BLAS."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest
from threadpoolctl import threadpool_info

from pytagi_ddp.kernels.cpu.runtime import threads

LAUNCHERS = ("PYTAGI_DDP_NUM_THREADS", "OMP_NUM_THREADS", *threads._RANKS_ON_NODE)


@pytest.fixture(autouse=True)
def restore():
    before = threads.get_threads()
    yield
    threads.set_threads(before)


@pytest.fixture
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("n", [0, -3, threads.MOST_THREADS + 1, 20_000, 2**31])
def test_refuses_less_than_one_and_more_than_there_is_memory_for(n):
    before = threads.get_threads()
    with pytest.raises(ValueError, match=rf"set_threads\({n}\)"):
        threads.set_threads(n)
    assert threads.get_threads() == before


@pytest.mark.parametrize("n", [2.0, "2", None])
def test_refuses_what_is_no_integer(n):
    with pytest.raises(TypeError, match="set_threads takes a number of threads, got"):
        threads.set_threads(n)


def test_one_setting_for_all():
    for n in (1, 2):
        threads.set_threads(n)
        assert threads.get_threads() == n
        assert numba.get_num_threads() == min(n, numba.config.NUMBA_NUM_THREADS)
        blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
        assert blas
        for library in blas:  # SciPy's is called from inside the threads
            assert library["num_threads"] == (n if "numpy.libs" in library["filepath"] else 1)


def test_more_threads_than_numba_can_start():
    threads.set_threads(numba.config.NUMBA_NUM_THREADS + 1)
    assert threads.get_threads() == numba.config.NUMBA_NUM_THREADS + 1
    assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS


def test_holds_in_every_python_thread():
    threads.set_threads(1)
    seen = []
    other = threading.Thread(target=lambda: seen.extend([threads.get_threads(), numba.get_num_threads()]))
    other.start()
    other.join()
    assert seen == [1, 1]


def test_default_is_cores_over_ranks(no_launcher):
    no_launcher.setattr(threads, "usable_cores", lambda *_: 8)
    assert threads.default_threads() == 8
    no_launcher.setenv("MPI_LOCALNRANKS", "4")
    assert threads.default_threads() == 2
    no_launcher.setenv("MPI_LOCALNRANKS", "16")
    assert threads.default_threads() == 1


@pytest.mark.parametrize(
    ("mask", "node", "ranks", "cores"),
    [
        (1, 8, 2, 1),  # bound to a core
        (4, 8, 2, 4),  # to its half
        (8, 16, 4, 4),  # to a half together with another rank
        (8, 8, 2, 4),  # not bound
        (4, 4, 2, 2),  # not bound, but the whole job is
        (2, 2, 4, 1),
    ],
)
def test_a_bound_rank_keeps_its_cores(no_launcher, mask, node, ranks, cores):
    no_launcher.setattr(threads, "ancestor", lambda names: Path("/proc/77") if "mpirun" in names else None)
    no_launcher.setattr(threads, "usable_cores", lambda process=0: node if process == 77 else mask)
    no_launcher.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", str(ranks))
    assert threads.cores_of_rank() == threads.default_threads() == cores


def test_environment_overrides_the_default(no_launcher):
    no_launcher.setenv("OMP_NUM_THREADS", "5,2")
    assert threads.default_threads() == 5
    no_launcher.setenv("PYTAGI_DDP_NUM_THREADS", "3")
    assert threads.default_threads() == 3


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_refuses_a_senseless_environment(no_launcher, value):
    no_launcher.setenv("PYTAGI_DDP_NUM_THREADS", value)
    with pytest.raises(ValueError, match=f"PYTAGI_DDP_NUM_THREADS='{value}'"):
        threads.default_threads()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_affinity_limits_the_cores():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from pytagi_ddp.kernels.cpu.runtime.threads import usable_cores; print(usable_cores())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1"


def test_importing_starts_no_threads_of_its_own():
    code = (
        "import os, numpy, scipy.linalg.cython_blas; before = len(os.listdir('/proc/self/task'));"
        "import pytagi_ddp.kernels.cpu; print(len(os.listdir('/proc/self/task')) - before)"
    )
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("no /proc to count threads in")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0"

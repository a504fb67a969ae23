"""One number of threads for OpenMP, Numba and BLAS, and the same numbers on any number of threads.

`tests/battery` compares each layer on several threads, and `tests/kernels/threads.py` networks of random sizes.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.layers import output_update
from pytagi_ddp.kernels.cpu.runtime import compile, threads
from tests.conftest import ALL_TESTS
from tests.kernels import threads as random_cases

LAUNCHERS = ("PYTAGI_DDP_NUM_THREADS", "OMP_NUM_THREADS", *threads._RANKS_ON_NODE)


@pytest.fixture(autouse=True)
def restore():
    before = threads.get_threads()
    yield
    threads.set_threads(before)


FEW_INPUTS = [(2, 8, 8), (2, 1, 1), (2, 15, 15), (3, 16, 4), (4, 31, 15), (8, 63, 10), (8, 50, 1), (16, 84, 10)]


@pytest.mark.parametrize(("count", "inputs", "outputs"), FEW_INPUTS)
@pytest.mark.slow
def test_fewer_inputs_than_threads_share(count, inputs, outputs):
    """Tiles of inputs begin at multiples of 16: several of them begin at 0, and all of these but one are empty."""
    layer = random_cases.Case("Linear", "", lambda: [nn.Linear(inputs, outputs)], inputs * outputs)
    random_cases.compare(layer, random_cases.Draw(0, 0), count)


RANDOM = 25 if ALL_TESTS else 12


@pytest.mark.parametrize("number", range(RANDOM))
@pytest.mark.slow
def test_random_products(number):
    random_cases.run_case(0, number, random_cases.PRODUCTS)


@pytest.mark.slow
def test_random_networks():
    command = [sys.executable, "-m", "tests.kernels.threads", "--cases", str(RANDOM), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{RANDOM} cases, the same on one thread and on several")


def test_a_wrong_sum_is_found(monkeypatch):
    """The comparison itself: threads that make different numbers, and passes that differ from time to time."""
    made = random_cases.repeated_passes
    layer = random_cases.Case("Linear", "Linear(8,8)", lambda: [nn.Linear(8, 8)], 64)

    def twice_on_threads(net, *batch):
        result = made(net, *batch)
        return result if threads.get_threads() == 1 else {name: 1.001 * array for name, array in result.items()}

    monkeypatch.setattr(random_cases, "repeated_passes", twice_on_threads)
    with pytest.raises(AssertionError, match=r"Linear\(8,8\), .*, batch \d+, 2 threads: one batch: output mean: error"):
        random_cases.compare(layer, random_cases.Draw(0, 0), 2)


@pytest.fixture
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("n", [0, -3, threads.MOST_THREADS + 1, 20_000, 2**31])
def test_refuses_less_than_one_and_more_than_there_is_memory_for(n):
    before = threads.get_threads()
    with pytest.raises(ValueError, match=rf"set_threads: n must be .*, got {n}\b"):
        threads.set_threads(n)
    assert threads.get_threads() == before


@pytest.mark.parametrize("n", [2.0, "2", None])
def test_refuses_what_is_no_integer(n):
    with pytest.raises(TypeError, match="set_threads: n must be an integer, got"):
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


@pytest.mark.parametrize(("layer", "parallel"), [("omp", True), ("tbb", False), ("workqueue", False)])
def test_loops_use_threads_of_openmp_only(layer, parallel, monkeypatch):
    monkeypatch.setattr(compile, "get_threads", lambda: 2)
    monkeypatch.setattr(numba, "threading_layer", lambda: layer)
    choose = output_update._update.compiled_for
    large, small = (np.empty(n, np.float32) for n in (compile.PARALLEL_MIN, 1))
    assert (choose(large) is not choose(small)) is parallel


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


@pytest.mark.parametrize("value", ["0", "-1", "many", "99999999999", "9" * 5000])
def test_refuses_a_senseless_environment(no_launcher, value):
    no_launcher.setenv("MPI_LOCALNRANKS", value)
    assert threads.ranks_on_node() == 1
    no_launcher.setenv("PYTAGI_DDP_NUM_THREADS", value)
    with pytest.raises(ValueError, match=f"^PYTAGI_DDP_NUM_THREADS='{value[:99]}.*: expected a number of threads from"):
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

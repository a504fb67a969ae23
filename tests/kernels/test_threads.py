"""One number of threads for OpenMP and BLAS, and the same numbers on any number of threads.

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
from pytagi_ddp.kernels.cpu.runtime import compile, entries, threads
from tests.conftest import ALL_TESTS
from tests.kernels import threads as random_cases
from tests.kernels.all_loops import loops, shared

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
        blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
        assert blas
        for library in blas:  # SciPy's is called from inside the threads
            assert library["num_threads"] == (n if "numpy.libs" in library["filepath"] else 1)


@compile.loop("n n n")
def add_place(thread, threads, x, by_thread, out):
    base, share = compile.portion(x.size, thread, threads)
    for each in range(share):
        i = base + each
        by_thread[i] += 1 + thread
        out[i] = x[i] + i


@pytest.mark.parametrize("n", [0, 1, 7, 1000, compile.PARALLEL_MIN - 1, compile.PARALLEL_MIN, 100_003])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_threads_share_all_iterations(n, count):
    seen = []
    for thread in range(count):
        base, share = compile.portion(n, thread, count)
        assert base % compile.UNIT == 0 or n < compile.PARALLEL_MIN
        seen += range(base, base + share)
    assert seen == list(range(n))


@pytest.mark.parametrize("n", [compile.PARALLEL_MIN - 1, 100_003])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_loop_is_called_by_each_thread(n, count):
    threads.set_threads(count)
    x, by_thread, out = np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros(n, np.float32)
    add_place(x, by_thread, out)
    assert set(by_thread) == set(range(1, 1 + (count if n > compile.PARALLEL_MIN else 1)))
    np.testing.assert_array_equal(out, 1 + np.arange(n, dtype=np.float32))


def test_no_two_threads_of_a_loop_write_the_same_or_read_what_another_writes():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "tests.kernels.all_loops", "shares"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:-1] == [name for name, loop in loops() if shared(loop)]


def test_loops_of_a_numba_that_may_pass_arguments_in_another_way_use_one_thread(monkeypatch):
    monkeypatch.setattr(entries, "LAST_KNOWN_NUMBA", (0, 0))
    threads.set_threads(2)
    n = compile.PARALLEL_MIN
    x, by_thread, out = np.ones((2 * n, 1), np.float32)[::2, 0], np.zeros(n, np.int32), np.zeros(n, np.float32)
    add_place(x, by_thread, out)
    assert set(by_thread) == {1} and out[-1] == n


@pytest.mark.parametrize("count", [1, 2])
def test_checked_indices_raise_with_any_number_of_threads(count, monkeypatch):
    """Checks of NUMBA_BOUNDSCHECK, with which `tests.sanitize` looks for accesses beside arrays."""
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    threads.set_threads(count)
    x, out = np.ones(compile.PARALLEL_MIN, np.float32), np.zeros(compile.PARALLEL_MIN, np.float32)
    checked = compile.loop("n _ n")(add_place.__wrapped__)
    with pytest.raises(IndexError):
        checked(x, np.zeros(x.size, np.int32)[:1], out)


def test_holds_in_every_python_thread():
    threads.set_threads(1)
    seen = []
    other = threading.Thread(target=lambda: seen.append(threads.get_threads()))
    other.start()
    other.join()
    assert seen == [1]


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

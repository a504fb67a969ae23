"""A process that is forked from one with threads computes the same on one thread, and waits for no lost thread."""

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,  # starts processes of its own
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

PREPARE = """
import multiprocessing, os, sys, warnings
import numpy as np
from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.runtime import threads

manual_seed(1)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
updater = nn.OutputUpdater(model.device)
x = np.random.default_rng(0).normal(size=(128, 512)).astype(np.float32)  # enough for threads in products and loops
y, var_y = np.zeros(256, np.float32), np.ones(256, np.float32)

def predict():
    model.eval()
    return model(x)[0]

def step():
    model.train()
    model(x)
    updater.update(model.output_z_buffer, y, var_y, model.input_delta_z_buffer)
    model.backward()
    model.step()

def work(_):
    warnings.simplefilter("error")
    before = predict()
    for _ in range(4):  # walked through, recorded, replayed
        step()
    return before, predict(), threads.get_threads()

def in_child(work):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map_async(work, [0]).get(timeout=60)[0]
"""


def run(program: str) -> subprocess.CompletedProcess:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONWARNINGS")
    }
    command = [sys.executable, "-c", PREPARE + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def test_a_child_gives_the_numbers_of_one_thread():
    run("""
def same(*children):
    assert [used for *_, used in children] == [1] * len(children) and threads.get_threads() == 2
    threads.set_threads(1)
    expected = work(None)[:2]
    for before, after, _ in children:
        np.testing.assert_array_equal((before, after), expected)
    threads.set_threads(2)

threads.set_threads(2)
first = in_child(work)
predict()
same(first, in_child(work))
for _ in range(4):
    step()
same(in_child(work))
""")


def test_more_threads_in_a_child_or_its_child_are_refused_with_the_remedy():
    done = run("""
model.set_threads(2)
def ask(_):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.set_threads(2)
    pid = os.fork()
    predict()
    if pid == 0:
        os._exit(10 + threads.get_threads())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [f"{warning.filename}: {warning.message}" for warning in seen], threads.get_threads(), code
seen, used, code = in_child(ask)
assert (used, code) == (1, 11), (used, code)
print(*seen)
""")
    assert done.stdout.startswith("<string>: 1 thread instead of 2: this process was forked from one that had threads")
    assert 'get_context("spawn")' in done.stdout and done.stdout.count("\n") == 1


def test_threads_of_a_loop_of_the_program():
    run("""
import numba
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
numba.get_num_threads()
os.environ["PYTAGI_DDP_NUM_THREADS"] = "2"
assert in_child(work)[2] == 1
""")


def test_a_child_of_a_process_without_threads_has_all():
    run("""
os.environ["PYTAGI_DDP_NUM_THREADS"] = "2"
assert in_child(work)[2] == 2
""")


def test_a_fork_waits_until_no_thread_compiles():
    run("""
import signal, threading
from numba import njit

begun, source = threading.Event(), "def loop(x):\\n" + "    x = x * x + 1.0\\n" * 400 + "    return x"
exec(source)

def compiles():
    begun.set()
    njit(loop)(1.0)

thread = threading.Thread(target=compiles)
thread.start()
begun.wait()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # ends it if it waits
        os._exit(0 if njit(lambda x: x + 1)(1) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
thread.join()
""")

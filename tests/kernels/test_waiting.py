"""The wait of OpenMP's threads: ours unless the user has set it, short while others want the cores."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytagi_ddp.kernels.cpu.runtime import waiting
from pytagi_ddp.kernels.cpu.runtime.extension import load

load("runtime._replay")
pytestmark = [
    pytest.mark.slow,  # starts processes of its own
    pytest.mark.skipif(waiting.describe() == waiting.NOT_LOADED, reason="this build does not use GNU OpenMP"),
]

PROGRAM = """
import os, ctypes
{before}
from pytagi_ddp.kernels.cpu.runtime import threads, waiting
print(waiting.describe())
print(os.environ.get("GOMP_SPINCOUNT"))
"""
UNTOLD = "the system does not say how long threads wait for a core"
LOADED_BEFORE = 'ctypes.CDLL("libgomp.so.1")'


def run(before: str = "", **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = PROGRAM.format(before=before)
    result = subprocess.run(
        [sys.executable, "-c", program], env=known | environment, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


@pytest.mark.skipif(waiting.SPINS == waiting.SHORT, reason=UNTOLD)
def test_it_is_ours():
    assert run() == [waiting.ADAPTED, "None"]  # and nothing of it is left in the environment


def test_openmp_has_heard_of_it():
    program = "from pytagi_ddp.kernels.cpu import linear"
    known = {name: value for name, value in os.environ.items() if name not in waiting.VARIABLES}
    environment = known | {"OMP_DISPLAY_ENV": "VERBOSE"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{waiting.SPINS}'" in result.stderr


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "passive")])
def test_the_user_decides(name, value):
    assert run(**{name: value}) == [f"as {name}={value} says", value if name == "GOMP_SPINCOUNT" else "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_another_library_was_first():
    description, left = run(LOADED_BEFORE)
    assert "another library" in description and "GOMP_SPINCOUNT" in description and left == "None"


CONTENDED = """
import os, time
from pytagi_ddp.kernels.cpu.runtime.extension import load
replay = load("runtime._replay")
def loop():
    replay.flushed(int, 2, ())
def used():  # seconds of processors, while threads wait for the next loop
    before = time.process_time()
    for _ in range(25):
        loop()
        time.sleep(0.002)
    return time.process_time() - before
def threads():
    return {int(name) for name in os.listdir("/proc/self/task")}
loop()
alone, first, until = used(), threads(), time.monotonic() + 20
replay.watch_cores()
for thread in first:  # on one core, they take it from each other
    os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
while not replay.cores_wanted() and time.monotonic() < until:
    loop()
wanted = replay.cores_wanted()
while len(threads() - first) < 2 and time.monotonic() < until:
    time.sleep(0.01)
more, contended = threads() - first, used()
while threads() != first and time.monotonic() < until:
    time.sleep(0.3)  # threads that sleep wait for no core
    loop()
print(wanted, len(more), contended < alone / 4, replay.cores_wanted(), threads() == first)
print(alone, contended)
"""


@pytest.mark.skipif(waiting.SPINS == waiting.SHORT, reason=UNTOLD)
@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs several cores of Linux")
def test_it_is_short_while_cores_are_wanted():
    environment = os.environ | {"GOMP_SPINCOUNT": "20000"}  # longer than ours, so that it shows
    result = subprocess.run(
        [sys.executable, "-c", CONTENDED], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.splitlines()[0] == "True 2 True False True", result.stdout


FLAGS = """
#include "contention.h"
static void *compute(void *wanted) {
    for (int k = 0; k < 200000; k++) {
        tagi_check_contention(2);
        *(int *)wanted += tagi_is_contended();
    }
    return NULL;
}
int main(void) {
    pthread_t threads[2];
    int wanted[2] = {0};
    for (int k = 0; k < 2; k++) pthread_create(threads + k, NULL, compute, wanted + k);
    tagi_watch_contention(1);
    for (int k = 0; k < 20; k++) {
        pthread_mutex_lock(&tagi_contention_lock);
        tagi_contention_until = 1e18; /* no look */
        tagi_contended = !tagi_contended;
        pthread_mutex_unlock(&tagi_contention_lock);
        usleep(1000);
    }
    for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    return 0;
}
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="no gcc on Linux")
def test_flags_of_contention_are_no_data_race(tmp_path):
    headers, program = Path(waiting.__file__).parent, tmp_path / "flags"
    command = ["gcc", "-g", "-fsanitize=thread", "-fopenmp", f"-I{headers}", "-x", "c", "-", "-o", program]
    if subprocess.run(command, input=FLAGS, capture_output=True, text=True).returncode:
        pytest.skip("gcc has no ThreadSanitizer")
    result = subprocess.run([program], capture_output=True, text=True)
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("ThreadSanitizer does not support the addresses of this system")
    assert result.returncode == 0, result.stderr

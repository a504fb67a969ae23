"""Runs tests of GPUs on the machine of this folder, in a pytest of their own, where a stand-in replaces CuPy.

Every kernel has to run, in two orders of threads. For a new kernel, add a case to `tests/cuda/on_device`; it runs here
too. `python -m pytest -p tests.cuda.ptx.plugin ...` runs other tests, see `README.md`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALL_TESTS
from tests.cuda import compile_report
from tests.cuda.kept import letters
from tests.cuda.ptx.emulator import missing

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
ROOT = Path(__file__).parents[3]


def test_every_kernel_in_two_orders_and_networks(tmp_path):
    report = tmp_path / "report"
    command = [sys.executable, "-m", "pytest", "-p", "tests.cuda.ptx.plugin", "--ptx-report", str(report), "-q", "-x"]
    command += ["tests/cuda/on_device", "tests/cuda/test_gpu.py", "tests/cuda/ptx/lane", "-p", "no:cacheprovider"]
    of_battery = "" if ALL_TESTS else " and (not test_device_twin or LSTM)"  # all layers once a week
    command += ["-m", "not mpi", "-k", f"not two_ranks{of_battery}"]  # ranks would find no stand-in for CuPy
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1780)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    found, kernels = json.loads(report.read_text()), compile_report.registry()
    ran: dict[str, set[str]] = {}
    for kernel, way, _ in found["launches"]:
        ran.setdefault(kernel, set()).add(way)
    missed = {kernel: ran.get(kernel) for kernel in kernels if len(ran.get(kernel, ())) < 2}
    assert not missed, "not run in two orders of threads: add a case to tests/cuda/on_device"
    unasked = {
        name: set(map(letters, kernel.variants())) - set(found["variants"][name]) for name, kernel in kernels.items()
    }
    assert not {kernel: left for kernel, left in unasked.items() if left}, "compiled for nobody, or a case is missing"
    assert not found["idle"], "barriers, by their lines in the PTX, that keep no two accesses apart: remove them"

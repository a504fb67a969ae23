"""Starts the tests of `tests/cuda/sim` in the simulator, which must be chosen before Numba is imported.

Where compiled kernels run on the CPU (`tests/cuda/ptx`), these very tests run there, and in the simulator once a week.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALL_TESTS
from tests.cuda.ptx.emulator import missing

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (ALL_TESTS or missing()),
    reason="the compiled kernels are tested; these tests run in the simulator once a week, with PYTAGI_DDP_ALL_TESTS=1",
)
def test_kernels_and_networks_in_the_simulator():
    command = [sys.executable, "-m", "pytest", "tests/cuda/sim", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout

"""Starts the tests of `tests/cuda/sim` in the simulator, which must be chosen before Numba is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_and_networks_in_the_simulator():
    command = [sys.executable, "-m", "pytest", "tests/cuda/sim", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout

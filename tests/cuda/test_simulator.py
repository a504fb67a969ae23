"""Starts the tests of `tests/cuda/sim` in Numba's simulator, which must be chosen before Numba is imported."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_share(share: str) -> subprocess.CompletedProcess:
    """Runs the tests of one share (`tests/cuda/sim/conftest.py`)."""
    command = [sys.executable, "-m", "pytest", "tests/cuda/sim", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "TEST_SHARE": share}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_and_networks_in_the_simulator():
    with ThreadPoolExecutor() as pool:  # the simulator uses one core
        runs = list(pool.map(run_share, ("0/2", "1/2")))
    for run in runs:
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
        assert " passed" in run.stdout

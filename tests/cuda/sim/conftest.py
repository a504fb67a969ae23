"""Tests of what computes on a device: in the simulator, or (`pytest -m gpu`) on a GPU.

In the simulator they run in a pytest of their own, with NUMBA_ENABLE_CUDASIM=1: see tests/cuda/test_simulator.py.
"""

from pathlib import Path

import pytest

from pytagi_ddp import cuda

collect_ignore_glob = [] if cuda.is_simulated() or cuda.is_available() else ["test_*.py"]


def pytest_collection_modifyitems(items):
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here) and not cuda.is_simulated():
            item.add_marker(pytest.mark.gpu)

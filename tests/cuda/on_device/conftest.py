"""Tests of what computes on a device: on a GPU (`pytest -m gpu`), or on the emulator (`tests/cuda/ptx`)."""

from pathlib import Path

import pytest

from pytagi_ddp import cuda

collect_ignore_glob = [] if cuda.is_available() else ["test_*.py"]


def pytest_collection_modifyitems(items):
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)

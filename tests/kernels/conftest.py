"""What tests of the CPU kernels share."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu import _blas
from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads


@pytest.fixture(params=["1 thread", "2 threads", "3 threads", "2 threads, whole products"])
def threads(request):
    """A number of threads, and the way in which this machine's BLAS may not be called."""
    before = get_threads()
    set_threads(int(request.param[0]))
    _blas.set_small_kernels("whole" not in request.param)
    yield
    _blas.set_small_kernels(_blas.has_small_kernels())
    set_threads(before)


@pytest.fixture
def bounded_scratch(monkeypatch):
    """Products write no further into scratch memory than they have asked for."""
    beyond = []

    def workspace(size):
        memory = np.full(size + 100_000, 123, np.float32)
        beyond.append(memory[size:])
        return memory[:size]

    for name in ("_replay", "_conv2d"):
        monkeypatch.setattr(load(name), "workspace", workspace)
    yield
    assert beyond
    assert all((rest == 123).all() for rest in beyond)

"""What tests of the CPU kernels share."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.products import _blas
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads


@pytest.fixture(params=["1 thread, best", "2 threads, whole", "2 threads, avx2", "3 threads, tiles", "2 threads, amx"])
def threads(request):
    """A number of threads, and a way to multiply that may not be this machine's best one."""
    count, way = request.param.split(", ")
    if way in ("avx2", "amx") and not getattr(_blas, f"has_{way}")():
        pytest.skip(f"this CPU has no {way.upper()}")
    before = get_threads()
    set_threads(int(count.split()[0]))
    _blas.set_way(_blas.best_way() if way == "best" else _blas.Way[way.upper()])
    yield
    _blas.set_way(_blas.best_way())
    set_threads(before)


@pytest.fixture
def bounded_scratch(threads, monkeypatch):  # `threads` comes first, as it may skip the test
    """Products write no further into scratch memory than they have asked for."""
    beyond = []

    def workspace(size):
        memory = np.full(size + 100_000, 123, np.float32)
        beyond.append(memory[size:])
        return memory[:size]

    for name in ("runtime._replay", "layers._conv2d"):
        monkeypatch.setattr(load(name), "workspace", workspace)
    yield
    assert beyond
    assert all((rest == 123).all() for rest in beyond)

"""What tests of the CPU kernels share."""

import pytest

from pytagi_ddp.kernels.cpu.products import _blas
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from tests.kernels.scratch import bounded

WAYS = ["1 thread, best", "2 threads, whole", "2 threads, avx2", "3 threads, tiles", "2 threads, amx"]


@pytest.fixture(params=WAYS)
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
def bounded_scratch(threads):  # `threads` comes first, as it may skip the test
    """Products write no further into scratch memory than they have asked for."""
    with bounded() as asked:
        yield
    assert asked

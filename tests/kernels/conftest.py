"""What tests of the CPU kernels share."""

import pytest

from pytagi_ddp.kernels.cpu import _blas
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

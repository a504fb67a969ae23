"""Arrays of a GPU through MPI, played by host memory that is not a NumPy array."""

from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp.distributed.communicator import SerialCommunicator, create_communicator
from pytagi_ddp.distributed.engine.staging import Staging
from pytagi_ddp.kernels.cuda import runtime as cuda_kernels
from tests.mpi import run
from tests.mpi.rank import say


class GpuArray:
    """Looks like an array on a GPU to this library and to mpi4py."""

    def __init__(self, values: np.ndarray):
        self.values = values

    @property
    def __cuda_array_interface__(self):
        return self.values.__array_interface__ | {"version": 3, "stream": None}

    def __getattr__(self, name):
        return getattr(self.values, name)

    def __getitem__(self, key):
        return GpuArray(self.values[key])

    def reshape(self, *shape):
        return GpuArray(self.values.reshape(*shape))

    def view(self, dtype):
        return GpuArray(self.values.view(dtype))


class GpuModule(SimpleNamespace):
    """Stands for `pytagi_ddp.kernels.cuda.runtime.array`; `log` tells what was done."""

    def __init__(self):
        super().__init__(log=[], pinned=np.empty, device_of=lambda array: 0, arrays=lambda index: self)

    def copy(self, source, out):
        self.log.append(f"to {'host' if isinstance(out, np.ndarray) else 'GPU'}")
        np.copyto(getattr(out, "values", out), getattr(source, "values", source))

    def synchronize(self):
        self.log.append("synchronize")


@pytest.fixture
def gpu(monkeypatch):
    module = GpuModule()
    monkeypatch.setitem(vars(cuda_kernels), "array", module)
    return module


def test_by_way_of_pinned_memory(gpu):
    staging, array = Staging(), GpuArray(np.arange(6, dtype=np.float32).reshape(2, 3))
    with staging.for_mpi(array) as host:
        assert isinstance(host, np.ndarray) and host.shape == (2, 3)
        host *= 2
        assert array.values[1, 2] == 5
    np.testing.assert_array_equal(array.values, [[0, 2, 4], [6, 8, 10]])
    memory = staging._memory
    with staging.for_mpi(GpuArray(np.arange(2))) as host:
        np.testing.assert_array_equal(host, [0, 1])
    assert staging._memory is memory and gpu.log == ["to host", "to GPU"] * 2


def test_directly_when_the_user_says_so(gpu):
    array = GpuArray(np.ones(2))
    with Staging(cuda_aware=True).for_mpi(array) as data:
        assert data is array and gpu.log == ["synchronize"]


def test_host_arrays_pass_untouched(gpu):
    array = np.ones(2)
    with Staging(cuda_aware=True).for_mpi(array) as data:
        assert data is array
    assert gpu.log == []


def test_communicators_take_gpu_arrays_but_not_lists():
    communicator = SerialCommunicator()
    communicator.all_reduce(GpuArray(np.ones(3)))
    assert communicator.reduce_bytes == 24
    with pytest.raises(TypeError, match="NumPy or CuPy array of numbers, not on list"):
        communicator.all_reduce([1.0])
    with pytest.raises(ValueError, match="not contiguous"):
        communicator.broadcast(GpuArray(np.ones((3, 3)).T[:2]))


def exchange_both_ways():
    cuda_kernels.array = gpu = GpuModule()
    for aware in (False, True):
        communicator = create_communicator("mpi", cuda_aware_mpi=aware)
        array = GpuArray(np.full(500_000, communicator.rank + 1, np.float32))
        communicator.all_reduce(array)
        assert (array.values == 3).all(), array.values
        array.values[:] = communicator.rank
        communicator.broadcast(array, root=1)
        assert (array.values == 1).all(), array.values
        total = 2
        for own in (array[:250_000] if communicator.rank == 0 else array[250_000:], GpuArray(np.zeros(250_000, "f4"))):
            communicator.reduce_scatter(array, own)
            communicator.all_gather(own, array)
            assert (array.values == total).all(), array.values
            array.values[:], total = 1.5, 3
    by_host = ["to host", "to GPU"]
    assert gpu.log == by_host * 6 + ["synchronize"] * 2 + [*by_host, "synchronize"] * 2, gpu.log
    say("both ways")


@pytest.mark.mpi
def test_two_ranks():
    """Through host memory, and as pointers that MPI reads by itself."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = run.mpirun(exchange_both_ways)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "both ways\n" * 2

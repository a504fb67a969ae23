"""NCCL and GPUs played by small fakes; what NCCL itself does on a GPU is measured by `python -m benchmarks.gpu`."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from pytagi_ddp import cuda
from pytagi_ddp.distributed.communicator import SerialCommunicator
from pytagi_ddp.distributed.engine.nccl import NCCLCommunicator
from pytagi_ddp.kernels.cuda import runtime as cuda_kernels


class FakeArray:
    """A float32 array on a GPU, which is host memory."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)
        self.dtype, self.size, self.nbytes = self.values.dtype, self.values.size, self.values.nbytes
        self.flags, self.data = self.values.flags, SimpleNamespace(ptr=self.values.ctypes.data)
        self.shape, self.__cuda_array_interface__ = self.values.shape, self.values.__array_interface__


class FakeStream:
    def __init__(self, index):
        self.index, self.joined = index, []

    def run(self, function):
        function(99)
        return SimpleNamespace(done=True)

    def join(self, done):
        self.joined.append(done)

    def synchronize(self):
        pass


@contextmanager
def nccl_stand_in(gpus: int = 1, unique_id: bytes = b"id") -> Iterator[SimpleNamespace]:
    """CuPy's NCCL module, with communicators that write down their calls in `calls`; and so many GPUs."""
    calls: list[tuple] = []

    class Communicator:
        def __init__(self, *arguments):
            calls.append(("init", *arguments))

        def __getattr__(self, name):
            return lambda *arguments: calls.append((name, *arguments))

        def check_async_error(self):
            pass

    library = SimpleNamespace(
        available=True,
        calls=calls,
        get_version=lambda: 23203,
        get_unique_id=lambda: unique_id,
        NcclCommunicator=Communicator,
        NCCL_SUM="sum",
        NCCL_AVG="average",
        NCCL_MAX="max",
        NCCL_CHAR="char",
        NCCL_FLOAT32="float32",
    )
    array = SimpleNamespace(nccl=lambda: library, SideStream=FakeStream, on_device=lambda index: threading.Lock())
    found = {
        "why_not": lambda: None,
        "is_nccl_available": lambda: True,
        "get_device_count": lambda: gpus,
        "get_device_uuid": lambda index: f"gpu {index}",
    }
    with patch.multiple(cuda, **found), patch.dict(vars(cuda_kernels), array=array):
        yield library


@contextmanager
def nccl_communicator() -> Iterator[NCCLCommunicator]:
    """The engine for one process."""
    with nccl_stand_in(), closing(NCCLCommunicator(SerialCommunicator(), 5)) as communicator:
        yield communicator

"""Puts CuPy's stand-in where the library finds it, before the library is imported."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from cuda.bindings import driver

from tests.cuda.kept import keep_ptx
from tests.cuda.ptx.machine import ALIGNMENT, Memory


def stand_in(identity: int = 0) -> None:
    """From now on there is one GPU of compute capability 8.0, the machine of this folder.

    identity: which one, among those of other processes.
    """
    sys.path.insert(0, str(Path(__file__).parent / "standin"))
    from pytagi_ddp.kernels.cuda.runtime import array, cubins  # with the stand-in on sys.path

    assert array.cupy.__version__ == "0.ptx", "CuPy was imported before its stand-in"
    array.cupy.cuda.identity = identity
    driver.cuInit = lambda flags: (driver.CUresult.CUDA_SUCCESS,)
    driver.cuDeviceGetUuid = driver.cuDeviceGetUuid_v2 = _uuid
    keep_ptx()
    cubins.assemble = lambda ptx, name, capability: (ptx.encode(), "")
    cubins.folder = lambda: None  # what is there was made for another GPU


def _uuid(index: int):
    import cupy

    return driver.CUresult.CUDA_SUCCESS, SimpleNamespace(bytes=cupy.cuda.identity.to_bytes(16, "big"))


class Untouched(Memory):
    """An allocation full of zeros, of which only what is written takes memory."""

    def __init__(self, size: int):
        whole = np.zeros(size + ALIGNMENT, np.uint8)
        start = -whole.ctypes.data % ALIGNMENT
        self.size, self.address, self.data = size, whole.ctypes.data + start, whole[start : start + size]
        self.written = np.zeros(size // 4 + 2, np.uint8)


class Idle:
    """In place of a module of CuPy: a kernel that does nothing."""

    def load(self, cubin: bytes) -> None:
        self._ptx = cubin.decode()

    def get_function(self, name: str):
        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments) -> None:
            pass

        launch.ptx = self._ptx
        return launch


def without_running() -> None:
    """After `stand_in`: launches and copies on the device do nothing, and arrays are zero."""
    import cupy

    from pytagi_ddp.kernels.cuda.runtime import array

    cupy.Memory, cupy.cuda.function.Module = Untouched, Idle
    cupy.cuda.MEMORY = 1 << 60
    array._fill_zero = array._copy_on_device = lambda *arrays: None

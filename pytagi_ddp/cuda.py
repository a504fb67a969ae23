"""What the machine offers in GPUs, and how they are used.

Asking costs an import of CuPy at the first call, and never raises where something is missing: no GPU, no driver, no
CuPy, or the simulator (in which `Sequential.to_device("cuda")` works, on the CPU, for tests).

Attributes:
    allow_tf32: matrix products may round their factors to TF32 (10 bits of mantissa) and use tensor cores, on GPUs of
        compute capability 8.0 and later. False by default, as in PyTorch: variances are often far smaller than means.
    replay_launches: the launches and copies of a training step are recorded in the second step of a batch size, and
        from then on queued again as they were, without a walk through the layers in Python. True by default. What
        changes them (batch size, mode, options, a layer's `eps` or `momentum`, ...) is seen, and recorded anew.
    use_graphs: likewise, but as CUDA graphs, which also saves the host the calls to the driver (some 190 launches for
        a ResNet18 step). False by default until it has been measured on a GPU. "auto": the first graph of each part of
        a step has to give the bits of single launches; if it does not, or cannot be made, there is one warning, and
        launches are replayed one by one on that GPU from then on.
"""

import os
import sys
import warnings
from ctypes import CDLL, byref, c_int
from importlib.util import find_spec
from types import ModuleType
from typing import Literal
from uuid import UUID

allow_tf32: bool = False
replay_launches: bool = True
use_graphs: bool | Literal["auto"] = False

_NEEDED = ("cupy", "numba_cuda")  # modules
_PACKAGES = {  # that have them, by the extra of this library
    "cuda": ("cupy-cuda13x[ctk]", "numba-cuda[cu13]"),
    "cuda12": ("cupy-cuda12x[ctk]", "numba-cuda[cu12]"),
}
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def is_simulated() -> bool:
    """Whether NUMBA_ENABLE_CUDASIM=1 makes "cuda" a simulator on the CPU."""
    import numba  # here, because `import pytagi_ddp` shall not wait for it

    return bool(numba.config.ENABLE_CUDASIM)


def why_not() -> str | None:
    """What keeps networks from moving to a GPU, and the remedy; None if nothing does."""
    if is_simulated():
        return "NUMBA_ENABLE_CUDASIM is set: kernels run in a simulator"
    missing = [k for k, module in enumerate(_NEEDED) if find_spec(module) is None]
    if missing:
        driver = driver_version()
        if driver is None:
            return "this machine has no driver for NVIDIA GPUs (libcuda); networks run on the CPU"
        extra = extra_for(driver)
        if extra is None:
            return f"{_too_old(driver)}; networks run on the CPU"
        packages = ", ".join(_PACKAGES[extra][k] for k in missing)
        return f"not installed: {packages}; try pip install 'pytagi-ddp[{extra}]'"
    cupy = _cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA does not start: {error}{_remedy(cupy.cuda.runtime.runtimeGetVersion())}"
    return None if count else f"CUDA sees no GPU{_remedy(0)}"


def driver_version() -> int | None:
    """The CUDA version that the installed driver is for, such as 12080 for 12.8; 0: unknown; None: no driver."""
    version = c_int(0)
    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuDriverGetVersion(byref(version))
    except OSError:
        return None
    except AttributeError:
        return 0
    return version.value


def extra_for(driver: int) -> str | None:
    """The extra of this library that a driver can run (0: an unknown one); None: it is too old for all."""
    if 0 < driver < 13000:
        return "cuda12" if driver >= 12000 else None
    return "cuda"


def _too_old(driver: int) -> str:
    return (
        f"the driver is for CUDA {driver // 1000}.{driver % 1000 // 10}, and at least 12.0 is needed: install a driver "
        "of version 525 or later"
    )


def _remedy(runtime: int) -> str:
    """What to do where CUDA does not start or sees no GPU: a runtime newer than the driver, or GPUs that are hidden."""
    driver = driver_version() or 0
    if driver > 0 and driver // 1000 < runtime // 1000:
        extra = extra_for(driver)
        if extra is None:
            return f"; {_too_old(driver)}"
        return (
            f"; the packages are for CUDA {runtime // 1000}, the driver for {driver // 1000}.{driver % 1000 // 10}: "
            "update the driver, or, in a new virtual environment, pip install "
            f"'pytagi-ddp[{extra}]'"
        )
    if _VISIBLE in os.environ:
        return (
            f"; {_VISIBLE} is {os.environ[_VISIBLE]!r}: it has to name GPUs by their index or as `nvidia-smi -L` "
            "prints them, GPU-... or MIG-..."
        )
    return ""


def is_available() -> bool:
    """Whether networks can move to a GPU."""
    return why_not() is None


def is_nccl_available() -> bool:
    """Whether ranks can communicate by NCCL: a GPU, and CuPy finds the library."""
    if not is_available():
        return False
    from pytagi_ddp.kernels.cuda import array  # here, because CuPy is loaded only where a GPU is used

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's, where it does not find the library
        return array.nccl().available


def get_device_count() -> int:
    """GPUs that this library can use."""
    return _cupy().cuda.runtime.getDeviceCount() if is_available() else 0


def is_device_available(device_index: int) -> bool:
    """Whether GPU `device_index` can be used."""
    return 0 <= device_index < get_device_count()


def get_current_device() -> int:
    """Index of the GPU in use by this thread ("cuda" without an index); -1 where there is none."""
    return _cupy().cuda.runtime.getDevice() if is_available() else -1


def set_device(device_index: int) -> bool:
    """Makes GPU `device_index` the one that this thread means by "cuda"; returns whether that worked."""
    if not is_device_available(device_index):
        return False
    _cupy().cuda.Device(device_index).use()
    return True


def get_device_properties(device_index: int) -> str:
    """A line on GPU `device_index`: name, compute capability, memory, multiprocessors.

    Raises:
        RuntimeError: there is no such GPU.
    """
    _require(device_index)
    p = _cupy().cuda.runtime.getDeviceProperties(device_index)
    return (
        f"{p['name'].decode()}, compute capability {p['major']}.{p['minor']}, "
        f"{p['totalGlobalMem'] / 2**30:.1f} GiB, {p['multiProcessorCount']} multiprocessors"
    )


def get_device_memory(device_index: int) -> tuple[int, int]:
    """(total, free) bytes of GPU `device_index`.

    Raises:
        RuntimeError: there is no such GPU.
    """
    _require(device_index)
    with _cupy().cuda.Device(device_index):
        free, total = _cupy().cuda.runtime.memGetInfo()
    return total, free


def get_device_uuid(device_index: int) -> str:
    """The identity of the GPU that has `device_index` in this process, as `nvidia-smi -L` prints it.

    Of a physical GPU GPU-..., of a part of one (MIG) MIG-...

    Raises:
        RuntimeError: there is no such GPU, or it does not tell.
    """
    _require(device_index)
    from cuda.bindings import driver  # CuPy's properties end the UUID at its first zero byte, and tell none of a part

    # Of CUDA 12 the function without _v2 gives the whole GPU's, of later versions it is the one with it.
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    for call in (lambda: driver.cuInit(0), lambda: get_uuid(device_index)):
        status, *uuid = call()
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {device_index} does not tell its UUID: {status.name}")
    is_part = " MIG " in get_device_properties(device_index)  # NVIDIA A100-SXM4-40GB MIG 1g.5gb
    return f"{'MIG' if is_part else 'GPU'}-{UUID(bytes=uuid[0].bytes)}"


def device_name(device: str) -> str:
    """`device` with its index: "cuda" becomes "cuda:<current GPU>".

    Raises:
        ValueError: neither "cpu", "cuda" nor "cuda:<index>".
    """
    kind, colon, index = device.partition(":") if isinstance(device, str) else ("", "", "")
    if device == "cpu" or (kind == "cuda" and (index.isdecimal() if colon else True)):
        return device if colon or kind == "cpu" else f"cuda:{max(0, get_current_device())}"
    raise ValueError(f'unknown device {device!r}: expected "cpu", "cuda" or "cuda:<index>"')


def _require(device_index: int) -> None:
    if not is_device_available(device_index):
        reason = why_not() or f"there are {get_device_count()}"
        raise RuntimeError(f"no GPU {device_index}: {reason}")


def _cupy() -> ModuleType:
    from pytagi_ddp.kernels.cuda import array  # here, because CuPy is loaded only where a GPU is used

    return array.cupy

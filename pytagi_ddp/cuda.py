"""The GPUs of this machine, and options for their use.

The first call imports CuPy. Functions that ask about GPUs raise no error if there is no GPU, driver or CuPy.

Attributes:
    allow_tf32: matrix products may round their factors to TF32 (10 bits of mantissa) and use tensor cores, on GPUs of
        compute capability 8.0 and later. False by default, as in PyTorch: variances are often far smaller than means.
    replay_launches: the launches and copies of a training step are recorded in the second step of a batch size. From
        then on they are replayed, and Python no longer visits the layers. True by default. After a change of the batch
        size, mode, options, or of a layer's `eps` or `momentum`, for example, the step is recorded again.
    use_graphs: the same with CUDA graphs, which also saves the calls to the driver (about 190 launches for a ResNet18
        step). False by default until it has been measured on a GPU. `python -m pytagi_ddp.doctor --gpu` checks that
        graphs give the same bits as single launches.
"""

import os
import sys
import warnings
from ctypes import CDLL, byref, c_int
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from uuid import UUID

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.text import first_sentence

allow_tf32: bool = False
replay_launches: bool = True
use_graphs: bool = False

_NEEDED = ("cupy", "numba_cuda")  # modules
_PACKAGES = {  # the packages with these modules, for each extra of this library
    "cuda": ("cupy-cuda13x[ctk]", "numba-cuda[cu13]"),
    "cuda12": ("cupy-cuda12x[ctk]", "numba-cuda[cu12]"),
}
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def why_not() -> str | None:
    """Why networks cannot move to a GPU, and what to do about it; None if they can."""
    global _failure
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
    if _failure is None:
        try:
            return _why_no_gpu(_cupy())
        except Exception as error:  # whatever a broken package raises
            _failure = _what_failed(error)
    return _failure


_failure: str | None = None  # kept, as another import of a module that has failed may say something else


def _why_no_gpu(cupy: ModuleType) -> str | None:
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"CUDA does not start: {error}{_remedy(runtime.runtimeGetVersion())}"
    return None if count else f"CUDA sees no GPU{_remedy(0)}"


def _what_failed(error: BaseException) -> str:
    """Which of the packages does not load, and why: by the first error in the chain, as CuPy wraps it in advice."""
    numba_cuda_loads = "pytagi_ddp.kernels.cuda.runtime.compile" in sys.modules
    package = "CuPy" if numba_cuda_loads else "numba-cuda"
    while error.__cause__ is not None:
        error = error.__cause__
    reason = f"{type(error).__name__}: {first_sentence(str(error))}"
    driver = driver_version()
    extra = None if driver is None else extra_for(driver)
    remedy = f"try pip install --force-reinstall 'pytagi-ddp[{extra}]'" if extra else "networks run on the CPU"
    return f"{package} does not load: {reason}; {remedy}"


def driver_version() -> int | None:
    """The CUDA version of the installed driver, such as 12080 for 12.8; 0 if unknown, None without a driver."""
    version = c_int(0)
    try:
        CDLL("libcuda.so.1").cuDriverGetVersion(byref(version))
    except OSError:
        return None
    except AttributeError:
        return 0
    return version.value


def extra_for(driver: int) -> str | None:
    """The extra of this library that fits a driver of this version (0: unknown); None if the driver is too old."""
    if 0 < driver < 13000:
        return "cuda12" if driver >= 12000 else None
    return "cuda"


def _too_old(driver: int) -> str:
    return (
        f"the driver is for CUDA {driver // 1000}.{driver % 1000 // 10}, and at least 12.0 is needed: install a driver "
        "of version 525 or later"
    )


def _remedy(runtime: int) -> str:
    """What to do if CUDA does not start or sees no GPU: the runtime may be newer than the driver, or GPUs hidden."""
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
    from pytagi_ddp.kernels.cuda.runtime import array  # here, because CuPy is loaded only where a GPU is used

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's, where it does not find the library
        try:
            return bool(array.nccl().available)
        except Exception:  # whatever a broken package raises
            return False


def get_device_count() -> int:
    """The number of GPUs that this library can use."""
    return _cupy().cuda.runtime.getDeviceCount() if is_available() else 0


def is_device_available(device_index: int) -> bool:
    """Whether GPU `device_index` can be used."""
    return 0 <= device_index < get_device_count()


def get_current_device() -> int:
    """Index of the GPU that this thread uses ("cuda" without an index); -1 if there is none."""
    return _cupy().cuda.runtime.getDevice() if is_available() else -1


def set_device(device_index: int) -> bool:
    """Makes GPU `device_index` the meaning of "cuda" in this thread; returns whether there is such a GPU."""
    if not is_device_available(device_index):
        return False
    _cupy().cuda.Device(device_index).use()
    return True


def get_device_properties(device_index: int) -> str:
    """A line of text about GPU `device_index`: name, compute capability, memory, multiprocessors.

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

    It begins with "GPU-", or, for a part of a GPU (MIG), with "MIG-".

    Raises:
        RuntimeError: there is no such GPU, or CUDA does not report its identity.
    """
    _require(device_index)
    from cuda.bindings import driver  # CuPy cuts the UUID off at its first zero byte, and has none for a MIG part

    # In CUDA 12 the function without _v2 gives the UUID of the whole GPU; in later versions it is that with _v2.
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
        return "cpu" if kind == "cpu" else f"cuda:{int(index) if colon else max(0, get_current_device())}"
    raise ValueError(f'unknown device {device!r}: expected "cpu", "cuda" or "cuda:<index>"')


def _require(device_index: int) -> None:
    if not is_device_available(device_index):
        reason = why_not() or f"there are {get_device_count()}"
        raise RuntimeError(f"no GPU {device_index}: {reason}")


@cache
@held_back(always=True)  # no later import would mend a part of Numba
def _cupy() -> ModuleType:
    # Here, because they are loaded only where a GPU is used: numba-cuda, and then CuPy (see `_what_failed`).
    import pytagi_ddp.kernels.cuda.runtime.compile  # noqa: F401
    from pytagi_ddp.kernels.cuda.runtime import array

    return array.cupy

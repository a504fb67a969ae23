"""What the machine offers in GPUs, and how they are used.

Asking costs an import of CuPy at the first call, and never raises where something is missing: no GPU, no driver, no
CuPy, or the simulator (in which `Sequential.to_device("cuda")` works, on the CPU, for tests).

Attributes:
    allow_tf32: matrix products may round their factors to TF32 (10 bits of mantissa) and use tensor cores, on GPUs of
        compute capability 8.0 and later. False by default, as in PyTorch: variances are often far smaller than means.
    replay_launches: the launches and copies of a training step are recorded in the second step of a batch size, and
        from then on queued again as they were, without a walk through the layers in Python. True by default. What
        changes them (batch size, mode, options, a layer's `eps` or `momentum`, ...) is seen, and recorded anew.
    use_graphs: likewise, but as CUDA graphs, which also saves the host the calls to the driver (some 340 launches for
        a ResNet18 step). False by default until it has been measured on a GPU.
"""

import sys
import warnings
from ctypes import CDLL
from importlib.util import find_spec
from types import ModuleType
from uuid import UUID

allow_tf32: bool = False
replay_launches: bool = True
use_graphs: bool = False

_NEEDED = {"cupy": "cupy-cuda13x[ctk]", "numba_cuda": "numba-cuda[cu13]"}


def is_simulated() -> bool:
    """Whether NUMBA_ENABLE_CUDASIM=1 makes "cuda" a simulator on the CPU."""
    import numba  # here, because `import pytagi_ddp` shall not wait for it

    return bool(numba.config.ENABLE_CUDASIM)


def why_not() -> str | None:
    """What keeps networks from moving to a GPU, and the remedy; None if nothing does."""
    if is_simulated():
        return "NUMBA_ENABLE_CUDASIM is set: kernels run in a simulator"
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing and not _has_driver():
        return "this machine has no driver for NVIDIA GPUs (libcuda); networks run on the CPU"
    if missing:
        return f"not installed: {', '.join(missing)}; try pip install 'pytagi-ddp[cuda]'"
    cupy = _cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA does not start: {error}"
    return None if count else "CUDA sees no GPU; is CUDA_VISIBLE_DEVICES empty?"


def _has_driver() -> bool:
    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


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
    """The identity of the physical GPU that has `device_index` in this process, as nvidia-smi prints it.

    Raises:
        RuntimeError: there is no such GPU, or it does not tell.
    """
    _require(device_index)
    from cuda.bindings import runtime  # CuPy's properties end the UUID at its first zero byte

    status, properties = runtime.cudaGetDeviceProperties(device_index)
    if status != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"GPU {device_index} does not tell its UUID: {status.name}")
    return f"GPU-{UUID(bytes=properties.uuid.bytes)}"


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

"""Numeric kernels: `formulas` (scalar moment formulas), `cpu` and `cuda` (loops over them).

A layer asks for its kernels once, by device, and then calls `kernels.linear.forward(...)` without knowing where
it runs. This is the only place that looks at the device.
"""

from functools import cache
from importlib import import_module
from types import ModuleType, SimpleNamespace

from pytagi_ddp import cuda as devices


def get_kernels(device: str) -> ModuleType | SimpleNamespace:
    """The kernel modules for `device`: "cpu", "cuda:<index>", or "cuda" for the current GPU. Equal names, same object.

    Raises:
        ValueError: unknown device name.
        RuntimeError: a device that is not there, or that this installation cannot use; the message says why.
    """
    return _kernels(device if device == "cpu" else devices.device_name(device))


@cache
def _kernels(device: str) -> ModuleType | SimpleNamespace:
    if device == "cpu":
        return import_module("pytagi_ddp.kernels.cpu")
    index = int(device.removeprefix("cuda:"))
    if not (devices.is_simulated() or devices.is_device_available(index)):
        reason = devices.why_not() or f"there are {devices.get_device_count()} GPUs"
        raise RuntimeError(f"device {device!r} cannot be used: {reason}")
    package = import_module("pytagi_ddp.kernels.cuda")
    modules = {name: getattr(package, name) for name in package.__all__}
    return SimpleNamespace(**modules | {"array": package.array.arrays(index)})

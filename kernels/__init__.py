"""Numeric kernels: `formulas` (scalar moment formulas), `cpu` and `cuda` (loops over them).

A layer gets its kernels once, by device, and then calls `kernels.linear.forward(...)` on any device. `protocol`
declares the modules and functions of kernels. Only this file depends on the device.
"""

from functools import cache, partial
from importlib import import_module
from types import ModuleType, SimpleNamespace

from pytagi_ddp import cuda as devices
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.kernels.protocol import Kernels

PRECISIONS = ("float32", "mixed")


def get_kernels(device: str, precision: str = "float32") -> Kernels:
    """The kernel modules of a device. Calls with the same arguments return the same object.

    Args:
        device: where the kernels run: "cpu", "cuda:<index>", or "cuda" for the current GPU.
        precision: "float32", or "mixed" for bfloat16 factors in the products that variances are made of. "mixed" needs
            a CPU that has the instructions.

    Raises:
        ValueError: unknown device name or precision.
        RuntimeError: the device does not exist, this installation cannot use it, or it does not support the precision;
            the message says why.
    """
    if precision not in PRECISIONS:
        raise ValueError(f'unknown precision {precision!r}: expected "float32" or "mixed"')
    return _kernels(device if device == "cpu" else devices.device_name(device), precision)


@cache
@held_back(always=True)  # no later import would mend a part of Numba
def _kernels(device: str, precision: str) -> Kernels:
    if device == "cpu":
        package = import_module("pytagi_ddp.kernels.cpu")
        return package if precision == "float32" else _mixed(package)
    if precision == "mixed":
        raise RuntimeError(
            f'precision "mixed" works on CPUs only, not on {device!r}: keep "float32", and set '
            "pytagi_ddp.cuda.allow_tf32 = True for faster products on a GPU"
        )
    index = int(device.removeprefix("cuda:"))
    if not devices.is_device_available(index):
        reason = devices.why_not() or f"there are {devices.get_device_count()} GPUs"
        raise RuntimeError(f"device {device!r} cannot be used: {reason}")
    package = import_module("pytagi_ddp.kernels.cuda")
    modules = {name: getattr(package, name) for name in package.__all__}
    return SimpleNamespace(**modules | {"array": package.array.arrays(index)})


def _mixed(package: ModuleType) -> SimpleNamespace:
    """The kernels of `package` with bfloat16 products in dense layers and convolutions."""
    reason = package.linear.why_not_mixed()
    if reason:
        raise RuntimeError(f'precision "mixed" cannot be used: {reason}; keep "float32"')
    modules = {name: getattr(package, name) for name in package.__all__}
    for name in ("linear", "conv2d", "convtranspose2d"):
        forward, backward = (partial(getattr(modules[name], way), mixed=True) for way in ("forward", "backward"))
        modules[name] = SimpleNamespace(**vars(modules[name]) | {"forward": forward, "backward": backward})
    return SimpleNamespace(**modules)

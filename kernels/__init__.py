"""Numeric kernels: `formulas` (scalar moment formulas), `cpu` (loops over them), later `cuda`.

A layer asks for its kernels once, by device, and then calls `kernels.linear.forward(...)` without knowing where
it runs. This is the only place that looks at the device.
"""

from importlib import import_module
from types import ModuleType

_MODULES = {"cpu": "pytagi_ddp.kernels.cpu"}


def get_kernels(device: str) -> ModuleType:
    """The kernel modules for `device` ("cpu"; "cuda" and "cuda:<index>" are not in this version).

    Raises:
        ValueError: unknown device name.
        RuntimeError: a known kind of device that this installation cannot run on.
    """
    kind, _, index = device.partition(":") if isinstance(device, str) else (None, "", "")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f'unknown device {device!r}: expected "cpu", "cuda" or "cuda:<index>"')
    if kind not in _MODULES:
        raise RuntimeError(f'device {device!r}: this version has no CUDA kernels; use "cpu"')
    return import_module(_MODULES[kind])

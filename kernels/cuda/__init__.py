"""CUDA kernels: the files, functions and argument order of `kernels.cpu`, over CuPy arrays.

Importing this package does not import numba.cuda or CuPy; modules are imported at their first use.
"""

from importlib import import_module

from pytagi_ddp.kernels.protocol import Kernels

__all__ = [*Kernels.__annotations__]


def __getattr__(name: str):
    if name in __all__:
        room = "runtime" if name in ("array", "graph") else "layers"
        return import_module(f"{__name__}.{room}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Imports compiled kernel modules."""

import contextlib
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from zipimport import zipimporter

from pytagi_ddp.kernels.cpu.runtime.waiting import bounded

KERNELS = "pytagi_ddp.kernels.cpu"
CYTHON_BLAS = "scipy.linalg.cython_blas"  # imported by compiled modules, which tools for applications cannot see
FROZEN = getattr(sys, "frozen", False)  # by PyInstaller, for example
LARGEST = 1 << 30  # as in products/_blas.pxd


def load(name: str) -> ModuleType:
    """The extension module `pytagi_ddp.kernels.cpu.<name>`, as in `load("products._blas")`.

    Raises:
        ImportError: it has not been built, or is not in the application; the message says what to do.
    """
    full_name = f"{KERNELS}.{name}"
    try:
        with _blas_alone(), bounded():
            return import_module(full_name)
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name != full_name and not (FROZEN and name.startswith("scipy.linalg")):
            raise
        raise ImportError(_advice(name)) from error


def _advice(missing: str) -> str:
    if FROZEN:
        return (
            f"{missing} is missing in this application: include it when you build the application, with PyInstaller by "
            f"`--collect-submodules pytagi_ddp --hidden-import {CYTHON_BLAS}`"
        )
    if isinstance(loader := __spec__.loader, zipimporter):
        return f"{missing} is a compiled module, which Python cannot load from a zip file: unpack {loader.archive}"
    return f"{missing} is not built: run `pip install -e .` in the source tree, with this Python and a C compiler"


@contextlib.contextmanager
def _blas_alone() -> Iterator[None]:
    """Provides `scipy.linalg.cython_blas` without the rest of `scipy.linalg`, which takes 0.08 s to import.

    Afterwards `scipy.linalg` can be imported as usual.
    """
    spec = None
    if not {"scipy.linalg", f"{KERNELS}.products._blas"} & sys.modules.keys():
        import scipy

        spec = PathFinder.find_spec(CYTHON_BLAS, [str(Path(folder, "linalg")) for folder in scipy.__path__])
    if spec is None:
        yield
        return
    sys.modules[CYTHON_BLAS] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield
    finally:
        del sys.modules[CYTHON_BLAS]


def size_error(call: str, **arrays) -> ValueError:
    """The error for a call whose arrays do not fit together, with the shape of each."""
    shapes = ", ".join(f"{name} {None if array is None else tuple(array.shape)}" for name, array in arrays.items())
    large = any(max(math.prod(a.shape[:-1]), a.shape[-1]) >= LARGEST for a in arrays.values() if a is not None)
    hint = f"; a batch has fewer than {LARGEST} rows, pixels and columns: make it smaller" if large else ""
    return ValueError(f"{call}: shapes do not fit together: {shapes}{hint}")

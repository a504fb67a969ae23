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

from pytagi_ddp.kernels.cpu.runtime.waiting import bounded

KERNELS = "pytagi_ddp.kernels.cpu"
LARGEST = 1 << 30  # as in products/_blas.pxd


def load(name: str) -> ModuleType:
    """The extension module `pytagi_ddp.kernels.cpu.<name>`, as in `load("products._blas")`.

    Raises:
        ImportError: it has not been built.
    """
    full_name = f"{KERNELS}.{name}"
    try:
        with _blas_alone(), bounded():
            return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        raise ImportError(
            f"{full_name} is not built: run `pip install -e .` in the source tree, with this Python and a C compiler"
        ) from error


@contextlib.contextmanager
def _blas_alone() -> Iterator[None]:
    """Provides `scipy.linalg.cython_blas` without the rest of `scipy.linalg`, which takes 0.08 s to import.

    Afterwards `scipy.linalg` can be imported as usual.
    """
    name = "scipy.linalg.cython_blas"
    spec = None
    if not {"scipy.linalg", f"{KERNELS}.products._blas"} & sys.modules.keys():
        import scipy

        spec = PathFinder.find_spec(name, [str(Path(folder, "linalg")) for folder in scipy.__path__])
    if spec is None:
        yield
        return
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield
    finally:
        del sys.modules[name]


def size_error(call: str, **arrays) -> ValueError:
    """The error for a call whose arrays do not fit together, with the shape of each."""
    shapes = ", ".join(f"{name} {None if array is None else tuple(array.shape)}" for name, array in arrays.items())
    large = any(max(math.prod(a.shape[:-1]), a.shape[-1]) >= LARGEST for a in arrays.values() if a is not None)
    hint = f"; a batch has fewer than {LARGEST} rows, pixels and columns: make it smaller" if large else ""
    return ValueError(f"{call}: shapes do not fit together: {shapes}{hint}")

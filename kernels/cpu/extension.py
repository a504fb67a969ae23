"""Imports a compiled kernel module, or says how to build it."""

from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """The extension module `pytagi_ddp.kernels.cpu.<name>`.

    Raises:
        ImportError: it has not been built.
    """
    full_name = f"{__package__}.{name}"
    try:
        return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        raise ImportError(
            f"{full_name} is not built: run `pip install -e .` in the source tree, with this Python and a C compiler"
        ) from error


def size_error(call: str, **arrays) -> ValueError:
    """The error for a call whose arrays do not fit together: it names the shape of each."""
    shapes = ", ".join(f"{name} {None if array is None else tuple(array.shape)}" for name, array in arrays.items())
    return ValueError(f"{call}: shapes do not fit together: {shapes}")

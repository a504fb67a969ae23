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

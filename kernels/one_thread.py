"""A guard that notices when several threads use one network, whatever its device."""

from typing import Any


def one_thread() -> Any:
    """Returns a new `OneThread` (`kernels.cpu.runtime._one_thread`): only one thread may be inside of this context."""
    from pytagi_ddp.kernels.cpu.runtime.extension import load  # here, as importing the library loads no kernels

    return load("runtime._one_thread").OneThread()

"""A guard that detects several threads in one network, on any device."""

from typing import Any


def one_thread() -> Any:
    """Returns a new `OneThread` (`kernels.cpu.runtime._one_thread`), a context for only one thread at a time."""
    from pytagi_ddp.kernels.cpu.runtime.extension import load  # here, so that imports load no kernels

    return load("runtime._one_thread").OneThread()

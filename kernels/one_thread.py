"""A guard that notices when several threads use one network, whatever its device."""

from typing import Any


def one_thread() -> Any:
    """Returns a new `kernels.cpu._one_thread.OneThread`, a context manager that only one thread may be inside of."""
    from pytagi_ddp.kernels.cpu.extension import load  # here, as importing the library loads no kernels

    return load("_one_thread").OneThread()

"""What notices several threads in one network, whatever its device."""

from typing import Any


def one_thread() -> Any:
    """Returns a new `kernels.cpu._one_thread.OneThread`: `with` it, a thread works alone."""
    from pytagi_ddp.kernels.cpu.extension import load  # here, as importing the library loads no kernels

    return load("_one_thread").OneThread()

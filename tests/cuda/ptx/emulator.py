"""What other folders may import of the emulator (`README.md`). Its plugin of pytest is `tests.cuda.ptx.plugin`."""

from tests.cuda import compile_report
from tests.cuda.ptx import machine


def missing() -> str | None:
    """What this machine lacks to compile kernels and to run them, or None."""
    return machine.missing() or compile_report.missing()


def stand_in(identity: int = 0, running: bool = True) -> None:
    """From now on this process has one GPU of compute capability 8.0, the emulator. CuPy must not be imported yet.

    Args:
        identity: which GPU it is, among those of other processes.
        running: False if launches and copies on the device do nothing, and arrays are zero.
    """
    from tests.cuda.ptx import stand_in as made  # needs numba-cuda

    made.stand_in(identity)
    if not running:
        made.without_running()

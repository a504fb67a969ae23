"""Finds the BLAS, and its kernels for a processor, that multiply matrices on this machine's CPU."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

VARIABLE = "OPENBLAS_CORETYPE"
UNKNOWN = "unknown processor"


class Blas(NamedTuple):
    """SciPy's BLAS, which multiplies matrices in this library.

    Attributes:
        library: name and version. kernels: the processor for which its kernels are made.
        pin: value of OPENBLAS_CORETYPE, which selects the kernels; None: OpenBLAS chose them for the present CPU.
        unpinned: the kernels that it would use without that variable.
    """

    library: str
    kernels: str
    pin: str | None
    unpinned: str

    def __str__(self) -> str:
        text = f"{self.library} with kernels for {self.kernels}"
        if self.pin is None:
            return text
        return f"{text}, pinned by {VARIABLE}={self.pin} (without it: {self.unpinned})"

    @property
    def advice(self) -> str:
        """What to do if the kernels are not those for this CPU; "" if they are."""
        if self.unpinned in (self.kernels, UNKNOWN):
            return ""
        return f"unset {VARIABLE}: kernels for another CPU may take twice the time; figures are to be taken without it"


def blas_in_use() -> Blas:
    """Finds the kernels. If they are pinned, another process finds those that would be used without the variable."""
    library, kernels = loaded()
    pin = os.environ.get(VARIABLE) if library.startswith("openblas") else None
    return Blas(library, kernels, pin, kernels if pin is None else _unpinned())


def loaded() -> tuple[str, str]:
    """(library, kernels) of SciPy's BLAS in this process."""
    import scipy.linalg  # noqa: F401 - loads its BLAS
    from threadpoolctl import threadpool_info

    for pool in threadpool_info():
        if pool["user_api"] == "blas" and "numpy.libs" not in pool["filepath"]:  # NumPy's wheel has one of its own
            return f"{pool['internal_api']} {pool['version']}", pool.get("architecture", UNKNOWN)
    return "unknown library", UNKNOWN


def _unpinned() -> str:
    import subprocess  # here, as the kernels import this module, too

    code = "from pytagi_ddp.blas import loaded; print(loaded()[1])"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout.strip() or UNKNOWN

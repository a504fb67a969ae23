"""Which kernels multiply the matrices on this machine's CPU."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

VARIABLE = "OPENBLAS_CORETYPE"
UNKNOWN = "unknown processor"


class Blas(NamedTuple):
    """SciPy's BLAS, which multiplies matrices here.

    Attributes:
        library: name and version. kernels: the processor that its kernels are made for.
        pin: OPENBLAS_CORETYPE, which sets them; None: OpenBLAS chose by the CPU it runs on.
        unpinned: the kernels that it takes without that variable.
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
        """What to do about kernels that are not the ones for this CPU; "" if they are."""
        if self.unpinned in (self.kernels, UNKNOWN):
            return ""
        return f"unset {VARIABLE}: kernels for another CPU may take twice the time; figures are to be taken without it"


def blas_in_use() -> Blas:
    """Names the kernels; where they are pinned, a process without the variable is asked too."""
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

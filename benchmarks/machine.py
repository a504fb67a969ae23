"""On what the numbers were taken: processor, BLAS, cores, memory, load, versions."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe() -> dict:
    """CPU model, vector units, BLAS and its kernels, cores, memory in bytes, load, versions of Python and system.

    No name of the host, no paths.
    """
    from pytagi_ddp.blas import blas_in_use
    from pytagi_ddp.kernels.cpu.runtime.threads import usable_cores

    info = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", info, re.MULTILINE)
    vectors = [f for f in (flags[1].split() if flags else ()) if re.fullmatch(r"avx2|avx512f|avx512_bf16|amx_bf16", f)]
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "vectors": vectors,
        "blas": blas_in_use()._asdict(),
        "cores": usable_cores(),
        "memory": int(memory[1]) * 1024 if memory else 0,
        "load": list(os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

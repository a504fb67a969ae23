"""On what the numbers were taken: processor, cores, memory, load, versions."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe() -> dict:
    """CPU model and vector units, usable cores, memory in bytes, load average, versions of Python and the kernel.

    No name of the host, no paths.
    """
    from pytagi_ddp.kernels.cpu.threads import usable_cores

    info = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", info, re.MULTILINE)
    vectors = [f for f in (flags[1].split() if flags else ()) if re.fullmatch(r"avx2|avx512f|avx512_bf16|amx_bf16", f)]
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "vectors": vectors,
        "cores": usable_cores(),
        "memory": int(memory[1]) * 1024 if memory else 0,
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

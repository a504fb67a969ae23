"""The CPU quota of this process, set by its control groups.

A container or a batch system may limit a process to the time of 1.5 cores on a machine of 64 cores. With more threads
than that, all of them are stopped for the rest of each period (0.1 s) once the quota is used up.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytagi_ddp.text import text_of

PROCESS = Path("/proc/self")


def cpu_quota() -> float:
    """CPU time in cores: the smallest quota of this process' control groups and their parents, or infinity.

    It reads both versions of control groups, because a system may have both.
    """
    return min((quota for group in _groups() for quota in _quotas(group)), default=float("inf"))


def _groups() -> Iterator[Path]:
    """The folders of the control groups of this process, from the innermost to the outermost visible one."""
    with contextlib.suppress(OSError, ValueError):  # there are no control groups
        own = {}  # path of the process' group, by controller ("" for version 2)
        for line in text_of(PROCESS / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
        for line in text_of(PROCESS / "mountinfo").splitlines():
            mount, _, filesystem = line.partition(" - ")
            kind, *_, options = filesystem.split()
            controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
            if controller not in own or (kind == "cgroup" and "cpu" not in options.split(",")):
                continue
            root, folder = mount.split()[3:5]  # the mounted group: a container sees a part of the tree
            inside = os.path.relpath(own[controller], root)
            top = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder))  # spaces are written as \040
            group = top if ".." in inside else top / inside
            yield from (group, *(outer for outer in group.parents if outer.is_relative_to(top)))


def _quotas(group: Path) -> Iterator[float]:
    """The quota of one group, if it has one: CPU time divided by the length of a period."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # version 2, version 1
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
            quota, period = " ".join(text_of(group / name) for name in names).split()
            if int(quota) > 0:
                yield int(quota) / int(period)

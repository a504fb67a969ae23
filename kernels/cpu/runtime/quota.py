"""How much CPU time the control groups of this process allow it.

A container or a batch system may give a process 1.5 cores' time on a machine of 64 cores. With more threads than that,
all of them are stopped for the rest of each period (0.1 s) as soon as the quota is used up.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

PROCESS = Path("/proc/self")


def cpu_quota() -> float:
    """Cores' worth of CPU time: the smallest quota of this process' control groups and those around them, or infinity.

    Reads both versions of control groups, as a system may have both.
    """
    return min((quota for group in _groups() for quota in _quotas(group)), default=float("inf"))


def _groups() -> Iterator[Path]:
    """The folders of the control groups that this process is in, from the inmost one to the outmost that is visible."""
    with contextlib.suppress(OSError, ValueError):  # no control groups, or something else in their place
        own = {}  # path of the process' group, by controller; that of version 2 has no name
        for line in (PROCESS / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
        for line in (PROCESS / "mountinfo").read_text().splitlines():
            mount, _, filesystem = line.partition(" - ")
            kind, *_, options = filesystem.split()
            controller = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
            if controller not in own or (kind == "cgroup" and "cpu" not in options.split(",")):
                continue
            root, folder = mount.split()[3:5]  # the group that is mounted here: a container sees a part of the tree
            inside = os.path.relpath(own[controller], root)
            top = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder))  # spaces are written as \040
            group = top if ".." in inside else top / inside
            yield from (group, *(outer for outer in group.parents if outer.is_relative_to(top)))


def _quotas(group: Path) -> Iterator[float]:
    """The quota of one group, if it has one: microseconds of CPU time over the length of a period in microseconds."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # version 2, version 1
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if int(quota) > 0:
                yield int(quota) / int(period)

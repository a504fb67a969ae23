"""The limits of CPU time and memory of this process, set by its control groups.

A container or a batch system may limit a process to the time of 1.5 cores on a machine of 64 cores. With more threads
than that, all of them are stopped for the rest of each period (0.1 s) once the quota is used up. A process that takes
more memory than its limit is killed.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytagi_ddp.text import text_of

PROCESS = Path("/proc/self")


def cpu_quota() -> float:
    """CPU time in cores: the smallest quota of this process' control groups and their parents, or infinity."""
    files = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    found = [numbers for numbers in _settings("cpu", files) if len(numbers) == 2]
    return min((quota / period for quota, period in found if quota > 0 < period), default=float("inf"))


def memory_limit() -> float:
    """Bytes of memory: the smallest limit of this process' control groups and their parents, or infinity."""
    files = (["memory.max"], ["memory.limit_in_bytes"])
    return min((limit for limits in _settings("memory", files) for limit in limits), default=float("inf"))


def _settings(controller: str, files: tuple[list[str], list[str]]) -> Iterator[list[int]]:
    """The numbers in the files of a setting, in each group that has them.

    Args:
        files: the names in version 2 and in version 1 of control groups. A system may have both versions.
    """
    for group in _groups(controller):
        for names in files:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                yield [int(word) for name in names for word in text_of(group / name).split()]


def _groups(name: str) -> Iterator[Path]:
    """The folders of the groups of this process for one controller, from the innermost to the outermost visible one."""
    with contextlib.suppress(OSError, ValueError):  # there are no control groups
        own = {}  # path of the process' group, by controller ("" for version 2)
        for line in text_of(PROCESS / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
        for line in text_of(PROCESS / "mountinfo").splitlines():
            mount, _, filesystem = line.partition(" - ")
            kind, *_, options = filesystem.split()
            controller = {"cgroup": name, "cgroup2": ""}.get(kind)
            if controller not in own or (kind == "cgroup" and name not in options.split(",")):
                continue
            root, folder = mount.split()[3:5]  # the mounted group: a container sees a part of the tree
            inside = os.path.relpath(own[controller], root)
            top = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder))  # spaces are written as \040
            group = top if ".." in inside else top / inside
            yield from (group, *(outer for outer in group.parents if outer.is_relative_to(top)))

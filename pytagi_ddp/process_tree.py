"""The processes that have started this one, and those that a process has started, from Linux's /proc."""

from collections.abc import Container
from pathlib import Path


def ancestor(names: Container[str]) -> Path | None:
    """The last one of `line_up_to`: the nearest process above this one that has one of these names, if there is any."""
    return next(reversed(line_up_to(names)), None)


def line_up_to(names: Container[str]) -> list[Path]:
    """This process and those above it up to the nearest that has one of these names; empty if there is none.

    Args:
        names: of programs, without what follows a dot; the kernel keeps their first 15 characters.

    Returns:
        Their folders in /proc.
    """
    line = []
    try:
        process = Path("/proc/self").resolve()
        while process.name not in ("proc", "0", "1", "self"):
            line.append(process)
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            if name.partition(".")[0] in names:
                return line
            process = process.parent / rest.split()[1]
    except OSError:  # no such system, or a process that has just ended
        pass
    return []


def children(process: Path) -> list[Path]:
    """The processes that one has started and that have not been waited for.

    Raises:
        OSError: it has ended, or this kernel does not list them.
    """
    lists = [(thread / "children").read_text() for thread in (process / "task").iterdir()]
    return [process.parent / child for child in " ".join(lists).split()]


def is_alive(process: Path) -> bool:
    """Whether a process has not ended yet; a zombie has."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

"""Ancestors of this process, and children of a process, from Linux's /proc."""

from collections.abc import Container
from pathlib import Path

from pytagi_ddp.text import text_of


def ancestor(names: Container[str]) -> Path | None:
    """The nearest ancestor of this process (or itself) with one of these names, the last of `line_up_to`; or None."""
    return next(reversed(line_up_to(names)), None)


def line_up_to(names: Container[str]) -> list[Path]:
    """This process and its ancestors up to the nearest one with one of these names; empty if there is none.

    Args:
        names: names of programs up to the first dot; the kernel keeps only their first 15 characters.

    Returns:
        Their folders in /proc.
    """
    line = []
    try:
        process = Path("/proc/self").resolve()
        while process.name not in ("proc", "0", "1", "self"):
            line.append(process)
            name, _, rest = text_of(process / "stat").partition("(")[2].rpartition(")")
            if name.partition(".")[0] in names:
                return line
            process = process.parent / rest.split()[1]
    except OSError:  # no such system, or a process that has just ended
        pass
    return []


def children(process: Path) -> list[Path]:
    """The children of a process that it has not waited for.

    Raises:
        OSError: the process has ended, or this kernel does not list children.
    """
    lists = [text_of(thread / "children") for thread in (process / "task").iterdir()]
    return [process.parent / child for child in " ".join(lists).split()]


def is_alive(process: Path) -> bool:
    """Whether a process has not ended yet; a zombie counts as ended."""
    try:
        return text_of(process / "stat").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

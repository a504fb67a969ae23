"""Types of command-line options: a bad value becomes an error message of the command line instead of a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")


def at_least(least: int) -> Callable[[str], int]:
    """Integers that are not below `least`."""

    def integer(text: str) -> int:  # argparse names the type in its message about text that is not a number
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return integer


natural, positive_int = at_least(0), at_least(1)


def positive_float(text: str) -> float:
    """Numbers above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, got {text}")
    return value


def factor(text: str) -> float:
    """Numbers of at least 1."""
    value = float(text)
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 1 and finite, got {text}")
    return value


def share(text: str) -> float:
    """Numbers from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return value


def picture(text: str) -> str:
    """File names of pictures. They are checked at once, as pictures are drawn only at the end of a program."""
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"a picture has one of the endings {' '.join(PICTURES)}, got {text!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        )
    return text


positive_float.__name__ = factor.__name__ = share.__name__ = "number"

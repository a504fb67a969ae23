"""Types of command-line options: a bad value becomes an error message of the command line instead of a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Integers that are not below `least`."""

    def integer(text: str) -> int:  # argparse names the type in its message about text that is not a number
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return integer


def number_where(holds: Callable[[float], bool], words: str) -> Callable[[str], float]:
    """Numbers for which this holds, as the words say it."""

    def number(text: str) -> float:
        value = float(text)
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {words}, got {text}")
        return value

    return number


natural, positive_int = at_least(0), at_least(1)
positive_float = number_where(lambda value: 0 < value < float("inf"), "above 0 and finite")
factor = number_where(lambda value: 1 <= value < float("inf"), "at least 1 and finite")
share = number_where(lambda value: 0 <= value <= 1, "from 0 to 1")

"""How long ranks may wait for each other."""

from __future__ import annotations

import os

TIMEOUT = 300.0  # in a collective
EXIT_TIMEOUT = 3600.0  # at the end of the program, for ranks that still have work of their own


def time_limit(variable: str, default: float, value: float | None = None) -> float:
    """Seconds: `value`, else the environment variable, else the default.

    Raises:
        ValueError: not a number above 0; names where it came from.
    """
    text, source = (os.environ.get(variable, default), variable) if value is None else (value, "timeout")
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not limit > 0.0:
        raise ValueError(f"{source} must be a number of seconds above 0, got {text!r}")
    return limit

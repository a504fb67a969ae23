"""Warnings that name the line of the program, and not one inside this library."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_INSIDE = (__name__.partition(".")[0], "contextlib")  # this library, and what calls its functions that are decorated
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning for the line of the user's program that called the library.

    Python shows a warning once for each line. For a line inside the library, only the first caller would see it.
    """
    if _silent.get():
        return
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def silent(condition: bool = True) -> Iterator[None]:
    """Inside, `warn` does nothing in this thread, if the condition holds: where another rank warns."""
    before = _silent.set(condition)
    try:
        yield
    finally:
        _silent.reset(before)

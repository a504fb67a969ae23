"""Warnings that name the line of the program, and not one inside this library."""

import sys
import warnings

_INSIDE = (__name__.partition(".")[0], "contextlib")  # this library, and what calls its functions that are decorated


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning for the line of the user's program that called the library.

    Python shows a warning once for each line. For a line inside the library, only the first caller would see it.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)

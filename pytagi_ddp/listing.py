"""Lists of names in messages."""

from collections.abc import Sequence

MOST = 5


def some(names: Sequence[str]) -> str:
    """'a, b, c, d, e and 3 more'."""
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")

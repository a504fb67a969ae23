"""Lists of names in messages."""

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 5) -> str:
    """'a, b, c, d, e and 3 more'."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Text in columns."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows of equal length as lines; `align` has "<" (left) or ">" (right) for each column."""
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, width, strict=True)).rstrip() for row in rows
    )

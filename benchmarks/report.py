"""Numbers as text: quartiles, times with units, tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def duration(seconds: float) -> str:
    """Three digits and a unit: 12.3 ms."""
    factor, unit = (1, "s") if seconds >= 0.9995 else (1e3, "ms") if seconds >= 0.9995e-3 else (1e6, "us")
    value = seconds * factor
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def spread(values: Spread) -> str:
    return f"{duration(values.median)} ({duration(values.low)} to {duration(values.high)})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, whose columns also line up in a terminal; the first two are words, the rest numbers."""
    rows = [[str(cell) for cell in row] for row in rows]
    width = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    align = ["<" if k < 2 else ">" for k in range(len(header))]
    rule = ["-" * (w - (a == ">")) + (":" if a == ">" else "") for w, a in zip(width, align, strict=True)]
    lines = [[f"{cell:{a}{w}}" for cell, a, w in zip(row, align, width, strict=True)] for row in (header, *rows)]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Completed runs as lines of JSON. A run that was stopped continues after them."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read(path: Path) -> list[dict[str, Any]]:
    """The runs that are done; the last line may be cut short."""
    done = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            done.append(json.loads(line))
        except ValueError:
            print(f"{path}: a line that is not JSON is left out: {line[:60]}")
    return done


def of(done: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    """The runs that have these values."""
    return [one for one in done if values.items() <= one.items()]


class Runs(list[dict[str, Any]]):
    """The runs of a file: quick ones, or those that are a measurement."""

    def __init__(self, path: Path, quick: bool = False):
        super().__init__(one for one in read(path) if one.get("quick", False) == quick)
        self._path = path

    def add(self, one: dict[str, Any], text: str = "") -> None:
        """Appends a line after the last one, or after a truncated one, and prints the text."""
        path = self._path
        cut = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size
        with open(path, "a") as file:
            file.write(("\n" if cut else "") + json.dumps(one) + "\n")
        self.append(one)
        print(text, flush=True)


def parser_of(program: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all programs have."""
    parser = argparse.ArgumentParser(f"python -m benchmarks.{program}", description=(doc or "").partition("\n")[0])
    results = Path(f"{program.split()[-1]}.jsonl")
    parser.add_argument("--results", type=Path, default=results, help=f"what is done, one by line ({results})")
    parser.add_argument("--report", action="store_true", help="only tables of what is done")
    return parser


def loaded(load: Callable[..., T], *arguments: Any) -> T:
    """The result of `load`; ends the program with its error if there are no data."""
    try:
        return load(*arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def with_error(values: list[float], digits: int = 3) -> str:
    """Mean over runs and its standard error, which one run has none of."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else mean

"""What a training run leaves behind: a log of JSON lines, and its curves as a picture."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOG_NAME, PLOT_NAME = "log.jsonl", "curves.png"
MAX_LINE = 1 << 16  # bytes; a longer line is none of these
ERRORS = ("train_error", "test_error")


class RunLog:
    """Writes `log.jsonl` (one JSON object per line, each with "event" and "time") and `curves.png`.

    Args:
        folder: where; None: a new folder `runs/<date and time>`.
        append: add to a log that is there, instead of replacing it. A line that a full disk or a kill has cut short is
            ended there, and nobody misses it.

    Raises:
        OSError: the folder or the file cannot be written.
    """

    def __init__(self, folder: str | Path | None, append: bool = False):
        self.folder = _new_folder() if folder is None else Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / LOG_NAME
        with self._path.open("a+b" if append else "wb") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read() == b"\n" else b"\n")

    def write(self, event: str, **values) -> None:
        """Adds a line; `values` must be what JSON knows."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "time": round(time.time(), 3), **values}) + "\n")

    def plot(self) -> Path | None:
        """Draws the curves of all epochs in the log.

        Returns:
            The picture; None where matplotlib is not installed, or could not draw, which a line on standard error says.
        """
        if importlib.util.find_spec("matplotlib") is None:
            return None
        try:
            return self._draw()
        except Exception as error:  # whatever it is: the training is worth more than its picture
            print(f"{self.folder / PLOT_NAME} was not drawn: {error!r}", file=sys.stderr)
            return None

    def _draw(self) -> Path:
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        epochs = {record["epoch"]: record for record in read_epochs(self._path)}
        numbers = sorted(epochs)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="epoch", ylabel="error", ylim=(0, 1))
        for name in ERRORS:
            axes.plot(numbers, [epochs[n][name] for n in numbers], marker="o", label=name.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(self.folder / PLOT_NAME, dpi=150)
        return self.folder / PLOT_NAME


def read_epochs(path: Path) -> Iterator[dict]:
    """The records of finished epochs; lines that are cut short, damaged or of something else are passed over."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            try:
                record = json.loads(line)
                numbers = [record[name] for name in ("epoch", *ERRORS)] if record["event"] == "epoch" else [None]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if type(numbers[0]) is int and all(isinstance(number, int | float) for number in numbers):
                yield record


def _new_folder() -> Path:
    """`runs/<date and time>`, with a number behind it where two runs begin in the same second."""
    base = Path("runs", time.strftime("%Y-%m-%d_%H-%M-%S"))
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}_{number}")
    return folder

"""What a training run leaves behind: a log of JSON lines, and its curves as a picture."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.trackers import TRACKERS, Tracker
from pytagi_ddp import plot
from pytagi_ddp.files import check_replaceable

LOG_NAME, PLOT_NAME = "log.jsonl", "curves.png"


class RunLog:
    """Writes `log.jsonl` (one JSON object per line, each with "event" and "time") and `curves.png`.

    Args:
        folder: where; None: a new folder `runs/<date and time>`.
        append: add to a log that is there; else that one is kept as `log-1.jsonl`, or with the next number. A line that
            a full disk or a kill has cut short is ended there, and nobody misses it.
        track: names of `TRACKERS` that are told the same.

    Attributes:
        trackers: those; more may be added.

    Raises:
        OSError: the folder or the file cannot be written. RuntimeError: what tracks is not installed.
    """

    def __init__(self, folder: str | Path | None, append: bool = False, track: Sequence[str] = ()):
        self.folder = _new_folder() if folder is None else Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trackers: list[Tracker] = [TRACKERS[name](self.folder) for name in track]
        self._path = self.folder / LOG_NAME
        if self._path.exists() and not append:
            check_replaceable(self._path)
            numbered = (self.folder / f"{self._path.stem}-{k}{self._path.suffix}" for k in itertools.count(1))
            self._path.rename(next(path for path in numbered if not path.exists()))
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read() == b"\n" else b"\n")

    def write(self, event: str, **values: Any) -> None:
        """Adds a line; `values` must be what JSON knows."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "time": round(time.time(), 3), **values}) + "\n")
        for tracker in self.trackers:
            tracker.write(event, **values)

    def plot(self) -> Path | None:
        """Draws the curves of all epochs in the log.

        Returns:
            The picture; None where matplotlib is not installed, or could not draw, which a line on standard error says.
        """
        try:
            figure = plot.figure()
        except ImportError:
            return None
        try:
            plot.learning_curves(figure.add_subplot(), self._path)
            check_replaceable(self.folder / PLOT_NAME)
            figure.savefig(self.folder / PLOT_NAME, dpi=150)
        except Exception as error:  # whatever it is: the training is worth more than its picture
            print(f"{self.folder / PLOT_NAME} was not drawn: {error!r}", file=sys.stderr)
            return None
        return self.folder / PLOT_NAME


def _new_folder() -> Path:
    """Makes `runs/<date and time>`, with a number behind it where several runs begin in the same second."""
    base = Path("runs", time.strftime("%Y-%m-%d_%H-%M-%S"))
    number, folder = 1, base
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # maybe only just made by another run
            number += 1
            folder = base.with_name(f"{base.name}_{number}")

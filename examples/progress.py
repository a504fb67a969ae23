"""How far an epoch is: a bar for a terminal, or a line every few seconds for a file."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import timedelta

from tqdm import tqdm


class _Bar(tqdm):
    monitor_interval = 0  # tqdm would otherwise start a thread that outlives the bar


class BarProgress:
    """A bar on standard error with images/s, time left and the running error.

    Args:
        title: what is under way.
        total: images in the epoch, all ranks together.
    """

    def __init__(self, title: str, total: int):
        width = min(shutil.get_terminal_size().columns, 110)  # mpirun hides the terminal, $COLUMNS may tell
        self._bar = _Bar(total=total, desc=title, unit=" images", ncols=width, leave=False, file=sys.stderr)

    def update(self, done: int, error: float) -> None:
        """`done` images are through, or a few more; `error` is the share of wrong predictions so far."""
        done = min(done, self._bar.total)
        self._bar.set_postfix_str(f"train error {error:.1%}", refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()


class LineProgress:
    """A line on standard output with the same, at most every `seconds`.

    Args:
        title: what is under way.
        total: images in the epoch, all ranks together.
        seconds: time between two lines.
    """

    def __init__(self, title: str, total: int, seconds: float = 10.0):
        self._title, self._total, self._seconds = title, total, seconds
        self._start = self._printed = time.perf_counter()

    def update(self, done: int, error: float) -> None:
        """`done` images are through, or a few more; `error` is the share of wrong predictions so far."""
        now = time.perf_counter()
        if now - self._printed < self._seconds or done >= self._total:
            return
        self._printed = now
        rate = done / (now - self._start)
        left = timedelta(seconds=round((self._total - done) / rate))
        print(
            f"{self._title}: {done:,} of {self._total:,} images, {rate:.1f} images/s, {left} left, "
            f"train error {error:.1%}",
            flush=True,
        )

    def close(self) -> None:
        """Nothing is left open; the same interface as `BarProgress`."""


class NoProgress:
    """Shows nothing: for the other ranks."""

    def update(self, done: int, error: float) -> None:
        """Ignored."""

    def close(self) -> None:
        """Nothing is left open."""


Progress = BarProgress | LineProgress | NoProgress


def show_progress(mode: str, title: str, total: int) -> Progress:
    """The progress of an epoch, as rank 0 shows it.

    Args:
        mode: "bar", "lines", or "auto": a bar if standard error is a terminal.
        title: what is under way.
        total: images in the epoch, all ranks together.
    """
    bar = mode == "bar" or (mode == "auto" and sys.stderr.isatty())
    return BarProgress(title, total) if bar else LineProgress(title, total)

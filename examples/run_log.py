"""What a training run leaves behind: a log of JSON lines, and its curves as a picture."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

LOG_NAME, PLOT_NAME = "log.jsonl", "curves.png"


class RunLog:
    """Writes `log.jsonl` (one JSON object per line, each with "event" and "time") and `curves.png`.

    Args:
        folder: where; None: a new folder `runs/<date and time>`.
        append: add to a log that is there, instead of replacing it.

    Raises:
        OSError: the folder or the file cannot be written.
    """

    def __init__(self, folder: str | Path | None, append: bool = False):
        self.folder = _new_folder() if folder is None else Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / LOG_NAME
        self._path.open("a" if append else "w").close()

    def write(self, event: str, **values) -> None:
        """Adds a line; `values` must be what JSON knows."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "time": round(time.time(), 3), **values}) + "\n")

    def plot(self) -> Path | None:
        """Draws the curves of all epochs in the log; None where matplotlib is not installed."""
        if importlib.util.find_spec("matplotlib") is None:
            return None
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        records = map(json.loads, self._path.read_text().splitlines())
        epochs = {record["epoch"]: record for record in records if record["event"] == "epoch"}
        numbers = sorted(epochs)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="epoch", ylabel="error", ylim=(0, 1))
        for name in ("train_error", "test_error"):
            axes.plot(numbers, [epochs[n][name] for n in numbers], marker="o", label=name.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(self.folder / PLOT_NAME, dpi=150)
        return self.folder / PLOT_NAME


def _new_folder() -> Path:
    """`runs/<date and time>`, with a number behind it where two runs begin in the same second."""
    base = Path("runs", time.strftime("%Y-%m-%d_%H-%M-%S"))
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}_{number}")
    return folder

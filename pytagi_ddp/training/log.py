"""The log of a training as JSON lines, and its curves as a picture."""

from __future__ import annotations

import io
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytagi_ddp import plot
from pytagi_ddp.files import atomic_write, check_replaceable
from pytagi_ddp.listing import some
from pytagi_ddp.training.callback import Callback
from pytagi_ddp.training.trackers import Tracker, tracker_of

LOG_NAME, PLOT_NAME = "log.jsonl", "curves.png"
SLOW = 0.1  # a rank is slow if it takes longer than the median by this share


class Log(Callback):
    """Writes `log.jsonl`, a JSON object per line with "event" and "time", and draws `curves.png`.

    Events are "start" with the settings, "epoch" with the results, and "stop" if a signal ended the training. With
    several ranks, "epoch" has "step_seconds", the seconds of a step on each rank without waiting for others, and
    "slow_ranks" names ranks, with their nodes, whose steps take more than 10 % longer than the median. With NCCL these
    are times of the host. A new training renames an existing log to `log-1.jsonl`, or the next free number; a resumed
    training appends to it. Curves need matplotlib. `pandas.read_json("log.jsonl", lines=True)` reads the log as a
    table, and `pytagi_ddp.plot.read_epochs` reads its epochs.

    Args:
        folder: folder for the files; None: a new folder `runs/<date and time>`.
        track: programs that also get the events: "tensorboard", "wandb", "mlflow", or a `Tracker`.
        settings: JSON values of the event "start"; None: the options of the trainer.

    Attributes:
        folder: as given, or the new one.

    Raises:
        ValueError: an unknown name in `track`. ImportError: its program is not installed.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        track: Iterable[str | Tracker] = (),
        settings: Mapping[str, Any] | None = None,
    ):
        self.folder = None if folder is None else Path(folder)
        self._trackers = [tracker_of(name) for name in track]
        self._settings = settings

    def fit_begin(self, trainer: Any) -> None:
        self.begin(append=trainer.step > 0)
        for tracker in self._trackers:
            tracker.open(self.folder)  # type: ignore[arg-type]  # `begin` has made it
            trainer.stack.callback(tracker.close)
        settings = trainer.options if self._settings is None else self._settings
        self.write("start", ranks=trainer.ranks.world_size, parameters=trainer.num_parameters, **settings)

    def epoch_end(self, trainer: Any) -> None:
        self.write("epoch", **trainer.results, **of_ranks(trainer.step_seconds))
        self.draw()

    def fit_end(self, trainer: Any) -> None:
        if trainer.stopped:
            self.write("stop", epoch=trainer.epoch, batch=trainer.batch, step=trainer.step)

    def begin(self, append: bool = False) -> None:
        """Makes the folder, and renames an existing log or appends to it. A link is renamed, and not followed.

        If a full disk or a kill has truncated the last line, it is ended there.

        Raises:
            OSError: the folder or the file cannot be written.
        """
        self.folder = _new_folder() if self.folder is None else self.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / LOG_NAME
        if os.path.lexists(path) and (path.is_symlink() or not append):
            check_replaceable(path)
            numbered = (self.folder / f"{path.stem}-{k}{path.suffix}" for k in itertools.count(1))
            path.rename(next(other for other in numbered if not os.path.lexists(other)))
        with open(path, "a+b", opener=_not_followed) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read() == b"\n" else b"\n")

    def write(self, event: str, **values: Any) -> None:
        """Adds a line; `values` must be JSON values."""
        assert self.folder is not None
        with open(self.folder / LOG_NAME, "a", opener=_not_followed) as file:
            file.write(json.dumps({"event": event, "time": round(time.time(), 3), **values}) + "\n")
        for tracker in self._trackers:
            tracker.write(event, **values)

    def draw(self) -> Path | None:
        """Draws the curves of all epochs in the log.

        Returns:
            The picture; None if matplotlib is not installed, or could not draw (a line on standard error says so).
        """
        assert self.folder is not None
        try:
            figure = plot.figure()
        except ImportError:
            return None
        try:
            log = self.folder / LOG_NAME
            plot.learning_curves(figure.add_subplot(), log)
            picture = io.BytesIO()
            figure.savefig(picture, dpi=150, format="png")
            atomic_write(self.folder / PLOT_NAME, picture.getvalue())
        except Exception as error:  # any error: the training is more important than its picture
            print(f"{self.folder / PLOT_NAME} was not drawn: {error!r}", file=sys.stderr)
            return None
        return self.folder / PLOT_NAME


def _not_followed(path: str, flags: int) -> int:
    """Opens a file, and no link: in a folder that others can write, it may lead to any file of this user."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def of_ranks(step_seconds: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """The log entries of the `step_seconds` of a trainer: those of each rank, and a text with slow ones."""
    if not step_seconds:
        return {}
    seconds = [own for _, own in step_seconds]
    usual = statistics.median_low(seconds)
    slow = [f"{name} (+{own / usual - 1:.0%})" for name, own in step_seconds if own > (1 + SLOW) * usual]
    values: dict[str, Any] = {"step_seconds": [round(own, 6) for own in seconds]}
    return values | ({"slow_ranks": some(slow)} if slow else {})


def _new_folder() -> Path:
    """Makes `runs/<date and time>`, with a number at the end if several runs begin in the same second."""
    base = Path("runs", time.strftime("%Y-%m-%d_%H-%M-%S"))
    number, folder = 1, base
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # another run may just have made it
            number += 1
            folder = base.with_name(f"{base.name}_{number}")

"""The progress of an epoch: a bar for a terminal or a notebook, or a line every few seconds for a file."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import timedelta
from typing import Any

from pytagi_ddp.bars import Bar
from pytagi_ddp.training.callback import Callback

MODES = ("auto", "bar", "lines")
REFRESH = 0.1  # seconds between two states of a bar


class Progress(Callback):
    """Shows the progress of an epoch, samples per second and the time left, and the results of each epoch in a line.

    Args:
        mode: "bar": on standard error, in a notebook on standard output. "lines": on standard output, at most every
            `seconds`. "auto": a bar on a terminal or in a notebook, and nothing elsewhere.
        seconds: time between two lines.
        unit: name of the samples.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(self, mode: str = "auto", seconds: float = 10.0, unit: str = "samples"):
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
        self.mode, self.seconds, self.unit = mode, seconds, unit
        self._bar: Bar | None = None

    @property
    def shown(self) -> str:
        """ "bar", "lines" or "nothing"."""
        if self.mode != "auto":
            return self.mode
        return "bar" if sys.stderr.isatty() or in_notebook() else "nothing"

    def epoch_begin(self, trainer: Any) -> None:
        title = f"epoch {trainer.epoch + 1}/{trainer.epochs}"
        self._title, self._shown = title, self.shown
        self._start = self._printed = time.perf_counter()
        self._before = trainer.samples_done
        total = trainer.samples_per_epoch
        self._total = None if total is None else max(0, total - self._before)
        if self._shown == "bar":
            width = min(shutil.get_terminal_size().columns, 110)  # under mpirun by $COLUMNS
            unit = f" {self.unit}"
            # A notebook stores each change of the stream, and bars of short epochs.
            stream, delay = (sys.stdout, REFRESH) if in_notebook() else (sys.stderr, 0)
            self._bar = Bar(
                total=self._total, desc=title, unit=unit, ncols=width, leave=False, file=stream, delay=delay
            )
            trainer.stack.callback(self._close)

    def batch_end(self, trainer: Any) -> None:
        now = time.perf_counter()
        if self._shown == "nothing" or now - self._printed < (REFRESH if self._bar is not None else self.seconds):
            return
        done = trainer.samples_done - self._before
        if self._total is not None and done >= self._total and self._bar is None:
            return
        self._printed = now
        running = described({f"train_{name}": value for name, value in trainer.running().items() if name != "nll"})
        if self._bar is not None:
            self._bar.set_postfix_str(running, refresh=False)
            self._bar.update((done if self._total is None else min(done, self._total)) - self._bar.n)
            return
        rate = done / (now - self._start)
        of, left = "", ""
        if self._total is not None:
            of = f" of {self._total:,}"
            left = f", {timedelta(seconds=round((self._total - done) / rate))} left"
        text = f"{self._title}: {done:,}{of} {self.unit}, {rate:.1f} {self.unit}/s{left}"
        print(f"{text}, {running}" if running else text, flush=True)

    def epoch_end(self, trainer: Any) -> None:
        self._close()
        if self._shown != "nothing":
            print(f"{self._title}: {self.line(trainer.results)}", flush=True)

    def fit_end(self, trainer: Any) -> None:
        self._close()

    def line(self, results: dict[str, float]) -> str:
        """The printed text of the results of an epoch."""
        return f"{described(results)}, {results['samples_per_second']:,.1f} {self.unit}/s"

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def described(results: dict[str, float]) -> str:
    """Metrics of training and validation as text: "train nll 0.513, train error 12.5%"."""
    shown = {name: value for name, value in results.items() if name.startswith(("train_", "val_"))}
    shown.pop("train_seconds", None)
    of_share = ("error",)
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.1%}" if name.endswith(of_share) else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in shown.items()
    )


def in_notebook() -> bool:
    """Whether this process serves a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")

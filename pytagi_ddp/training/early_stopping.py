"""Ends a training that no longer improves."""

from __future__ import annotations

import math
import operator
from typing import Any

from pytagi_ddp.training.callback import Callback
from pytagi_ddp.warn import warn


class EarlyStopping(Callback):
    """Ends the training when a metric has not improved for `patience` epochs, and restores the best epoch.

    If the metric is NaN in an epoch, there is a warning, and the epoch does not count as an improvement.

    If a training is resumed from a checkpoint, there is a warning: the count starts again at 0, and earlier epochs are
    neither compared nor restored.

    With an `EvidenceSchedule` steps are large until late in the training, and the metric varies from epoch to epoch.
    The last, small steps improve it most: choose a `patience` with which the training can reach them.

    Args:
        patience: number of successive epochs without improvement after which the training ends.
        metric: one of the trainer's `results`. None: "val_nll", and "train_nll" without validation data.
        least: a value is an improvement if it is below the best one by more than this.
        largest: whether larger values are better.
        restore: whether the parameters, statistics and likelihood of the best epoch are restored at the end.

    Attributes:
        best: the best value. best_epoch: its epoch, counted from 1; 0: there is none.

    Raises:
        ValueError: patience below 1; a metric that is not among the results.
    """

    on_all_ranks = True

    def __init__(
        self,
        patience: int = 3,
        metric: str | None = None,
        least: float = 0.0,
        largest: bool = False,
        restore: bool = True,
    ):
        if operator.index(patience) < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        self.patience, self.metric, self.least, self.largest = patience, metric, least, largest
        self.restore = restore
        self._begin()

    def _begin(self) -> None:
        self.best, self.best_epoch, self._kept = math.inf, 0, None

    def fit_begin(self, trainer: Any) -> None:
        self._begin()
        if trainer.epoch or trainer.batch:
            warn("EarlyStopping does not know the epochs before the checkpoint, and begins anew")

    def epoch_end(self, trainer: Any) -> None:
        results = trainer.results
        metric = self.metric or ("val_nll" if "val_nll" in results else "train_nll")
        if metric not in results:
            raise ValueError(f"there is no metric {metric!r}; there are {', '.join(map(repr, results))}")
        value = results[metric]
        if math.isnan(value):
            warn(f"EarlyStopping: {metric!r} is NaN in epoch {trainer.epoch}: no observation has a score")
        sign = -1 if self.largest else 1
        if self.best_epoch == 0 or sign * value < sign * self.best - self.least or math.isnan(self.best):
            self.best, self.best_epoch = value, trainer.epoch
            self._kept = trainer.keep() if self.restore else None
        elif trainer.epoch - self.best_epoch >= self.patience:
            trainer.stop()

    def fit_end(self, trainer: Any) -> None:
        if self._kept is not None and not trainer.stopped and self.best_epoch < trainer.epoch:
            trainer.put_back(self._kept)
        self._kept = None

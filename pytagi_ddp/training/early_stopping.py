"""Ends a training that no longer improves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from zlib import crc32

from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.files import remove_temporary_files
from pytagi_ddp.likelihoods.base import Likelihood
from pytagi_ddp.training.callback import Callback
from pytagi_ddp.validate import as_integers
from pytagi_ddp.warn import warn

BEST = "best.safetensors"


class EarlyStopping(Callback):
    """Ends the training when a metric has not improved for `patience` epochs, and restores the best epoch.

    If the metric is NaN in an epoch, there is a warning, and the epoch does not count as an improvement. If it is NaN
    in all of them, the parameters of the last one stay.

    With `Checkpoints` and `restore` the best network is written to `best.safetensors` in their folder: `net.load` reads
    it. If such a training is started again, the count continues, and there is no further step if this callback has
    ended it. If another metric is watched, or the best network is not in the folder any more, there is a warning.

    With an `EvidenceSchedule` steps are large until late in the training, and the metric varies from epoch to epoch.
    The last, small steps improve it most: choose a `patience` with which the training can reach them, such as half of
    the epochs.

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
    _earlier: tuple[dict[str, Any], Path] | None = None  # state of an earlier run, and its folder

    def __init__(
        self,
        patience: int = 3,
        metric: str | None = None,
        least: float = 0.0,
        largest: bool = False,
        restore: bool = True,
    ):
        as_integers("EarlyStopping", 1, patience=patience)
        self.patience, self.metric, self.least, self.largest = patience, metric, least, largest
        self.restore = restore
        self._begin()

    def _begin(self, epoch: int = 0) -> None:
        self.best, self.best_epoch = math.inf, 0
        self._first = epoch  # epochs before, which do not count
        self._watched: str | None = None
        self._kept: Any = None
        self._checksum: int | None = None  # of the file

    def state_dict(self) -> dict[str, Any]:
        if not self.best_epoch:
            return {}
        likelihood = self._kept and self._kept[1]
        noise = likelihood.state_dict() if isinstance(likelihood, Likelihood) else None
        state = {"metric": self._watched, "best": self.best, "best_epoch": self.best_epoch}
        return state | {"checksum": self._checksum, "likelihood": noise}

    def load_state_dict(self, state_dict: dict[str, Any], folder: Path) -> None:
        numbers = {"best": float(state_dict["best"]), "best_epoch": int(state_dict["best_epoch"])}
        self._earlier = {name: state_dict[name] for name in ("metric", "checksum", "likelihood")} | numbers, folder

    def fit_begin(self, trainer: Any) -> None:
        self._begin()
        earlier, self._earlier = self._earlier, None
        if earlier is None or self.metric not in (None, earlier[0]["metric"]):
            if trainer.epoch or trainer.batch:
                warn("EarlyStopping does not know this metric of the epochs before the checkpoint, and begins anew")
            self._first = trainer.epoch
            return
        state, folder = earlier
        self._watched, self.best, self.best_epoch = state["metric"], state["best"], state["best_epoch"]
        if self.restore and not self._read(trainer, state, folder):
            warn(f"{folder / BEST} is not the network of epoch {self.best_epoch}, which can no longer be restored")
        if trainer.epoch - self.best_epoch >= self.patience:
            best = f"of which {self.best_epoch} is best"
            warn(f"EarlyStopping has ended this training after {trainer.epoch} epochs, {best}")
            if self._kept is not None:
                trainer.put_back(self._kept)
            trainer.stop()

    def _read(self, trainer: Any, state: dict[str, Any], folder: Path) -> bool:
        """Reads the best network of an earlier run, if the file is that of this state; collective."""
        path, noise, written = folder / BEST, state["likelihood"], state["checksum"]
        found = trainer.ranks.rank == 0 and written is not None and checksum_of(path) == written
        if not trainer.ranks.broadcast_object(found, 0):
            return False
        now, likelihood = trainer.keep(), trainer.likelihood
        trainer.net.load(path)
        self._checksum = written
        if trainer.folder is not None and trainer.folder != folder:
            self._write(trainer)
        self._kept = trainer.keep()[0], likelihood if noise is None else likelihood.with_state_dict(noise)
        trainer.put_back(now)
        trainer.likelihood = likelihood
        return True

    def _write(self, trainer: Any) -> None:
        path = trainer.folder / BEST
        with errors_of_all_ranks(trainer.ranks):  # also where rank 0 saves alone
            trainer.net.save(path)
        self._checksum = None
        if trainer.ranks.rank == 0:
            remove_temporary_files(trainer.folder, BEST)  # of killed jobs
            self._checksum = checksum_of(path)

    def epoch_end(self, trainer: Any) -> None:
        results = trainer.results
        metric = self.metric or ("val_nll" if "val_nll" in results else "train_nll")
        if metric not in results:
            raise ValueError(f"there is no metric {metric!r}; there are {', '.join(map(repr, results))}")
        value = results[metric]
        if math.isnan(value):
            warn(f"EarlyStopping: {metric!r} is NaN in epoch {trainer.epoch}: no observation has a score")
        if self._watched not in (None, metric):
            warn(f"EarlyStopping has watched {self._watched!r}, and now {metric!r}: it begins anew")
            self._begin(trainer.epoch - 1)
        self._watched, sign = metric, -1 if self.largest else 1
        first = self.best_epoch == 0 and not math.isnan(value)
        if first or sign * value < sign * self.best - self.least:
            self.best, self.best_epoch = value, trainer.epoch
            if self.restore:
                self._kept = trainer.keep()
                if trainer.folder is not None:
                    with trainer.evaluated():
                        self._write(trainer)
        elif trainer.epoch - max(self.best_epoch, self._first) >= self.patience:
            trainer.stop()

    def fit_end(self, trainer: Any) -> None:
        if trainer.stopped:  # it will be continued
            return
        if self._kept is not None and self.best_epoch < trainer.epoch:
            trainer.put_back(self._kept)
        self._kept = None


def checksum_of(path: Path) -> int | None:
    """The checksum of a file; None: it cannot be read, or is no file."""
    try:
        return crc32(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None

"""Checkpoints of a training: when they are written, and how a training resumes from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pytagi_ddp.checkpoint import CheckpointManager, DamagedCheckpointError
from pytagi_ddp.distributed.engine.error_propagation import OUT_OF_STEP, errors_of_all_ranks, on_rank_0
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.files import remove_temporary_files
from pytagi_ddp.likelihoods.base import Likelihood
from pytagi_ddp.training.batches import other_class
from pytagi_ddp.training.callback import Callback, runs_here
from pytagi_ddp.training.metrics import Sums
from pytagi_ddp.validate import as_integers
from pytagi_ddp.warn import warn

AVERAGE = "average.safetensors"


class Checkpoints(Callback):
    """Writes a checkpoint after every epoch, and resumes from one: see `CheckpointManager`.

    With the same number of ranks and of threads, a resumed training ends with the same bits as one that was never
    stopped, also if it was stopped within an epoch. For this, the batches must have the same order. The order of
    arrays, `BatchLoader` and `FolderLoader` follows from the seed and the epoch. Other iterables must repeat their
    order; the batches that were learnt before are skipped.

    A checkpoint contains the noise parameters of the likelihood, which a callback may have fitted, and what other
    callbacks keep (`Callback.state_dict`). Within an epoch it also contains the sums of the metrics so far (not if
    `every` wrote it, and ranks may have different numbers of batches). With an average of posteriors (`average_last`),
    it contains the network and the average. The network that was evaluated, the average with its statistics, is written
    to `average.safetensors`: `net.load` reads it.

    Args:
        folder: folder for the checkpoints; None: none are written.
        every: steps after which one is written within an epoch; None: after epochs only.
        keep: number of checkpoints that are kept; None: all.
        on_signal: whether SIGTERM and SIGUSR1 stop the training after the current step, with a checkpoint: see
            `StopOnSignal`. `trainer.stopped` is then True.
        resume: True: continue from the newest checkpoint in the folder, if there is one. If all epochs are done, there
            is a warning, and no step; `fit` returns the results of the validation. A path: continue from this
            checkpoint, or from the newest one in this folder. False: start a new training; if the folder has
            checkpoints, an error is raised.
        settings: JSON values that must be equal when a run is resumed, in addition to the global batch and the names of
            the classes (of a loader whose data set has them); None: the seed, and the number of samples.
        allow_changes: whether to warn about settings that differ, instead of raising an error.

    Raises:
        ValueError: numbers below 1; options that need a folder.

    In `fit_begin`, as the cause of a `CallbackError`:
        OSError, ValueError, DamagedCheckpointError: as `CheckpointManager.load` and `CheckpointManager.check_folder`.
        ValueError: all epochs of the checkpoint in `resume` are done; a folder for a new training that has checkpoints
        of another one; a training that began with another likelihood, or with an `EvidenceSchedule` and now
        without, or the reverse.
    """

    on_all_ranks = True
    _saves = True  # called first at a beginning, since it sets the position, and last at an end

    def __init__(
        self,
        folder: str | Path | None,
        every: int | None = None,
        keep: int | None = 3,
        on_signal: bool = False,
        resume: bool | str | Path = False,
        settings: Mapping[str, Any] | None = None,
        allow_changes: bool = False,
    ):
        if every is not None:
            as_integers("Checkpoints", 1, every=every)
        if folder is None and (every or on_signal or resume is True):
            raise ValueError("every, on_signal and resume=True need the folder of the checkpoints")
        self._manager = None if folder is None else CheckpointManager(folder, keep)
        self._every, self._on_signal, self._resume = every, on_signal, resume
        self._given, self._allow_changes = settings, allow_changes

    def fit_begin(self, trainer: Any) -> None:
        default = {"seed": trainer.position.seed}
        if trainer.samples_per_epoch is not None:
            default["samples"] = trainer.samples_per_epoch
        self._settings = dict(default if self._given is None else self._given)
        if trainer.global_batch is not None:
            self._settings = {"global batch": trainer.global_batch, **self._settings}
        if self._every and not trainer.in_step and isinstance(trainer.net, ShardedNetwork):
            raise ValueError(
                f"every={self._every} needs arrays or a BatchLoader: a {type(trainer.net).__name__} is saved by all "
                "ranks together, and here they may have different numbers of batches"
            )
        if self._every and getattr(trainer.net, "every", 1) > 1:
            raise ValueError(
                f"every={self._every} is not for DDPSequential(every={trainer.net.every}), whose ranks are alike only "
                "after a merge, as at the end of an epoch: leave it out of Checkpoints"
            )
        if self._manager:
            trainer.folder = self._manager.folder
            on_rank_0(trainer.ranks, self._manager.check_folder)
        first = trainer.first_likelihood
        self._began_with = json.loads(json.dumps(first.state_dict())) if isinstance(first, Likelihood) else None
        if self._resume:
            self._load(trainer)
        else:
            self._refuse_others()
        if self._on_signal:
            trainer.stop_on_signal()

    def batch_end(self, trainer: Any) -> None:
        # After the last step of an epoch, epoch_end writes the checkpoint.
        if self._every and trainer.step % self._every == 0 and trainer.batch != trainer.batches_per_epoch:
            self._save(trainer)

    def epoch_end(self, trainer: Any) -> None:
        if self._manager and trainer.averages:
            with trainer.evaluated():
                trainer.net.save(self._manager.folder / AVERAGE)
            if trainer.ranks.rank == 0:
                remove_temporary_files(self._manager.folder, AVERAGE)  # of killed jobs
        self._save(trainer)

    def fit_end(self, trainer: Any) -> None:
        if trainer.stopped:
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        if self._manager:
            likelihood, classes = trainer.likelihood, trainer.classes
            extra = self._metrics(trainer)  # first, since it is collective, and what follows may fail on one rank
            if isinstance(likelihood, Likelihood):
                extra |= {"likelihood": likelihood.state_dict(), "first likelihood": self._began_with}
            # All ranks save a network in shards: if one of them fails before, the others would wait for it.
            with errors_of_all_ranks(trainer.ranks) if isinstance(trainer.net, ShardedNetwork) else nullcontext():
                extra["callbacks"] = [
                    (type(one).__name__, one.state_dict() if runs_here(one, trainer) else {})
                    for one in trainer.callbacks
                ]
            if classes is not None:
                extra["classes"] = classes
            self._manager.save(trainer.savable, trainer.position, self._settings, average=trainer.average, extra=extra)

    def _metrics(self, trainer: Any) -> dict[str, Any]:
        """The sums of metrics within an epoch; a metric that fails does not prevent a checkpoint."""
        if not trainer.batch or not (trainer.in_step or trainer.stopped):  # else ranks may be at different batches
            return {}
        try:
            return {"metrics": trainer.totals()}
        except OUT_OF_STEP:
            raise
        except Exception as error:
            if trainer.ranks.rank == 0:
                warn(f"a checkpoint without metrics, since one failed: {type(error).__name__}: {error}")
            return {}

    def _load(self, trainer: Any) -> None:
        path = None if isinstance(self._resume, bool) else Path(self._resume)
        manager = self._manager or CheckpointManager(path)  # type: ignore[arg-type]  # there is one of them
        planned = trainer.network.schedule is not None
        found = manager.load(trainer.savable, path, self._settings, self._allow_changes, average=trainer.average)
        if found is None:
            return
        if planned != (found.schedule is not None):
            was, now = ("without an", "with one") if planned else ("with an", "with evidence=None")
            raise ValueError(f"{found.path} is of a training {was} EvidenceSchedule, and this one is {now}")
        if self._manager and self._manager.folder.resolve() != found.path.parent.resolve():
            self._refuse_others()
        if other := other_class(found.extra.get("classes"), trainer.classes):
            differs = "{}: class {} was {!r} and is {!r}".format(found.path, *other)
            if not self._allow_changes:
                raise ValueError(f"{differs} (with allow_changes=True, the training goes on all the same)")
            warn(differs)
        if "likelihood" in found.extra and isinstance(trainer.likelihood, Likelihood):
            try:
                likelihood = trainer.likelihood.with_state_dict(found.extra["likelihood"])
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{found.path} was written with another likelihood: {error}") from error
            if (first := found.extra.get("first likelihood", self._began_with)) == self._began_with:
                trainer.likelihood = likelihood
            else:
                differs = f"{found.path}: the training began with the likelihood {first}, and now {self._began_with}"
                if not self._allow_changes:
                    raise ValueError(f"{differs} is given (with allow_changes=True, the training goes on with that)")
                warn(f"{differs} is given, and used")
        try:
            totals = Sums.checked(found.extra.get("metrics", {}))
            for callback, (name, state) in zip(trainer.callbacks, found.extra.get("callbacks", ()), strict=False):
                if state and name == type(callback).__name__ and runs_here(callback, trainer):
                    callback.load_state_dict(state, found.path.parent)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedCheckpointError(
                f"{found.path} has no metrics, or no state of callbacks, that can be read: {error!r:.200}"
            ) from error
        position = found.position
        if position.epoch >= trainer.epochs:
            done = (
                f"{found.path} was written after {position.epoch} epochs: to go on, ask for more than "
                f"{trainer.epochs} epochs"
            )
            if path is not None:
                raise ValueError(done)
            warn(done)  # not an error: a job that died after its last step may be restarted
            if trainer.average is not None:
                trainer.net.load(found.path.parent / AVERAGE)
        batches, samples, now = position.batch, position.samples, trainer.global_batch
        if now is not None:
            if samples is None:  # in version 0.2, or if only batches are counted
                samples = batches * found.settings.get("global batch", now)
            batches = samples // now  # so that no sample is left out
        trainer.go_on_from(position, batches, samples, totals)

    def _refuse_others(self) -> None:
        """Raises ValueError if the folder for the checkpoints of a new training already contains some."""
        if self._manager and self._manager.latest(fall_back=True):
            raise ValueError(
                f"{self._manager.folder} has checkpoints of another training, which this one would delete: "
                "continue that one with resume=True, or give another folder"
            )

"""Functions that a program adds to the training loop."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pytagi_ddp.distributed.engine.error_propagation import OUT_OF_STEP, errors_of_all_ranks


class Callback:
    """Has methods that a `Trainer` calls at certain moments. A subclass overrides those that it needs.

        class FirstLayer(Callback):
            def epoch_end(self, trainer):
                print(trainer.epoch, trainer.results["val_nll"], trainer.network[0].mu_w.mean())

    Callbacks are called in the order in which they are given; every rank is given the same ones. They may change the
    trainer's `results`, assign its `likelihood`, and call `trainer.stop()`. What a callback of rank 0 changes in
    `results` and `likelihood` is sent to the other ranks, except in `batch_end`. All ranks call the same methods
    equally often, except `batch_end`: a rank may have fewer batches than another. A callback that changes the network,
    or calls `trainer.evaluate`, has to run on all ranks: once an epoch, ranks compare their networks. An exception ends
    the training on all ranks with a `CallbackError`. In `batch_end` it is raised on its own rank only, and the library
    then ends the job.

    Attributes:
        on_all_ranks: whether the methods are called on every rank, and may communicate and change the network. False:
            on rank 0 only.
    """

    on_all_ranks = False
    _saves = False

    def fit_begin(self, trainer: Any) -> None:
        """The network, its schedule and the data are ready. `trainer.stack` is closed at the end of `fit`."""

    def epoch_begin(self, trainer: Any) -> None:
        """`trainer.epoch` epochs are done, and `trainer.batch` batches of the next one: 0, unless it was resumed."""

    def batch_end(self, trainer: Any) -> None:
        """A step was made. `trainer.step` counts all steps, `trainer.batch` those of this epoch."""

    def evaluation_begin(self, trainer: Any) -> None:
        """The steps of an epoch are done, and `trainer.results` has the training results; validation follows."""

    def epoch_end(self, trainer: Any) -> None:
        """`trainer.epoch` epochs are done; `trainer.results` are those of the last one, over all ranks."""

    def fit_end(self, trainer: Any) -> None:
        """The training is over; `trainer.stopped` is True if a signal has stopped it within an epoch."""

    def state_dict(self) -> dict[str, Any]:
        """What `Checkpoints` keeps of this callback: JSON values, by default none. It keeps that of rank 0."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any], folder: Path) -> None:
        """Called before `fit_begin` if a training resumes, with what `state_dict` returned, if that was not empty.

        The callback has to be at the same place in the list.

        Args:
            state_dict: the values. folder: that of the checkpoint.
        """


class CallbackError(RuntimeError):
    """A callback has raised an exception. The message names the callback, the moment and the exception.

    Attributes:
        moment: the name of the method. All ranks raise this error, except for "batch_end".
    """

    moment = ""


def overridden(callback: Callback, moment: str) -> bool:
    return getattr(type(callback), moment) is not getattr(Callback, moment)


def runs_here(callback: Callback, trainer: Any) -> bool:
    """Whether this rank calls the methods of a callback."""
    return callback.on_all_ranks or trainer.ranks.rank == 0


def call(callback: Callback, moment: str, trainer: Any) -> None:
    """Calls a method of a callback on this rank, if it is one of those that run it.

    Raises:
        CallbackError: the callback has raised an exception.
    """
    if not runs_here(callback, trainer):
        return
    method: Callable[[Any], None] = getattr(callback, moment)
    alone = trainer.ranks.world_size > 1 and not callback.on_all_ranks
    try:
        with trainer.alone_in(type(callback).__name__) if alone else nullcontext():
            method(trainer)
    except (*OUT_OF_STEP, CallbackError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if trainer.ranks.world_size > 1 and not type(callback).__module__.startswith(__package__):
            place = traceback.extract_tb(error.__traceback__, 2)[-1]  # the callback; others have no traceback of it
            what += f" (rank {trainer.ranks.rank}, {place.filename}, line {place.lineno})"
        problem = CallbackError(f"the callback {type(callback).__name__} failed in {moment}: {what}")
        problem.moment = moment
        raise problem from error


def call_on_ranks(callback: Callback, moment: str, trainer: Any) -> None:
    """`call` on all ranks, which all raise its error, and get what a callback of rank 0 has changed; collective."""
    if not overridden(callback, moment):
        return
    ranks, before, changed = trainer.ranks, trainer.likelihood, None
    with errors_of_all_ranks(ranks):
        call(callback, moment, trainer)
        if ranks.world_size > 1 and not callback.on_all_ranks and ranks.rank == 0:
            changed = pickle.dumps((trainer.results, None if trainer.likelihood is before else trainer.likelihood))
    if ranks.world_size > 1 and not callback.on_all_ranks:
        results, likelihood = pickle.loads(ranks.broadcast_object(changed))
        if ranks.rank > 0:
            trainer.results.clear()  # it is in the history, too
            trainer.results.update(results)
            trainer.likelihood = trainer.likelihood if likelihood is None else likelihood

"""One training loop for networks on one process and for all parallel strategies."""

from __future__ import annotations

import operator
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.checkpoint import StopOnSignal, TrainingPosition
from pytagi_ddp.data import ArrayLoader
from pytagi_ddp.data.array_loader import each_part
from pytagi_ddp.data.batches import RankBatches
from pytagi_ddp.distributed import DataParallel, PipelineSequential, SerialCommunicator
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_arguments
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.likelihoods import Joint, Likelihood
from pytagi_ddp.nn import PosteriorAverage, Sequential, Shape
from pytagi_ddp.nn.core.fitting import Observed, Options
from pytagi_ddp.nn.core.forgetting import forgets_before
from pytagi_ddp.nn.tools.inspection import pulls_knowledge
from pytagi_ddp.nn.tools.update_bn import unfrozen_norms
from pytagi_ddp.training import metrics as metric
from pytagi_ddp.training.advice import (
    KNOWS,
    MANY,
    UNFROZEN,
    advise,
    advise_batch,
    advise_batch_size,
    advise_interrupted,
    advise_result,
)
from pytagi_ddp.training.batches import (
    as_batches,
    choose_likelihood,
    classes_of,
    counts_samples,
    described,
    epoch_of,
    length,
    observed,
    other_class,
    parts_of,
    summary,
)
from pytagi_ddp.training.callback import Callback, CallbackError, call, call_on_ranks, overridden
from pytagi_ddp.training.options import check_names, check_options
from pytagi_ddp.training.plan import (
    BATCH,
    default_batch_size,
    default_count,
    least_samples,
    plan_evidence,
    steps_per_epoch,
)
from pytagi_ddp.training.ranks import (
    Net,
    compare_networks_in_training,
    compare_training,
    first_rank_warns,
    share_of,
    warn_of_rank_alone,
)
from pytagi_ddp.validate import as_integers, as_numbers, check_predictions
from pytagi_ddp.warn import warn
from pytagi_ddp.weights import warn_of_sum

CHECKED = 1 << 20  # observations that are checked at a time: the check copies them


class Trainer:
    """Trains a network: epochs, evidence, statistics of BatchNorm2d, metrics, and callbacks.

        trainer = Trainer(net, Gaussian(0.1), epochs=20, callbacks=[EarlyStopping(patience=10)])
        history = trainer.fit((x, y), (x_validation, y_validation))
        print(history[-1]["val_rmse"], trainer.evaluate((x_test, y_test)))
        low, high = trainer.predict(x_new).interval(0.9)

    The network is a `Sequential`, `DDPSequential`, `FSDPSequential`, `PipelineSequential` or `DataParallel`. All ranks
    run the same program.

    **Data** may be a tuple (x, y) of arrays, tensors or tables. It is the same on every rank, and each rank takes its
    share of each batch. y is a tuple of arrays with `Joint`, and may be (y, var) with `Gaussian` and (low, high) with
    `Censored`. In a tuple (x, y, weight), the evidence of each sample, or of each observation, is multiplied by its
    weight, and metrics are weighted means; batches of an iterable may have weights, too. A `BatchLoader`,
    `FolderLoader` or `ArrayLoader` is made with the rank and the number of ranks. Any other iterable of batches (x, y),
    such as a `DataLoader` of PyTorch, has the samples of this rank only. Then ranks may have different numbers of
    batches. `set_epoch` of an iterable or its sampler is called before each epoch.

    `batch_size` is that of a rank, so a step of R ranks learns R times as many samples. The trainer does not scale
    data: standardise them before.

    **Evidence.** With an `EvidenceSchedule`, each sample counts a set number of times, for any number of epochs. If the
    network already has a schedule, it is kept, and continues with these epochs; that of a stream does not change. The
    schedule pulls parameters towards the prior of a new network. So use `evidence=None` for a network that knows other
    data (a pretrained one, for which there is a warning, or a stream). Steps are then those of plain TAGI, and
    `forget_evidence(forget)` is called before each of the first 70 % of the epochs, except the first. With a schedule
    on several ranks, prefer `average=False`: averages of deltas lead to the same posterior more slowly.

    **Results** of an epoch are over all ranks: "epoch"; "train_nll" and "val_nll", the mean negative log-likelihood of
    an observation (a weighted mean, if samples have weights); "train_error" for classes, or "train_rmse" for numbers,
    and those of `metrics`, also with "val_"; "samples_per_second", "train_seconds", and "communication_share". With
    BatchNorm2d there are also "bn_seconds", "bn_mean_shift" and "bn_var_ratio", medians of the changes by `update_bn`.
    Values of "train_" are those of predictions made before the sample was learnt. In a resumed epoch, times are those
    since the checkpoint, and so are metrics if it has no sums of them (see `Checkpoints`).

    Args:
        net: the network.
        likelihood: how outputs are observed. None: `Categorical` for the classes 0 to n - 1 with n outputs, and
            `Bernoulli` for bools; other observations raise an error.
        epochs: passes over the data in total, including those before a checkpoint.
        batch_size: samples of a step on each rank (or in each pipeline), for arrays. None: 32, and for numbers at most
            one sample of all ranks for 32 parameters of each output that are not frozen: small networks learn badly
            from large batches. At least 2 images if each pixel is an observation.
        seed: seed of the order of samples, for arrays; the same on every rank.
        evidence: options of the `EvidenceSchedule`: count (default: 8 for classes, 4 for numbers; with fewer than 32
            such parameters at most a quarter of the epochs, but at least 1), prior_factor, first, last,
            warm_up, and steps_per_epoch for an iterable without a length. None: none.
        forget: as above; 1: nothing is forgotten.
        bn_batches: number of training batches from which the statistics of BatchNorm2d are computed before each
            evaluation; 0: the running statistics are used.
        average_last: share of each epoch's steps, the last ones, whose posteriors are averaged. The average is
            evaluated, and at the end the network's parameters become the average. 0: no average. Not for networks in
            shards or stages.
        metrics: more metrics by name: functions (prediction, y) that return a number for each observation, samples
            first. The result is their mean, without NaN. The prediction is that of the likelihood.
        callbacks: see `Callback`.

    Attributes:
        net, likelihood, epochs, callbacks: as given, or chosen. network: the `Sequential` in `net`, on this rank.
        first_likelihood: the likelihood before callbacks change it.
        epoch, batch, step: completed epochs, batches of the current one, and steps in total.
        results: of the last epoch. history: those of all epochs of this run.
        step_seconds: (rank and node, seconds of a step in which it did not wait for others), of each of several ranks
            in the last epoch.
        stopped: whether a signal has stopped the training.
        average: the `PosteriorAverage`, or None.
        ranks: the `Communicator` of all ranks.
        folder: that of the checkpoints, or None.
        stack: an `ExitStack` that is closed at the end of `fit`, also after an error.

    Raises:
        ValueError, TypeError: options that are out of range, exclude each other, or do not fit the network.
    """

    def __init__(
        self,
        net: Net,
        likelihood: Observed | None = None,
        *,
        epochs: int = 10,
        batch_size: int | None = None,
        seed: int = 0,
        evidence: Mapping[str, Any] | None = {},
        forget: float = 1.0,
        bn_batches: int = 40,
        average_last: float = 0.0,
        metrics: Mapping[str, metric.Metric] | None = None,
        callbacks: Sequence[Callback] = (),
    ):
        if not isinstance(net, Net):
            raise TypeError(f"Trainer takes a network first, a Sequential or what wraps one, got {type(net).__name__}")
        as_integers("Trainer", 1, epochs=epochs, **({} if batch_size is None else {"batch_size": batch_size}))
        as_integers("Trainer", 0, bn_batches=bn_batches)
        as_numbers("Trainer", "[0, 1]", average_last=average_last)
        if average_last and isinstance(net, ShardedNetwork):
            raise ValueError(f"average_last needs all parameters on each rank, and a {type(net).__name__} has parts")
        if forget != 1 and (evidence is not None or not forget >= 1):
            raise ValueError(f"forget is a factor of at least 1, and needs evidence=None; got {forget}")
        if likelihood is not None and (isinstance(likelihood, type) or not hasattr(likelihood, "prediction")):
            raise TypeError(f"likelihood is one of pytagi_ddp.likelihoods, as Gaussian(0.1); got {likelihood!r:.60}")
        check_options(evidence, metrics, callbacks)
        self.net, self.likelihood, self.epochs, self.batch_size, self.seed = net, likelihood, epochs, batch_size, seed
        self._evidence, self._forget, self._bn_batches, self._share = evidence, forget, bn_batches, average_last
        self.first_likelihood = copy(likelihood)
        self._metrics = dict(metrics or {})
        self.callbacks = list(callbacks)
        self.network: Sequential = net if isinstance(net, Sequential) else net.model
        self.ranks: Communicator = net.communicator if isinstance(net, TrainedOnRanks) else SerialCommunicator()
        self._pipeline = net if isinstance(net, PipelineSequential) else None
        self._has_outputs = self._pipeline is None or self._pipeline.is_last
        self.history: list[dict[str, float]] = []
        self.results: dict[str, float] = {}
        self.average: PosteriorAverage | None = None
        self.folder: Path | None = None
        self.stack = ExitStack()
        self._begin()

    def __repr__(self) -> str:
        return f"Trainer({type(self.net).__name__}, {self.likelihood!r}, {self.epochs} epochs, {self.epoch} done)"

    def _begin(self) -> None:
        self.epoch = self.batch = self.step = 0
        self._first = 0  # the sample at which batch 0 of this epoch begins, after a change of the global batch
        self._batches_before, self._totals_before = 0, dict[str, Any]()  # of the epoch, before the checkpoint
        self.stopped = self._stop = self._resumed_within = self._watches = self._asked = False
        self._looked_at: set[str] = set()
        self._evaluated: Any = None
        self._alone_in: str | None = None  # the callback that only this rank runs now
        self.history, self.results = [], {}
        self.step_seconds: list[tuple[str, float]] = []

    # -- for callbacks ------------------------------------------------------------------------------------------

    @property
    def options(self) -> dict[str, Any]:
        """The options of the training as JSON values."""
        options = {"likelihood": repr(self.likelihood), "epochs": self.epochs, "seed": self.position.seed}
        options |= {"global_batch": self.global_batch, "forget": self._forget, "average_last": self._share}
        schedule = self.network.schedule
        return options | {"bn_batches": self._bn_batches, "evidence": None if schedule is None else repr(schedule)}

    @property
    def position(self) -> TrainingPosition:
        """The position in the training."""
        samples = self.samples_done if counts_samples(self._train) else None
        seed: Any = getattr(self._train, "seed", None)  # an iterable of any kind may have something else
        found = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0
        return TrainingPosition(self.epoch, self.batch, self.step, int(seed) if found else self.seed, samples)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of this rank in an epoch; None: the iterable has no length."""
        return self._train.num_batches(self._first) if counts_samples(self._train) else length(self._train)

    @property
    def in_step(self) -> bool:
        """Whether all ranks have the same number of batches, as with arrays and the library's loaders for training."""
        return self.ranks.world_size == 1 or counts_samples(self._train)

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes of the training data; None: unknown."""
        return classes_of(self._train)

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples of all ranks in an epoch; None: unknown for an iterable."""
        return self._train.num_samples if isinstance(self._train, RankBatches) else None

    @property
    def global_batch(self) -> int | None:
        """Samples of a step on all ranks; None: unknown for an iterable."""
        size = getattr(self._train, "batch_size", None)
        return size * self._shares if isinstance(size, int) else None

    @property
    def samples_done(self) -> int:
        """Samples of all ranks in this epoch, including those before a checkpoint.

        For an iterable that only has a `batch_size`, it may be a few less; without one, it is the number of this rank.
        """
        if isinstance(self._train, RankBatches):
            return self._train.samples_before(self.batch, self._first)
        return self._sums.samples if self.global_batch is None else self.batch * self.global_batch

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole network, each of which has a mean and a variance."""
        return getattr(self.net, "num_parameters", 0) or self.network.num_parameters

    @property
    def _num_learned(self) -> int:
        """Parameters that are not frozen; of a pipeline all, as a rank does not know the layers of the others."""
        if self._pipeline is not None:
            return self.num_parameters
        frozen = (leaf for _, leaf in self.network.named_leaves() if leaf.frozen)
        return self.num_parameters - sum(leaf.num_weights + leaf.num_biases for leaf in frozen)

    @property
    def savable(self) -> Any:
        """The argument for a `CheckpointManager`: the network, or the one in a `DataParallel`."""
        return self.network if isinstance(self.net, DataParallel) else self.net

    @property
    def averages(self) -> bool:
        """Whether an average of posteriors was evaluated."""
        return self._evaluated is not None

    def running(self) -> dict[str, float]:
        """The metrics of this rank in this epoch so far; none on ranks of a pipeline without outputs.

        In a resumed epoch, rank 0 includes the earlier batches of all ranks.
        """
        return self._sums.means() if self._sums.samples else {}

    def stop(self) -> None:
        """Ends the training after this epoch, on all ranks; any rank may call it."""
        self._stop = True

    def request_stop(self) -> None:
        """Ends the training after the current step on all ranks, as a signal does, if `stop_on_signal` was called."""
        self._asked = True
        if isinstance(self.net, TrainedOnRanks):
            self.net.request_stop()

    def stop_on_signal(self) -> None:
        """From now on, SIGTERM and SIGUSR1 end this training after the current step."""
        self._watches = True
        self.stack.enter_context(StopOnSignal(self))

    def totals(self) -> dict[str, list[float]]:
        """The sums of the metrics of all ranks in this epoch so far, for `go_on_from`; collective."""
        self._refuse_alone("totals")
        return self._sums.totals(self.ranks)

    def go_on_from(
        self,
        position: TrainingPosition,
        batches: int,
        samples: int | None = None,
        totals: Mapping[str, Any] | None = None,
    ) -> None:
        """Continues a training from this position; for callbacks, in `fit_begin`.

        Args:
            position: the position. batches: number of completed batches, of the present size, in its epoch.
            samples: number of completed samples of all ranks in its epoch. Arrays and the library's loaders continue
                after them, also if they are not whole batches of the current size.
            totals: what `totals` returned there; None: the metrics of the epoch are those of the rest of it.
        """
        self._totals_before = dict(totals) if totals and self.ranks.rank == 0 else {}
        if samples is not None and counts_samples(self._train):
            batches, self._first = self._train.place_after(min(samples, self._train.num_samples))
        per_epoch = self.batches_per_epoch
        self.epoch, self.step = position.epoch, position.step
        self.batch = batches if per_epoch is None else min(batches, per_epoch)
        self._batches_before = batches
        schedule = self.network.schedule
        if schedule is not None:
            schedule.epochs = self.epochs  # the total number, with earlier epochs
            if batches != position.batch:  # batches of another size: the scaled position is rounded
                n = schedule.steps_per_epoch or 1
                epochs = max(0, round((schedule.steps - batches) / n))
                schedule.load_state_dict(schedule.state_dict() | {"steps": epochs * n + batches})
        self._resumed_within = position.batch > 0 or bool(position.samples)

    def keep(self) -> Any:
        """A copy of what was evaluated in this epoch: parameters, statistics (or this rank's part) and likelihood."""
        if isinstance(self.net, ShardedNetwork):
            return [(part, self.net.to_host(part.array)) for part in self.net.slices()], self._scored_with
        return self.net.state_dict() if self._evaluated is None else self._evaluated, self._scored_with

    def put_back(self, kept: Any) -> None:
        """Restores what `keep` returned; on all ranks."""
        state, self.likelihood = kept
        if isinstance(self.net, ShardedNetwork):
            self.net.take(state)
        else:
            self.net.load_state_dict(state)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Inside, the network has the evaluated parameters: those of the average, if there is one."""
        if self._evaluated is None or self.average is None:
            yield
            return
        with self.average.average_parameters():
            self.net.load_state_dict(self._evaluated)
            yield

    # -- training ----------------------------------------------------------------------------------------------

    def fit(self, train: Any, validation: Any = None) -> list[dict[str, float]]:
        """Trains for `epochs` epochs; collective.

        Args:
            train, validation: see the class.

        Returns:
            The results of each epoch.

        Raises:
            CallbackError: a callback has failed; raised on all ranks. ReplicaMismatchError: one rank has changed its
                network alone. ValueError, TypeError: data that do not fit, or differ between ranks; the network and
                the data may raise others.
        """
        self._begin()
        if self.net is self.network:
            warn_of_rank_alone()
        if isinstance(self.net, TrainedOnRanks):
            self.net.withdraw_stop()  # a request that has ended an earlier training
        self._share_of_data, self._shares = share_of(self.net)
        shape = self._out_shape()
        outputs, least = shape.features, least_samples(shape)
        with errors_of_all_ranks(self.ranks, "fit"), first_rank_warns(self.ranks):
            if self.likelihood is not None:
                self._find_metrics(outputs)
            of_classes = self.likelihood is None or self._of_classes  # without one, other data are refused below
            size = self.batch_size or default_batch_size(of_classes, self._num_learned // outputs, self._shares, least)
            self._train = as_batches(train, size, self._share_of_data, self._shares, self.seed)
            own = None if validation is None else self._for_evaluation(validation)
            self._check_data(own)
        compare_training(self.ranks, self._settings(), self._train, own)
        if self._share and not self.in_step:
            raise ValueError(
                "average_last on several ranks needs arrays or a BatchLoader, so that all step equally often"
            )
        if self.likelihood is None:
            self.likelihood = self.first_likelihood = choose_likelihood(self._train, outputs)
            self._find_metrics(outputs)
        self._scored_with: Any = self.likelihood
        with errors_of_all_ranks(self.ranks, "fit"):
            self._check_observations("", self._train)
            self._check_observations("validation: ", own)
        with errors_of_all_ranks(self.ranks, "fit"), first_rank_warns(self.ranks):  # a warning may be an error
            if self._pipeline is None:
                advise(self._train, self.likelihood, self.network)
                parameters = None if self._of_classes else self._num_learned // outputs
                advise_batch_size(self.global_batch, least, parameters, self._train)
            self._sums = self._new_sums()
        self._plan(outputs)
        self.average = PosteriorAverage(self.network) if self._share else None
        with ExitStack() as self.stack:
            for loader in (self._train, own):
                if isinstance(loader, RankBatches):
                    self.stack.enter_context(loader)
            self._call("fit_begin")
            try:
                done = self.epoch >= self.epochs or self._ends()  # in the checkpoint from which this training resumes
                while self.epoch < self.epochs and not self._ends():
                    self._run_epoch(own)
                if done and own is not None:
                    self.results = {"epoch": self.epoch}
                    self._validate(own)
                    self.history.append(self.results)
            except Exception as error:
                if sys.version_info >= (3, 11):
                    error.add_note(f"after {self.step} steps, in epoch {self.epoch + 1}")
                raise
            except KeyboardInterrupt:
                with first_rank_warns(self.ranks), suppress(Warning):
                    advise_interrupted(self.network.schedule)
                raise
            if self.step:
                compare_networks_in_training(self.net)
            if self._evaluated is not None and not self.stopped:
                self.net.load_state_dict(self._evaluated)
            self._call("fit_end")
        if not self.stopped and self.network.schedule is not None and self._pipeline is None:
            with errors_of_all_ranks(self.ranks, "fit"), first_rank_warns(self.ranks):
                advise_interrupted(self.network.schedule)
                if self.epoch == self.epochs >= MANY:
                    advise_result(self._train, self.likelihood, self.results.get("train_nll"), self._num_learned)
        return self.history

    def _check_data(self, validation: Iterable[Any] | None) -> None:
        """Raises ValueError for data that cannot be read so often, and for other classes in the validation."""
        of_norms = self._bn_batches > 0 and bool(unfrozen_norms(self.network))
        for batches in (self._train, validation):
            if isinstance(batches, Iterator) and (self.epochs > 1 or (of_norms and batches is self._train)):
                again = f"there are {self.epochs} epochs"
                if self.epochs == 1:
                    again = "statistics of normalisations need it again (not with bn_batches=0)"
                raise ValueError(
                    f"a {type(batches).__name__} can be read once, and {again}: give a list of batches, or an object "
                    "whose __iter__ starts again"
                )
        if validation is not None and (other := other_class(self.classes, classes_of(validation))):
            raise ValueError(
                "class {} is {!r} in the training data, and {!r} in the validation data: make the latter with the "
                "classes of the former, as by ImageFolder.find(..., classes=train_set.classes)".format(*other)
            )

    def _check_observations(self, what: str, batches: Iterable[Any] | None) -> None:
        """Raises the errors of the likelihood about observations in arrays, behind `what`, before they end an epoch."""
        if not (isinstance(batches, ArrayLoader) and isinstance(self.likelihood, Likelihood) and self._has_outputs):
            return
        samples, shape = len(batches.x), self.network.out_shape
        size = max(1, CHECKED // shape.size)  # of a part, as the check copies it
        for first in range(0, samples, size):
            rows = slice(first, min(first + size, samples))
            try:
                y = each_part(operator.itemgetter(rows), batches.y)
                self.likelihood.check_observations(y, rows.stop - first, shape)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{what}{error}") from None

    def _settings(self) -> dict[str, Any]:
        """What has to be the same on all ranks, apart from the data."""
        own: dict[str, Any] = {"epochs": self.epochs, "evidence": self._evidence, "forget": self._forget}
        own |= {"bn_batches": self._bn_batches, "average_last": self._share}
        own |= {"likelihood": described(self.likelihood), "metrics": list(self._metrics)}
        return own | {"callbacks": [type(callback).__name__ for callback in self.callbacks]}

    def _plan(self, outputs: int) -> None:
        """Makes a schedule, adds these epochs to the schedule of the network, or removes it."""
        schedule = self.network.schedule
        if self._evidence is None:
            if schedule is not None:
                schedule.remove()
            return
        if schedule is not None and schedule.epochs is None and not self._evidence:
            return  # of a stream
        given = dict(self._evidence)
        steps = given.pop("steps_per_epoch", None)
        if steps is None:
            steps = steps_per_epoch(self._train, self.ranks)
        with errors_of_all_ranks(self.ranks, "fit"), first_rank_warns(self.ranks):
            here = not isinstance(self.net, ShardedNetwork)  # where no rank has all parameters
            if here and pulls_knowledge(self.network.arena.leaves, schedule is None):
                if schedule is not None:
                    warn(UNFROZEN)
                elif self.epochs > 1:
                    warn(KNOWS)
            count = default_count(self._of_classes, self._num_learned // outputs, self.epochs)
            plan_evidence(self.network, steps, self.epochs, count, given)

    def _ends(self) -> bool:
        """Whether a rank has asked to stop after this epoch; collective."""
        if self.ranks.world_size == 1 or self.stopped:
            return self._stop or self.stopped
        return any(self.ranks.all_gather_object(self._stop, "fit"))

    def _run_epoch(self, validation: Iterable[Any] | None) -> None:
        """One epoch, or the rest of one: training, evaluation, callbacks."""
        begins, self._resumed_within = not self._resumed_within, False
        if begins:
            if self._forget > 1 and forgets_before(self.epoch, self.epochs):
                self.net.forget_evidence(self._forget)
            if self.average is not None:
                self.average.reset()
        self._sums, self._evaluated = self._new_sums(), None
        self._sums.begin_with(self._totals_before)
        self._totals_before = {}
        self._call("epoch_begin")
        compare_networks_in_training(self.net)
        before = np.array([time.perf_counter(), self.ranks.reduce_seconds, self.ranks.waited_seconds, self.step])
        self._learn_all()
        after = np.array([time.perf_counter(), self.ranks.reduce_seconds, self.ranks.waited_seconds, self.step])
        seconds, reduced, waited, steps = (after - before).tolist()
        if self.stopped:
            return
        if self.ranks.world_size > 1:
            own = (seconds - waited) / max(steps, 1)
            place = f"rank {self.ranks.rank} on {platform.node()}"
            self.step_seconds = self.ranks.all_gather_object((place, own), "fit")
        share = reduced / seconds
        sums = self._sums
        found, (seen, seconds, share, *weights) = sums.over_ranks(
            self.ranks, sums.samples, seconds, share, *sums.weights
        )
        seconds, share = seconds / self.ranks.world_size, share / self.ranks.world_size
        if seen and not self.history:
            with errors_of_all_ranks(self.ranks, "fit"), first_rank_warns(self.ranks):
                warn_of_sum("weight", *weights)
                if np.isnan(found["nll"]):
                    none = "all were missing, have the weight 0, or have no score"
                    warn(f"there was no observation in this epoch: {none}")
        self.results = {"epoch": self.epoch + 1, **{f"train_{name}": value for name, value in found.items()}}
        self.results |= {"samples_per_second": seen / seconds, "train_seconds": seconds, "communication_share": share}
        self._call("evaluation_begin")
        self.results |= self.refresh_statistics()
        if self.average is not None and self.average.n_averaged:  # not if it was resumed after the last batch
            with self.average.average_parameters():
                self.refresh_statistics()
                self._validate(validation)
                self._evaluated = self.net.state_dict()
        else:
            self._validate(validation)
        self._scored_with = copy(self.likelihood)  # callbacks may change it
        self.epoch, self.batch, self._first, self._batches_before = self.epoch + 1, 0, 0, 0
        self.history.append(self.results)
        self._call("epoch_end")

    def _learn_all(self) -> None:
        """The steps of an epoch, from the current batch on."""
        at_end = [callback for callback in self._ordered("batch_end") if overridden(callback, "batch_end")]
        averaged = self.batches_per_epoch
        after = None if averaged is None else averaged - max(1, round(self._share * averaged))
        if self.average is not None and after is None:
            raise ValueError("average_last needs training data with a length")
        leaves = [layer for _, layer in self.network.named_leaves()] if self.network.training else []
        kept = [layer for layer in leaves if layer.frozen and not layer.training]
        self.net.train()
        for layer in kept:
            layer.training = False
        # At its end, ranks without further batches take part in the steps and merges of the others.
        with self.net.join() if isinstance(self.net, TrainedOnRanks) else nullcontext():
            for x, y, weights in epoch_of(self._train, self.epoch, self.batch, self.position.samples):
                samples = len(x)
                if not samples and not self.in_step:
                    continue  # by `join`, a rank without further batches takes no step of its own
                if samples:  # at the end of an epoch there may be fewer samples than ranks
                    seen = observed(y, self._several)
                    if not isinstance(self._train, ArrayLoader):
                        self._look_at("", x, seen)
                    moments = self._learn(x, seen, weights)
                    if self._has_outputs:
                        self._score(self._sums, *moments, seen, samples, weights)
                self.net.step()
                self.batch, self.step = self.batch + 1, self.step + 1
                if self.average is not None and after is not None and self.batch > after:
                    self.average.update()
                for callback in at_end:
                    call(callback, "batch_end", self)
                if self._watches and self._is_asked():
                    break
        self.stopped = self._watches and self._is_asked()
        if not self.in_step:  # the rank with the most batches determines their number
            before = self._batches_before  # of the checkpoint, counted in `step`
            batch = max(before, *self.ranks.all_gather_object(self.batch, "fit"))
            self.batch, self.step = batch, self.step + batch - max(before, self.batch)

    def _look_at(self, what: str, x: Any, y: Any = None) -> None:
        """Warns about large numbers in the first batch of the training data, and of the data to evaluate."""
        if what not in self._looked_at and self._pipeline is None:
            self._looked_at.add(what)
            with first_rank_warns(self.ranks):
                advise_batch(x, y, self.likelihood, self.network, what)

    def _is_asked(self) -> bool:
        return self.net.stop_requested if isinstance(self.net, TrainedOnRanks) else self._asked

    def _learn(self, x: Any, y: Any, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The passes of a batch; returns its flat outputs, which are empty on ranks of a pipeline without outputs."""
        net, likelihood, schedule = self.net, self.likelihood, self.network.schedule
        assert likelihood is not None
        count = 1.0 if schedule is None else schedule.weight
        weight: Any = count if weights is None else count * weights
        if self._pipeline is not None:

            def update(states: Any, rows: slice, deltas: Any) -> None:
                own = weight if weights is None else weight[rows]
                likelihood.update(states, each_part(lambda part: part[rows], y), deltas, own)

            return self._pipeline.forward_backward(x, update)
        moments = net(x)
        likelihood.update(net.output_z_buffer, y, net.input_delta_z_buffer, weight)
        net.backward()
        return moments

    def _new_sums(self) -> metric.Sums:
        assert self.likelihood is not None
        return metric.Sums(self._all_metrics, self.likelihood.prediction)

    def _score(
        self, sums: metric.Sums, mu: np.ndarray, var: np.ndarray, y: Any, samples: int, weights: np.ndarray | None
    ) -> None:
        shape = self.network.out_shape
        one = (samples, *shape.extents)
        sums.add(mu.reshape(one), var.reshape(one), y, weights)

    def _out_shape(self) -> Shape:
        """The shape of the last outputs; collective over a pipeline."""
        shape = self.network.out_shape
        if self._pipeline is not None:
            group = self._pipeline.pipe_group
            return group.broadcast_object(shape, group.world_size - 1)
        return shape

    def _find_metrics(self, outputs: int) -> None:
        """The metrics of the likelihood's predictions, and those that were given."""
        assert self.likelihood is not None
        self._several = isinstance(self.likelihood, Joint)
        kind = self.likelihood.prediction(np.zeros((1, outputs)), np.ones((1, outputs)))
        standard = metric.standard_metrics(kind)
        if twice := [name for name in self._metrics if name in standard]:
            raise ValueError(f"metrics has {twice[0]!r}, which is computed anyway: give it another name")
        self._all_metrics = standard | self._metrics

    @property
    def _of_classes(self) -> bool:
        """Whether predictions are those of classes."""
        return "error" in self._all_metrics

    def _ordered(self, moment: str) -> list[Callback]:
        """The callbacks in the order of their calls.

        `Checkpoints` is first at a beginning, since the others learn from it where a training resumes. It is last at an
        end, since it saves what they have changed.
        """
        at_end = moment.endswith("_end")
        return sorted(self.callbacks, key=lambda callback: callback._saves is at_end)

    def _call(self, moment: str) -> None:
        error = None
        for callback in self._ordered(moment):
            if error is None or (callback._saves and moment == "epoch_end"):  # the epoch is done, and not lost
                try:
                    call_on_ranks(callback, moment, self)
                except CallbackError as found:
                    error = error or found
        if error is not None:
            raise error

    # -- evaluation --------------------------------------------------------------------------------------------

    @contextmanager
    def alone_in(self, callback: str) -> Iterator[None]:
        """Inside, only this rank runs, in a callback of that name, and the other ranks wait."""
        before, self._alone_in = self._alone_in, callback
        try:
            yield
        finally:
            self._alone_in = before

    def _refuse_alone(self, call: str) -> None:
        """Raises RuntimeError in a callback that only this rank runs: the other ranks would not make this call."""
        if self._alone_in is not None:
            raise RuntimeError(
                f"{call} is collective, and the callback {self._alone_in} runs on rank 0 only: give it on_all_ranks = "
                "True"
            )

    def refresh_statistics(self) -> dict[str, float]:
        """Computes the statistics of BatchNorm2d for the current parameters, by `update_bn`; collective.

        Returns:
            The time, and the errors of the previous statistics; empty without BatchNorm2d or `bn_batches`.

        Raises:
            RuntimeError: a callback of rank 0 only has called it. Others as `update_bn`.
        """
        self._refuse_alone("refresh_statistics")
        start = time.perf_counter()
        changes = self.net.update_bn(self._train, self._bn_batches) if self._bn_batches else []
        if not changes:
            return {}
        return {
            "bn_seconds": time.perf_counter() - start,
            "bn_mean_shift": float(np.median([change.mean_shift for change in changes])),
            "bn_var_ratio": float(np.median([change.var_ratio for change in changes])),
        }

    def _for_evaluation(self, data: Any) -> Iterable[Any]:
        share, shares = share_of(self.net)
        return as_batches(data, self.batch_size or BATCH, share, shares, evaluation=True)

    def _validate(self, batches: Iterable[Any] | None) -> None:
        if batches is not None:
            self.results |= {f"val_{name}": value for name, value in self._evaluate(batches).items()}

    def evaluate(self, data: Any) -> dict[str, float]:
        """The metrics of the current network on data, over all ranks: "nll", "error" or "rmse", and `metrics`.

        Args:
            data: as for `fit`. Every rank evaluates its share of arrays, and every sample counts once. Collective.
                In a network with a memory (an `LSTM` of one time step), batches of one sample continue one the other,
                the first one the training. Afterwards the memory is as before.

        Raises:
            ValueError: no likelihood was given, and `fit` has not chosen one; ranks have different arrays. Others as
                `fit`. RuntimeError: a callback of rank 0 only has called it.
        """
        self._refuse_alone("evaluate")
        if self.likelihood is None:
            raise ValueError("evaluate needs a likelihood: give it to the Trainer, or call fit first")
        with errors_of_all_ranks(self.ranks, "evaluate"), first_rank_warns(self.ranks):
            batches = self._for_evaluation(data)
        own = {"likelihood": described(self.likelihood)}
        compare_arguments(self.ranks, "evaluate", own | summary(batches, "data"))
        return self._evaluate(batches)

    def _evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """`evaluate` of batches that all ranks have compared."""
        self._find_metrics(self._out_shape().features)
        sums = self._new_sums()
        with self._predicting() as predict:
            for x, y, weights in map(parts_of, batches):
                samples = len(x)
                if samples:
                    self._look_at(" to evaluate", x)
                    mu, var = predict(x, samples)
                    if self._has_outputs:
                        self._score(sums, mu, var, observed(y, self._several), samples, weights)
        if isinstance(self.net, TrainedOnRanks):
            self.net.barrier()  # if passes are collective, shares of other sizes need other numbers of passes
        return sums.over_ranks(self.ranks)[0]

    @contextmanager
    def _predicting(self) -> Iterator[Callable[[Any, int], tuple[np.ndarray, np.ndarray]]]:
        """The `predict` of batches. A memory goes from batch to batch as in training, and is restored at the end."""
        network = self.network
        if not network.arena.carried.size or isinstance(self.net, DataParallel):
            yield self.net.predict
            return

        def predict(x: Any, samples: int) -> tuple[np.ndarray, np.ndarray]:
            mu, var = (np.asarray(moment).reshape(samples, -1) for moment in self.net(x))
            if network.missing_inputs != "pass":
                check_predictions(mu, var)
            return mu, var

        with network.passes.evaluating():
            yield predict

    def predict(self, x: ArrayLike) -> Any:
        """The distribution of observations at x, a `Prediction`: its mean, variance, probabilities, intervals.

        Args:
            x: inputs, a row for each sample. Each rank may have its own; all ranks of a pipeline give the same.

        Raises:
            ValueError: no likelihood was given, and `fit` has not chosen one. Others as `Sequential.predict`.
        """
        if self.likelihood is None:
            raise ValueError("predict needs a likelihood: give it to the Trainer, or call fit first")
        return self.likelihood.prediction(*self.net.predict(x))


def fit(
    net: Net, x: Any, y: Any = None, likelihood: Observed | None = None, epochs: int = 10, **options: Any
) -> list[dict[str, float]]:
    """`net.fit`."""
    check_names("fit", options, ("likelihood", "epochs", *Options.__annotations__))
    several = isinstance(x, tuple) and any(hasattr(part, "shape") for part in x)
    if several and y is not None and not isinstance(y, Likelihood):
        raise TypeError(
            "x is a tuple, and a network has one input: join its arrays by np.column_stack, and let a "
            "Parallel(..., split=[...]) give each branch its columns"
        )
    if isinstance(y, Likelihood):
        raise TypeError(f"the third argument is the likelihood: for batches or a tuple (x, y) give likelihood={y!r}")
    validation, weight = options.pop("validation", None), options.pop("weight", None)
    if weight is not None and y is None:
        raise ValueError("weight needs arrays x and y; batches of an iterable may be (x, y, weight)")
    data = x if y is None else (x, y) if weight is None else (x, y, weight)
    return Trainer(net, likelihood, epochs=epochs, **options).fit(data, validation)

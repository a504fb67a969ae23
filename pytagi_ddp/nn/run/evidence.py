"""The weight of the evidence in each step of several epochs, so that repeated data do not count as new evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import numpy as np

from pytagi_ddp.kernels.tensors import Array
from pytagi_ddp.validate import as_integers, as_numbers

COUNT, FIRST, LAST, WARM_UP, PRIOR_FACTOR = 8.0, 1.0, 0.02, 0.2, 1.0
AT_START = 0.1  # share of `first` at which a warm-up begins
MOST_STEPS = 100_000  # of which q is computed; of a longer plan every second step, or fewer
NUMBERS = ("count", "first", "last", "warm_up", "prior_factor")
SCHEDULE = "EvidenceSchedule"  # in messages
MOST_EXACT = 1 << 53  # a count up to this is exact in float64
SETTINGS = ("steps_per_epoch", "epochs", *NUMBERS)


def _setting(name: str) -> property:
    """A property for a setting. An assignment checks all settings together."""

    def assign(schedule: EvidenceSchedule, value: Any) -> None:
        schedule._set({**schedule._settings, name: value})

    return property(lambda schedule: schedule._settings[name], assign)


class EvidenceSchedule:
    """Lets each sample count `count` times in the posterior, for any number of epochs.

        schedule = EvidenceSchedule(net, steps_per_epoch=len(loader), epochs=5)
        for epoch in range(5):
            for x, labels in loader:
                net(x)
                likelihood.observe(net, labels, weight=schedule.weight)
                net.backward()
                net.step()  # also pulls the parameters towards their prior, and advances the schedule

    Without it, each epoch counts the same data as new evidence: variances fall like 1/epochs, and learning freezes.
    Let an epoch have N steps. A number a increases linearly from a tenth of `first` to `first` during the share
    `warm_up` of the training, and then decreases linearly to `last`. The evidence of a batch (its deltas) has the
    weight count a/q. After a step, the precision tau = 1/S of every parameter N(m, S) is pulled towards that of its
    prior N(m0, 1/tau0), with the rate r:

        tau <- (1 - r) tau + r tau0        tau m <- (1 - r) tau m + r tau0 m0        r = a/(N + a)

    and r = 0 in the warm-up, in which a network first has to learn something. q is chosen so that tau = tau0 + count E
    in the end, for the evidence E of all samples: the posterior in which the likelihood has the power `count`. 1 is
    Bayes' rule. A larger count gives a cold posterior, which predicts better in most networks. If one epoch is
    planned, no sample comes twice: then r = 0 and q = 1, and samples count about count/2 times.

    m0 and tau0 follow from the arguments of the layer: m0 = 0, or 1 for the scales of BatchNorm2d, LayerNorm and
    RMSNorm; tau0 is divided by `prior_factor`, and for these three layers by 1/16 instead (their `pull_factor`): else
    scales grow to several times their prior, and the network learns few images by heart. The pull does not change
    frozen layers, parameters of variance 0, running statistics or the memory of recurrent layers. A step without
    samples does nothing. With an `OutputUpdater`, divide the variances of the observations by `weight`.

    **Ranks.** Make the same schedule on every rank; `steps_per_epoch` are the steps of a rank, or the largest number if
    ranks have different ones. If ranks add deltas (`average=False`), a step pulls once, as one process with the whole
    batch does. With `average=True`, the step of R ranks has 1/R of the evidence and a smaller pull, r = a/(R N + a):
    the posterior is the same, and is reached more slowly. If ranks merge posteriors (`every=k`), each rank pulls with
    this r, so that the pull counts once in the merged posterior.

    **Streams.** If no sample comes twice, leave `epochs` out: then weight = count = 1 and r = 0, as without a schedule.

    **More epochs.** After the last planned step, a stays at `last`, q is 1, and training can continue. After
    `extend(epochs)` or an assignment to `epochs`, the next steps have the rates of a training with the new number of
    epochs from the start.

    A network has one schedule, `net.schedule`; a new one replaces it, and `remove` (or `net.schedule = None`) ends it.
    A copy or pickle of the network has a copy of its schedule. A copy of a schedule belongs to a network once it is
    assigned to `net.schedule`. A `CheckpointManager` saves the schedule with the network, and `net.save` does not.

    Args:
        net: a `Sequential`, or a wrapper: `DDPSequential`, `FSDPSequential`, `PipelineSequential` or `DataParallel`;
            the schedule is then that of its `model`.
        steps_per_epoch: N, the steps in which all samples are seen once; with several ranks, those of each rank.
        epochs: planned number of epochs; None: every sample is seen once.
        count: how often a sample counts; None: 8, and 1 without epochs.
        first, last: a after the warm-up and after the last planned step.
        warm_up: share of the planned steps in which a increases; at least 0, and below 1.
        prior_factor: factor on the variance of the prior towards which parameters are pulled, except those of
            normalisations. A factor above 1 lets a network with a small prior (gains below 1) learn larger parameters.

    Attributes:
        steps_per_epoch, epochs, count, first, last, warm_up, prior_factor: as given; they can be assigned.
        steps: steps taken so far.
        weight: the weight of the evidence in the coming step, count a/q; `count` without epochs.
        rate: r of the coming step, for one process or the sum over ranks; 0 in the warm-up, without epochs, and in a
            plan of one epoch.
        net: the network, or None.

    Raises:
        TypeError: not a network, or not numbers. ValueError: numbers that are out of range.

    Source: stochastic variational inference by natural gradients: Hoffman, Blei, Wang & Paisley (2013), JMLR 14; Khan &
    Nielsen (2018), "Fast yet simple natural-gradient descent for variational inference in complex models". Cold
    posteriors: Wenzel et al. (2020), "How good is the Bayes posterior in deep neural networks really?", ICML.
    """

    __slots__ = ("_net", "_plan", "_reached", "_settings", "_unseen", "made")

    steps_per_epoch, epochs, count = _setting("steps_per_epoch"), _setting("epochs"), _setting("count")
    first, last = _setting("first"), _setting("last")
    warm_up, prior_factor = _setting("warm_up"), _setting("prior_factor")

    def __init__(
        self,
        net: Any,
        steps_per_epoch: int | None = None,
        epochs: int | None = None,
        *,
        count: float | None = None,
        first: float = FIRST,
        last: float = LAST,
        warm_up: float = WARM_UP,
        prior_factor: float = PRIOR_FACTOR,
    ):
        network = getattr(net, "model", net)
        if not hasattr(type(network), "schedule"):
            raise TypeError(
                f"EvidenceSchedule takes a network first, a Sequential, DDPSequential or the like, got "
                f"{type(net).__name__}"
            )
        own_count = 1.0 if epochs is None else COUNT
        numbers = (own_count if count is None else count, first, last, warm_up, prior_factor)
        self._net: ref[Any] | None = None
        self._settings: dict[str, Any] = {}
        self._set(dict(zip(SETTINGS, (steps_per_epoch, epochs, *numbers), strict=True)))
        self.made = np.zeros(1, np.int64)  # number of steps, in an array so that the fast path of a step can count
        self._unseen: tuple[Array | None, Array | None] | None = None  # of the last step: arguments of `moves_on`
        network.schedule = self

    def _set(self, settings: Mapping[str, Any]) -> None:
        """Sets all settings after a check, and the numbers for each step: (N, planned steps, warm-up, first, last)."""
        before, self._settings = self._settings, checked_settings(settings)
        n, epochs, _, first, last, warm_up, prior_factor = self._settings.values()
        if (net := self.net) is not None:
            net.passes.new_schedule = True
            if before["prior_factor"] != prior_factor:
                net.schedule = self  # so that its steps use the new prior
        self._reached = 1.0  # q
        if epochs is None:
            self._plan = (math.inf, math.inf, 0.0, 1.0, 1.0)
            return
        self._plan = (n, planned := n * epochs, warm_up * n * epochs, first, last)
        if epochs == 1:
            return
        stride = math.ceil(planned / MOST_STEPS)
        a = stride * self._share(np.arange(0, planned, stride), np.minimum, np.maximum)
        rising = math.ceil(self._plan[2] / stride)
        added, kept = a[:rising].sum() / n, np.exp(-np.log1p(a[rising:] / n).sum())
        self._reached = float(1 - (1 - added) * kept)

    @property
    def net(self) -> Any:
        return None if self._net is None else self._net()

    def serve(self, net: Any) -> None:
        """Called by the network that got this schedule; with None by a network that replaces it."""
        self._net = None if net is None else ref(net)

    def remove(self) -> None:
        """Ends the schedule: steps of the network are those of plain TAGI again."""
        if (net := self.net) is not None:
            net.schedule = None

    def extend(self, epochs: int) -> None:
        """Adds epochs to the plan: `epochs` grows, and the rates of the next steps change accordingly.

        Raises:
            ValueError: less than 1, or a schedule without epochs. TypeError: not a whole number.
        """
        if self.epochs is None:
            raise ValueError("extend() of a schedule without epochs: assign their number to `epochs`")
        as_integers(SCHEDULE, 1, MOST_EXACT, epochs=epochs)
        self.epochs += epochs

    @property
    def steps(self) -> int:
        if self._unseen:
            (samples, refused), self._unseen = self._unseen, None
            made = (samples is None or np.asarray(samples)[0] > 0) and (refused is None or not np.any(refused))
            self.made[0] += bool(made)
        return int(self.made[0])

    def moves_on(self, samples: Array | None = None, refused: Array | None = None) -> None:
        """Counts a step.

        samples: an array with the number of samples; with 0 there was no step. None: there were samples. refused:
        counts; the step was refused if one is above 0. None: it was not.
        """
        steps = self.steps
        if samples is None and refused is None:
            self.made[0] = steps + 1
        else:
            self._unseen = samples, refused

    @property
    def weight(self) -> float:
        steps = self.steps
        return self.count * self._share(steps) / (self._reached if steps < self._plan[1] else 1.0)

    @property
    def rate(self) -> float:
        return self.rate_among(1)

    def rate_among(self, ranks: int) -> float:
        """r for `ranks` ranks that each learn from a share of the data, and each pull: a/(ranks N + a)."""
        steps, (n, planned, rising, *_) = self.steps, self._plan
        a = self._share(steps)
        return 0.0 if steps < (n if planned == n else rising) else a / (ranks * n + a)

    def _share(self, steps: Any, least: Callable[..., Any] = min, most: Callable[..., Any] = max) -> Any:
        """a of the step after `steps` of them, 1 without epochs; of an array of steps with functions of arrays."""
        _, planned, rising, first, last = self._plan
        rises = first * (AT_START + (1 - AT_START) * steps / rising) if rising else first
        falls = first + (last - first) * (steps - rising) / (planned - rising)
        return least(rises, most(falls, last))

    def state_dict(self) -> dict[str, Any]:
        """Settings and number of steps, as values for JSON."""
        return {**self._settings, "steps": self.steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`, with its settings.

        Raises:
            KeyError: an entry is missing. ValueError, TypeError: an invalid entry.
        """
        state = checked_state(state_dict)
        self._set(state)
        self.made[0], self._unseen = state["steps"], None

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._net, self._settings, self.made = None, {}, np.zeros(1, np.int64)
        self.load_state_dict(state)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"EvidenceSchedule({settings}, steps={self.steps})"


def checked_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a schedule, as Python's numbers.

    Raises:
        KeyError: one is missing. TypeError, ValueError: as `EvidenceSchedule`.
    """
    found: dict[str, Any] = {}
    for name in ("steps_per_epoch", "epochs"):
        value = values[name]
        found[name] = None if value is None else as_integers(SCHEDULE, 1, MOST_EXACT, **{name: value})[0]
    for name in NUMBERS:
        found[name] = as_numbers(SCHEDULE, "[0, inf)", **{name: values[name]})[0]
    if found["epochs"] is not None and found["steps_per_epoch"] is None:
        raise ValueError(
            "an EvidenceSchedule with epochs needs steps_per_epoch, the steps in which all samples are seen once, as "
            "len(loader); leave epochs out if no sample comes twice"
        )
    if found["count"] == 0 or found["first"] == 0:
        raise ValueError("count and first of an EvidenceSchedule must be above 0: else nothing is learnt")
    if found["prior_factor"] == 0:
        raise ValueError("prior_factor of an EvidenceSchedule must be above 0: a prior without variance knows all")
    if found["warm_up"] >= 1:
        raise ValueError(
            f"warm_up of an EvidenceSchedule is a share of the planned steps, from 0 to below 1, got {found['warm_up']}"
        )
    if found["last"] > found["first"]:
        raise ValueError(
            f"an EvidenceSchedule falls from first to last, got first={found['first']} and last={found['last']}"
        )
    return found


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A result of `EvidenceSchedule.state_dict`, after checks.

    Raises:
        KeyError, TypeError, ValueError: as `EvidenceSchedule.load_state_dict`.
    """
    return checked_settings(state) | {"steps": as_integers(SCHEDULE, 0, MOST_EXACT, steps=state["steps"])[0]}

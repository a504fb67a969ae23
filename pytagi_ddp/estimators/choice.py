"""The choice of a training by samples that its networks have not learnt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

from pytagi_ddp.estimators.encoding import encoding_of, scaled_encoding, with_values
from pytagi_ddp.estimators.members import Training, relevance
from pytagi_ddp.nn import Sequential
from pytagi_ddp.warn import warn

ENOUGH = 3000  # samples on which a choice is based: of a large table, those of some folds
BINS, FEWER = 24, 8  # of the first encoding, and of the next one if that is not better than none
MOST_INPUTS = 450  # limit on inputs when the number of bins is doubled; the first number of bins may give twice as many
FEW_SAMPLES = 2000  # below that, encodings that are not scaled are tried, too; from there on, units for values
CLEARLY = 2.0  # standard errors by which a training is clearly worse
WORTH = 0.1  # part by which scaled inputs have to reduce the loss: the mean over networks makes up for less
SCALINGS = 2  # after which inputs that are scaled by their relevance have to be clearly better
SEEDS, MORE_SEEDS = 2, 4  # least and largest number of networks for each fold if it is not given
EXCESS = 0.008  # part by which the loss of fewer networks than `MORE_SEEDS` may be larger: of an RMSE 0.4 %
MIXED = 4  # number of the next best trainings whose networks are tried together with those of the best one
Loss = Callable[[list[list[Sequential]]], np.ndarray]
Train = Callable[[list[tuple[Training, int]]], list[Sequential]]


class Chosen(NamedTuple):
    """Networks, fold by fold.

    Attributes:
        alike: as many networks of the best kind, for the first folds. The variance between them vanishes in the mean
            over more networks; the difference between two kinds does not.
    """

    networks: list[list[Sequential]]
    alike: list[list[Sequential]]


class Choice:
    """Networks by training and fold. The best training has the smallest loss, by one network of each fold.

    Args:
        train: trains networks, given (training, fold) of each.
        x: inputs of the samples. fold: the fold of each sample.
        loss: returns the loss of each sample of the first folds, by the networks of each that have not seen it.
        count: networks for each fold in the result. None: from `SEEDS` to `MORE_SEEDS`, see `_enough`.
        seconds: no training begins for a choice if it would take longer; None: no limit. If `count` is None, it is
            `SEEDS` if the time is not sufficient for `MORE_SEEDS` networks of the first training for each fold.

    Attributes:
        losses: mean loss of each training that has been tried, and not forgotten (`simplest`).
    """

    def __init__(
        self, train: Train, x: np.ndarray, fold: np.ndarray, loss: Loss, count: int | None, seconds: float | None
    ):
        self._train, self._x, self._fold, self._loss = train, x, fold, loss
        self._chooses_count, self._count = count is None, count or MORE_SEEDS
        self._folds = int(fold.max()) + 1
        self._judges = next((k for k in range(1, self._folds) if np.count_nonzero(fold < k) >= ENOUGH), self._folds)
        self._networks: dict[Training, list[list[Sequential]]] = {}
        self._scales: dict[tuple[Training, int], np.ndarray] = {}
        self.losses: dict[Training, float] = {}
        self._end = math.inf if seconds is None else perf_counter() + seconds
        self._spent, self._work = 0.0, 0.0

    def chosen(self, training: Training) -> Chosen:
        """`count` networks for each fold, or `MORE_SEEDS`; trains those that do not exist yet."""
        networks = self._some(training, self._folds, self._count)
        return Chosen(networks, networks)

    def _some(self, training: Training, folds: int, count: int) -> list[list[Sequential]]:
        there = self._networks.setdefault(training, [[] for _ in range(self._folds)])
        missing = [k for k in range(folds) for _ in range(count - len(there[k]))]
        if missing:
            scaled = self._scaled(training, folds)
            start = perf_counter()
            made = self._train([(scaled[k], k) for k in missing])
            self._spent += perf_counter() - start
            self._work += sum(scaled[k].work(self._x.shape[1]) for k in missing)
            for k, net in zip(missing, made, strict=True):
                there[k].append(net)
        return [some[:count] for some in there[:folds]]

    def _scaled(self, training: Training, folds: int) -> list[Training]:
        """The training of each of the first folds. A network without this fold has found the scales of its inputs."""
        if (before := training.scaled_by) is None:
            return [training] * folds
        for k, (net,) in enumerate(self._some(before, folds, 1)):
            if (before, k) not in self._scales:
                self._scales[before, k] = relevance(net, self._x[self._fold != k])
        encodings = [scaled_encoding(training.encoding, self._scales[before, k]) for k in range(folds)]
        return [replace(training, encoding=encoding) for encoding in encodings]

    def best(self) -> Training:
        return min(self.losses, key=self.losses.__getitem__)

    def best_encoded(self) -> Training | None:
        """The best training with encoded inputs among those that have been tried."""
        tried = [training for training in self.losses if training.encoding is not None]
        return min(tried, key=self.losses.__getitem__, default=None)

    def consider(self, training: Training) -> None:
        """Tries a training if there is time for all of its networks. The first training is always tried.

        It is given up if its network of the first fold is clearly worse than that of the best training so far.
        """
        if training in self.losses or (self.losses and not self._has_time_for(training)):
            return
        if self.losses and self._judges > 1 and self._is_better(self.best(), training, 1, CLEARLY):
            return
        self.losses[training] = self._judged(self._some(training, self._judges, 1))
        if len(self.losses) > 1 or self._has_time_for(training):
            return
        if self._chooses_count:
            self._count, self._chooses_count = SEEDS, False
        if not self._has_time_for(training):
            seconds = math.ceil(10 * self._seconds_of(training)) / 10
            warn(
                f"max_time is not sufficient for one kind of networks, whose training takes about "
                f"{seconds} s: give more time, or fewer samples, epochs or networks (n_folds, n_seeds)"
            )

    def _is_better(self, training: Training, other: Training, folds: int, errors: float, part: float = 0.0) -> bool:
        """Whether one network of each of the first folds is better than that of another training.

        errors, part: by more than so many standard errors, and by more than this part of the other's loss.
        """
        loss = self._loss(self._some(other, folds, 1))
        better = loss - self._loss(self._some(training, folds, 1))
        least = max(errors * better.std() / math.sqrt(len(better)), part * abs(loss.mean()))
        return bool(better.mean() > least)

    def _judged(self, networks: list[list[Sequential]]) -> float:
        return float(self._loss(networks).mean())

    def simplest(self, linear: list[Training]) -> Training:
        """The best of these trainings, without hidden layers, or of the others: whose networks together are better.

        Linear functions hardly depend on the seed. The mean of other networks is better than one of them. The kinds
        that are not chosen are forgotten, because they would seem to improve the mean of few networks.
        """
        best, others = self.best(), set(self.losses)
        for training in linear:
            self.consider(training)
        tried = [training for training in self.losses if training not in others]
        least = min(tried, key=self.losses.__getitem__, default=best)
        if self.losses[least] < self.losses[best] and self.losses[least] < self._loss_of_all(best):
            best = least
        kept = tried if best in tried else others
        self.losses = {training: loss for training, loss in self.losses.items() if training in kept}
        return best

    def _loss_of_all(self, training: Training) -> float:
        """The loss of the mean of all networks of all folds, by extrapolation; that of one, if each fold has one."""
        if self._count == 1:
            return self.losses[training]
        several, v = self._variance(self._some(training, self._judges, SEEDS))
        return several - v * (1 / SEEDS - 1 / (self._folds * self._count))

    def mixed(self, best: Training) -> Chosen:
        """The networks of the best training, or some of them and one each of other kinds, while that is better.

        Networks of different kinds make different errors. So their mean may be better, even if one kind is worse.
        """
        if self._chooses_count:
            self._count = self._enough(self._some(best, self._judges, SEEDS))
        alike = self._some(best, self._judges, self._count)
        least = self._judged(alike)
        others: list[Training] = []
        rest = sorted(self.losses, key=self.losses.__getitem__)[: MIXED + 1]
        rest.remove(best)
        while rest and len(others) < self._count - 1:
            losses = [self._judged(self._with(alike, [*others, training])) for training in rest]
            if min(losses) >= least:
                break
            least = min(losses)
            others.append(rest.pop(losses.index(least)))
        if not others:
            return self.chosen(best)
        return Chosen(self._with(self._some(best, self._folds, self._count - len(others)), others), alike)

    def _enough(self, networks: list[list[Sequential]]) -> int:
        """The smallest number of networks for each fold that is worse than `MORE_SEEDS` by `EXCESS` at most.

        networks: `SEEDS` for each of the first folds.
        """
        several, v = self._variance(networks)
        excess = v / self._folds * (1 / np.arange(SEEDS, MORE_SEEDS + 1) - 1 / MORE_SEEDS)
        return SEEDS + int(np.argmax(excess <= EXCESS * several))

    def _variance(self, networks: list[list[Sequential]]) -> tuple[float, float]:
        """The loss of the mean of `SEEDS` networks for each of the first folds, and v: that of n is about a + v/n.

        The mean over all networks is one over all folds, with the loss a + v/(folds n).
        """
        one = float(np.mean([self._judged([[some[k]] for some in networks]) for k in range(SEEDS)]))
        several = self._judged(networks)
        return several, (one - several) / (1 - 1 / SEEDS)

    def _with(self, networks: list[list[Sequential]], others: list[Training]) -> list[list[Sequential]]:
        """`count` networks for each fold: the first of these, and one of each of the other trainings."""
        more = [self._some(training, len(networks), 1) for training in others]
        mine = self._count - len(others)
        return [some[:mine] + [net for (net,) in rest] for some, *rest in zip(networks, *more, strict=True)]

    def encode(self, training: Training) -> None:
        """Considers the training with encoded inputs, scaled or not.

        If this is better, the number of bins is doubled while the loss decreases. Otherwise a smaller number is tried.
        In larger tables, units for values that occur often are tried last.
        """
        for scaled in (True, False) if len(self._x) < FEW_SAMPLES else (True,):
            self._encode(training, BINS, scaled)
        encoded, bins = self.best_encoded(), BINS
        scaled = encoded is None or encoded.encoding is None or encoded.encoding.ends is not None
        if self.best().encoding is None:
            self._encode(training, FEWER, scaled)
        else:
            while self._encode(training, 2 * bins, scaled):
                bins *= 2
        best = self.best()
        if len(self._x) >= FEW_SAMPLES and (encoding := with_values(best.encoding, self._x, BINS)) is not None:
            self.consider(replace(best, encoding=encoding))

    def _encode(self, training: Training, bins: int, scaled: bool) -> bool:
        """Considers this encoding, unless it has too many inputs; returns whether it is the best so far."""
        most, inputs = MOST_INPUTS if bins > BINS else 2 * MOST_INPUTS, self._x.shape[1]
        encoding = encoding_of(self._x, bins, scaled) if inputs <= most else None  # an encoding has no fewer inputs
        if encoding is None:
            return False
        encoded, before = replace(training, encoding=encoding), set(self.losses)
        if self._scaled(encoded, 1)[0].inputs(inputs) > most:
            return False
        self.consider(encoded)
        return self.best() not in before

    def grow(self, units: bool, epochs: bool) -> None:
        """Doubles the number of epochs, and of units, of the best training while the loss decreases."""
        smaller = None
        while (best := self.best()) != smaller and math.isfinite(self._end):
            smaller = best
            if epochs:
                self.consider(replace(best, epochs=2 * best.epochs))
            if units:
                self.consider(replace(best, hidden=tuple(2 * number for number in best.hidden)))

    def scale(self) -> None:
        """Scales the inputs by their relevance to the best networks, if this is clearly better, and by a large part.

        The first networks may be too bad to show the relevance: then those with scaled inputs show it. After that, it
        is repeated while the loss decreases, and the other trainings are tried with these scales, too.
        """
        others, first = list(self.losses), self.best()
        scaled = first
        for _ in range(SCALINGS):
            before, scaled = scaled, replace(first, scaled_by=scaled)
            if not self._has_time_for(scaled):
                return
            if not all(self._is_better(scaled, before, folds, 0.0) for folds in (1, self._judges)):
                return
            if self._is_better(scaled, first, self._judges, CLEARLY, WORTH):
                break
        else:
            return
        self.consider(scaled)
        self._scale()
        best = self.best()
        for training in others:
            self.consider(replace(training, scaled_by=best))
        self._scale()

    def _scale(self) -> None:
        best = None
        while self.best() != best:
            best = self.best()
            self.consider(replace(best, scaled_by=best))

    def _has_time_for(self, training: Training) -> bool:
        if math.isinf(self._end):
            return True
        return perf_counter() + self._seconds_of(training) <= self._end

    def _seconds_of(self, training: Training) -> float:
        """The time of all networks of this kind, as the networks so far have taken."""
        work = self._count * self._scaled(training, 1)[0].work(self._x.shape[1])
        while training.scaled_by is not None:  # of which each fold needs one network
            training = training.scaled_by
            work += self._scaled(training, 1)[0].work(self._x.shape[1])
        return self._folds * work * self._spent / max(self._work, 1)

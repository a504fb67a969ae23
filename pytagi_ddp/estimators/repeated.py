"""Samples with equal inputs: they stay in one fold, and tell about further samples with these inputs.

Observations at equal inputs have more in common than networks can predict, such as the unit that was measured or a
column that is not in the table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from pytagi_ddp.estimators.student_t import log_density

MOST_EQUAL = 20  # samples with equal inputs that are kept together; networks can learn inputs that occur more often
CORRELATIONS = np.linspace(0, 1, 21)  # to choose from
SCALES = np.geomspace(1e-6, 4, 160)  # of s^2, to choose from
PROBABILITIES = 1 - np.geomspace(1, 1e-4, 41)  # to choose from
TINY = 1e-12  # probability
LEAST_GAIN = 8.0  # of the log-likelihood if samples have something in common; both samples of a pair count
MOST_LEARNT = 0.9  # limit on the share of a deviation that networks have learnt


def rows_of(x: np.ndarray) -> list[bytes]:
    """The bytes of each row of float32 inputs: equal for equal inputs, and where the same ones are missing."""
    plain = np.where(np.isnan(x), np.float32(np.nan), x + np.float32(0))
    return [row.tobytes() for row in plain]


def groups_of(x: np.ndarray) -> np.ndarray:
    """A number for each sample, which samples with equal inputs share unless they are more than `MOST_EQUAL`."""
    numbers: dict[bytes, int] = {}
    group = np.array([numbers.setdefault(row, len(numbers)) for row in rows_of(x)], int)
    frequent = np.bincount(group)[group] > MOST_EQUAL
    group[frequent] = len(numbers) + np.arange(np.count_nonzero(frequent))
    return group


@dataclass
class Totals:
    """What has been observed at each row of inputs, except at those that occur more often than `MOST_EQUAL`.

    Attributes:
        sums: (weight, weighted target) by row; a target is a number or an array. frequent: the rows left out.
    """

    sums: dict[bytes, tuple[float, np.ndarray]]
    frequent: set[bytes]

    @classmethod
    def of(cls, x: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Totals:
        totals = cls({}, {row for row, count in Counter(rows_of(x)).items() if count > MOST_EQUAL})
        totals.add(x, targets, weights)
        return totals

    def add(self, x: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
        for row, target, weight in zip(rows_of(x), _times(weights, targets), weights.tolist(), strict=True):
            if row not in self.frequent:
                before = self.sums.get(row)
                self.sums[row] = (weight, target) if before is None else (before[0] + weight, before[1] + target)

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(which samples have known inputs, the weights of these, their mean targets)."""
        found = [(k, *self.sums[row]) for k, row in enumerate(rows_of(x)) if row in self.sums]
        places, weights, sums = zip(*found, strict=True) if found else ((), (), ())
        return np.array(places, int), np.array(weights), _times(1 / np.array(weights), np.array(sums))

    def others(
        self, x: np.ndarray, targets: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `at`, without each sample itself: only samples that share their inputs with others."""
        places, totals, means = self.at(x)
        left = totals - weights[places]
        shared = left > 1e-9 * totals
        places, left = places[shared], left[shared]
        sums = _times(totals[shared], means[shared]) - _times(weights[places], targets[places])
        return places, left, _times(1 / left, sums)


def _times(weights: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return weights.reshape(-1, *[1] * (targets.ndim - 1)) * targets


@dataclass
class RandomIntercept:
    """Observations y = f(x) + u + e, where u is the same at equal inputs.

    For the correlation r = var u/(var u + var e), the prediction at inputs with n observations is m + k (their mean -
    m), where k = n r/(1 + (n - 1) r). Networks have learnt a part of k already, which is taken away.

    Attributes:
        totals: the observations of the standardised target. correlation: r. scale: factor on the noise's s^2.
        learnt: the part of a deviation from predictions without these observations that networks have learnt.

    Source: Laird & Ware (1982), "Random-effects models for longitudinal data", Biometrics 38.
    """

    totals: Totals
    correlation: float
    scale: float
    learnt: float

    def given(self, x: np.ndarray, mu: np.ndarray, log_scale2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and ln s^2 for the samples x, from those that networks predict."""
        places, weights, means = self.totals.at(x)
        if not len(places):
            return mu, log_scale2
        mu, log_scale2 = mu.copy(), log_scale2.copy()
        share = np.maximum(best_share(self.correlation, weights) - self.learnt, 0) / (1 - self.learnt)
        mu[places] += share * (means - mu[places])
        log_scale2[places] += np.log(self.scale)
        return mu, log_scale2


def best_share(correlation: float, weights: np.ndarray) -> np.ndarray:
    """The share of the mean deviation of n observations in the best linear prediction of one more."""
    return weights * correlation / np.maximum(1 + (weights - 1) * correlation, 1e-9)


def learn_intercept(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    unseen: np.ndarray,
    seen: np.ndarray,
    log_scale2: np.ndarray,
    degrees: float,
) -> RandomIntercept | None:
    """The intercept that makes samples with equal inputs most likely, each predicted from the others.

    None: there are no such samples, or too few to show that they have anything in common. One more observation of the
    size of s is assumed, so that a few equal observations do not make the scale 0. If different y are at least d apart,
    they have been rounded, and squares have at least the mean d^2/12.

    Args:
        x, y: standardised samples. weights: how often each counts.
        unseen, seen: predictions by networks that have not learnt the inputs of a sample, and by all networks.
        log_scale2, degrees: of Student's t-distribution around `unseen`.
    """
    totals = Totals.of(x, y, weights)
    places, others, means = totals.others(x, y, weights)
    if not len(places):
        return None
    counts, inverse = np.append(weights[places], 1.0), np.exp(-log_scale2[places])
    residuals, deviations = y[places] - unseen[places], means - unseen[places]
    rounding = np.diff(np.unique(y)).min(initial=1.0) ** 2 / 12

    def likelihood_of(correlation: float) -> tuple[float, float]:
        """(largest log-likelihood, scale)"""
        left = residuals - best_share(correlation, others) * deviations
        squares = np.append((left**2 + rounding) * inverse, 1.0)
        logs = [counts @ log_density(squares, np.full(len(squares), np.log(scale)), degrees) for scale in SCALES]
        best = int(np.argmax(logs))
        return float(logs[best]), float(SCALES[best])

    (best, scale), correlation = max((likelihood_of(r), r) for r in CORRELATIONS.tolist())
    if best < likelihood_of(0.0)[0] + LEAST_GAIN:
        return None
    moved, towards = (seen - unseen)[places], totals.at(x[places])[2] - unseen[places]
    square = float(weights[places] @ towards**2)
    learnt = float(weights[places] @ (moved * towards)) / square if square else 0.0
    return RandomIntercept(totals, correlation, scale, min(max(learnt, 0.0), MOST_LEARNT))


@dataclass
class SharedClass:
    """With this probability, a sample has the class of one of the learnt samples with equal inputs.

    Attributes:
        totals: classes of the samples, as rows of zeros and a one.
    """

    totals: Totals
    probability: float

    def given(self, x: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Probabilities of the classes of samples x, (n, classes), from those that networks predict."""
        places, _, means = self.totals.at(x)
        mixed = probabilities.copy()
        if len(places):
            mixed[places] += self.probability * (means - mixed[places])
        return mixed

    def learn(self, x: np.ndarray, numbers: np.ndarray, weights: np.ndarray, classes: int) -> None:
        """Further samples."""
        self.totals.add(x, np.eye(classes)[numbers], weights)


def learn_class(x: np.ndarray, numbers: np.ndarray, weights: np.ndarray, unseen: np.ndarray) -> SharedClass | None:
    """The probability that makes samples with equal inputs most likely, each predicted from the others.

    None: there are no such samples, or too few to show that their classes have anything in common. One more sample that
    does not have the class of another one is assumed.

    Args:
        x: standardised samples. numbers: their classes. weights: how often each counts.
        unseen: (n, classes) probabilities by networks that have not learnt the inputs of a sample.
    """
    ones = np.eye(unseen.shape[1])[numbers]
    totals = Totals.of(x, ones, weights)
    places, _, means = totals.others(x, ones, weights)
    if not len(places):
        return None
    alone, shared = unseen[places, numbers[places]], means[np.arange(len(places)), numbers[places]]

    def log_likelihood(probability: float) -> float:
        mixture = alone + probability * (shared - alone)
        return float(weights[places] @ np.log(np.maximum(mixture, TINY))) + np.log(1 - probability)

    best = max(PROBABILITIES.tolist(), key=log_likelihood)
    return SharedClass(totals, best) if log_likelihood(best) > log_likelihood(0.0) + LEAST_GAIN else None

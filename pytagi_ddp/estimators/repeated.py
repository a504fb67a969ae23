"""Samples with equal inputs: they stay in one fold, and tell about further samples with these inputs.

Observations at equal inputs have more in common than networks can predict, such as the unit that was measured or a
column that is not in the table.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf, isinf

import numpy as np

from pytagi_ddp.estimators.student_t import Scale, fit_scale, log_density

DECIMALS = 4  # of standardised inputs that are equal
DIGEST = 16  # bytes of a row of inputs: all of them would be as large as the table
PART = 0.1  # equal inputs of a larger part of all samples are not kept together: networks have to learn them
SHARES = (*np.linspace(0, 1, 21).tolist(), 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)  # of a variance in s^2, to choose from
FLOOR = 0.05  # part of the noise at known inputs that does not depend on the number of observations
LEAST = 1e-8  # smallest mean square of residuals of a target with the variance 1
PRIORS = np.append(np.geomspace(1e-3, 1e3, 61), inf)  # to choose from
TINY = 1e-12  # probability
MOST_LEARNT = 0.9  # limit on the part of a deviation that networks have learnt
LEAST_GAIN = 4.0  # of the log-likelihood, if samples have something in common


def keys_of(x: np.ndarray) -> list[bytes]:
    """A digest of each row of standardised inputs, which are rounded: equal for equal inputs."""
    rounded = np.ascontiguousarray(np.round(x, DECIMALS))
    rounded += np.float32(0)  # which makes 0 of -0
    rounded[np.isnan(rounded)] = np.nan
    return [blake2b(row, digest_size=DIGEST).digest() for row in rounded]


def frequent(keys: list[bytes]) -> set[bytes]:
    most = max(PART * len(keys), 2)
    return {key for key, count in Counter(keys).items() if count > most}


def groups_of(x: np.ndarray) -> np.ndarray:
    """A number for each sample, which samples with equal inputs share unless they are a large part of all."""
    keys = keys_of(x)
    apart, numbers = frequent(keys), dict[bytes | int, int]()
    return np.array([numbers.setdefault(k if key in apart else key, len(numbers)) for k, key in enumerate(keys)], int)


@dataclass
class Rows:
    """The inputs that have been learnt, with sums over the samples that have them.

    Attributes:
        blocks: the columns of each categorical column. frequent: inputs that are left to the networks.
        numbers: the place of each row of inputs.
        sums: at each place, of the weights and of the weighted values.
    """

    blocks: list[slice]
    frequent: set[bytes]
    numbers: dict[bytes, int] = field(default_factory=dict)
    sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def of(cls, x: np.ndarray, blocks: list[slice]) -> Rows:
        """No rows so far; x: the samples of which some are too many to be added."""
        return cls(blocks, frequent(keys_of(x)))

    def places(self, x: np.ndarray, new: bool = False) -> np.ndarray:
        """The place of each sample's inputs; -1 if they are not known.

        new: adds inputs that are not known, unless one of them is missing.
        """
        keys = keys_of(x)
        if new:
            missing = np.isnan(x).any(1)
            for block in self.blocks:
                missing |= (x[:, block] < 0).all(1)  # no category: each of them is below its mean
            for key in itertools.compress(keys, (~missing).tolist()):
                if key not in self.frequent:
                    self.numbers.setdefault(key, len(self.numbers))
        return np.array([self.numbers.get(key, -1) for key in keys], int)

    def add(self, x: np.ndarray, values: np.ndarray, weights: np.ndarray) -> None:
        """Further samples with values (n, m)."""
        places = self.places(x, new=True)
        before = self.sums if len(self.sums) else np.zeros((0, values.shape[1] + 1))
        sums = np.concatenate([before, np.zeros((len(self.numbers) - len(before), before.shape[1]))])
        np.add.at(sums, places[places >= 0], (weights[:, None] * np.c_[np.ones(len(x)), values])[places >= 0])
        self.sums = sums

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(which samples have known inputs, the weights of these, sums of their weighted values)."""
        places = self.places(x)
        known = np.flatnonzero(places >= 0)
        sums = self.sums[places[known]]
        return known, sums[:, 0], sums[:, 1:]


def others_of(places: np.ndarray, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """(samples that share their inputs, how many do so, the others' weights, sums of their weighted values).

    Args:
        places: of each sample, -1 for none. values: (n, m). weights: how often each sample counts.
    """
    some = np.flatnonzero(places >= 0)
    place, weighted = places[some], weights[some, None] * np.c_[np.ones(len(some)), values[some]]
    count = np.bincount(place, minlength=1)
    sums = np.stack([np.bincount(place, column, minlength=1) for column in weighted.T], 1)
    shared = count[place] > 1
    rest = (sums[place] - weighted)[shared]
    return some[shared], count[place[shared]], np.maximum(rest[:, 0], LEAST), rest[:, 1:]


def best_share(correlation: np.ndarray | float, weights: np.ndarray | float) -> np.ndarray:
    """The share of the mean deviation of n observations in the best linear prediction of one more."""
    return weights * correlation / np.maximum(1 + (weights - 1) * correlation, LEAST)


@dataclass
class RandomIntercept:
    """Observations y = f(x) + u + e, where u is the same at equal inputs.

    With r = var u/s^2, at most 1, the best prediction of a deviation from f, given n others with the mean d, is k d,
    where k = n r/(1 + (n - 1) r). Networks have learnt a part of k already, which is taken away. Observations far from
    f count for less, as Student's t-distribution says. The variance of the noise is proportional to 1 - k r (and a
    constant), and to a power of s^2 at new inputs.

    Attributes:
        rows: deviations of observations of the standardised target from predictions. variance: var u.
        scale: ln of the factor on s^2, without 1 - k r, as a function of ln s^2 - centre, which is limited to `limits`.
        learnt: the part of a deviation from predictions without these observations that networks have learnt.

    Source: Laird & Ware (1982), "Random-effects models for longitudinal data", Biometrics 38.
    """

    rows: Rows
    variance: float
    scale: Scale
    centre: float
    limits: tuple[float, float]
    learnt: float

    def given(self, x: np.ndarray, mu: np.ndarray, log_scale2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and ln s^2 for the samples x, from those that networks predict."""
        known, weights, sums = self.rows.at(x)
        mu, log_scale2 = mu.copy(), log_scale2.copy()
        correlation = correlation_of(self.variance, log_scale2[known])
        share = best_share(correlation, weights)
        mu[known] += np.maximum(share - self.learnt, 0) / (1 - self.learnt) * sums.sum(1) / np.maximum(weights, LEAST)
        h = np.clip(log_scale2[known] - self.centre, *self.limits)
        log_scale2[known] += np.log(left_of(correlation, share)) + self.scale.log_scale2(h)
        return mu, log_scale2

    def learn(self, x: np.ndarray, deviations: np.ndarray, weights: np.ndarray, log_scale2: np.ndarray) -> None:
        """Further observations, by their deviations from the predictions before they are learnt."""
        trusted = trust(deviations, log_scale2, self.scale.degrees)
        self.rows.add(x, deviations[:, None], weights * trusted)


def correlation_of(variance: float, log_scale2: np.ndarray) -> np.ndarray:
    return np.minimum(variance * np.exp(-log_scale2), 1)


def left_of(correlation: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The part of the variance that is left, given other observations."""
    return (1 - correlation * share + FLOOR) / (1 + FLOOR)


def trust(residuals: np.ndarray, log_scale2: np.ndarray, degrees: float) -> np.ndarray:
    """The weights of residuals in the mean of Student's t-distribution."""
    if isinf(degrees):
        return np.ones(len(residuals))
    return (degrees + 1) / (degrees + residuals**2 * np.exp(-log_scale2))


def learn_intercept(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    unseen: np.ndarray,
    seen: np.ndarray,
    log_scale2: np.ndarray,
    degrees: float,
    blocks: list[slice],
) -> RandomIntercept | None:
    """The intercept that makes samples with equal inputs most likely, each predicted from the others.

    None: there are no such samples, they are too few to show that they have anything in common, or squared errors would
    be larger. The samples with one row of inputs count as one. One more observation of the size of s is assumed, so
    that a few equal observations do not make the scale 0. If different y are at least d apart, they have been rounded,
    and squares have at least the mean d^2/12.

    Args:
        x, y: standardised samples. weights: how often each counts.
        unseen, seen: predictions by networks that have not learnt the inputs of a sample, and by all networks.
        log_scale2, degrees: of Student's t-distribution around `unseen`.
        blocks: the columns of each categorical column.
    """
    rows, residuals = Rows.of(x, blocks), y - unseen
    trusted = weights * trust(residuals, log_scale2, degrees)
    some, size, others, sums = others_of(rows.places(x, new=True), residuals[:, None], trusted)
    if not len(some):
        return None
    deviations, centre = sums[:, 0] / others, float(log_scale2[some].mean())
    h = np.append(log_scale2[some] - centre, 0.0)
    counts = np.append(weights[some] / size, 1.0)
    rounding = max(np.diff(np.unique(y)).min(initial=1.0) ** 2 / 12, LEAST)

    def squares_of(variance: float) -> tuple[np.ndarray, np.ndarray]:
        """(squared errors of predictions from the others, ln of the factor on s^2)."""
        correlation = correlation_of(variance, log_scale2[some])
        share = best_share(correlation, others)
        return (residuals[some] - share * deviations) ** 2, np.log(left_of(correlation, share))

    def likelihood_of(variance: float) -> tuple[float, Scale]:
        errors2, left = squares_of(variance)
        noise = log_scale2[some] + left
        squares = np.append((errors2 + rounding) * np.exp(-noise), 1.0)
        scale = fit_scale(squares, h, (degrees,), counts)
        densities = log_density(squares, scale.log_scale2(h), degrees) - np.append(noise, 0.0) / 2
        return float(counts @ densities) - scale.slope**2 / 2, scale

    variances = [share * float(np.exp(centre)) for share in SHARES]
    found = [(*likelihood_of(one), one) for one in variances]  # the first one is 0
    best, scale, variance = max(found, key=lambda one: one[0])
    relative = counts[:-1] * np.exp(-log_scale2[some])
    # If noise is skewed, the weighted means are likely values, but not the mean.
    if best < found[0][0] + LEAST_GAIN or relative @ squares_of(variance)[0] > relative @ squares_of(0.0)[0]:
        return None
    moved, own = (seen - unseen)[some], trusted[some]
    towards = (sums[:, 0] + own * residuals[some]) / (others + own)
    learnt = float(own @ (moved * towards) / max(float(own @ towards**2), LEAST))
    rows.add(x, (y - seen)[:, None], trusted)
    limits = float(h.min()), float(h.max())
    return RandomIntercept(rows, variance, scale, centre, limits, min(max(learnt, 0.0), MOST_LEARNT))


@dataclass
class SharedClasses:
    """Classes at equal inputs are draws from a distribution that is Dirichlet distributed around the networks' p.

    Given n samples, c of which have a class, its probability is (a p + c)/(a + n).

    Attributes:
        rows: the samples' classes, as rows of zeros and a one. prior: a.
    """

    rows: Rows
    prior: float

    def given(self, x: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Probabilities of the classes of samples x, (n, classes), from those that networks predict."""
        known, weights, counts = self.rows.at(x)
        mixed = probabilities.copy()
        mixed[known] = posterior(self.prior, mixed[known], weights[:, None], counts)
        return mixed

    def learn(self, x: np.ndarray, numbers: np.ndarray, weights: np.ndarray) -> None:
        """Further samples."""
        classes = self.rows.sums.shape[1] - 1
        self.rows.add(x, one_hot(numbers, classes), weights)


def one_hot(numbers: np.ndarray, classes: int) -> np.ndarray:
    return (numbers[:, None] == np.arange(classes)).astype(np.float64)


def posterior(prior: float, p: np.ndarray, weights: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return p if isinf(prior) else (prior * p + counts) / (prior + weights)


def learn_classes(
    x: np.ndarray, numbers: np.ndarray, weights: np.ndarray, unseen: np.ndarray, blocks: list[slice]
) -> SharedClasses | None:
    """The prior that makes samples with equal inputs most likely, each predicted from the others.

    None: there are no such samples, or too few to show that their classes have anything in common. The samples with one
    row of inputs count as one. One more sample is assumed, which does not have the class of another one.

    Args:
        x: standardised samples. numbers: their classes. weights: how often each counts.
        unseen: (n, classes) probabilities by networks that have not learnt the inputs of a sample.
        blocks: the columns of each categorical column.
    """
    rows, ones = Rows.of(x, blocks), one_hot(numbers, unseen.shape[1])
    some, size, others, sums = others_of(rows.places(x, new=True), ones, weights)
    if not len(some):
        return None
    alone, shared = unseen[some, numbers[some]], sums[np.arange(len(some)), numbers[some]]
    counts = weights[some] / size

    def log_likelihood(prior: float) -> float:
        apart = 0.0 if isinf(prior) else np.log(prior / (prior + 1))
        return float(counts @ np.log(np.maximum(posterior(prior, alone, others, shared), TINY))) + apart

    best = max(PRIORS.tolist(), key=log_likelihood)
    if log_likelihood(best) < log_likelihood(inf) + LEAST_GAIN:
        return None
    rows.add(x, ones, weights)
    return SharedClasses(rows, best)

"""The distribution of an observation around an ensemble's prediction: its scale and its tails."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pytagi_ddp.estimators.distributions import EnsemblePrediction, StudentTPrediction
from pytagi_ddp.estimators.encoding import CategoryInputs
from pytagi_ddp.estimators.folds import learnt_by
from pytagi_ddp.estimators.members import Training, moments_apart, observe_values, run_epoch, weighted
from pytagi_ddp.estimators.members import moments as predicted
from pytagi_ddp.estimators.repeated import RandomIntercept
from pytagi_ddp.estimators.student_t import DEGREES, Scale, fit_scale, log_density
from pytagi_ddp.nn import Sequential

# ln r^2 of a Gaussian residual is ln s^2 plus the logarithm of a chi^2 variable with one degree of freedom. The latter
# has this mean and this variance.
LOG_CHI2_MEAN, LOG_CHI2_VAR = -1.27, math.pi**2 / 2
CAUTION = 5  # networks of the noise learn with this multiple of that variance, because residuals are not Gaussian
HIDDEN, EPOCHS = 50, 20  # units and epochs of a network of the noise
LARGEST = 8.0  # limit on |ln r^2|: a residual near 0 is due to chance
MOST_GAIN = 0.7  # limit on the share of s^2 that averaging over networks takes away
LEAST = 1e-8  # smallest variance, where the target has variance 1
ROUNDS = 20  # in which factors of the noise of several columns are fitted together
FACTORS = tuple(2 ** (k / 4) for k in range(-40, 41))  # on the variances of networks, if the noise is known
USUAL = 10  # samples as many as which the usual noise counts in that of samples whose category is rare or missing
Run = Callable[[Callable[..., Any], Iterable[tuple]], list]  # calls a function with each of some tuples of arguments


@dataclass(frozen=True)
class Moments:
    """Predictions of the networks of an ensemble for n samples, in units of the standardised targets.

    Attributes:
        mus, variances, added: means, variances as if no input were missing, and the added variances due to missing
            inputs: (networks, n, targets), or (networks, n) for one target.
        outside: variances of the mean of all networks due to inputs beyond the samples, see `Extrapolation`:
            (n, targets), or (n,); or 0.
    """

    mus: np.ndarray
    variances: np.ndarray
    added: np.ndarray
    outside: np.ndarray | float = 0.0

    @classmethod
    def of(
        cls,
        networks: list[list[Sequential]],
        parts: list[Any],
        x: np.ndarray,
        categories: Sequence[Sequence[CategoryInputs]] = ((),),
    ) -> Moments:
        """The prediction of x: networks[k] predict the rows parts[k]. Each part has the same number of networks.

        categories: those that networks have learnt, for all networks or for those of each fold.
        """
        count, outputs = len(networks[0]), networks[0][0].layers[-1].output_size
        found = np.empty((3, count, len(x), outputs))
        learnt = of_each(categories, len(networks) * count)
        for some, rows in zip(networks, parts, strict=True):
            for s, net in enumerate(some):
                found[:, s, rows] = moments_apart(net, x[rows], next(learnt))
        return cls(*found)

    def target(self, k: int) -> Moments:
        outside = self.outside if isinstance(self.outside, float) else self.outside[:, k]
        return Moments(self.mus[..., k], self.variances[..., k], self.added[..., k], outside)

    def of_samples(self, rows: np.ndarray | slice) -> Moments:
        outside = self.outside if isinstance(self.outside, float) else self.outside[rows]
        return Moments(self.mus[:, rows], self.variances[:, rows], self.added[:, rows], outside)

    def known(self) -> Moments:
        """The mean of the networks' means, as if nothing but missing inputs were uncertain."""
        mu, added = (values.mean(0, keepdims=True) for values in (self.mus, self.added))
        return Moments(mu, np.zeros(mu.shape), added)

    @property
    def networks(self) -> int:
        return len(self.mus)

    @property
    def mu(self) -> np.ndarray:
        """Mean of the networks' means."""
        return self.mus.mean(0)

    @property
    def spread(self) -> np.ndarray:
        """Variance of the networks' means."""
        return self.mus.var(0, ddof=1) if self.networks > 1 else np.zeros(self.mu.shape)

    @property
    def var(self) -> np.ndarray:
        """Mean of the networks' variances, as if no input were missing."""
        return self.variances.mean(0)

    @property
    def missing(self) -> np.ndarray:
        """Variance that missing inputs add to `var`."""
        return self.added.mean(0)


def of_each(categories: Sequence[Sequence[CategoryInputs]], networks: int) -> Iterator[Sequence[CategoryInputs]]:
    """The categories that each of so many networks has learnt, given those of all, or of each fold."""
    return (categories[k * len(categories) // networks] for k in range(networks))


class Noise(ABC):
    """The noise of observations of one target, around the prediction of the networks."""

    @abstractmethod
    def distribution(
        self, x: np.ndarray, moments: Moments, mean: float, std: float, known: bool = True
    ) -> EnsemblePrediction:
        """The distribution of observations of a target that was standardised by this mean and standard deviation.

        known: whether what is known of inputs that have been learnt is used.
        """


class StudentTNoise(Noise):
    """Observations are Student-t distributed, or Gaussian, around the mean of the networks' means.

    Attributes:
        intercept: what is known of inputs that have been learnt, or None.
    """

    degrees: float
    intercept: RandomIntercept | None = None

    def variances(self, moments: Moments) -> np.ndarray:
        """Variances of the networks, as they count in the epistemic part of the variance."""
        return moments.var

    @abstractmethod
    def log_scale2(self, x: np.ndarray, moments: Moments) -> np.ndarray:
        """ln s^2 of the scale s, for a standardised target."""

    @abstractmethod
    def of_observations(self, x: np.ndarray, moments: Moments) -> float | np.ndarray:
        """Variances of the noise that networks are trained with."""

    def distribution(
        self, x: np.ndarray, moments: Moments, mean: float, std: float, known: bool = True
    ) -> EnsemblePrediction:
        log_scale2 = self.log_scale2(x, moments)
        epistemic = self.variances(moments) + moments.missing + moments.spread + moments.outside
        epistemic, spread = (epistemic, moments.spread) * np.exp(-log_scale2)
        mu = moments.mu
        if known and self.intercept is not None:
            mu, log_scale2 = self.intercept.given(x, mu, log_scale2)
        return StudentTPrediction(mu * std + mean, log_scale2 + 2 * np.log(std), self.degrees, epistemic, spread)


@dataclass(frozen=True)
class GivenNoise(StudentTNoise):
    """Noise of a known variance. Predictions are Gaussian; networks' variances, their spread and the noise add up.

    Attributes:
        factor: on the variances of the networks. (Their spread is larger in the ensemble than within a fold.)
    """

    variance: float
    degrees: float = math.inf
    factor: float = 1.0

    def log_scale2(self, x: np.ndarray, moments: Moments) -> np.ndarray:
        of_mean = self.variances(moments) + moments.missing + moments.spread + moments.outside
        return np.log(of_mean + self.variance)

    def variances(self, moments: Moments) -> np.ndarray:
        return self.factor * moments.var

    def fitted(self, moments: Moments, y: np.ndarray, weights: np.ndarray) -> GivenNoise:
        """With the most probable factor, given the prior ln f ~ N(0, 1) and samples that the networks have not learnt.

        weights: the number of times that each sample counts.
        """
        errors = (y - moments.mu) ** 2

        def log_posterior(noise: GivenNoise) -> float:
            scale2 = noise.log_scale2(np.empty(0), moments)
            return float(weights @ log_density(errors, scale2, self.degrees)) - math.log(noise.factor) ** 2 / 2

        return max((replace(self, factor=factor) for factor in FACTORS), key=log_posterior)

    def of_observations(self, x: np.ndarray, moments: Moments) -> float:
        return self.variance


@dataclass(frozen=True)
class Features:
    """Inputs of the networks of the noise: standardised ln of the predicted variance, predicted mean, and inputs.

    The predicted variance leaves out the spread of the networks, which depends on how many networks there are.

    Attributes:
        mean, std, most: mean, standard deviation and largest value of the logarithm.
        most_spread: largest spread of all networks at any sample.

    Defaults are what pickles of version 0.2.0 do without.
    """

    mean: float
    std: float
    most: float = math.inf
    most_spread: float = math.inf

    @classmethod
    def of(cls, moments: Moments, most_spread: float = math.inf) -> Features:
        log_var = _log_var(moments)
        return cls(float(log_var.mean()), float(log_var.std()) or 1.0, float(log_var.max()), most_spread)

    def __call__(self, x: np.ndarray, moments: Moments) -> np.ndarray:
        z = np.clip((_log_var(moments) - self.mean) / self.std, -3, 3)
        return np.concatenate([z[:, None], moments.mu[:, None], x], 1).astype(np.float32)

    def beyond(self, moments: Moments, log_scale2: np.ndarray) -> np.ndarray:
        """ln of the factor on s^2 where predicted variance or spread are larger than at any sample; 0 elsewhere.

        It is the ratio of the variances, or makes s^2 larger by the differences of both and by the variance due to
        inputs beyond the samples, whichever is more.
        """
        log_var = _log_var(moments)
        more = np.maximum(np.exp(log_var) - math.exp(self.most), 0) + np.maximum(moments.spread - self.most_spread, 0)
        return np.maximum(log_var - self.most, np.log1p((more + moments.outside) * np.exp(-log_scale2)))


def _log_var(moments: Moments) -> np.ndarray:
    return np.log(moments.var + LEAST)


@dataclass
class LearntNoise(StudentTNoise):
    """ln s^2 = a + b h(x), and degrees of freedom, by maximum likelihood on residuals of samples not learnt from.

    Missing inputs multiply s^2 by 1 + (variance that they add)/(mean variance without them).

    h predicts ln r^2. It is the mean of networks that learn from the logarithm of the predicted variance, the predicted
    mean and the inputs. Without such networks h is 0, and the scale is the same everywhere. Beyond the samples networks
    continue as straight lines, and s^2 = exp(...) would become 0 or infinite far away. So h is limited to its range at
    the samples, and beyond them s^2 grows with the predicted variance, with the spread of the networks, and with the
    distance if the function bends (see `Extrapolation`).

    Where a category is rare or missing, the target varies as it does between categories. Networks learn h slowly from
    few such samples, so their s^2 has a factor, too.

    Attributes:
        scale: a, b and the degrees of freedom. networks: their mean is h. features: makes their inputs.
        shrink: ln of a factor below 1 on s^2, because all networks together predict better than the few that have not
            seen a sample: the mean of this ln at the samples.
        limits: smallest and largest value of h at the samples.
        complete: mean squared residual without the variance that missing inputs add.
        of_others: (column, ln of the factor on s^2) of each input that is above 0 if a category is rare or missing.
        within: the mean variance between the means of networks over the mean variance of one, at most 1. After few
            epochs, networks are much less certain than their means are different. It is a factor on the variances of
            networks in the epistemic part, up to the largest one at any sample; what is beyond that counts as it is.

    Defaults are what pickles of version 0.2.0 do without.
    """

    scale: Scale
    shrink: float
    features: Features
    limits: tuple[float, float] = (-math.inf, math.inf)
    complete: float = math.inf
    networks: list[Sequential] = field(default_factory=list)
    of_others: tuple[tuple[int, float], ...] = ()
    within: float = 1.0

    @property
    def degrees(self) -> float:  # type: ignore[override]
        return self.scale.degrees

    def variances(self, moments: Moments) -> np.ndarray:
        return moments.var - (1 - self.within) * np.minimum(moments.var, math.exp(self.features.most))

    def log_scale2(self, x: np.ndarray, moments: Moments) -> np.ndarray:
        h = np.zeros(len(x))
        if self.networks:
            features = self.features(x, moments)
            h = np.clip(np.mean([predicted(net, features)[0][:, 0] for net in self.networks], 0), *self.limits)
        usual = self.scale.log_scale2(h) + self.shrink
        for column, factor in self.of_others:
            usual += factor * (x[:, column] > 0)
        return usual + self.features.beyond(moments, usual) + np.log1p(moments.missing / self.complete)

    def of_observations(self, x: np.ndarray, moments: Moments) -> np.ndarray:
        return np.exp(self.log_scale2(x, moments)).astype(np.float32)


def learn_noise(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    moments: Moments,
    fold: np.ndarray,
    gain: np.ndarray,
    heteroscedastic: bool,
    student_t: bool,
    seeds: Sequence[int],
    run: Run,
    others: Sequence[int] = (),
    spread: float = 0.0,
    most_spread: float = math.inf,
) -> LearntNoise:
    """Learns the noise of one target from predictions of samples by networks that have not seen them.

    Args:
        x, y: standardised samples. weights: how often each counts. moments: of y. fold: number of the fold of each.
        gain: by how much the expected squared error of all networks together is smaller than that of `moments`; NaN
            where this is not known.
        heteroscedastic: whether networks of the noise are trained. If not, the scale is the same everywhere.
        student_t: whether the degrees of freedom are fitted. If not, they are infinite. A scale that is estimated from
            n residuals is uncertain itself, so they are at most n - 1 (of equal weights), and not below 3.
        seeds: one for each fold. run: calls the trainings.
        others: the columns of x for rare and missing categories.
        spread, most_spread: mean variance of the means of networks, 0 if it is unknown; largest one of all networks.
    """
    mean = partial(np.average, axis=0, weights=weights)
    squares = (moments.mu - y) ** 2 + LEAST
    complete = max(mean(squares) - mean(moments.missing), mean(squares) / 10)
    squares /= 1 + moments.missing / complete  # their size if no input were missing
    made = Features.of(moments, most_spread)
    h, trained = np.zeros(len(y)), []
    if heteroscedastic:
        target = np.clip(np.log(squares / mean(squares)) - LOG_CHI2_MEAN, -LARGEST, LARGEST)
        target = (target - mean(target)).astype(np.float32)[:, None]
        features = made(x, moments)
        folds = range(int(fold.max()) + 1)
        insides = [learnt_by(fold, k) for k in folds]
        tasks = ((features[rows], target[rows], weights[rows], seed) for rows, seed in zip(insides, seeds, strict=True))
        trained = run(_fit_noise, tasks)
        for k, net in zip(folds, trained, strict=True):
            h[fold == k] = predicted(net, features[fold == k])[0][:, 0]
    scale = fit_scale(squares, h, DEGREES if student_t else DEGREES[-1:], weights)
    ratios = squares * np.exp(-scale.log_scale2(h)) * (1 - 2 / scale.degrees)  # 1 on average
    factors = dict.fromkeys(others, 1.0)
    for column in [*others] * (ROUNDS if len(others) > 1 else 1):  # together: columns may have gaps in the same rows
        rows = x[:, column] > 0
        ratios[rows] *= factors[column]
        factors[column] = (weights[rows] @ ratios[rows] + USUAL) / (weights[rows].sum() + USUAL)
        ratios[rows] /= factors[column]
    some = ~np.isnan(gain)
    expected = np.exp(scale.log_scale2(h)) * (1 + moments.missing / complete)
    shares = np.minimum((gain / expected)[some], MOST_GAIN)
    shrink = float(np.average(np.log1p(-shares), weights=weights[some]))
    of_others = tuple((column, math.log(factor)) for column, factor in factors.items())
    within = min(1.0, spread / mean(moments.var)) if spread else 1.0
    if student_t:
        residuals = float(weights.sum() ** 2 / (weights @ weights))  # of equal weights, as informative as these
        scale = replace(scale, degrees=min(scale.degrees, max(DEGREES[0], residuals - 1)))
    return LearntNoise(scale, shrink, made, (h.min(), h.max()), complete, trained, of_others, within)


def _fit_noise(features: np.ndarray, target: np.ndarray, weights: np.ndarray, seed: int) -> Sequential:
    training = Training((HIDDEN,), EPOCHS, gain=0.5)
    net, rng = training.network(features.shape[1], seed), np.random.default_rng(seed)
    last = net.layers[-1]
    last.mu_w, last.mu_b = last.mu_w * np.float32(0.1), last.mu_b * np.float32(0.1)  # h is nearly constant at first
    variances = weighted(CAUTION * LOG_CHI2_VAR, weights, target.shape)
    for _ in range(EPOCHS):
        run_epoch(net, training.batch_size, rng, observe_values, features, target, variances)
    return net

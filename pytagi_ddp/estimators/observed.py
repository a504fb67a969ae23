"""Targets that are observed by a likelihood of `pytagi_ddp.likelihoods`, chosen by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytagi_ddp.estimators.distributions import MixturePrediction
from pytagi_ddp.estimators.ensemble import scales_of
from pytagi_ddp.estimators.members import LEAST_NOISE, Observe, Training, moments, run_epoch
from pytagi_ddp.estimators.noise import Moments, Noise
from pytagi_ddp.likelihoods import (
    Gamma,
    Gaussian,
    Joint,
    Laplace,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from pytagi_ddp.nn import OutputUpdater, Sequential

REAL: dict[str, Callable[[], Likelihood]] = {
    "gaussian": lambda: Gaussian(1.0),
    "student_t": lambda: StudentT(4.0, 1.0),
    "laplace": lambda: Laplace(0.7),
}
POSITIVE: dict[str, Callable[[], Likelihood]] = {"gamma": lambda: Gamma(1.0), "lognormal": lambda: LogNormal(1.0)}
COUNTS: dict[str, Callable[[], Likelihood]] = {
    "poisson": Poisson,
    "negative_binomial": lambda: NegativeBinomial(1.0),
}
NAMES = {**REAL, **POSITIVE, **COUNTS}
SLOPES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of outputs, to choose from
LIMITS = tuple(4.0**-k for k in range(6))  # on variances of outputs, over the largest one, to choose from
UNLIMITED = 0.9  # share of the variances that no limit may change
SCALES = ("sigma", "scale")
LEAST_SCALE = LEAST_NOISE**0.5  # of targets without noise
FITTED = 200  # samples that the noise is fitted to in training
UNSEEN = 1000  # samples that have not been learnt, to which it is fitted in the end
MOST_TIMES = 16  # largest number of times that a sample of large weight is shown in an epoch, with a part of its weight


def check_name(name: Any) -> None:
    """Raises ValueError for anything else than None or a name of `NAMES`."""
    if name is not None and not (isinstance(name, str) and name in NAMES):
        raise ValueError(f"likelihood must be None or one of {', '.join(map(repr, NAMES))}; got {name!r}")


def check_targets(name: str, y: np.ndarray) -> None:
    """Raises ValueError for y, (n, targets), that the likelihood cannot have."""
    if name in REAL:
        return
    bad = y <= 0 if name in POSITIVE else (y < 0) | (y != np.floor(y))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        what = "numbers above 0" if name in POSITIVE else "counts, whole numbers from 0 on"
        message = f"likelihood={name!r} is for {what}, and y has {y[row, column]} in row {row}"
        if name in COUNTS and y[row, column] > 0:
            kind = type(COUNTS[name]()).__name__
            message += (
                ". Counts of different times or areas need their exposures, which estimators do not take: observe the "
                f"counts by likelihoods.{kind}(exposure=exposures[rows]).observe(net, counts[rows])"
            )
        raise ValueError(message)


def units(name: str, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means, standard deviations) by which y, (n, targets), is scaled: of positive numbers the means, of counts 1."""
    if name in REAL:
        return scales_of(y, weights)
    ones = np.ones(y.shape[1])
    return 0 * ones, np.average(y, 0, weights) if name in POSITIVE else ones


@dataclass(frozen=True)
class LikelihoodNoise(Noise):
    """Noise of one target, whose likelihood has been fitted. Predictions are the mixture over the networks.

    Attributes:
        centre, slope: c and b; outputs z become c + b (z - c). Networks learn some of the noise of small tables, so
            their outputs vary too much; where these are logarithms, the means e^(m + s/2) vary much too much.
        limit: of the variance s of an output. At a rare category s may be many times the squared error of the output,
            and the mean e^(m + s/2) far too large. At most a tenth of the variances at samples are above the limit.
            What is beyond `most` is added as it is.
        most: the largest s at any sample.
    """

    likelihood: Likelihood
    centre: float = 0.0
    slope: float = 1.0
    limit: float = math.inf
    most: float = math.inf

    def distribution(
        self, x: np.ndarray, moments: Moments, mean: float, std: float, known: bool = True
    ) -> MixturePrediction:
        outside = moments.outside if self._of_numbers else 0.0  # else the means e^(m + s/2) would be far too large
        variances = self.slope**2 * (self._limited(moments.variances) + moments.added + outside)
        return MixturePrediction(self.likelihood, self._shrunk(moments.mus), variances, mean, std)

    @property
    def _of_numbers(self) -> bool:
        """Whether outputs are in the unit of y."""
        return isinstance(self.likelihood, Gaussian | StudentT | Laplace)

    def _shrunk(self, z: np.ndarray) -> np.ndarray:
        return z if self.slope == 1 else self.centre + self.slope * (z - self.centre)

    def _limited(self, variances: np.ndarray) -> np.ndarray:
        return np.minimum(variances, self.limit) + np.maximum(variances - self.most, 0)

    def with_slope(self, moments: Moments, y: np.ndarray, weights: np.ndarray) -> LikelihoodNoise:
        """The noise of counts or positive numbers, and the slope that is most probable for the prior ln b ~ N(0, 1/4).

        The limit of variances is the most likely one for the samples with the largest variances. Other noise has the
        slope 1, and no limit. The arguments are those of `fitted`.
        """
        fitted = self.fitted(moments, y, weights)
        if self._of_numbers:
            return fitted
        rows: slice | np.ndarray = np.argsort(-moments.var, kind="stable")[:UNSEEN]
        some, most = moments.of_samples(rows), float(moments.variances.max())
        least = float(np.quantile(moments.variances, UNLIMITED))
        tried = (replace(fitted, limit=max(share * most, least), most=most) for share in LIMITS)
        fitted = max(tried, key=lambda noise: noise._log_likelihood(some, y[rows], weights[rows]))
        rows = slice(None, None, max(len(y) // UNSEEN, 1))
        some = moments.of_samples(rows)
        median = isinstance(self.likelihood, LogNormal)
        centre = np.average(np.log(y), weights=weights) if median else np.log(np.average(y, weights=weights) + 1e-3)

        def log_posterior(noise: LikelihoodNoise) -> float:
            return noise._log_likelihood(some, y[rows], weights[rows]) - 2 * math.log(noise.slope) ** 2

        tried = (replace(fitted, centre=float(centre), slope=slope) for slope in SLOPES)
        best = max(tried, key=log_posterior)
        if best.slope != 1 and not median:  # the mean prediction becomes that of the observations
            predicted = best.distribution(y[rows], some, 0.0, 1.0).mean
            rise = centre - np.log(np.average(predicted, weights=weights[rows]) + 1e-3)
            best = replace(best, centre=best.centre + float(rise) / (1 - best.slope))
        return best.fitted(moments, y, weights)

    def _log_likelihood(self, moments: Moments, y: np.ndarray, weights: np.ndarray) -> float:
        return float(weights @ self.distribution(y, moments, 0.0, 1.0).log_prob(y))

    def fitted(self, moments: Moments, y: np.ndarray, weights: np.ndarray, share: float = 1.0) -> LikelihoodNoise:
        """The noise that is most likely for one target of samples, given what networks predict for them.

        Args:
            share: below 1, the logarithms of its parameters go from those of this noise by this part of the way.
        """
        rows = slice(None, None, max(len(y) // UNSEEN, 1))
        var = (self._limited(moments.variances).mean(0) + moments.missing + moments.spread)[rows]
        mu, var = self._shrunk(moments.mu[rows]), self.slope**2 * var
        old, new = self.likelihood, most_likely(self.likelihood, mu, var, y[rows], weights[rows])
        pairs = {name: (getattr(old, name), getattr(new, name)) for name in old.noise_parameters}
        return replace(
            self, likelihood=type(old)(**{name: a ** (1 - share) * b**share for name, (a, b) in pairs.items()})
        )


def most_likely(
    likelihood: Likelihood, mu: np.ndarray, var: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> Likelihood:
    """The likelihood of this kind that is most likely, for one target; its scale is not below `LEAST_SCALE`."""
    if not likelihood.noise_parameters:
        return likelihood
    found = likelihood.fitted_to(mu[:, None], var[:, None], y[:, None], weights)
    values = {name: getattr(found, name) for name in found.noise_parameters}
    bounded = {name: max(value, LEAST_SCALE) if name in SCALES else value for name, value in values.items()}
    return type(found)(**bounded)


def observed(likelihoods: list[Likelihood]) -> Observe:
    """A function that observes y, (n, targets), with their weights, each target by its own likelihood."""
    one = likelihoods[0] if len(likelihoods) == 1 else None
    joint = Joint(*likelihoods)

    def observe(net: Sequential, updater: OutputUpdater, y: np.ndarray, weights: np.ndarray) -> None:
        if one is not None:
            one.observe(net, y, weights)
        else:
            joint.observe(net, list(y.T.copy()), weights)

    return observe


def begin(net: Sequential, name: str, y: np.ndarray, weights: np.ndarray) -> Sequential:
    """Counts are e^z: the biases of the outputs begin at the logarithms of their means."""
    if name in COUNTS:
        last = net.layers[-1]
        last.mu_b = last.mu_b + np.log(np.average(y, 0, weights) + 1e-3).astype(np.float32)
    return net


def fit_observations(
    training: Training, x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int, name: str
) -> Sequential:
    """A network trained on y, (n, targets), as the likelihood of this name observes them.

    The noise is that which is most likely for the present means, and fitted again after 1, 2, 4, ... epochs.
    """
    net, rng = begin(training.network(x.shape[1], seed), name, y, weights), np.random.default_rng(seed)
    likelihoods = [NAMES[name]() for _ in range(y.shape[1])]
    some = rng.permutation(len(x))[:FITTED]
    times = np.clip(np.ceil(weights), 1, MOST_TIMES).astype(int)
    shown = np.arange(len(x)).repeat(times)
    parts = (weights / times)[shown].astype(np.float32)
    for epoch in range(training.epochs):
        training.prepare(net, epoch)
        if epoch and not epoch & (epoch - 1):
            mu = moments(net, x[some])[0]
            likelihoods = [
                most_likely(likelihood, mu[:, k], 0 * mu[:, k], y[some, k], weights[some])
                for k, likelihood in enumerate(likelihoods)
            ]
        run_epoch(net, training.batch_size, rng, observed(likelihoods), x[shown], y[shown], parts)
    return net

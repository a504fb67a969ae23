"""Counts, whose mean is e^z."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.formulas.likelihood import LOG_TRIALS, TRIALS
from pytagi_ddp.likelihoods.base import Likelihood, Outputs, one, positive, refuse_where
from pytagi_ddp.likelihoods.prediction import LinkedPrediction, Prediction, special


class Poisson(Likelihood):
    """Counts y ~ Poisson(exposure e^z): log p(y | z) = y z - exposure e^z + const.

    Z = E[p(y | z)] by nodes around the posterior's mode. Posterior moments have errors below 1e-3 of the prior's (1e-3
    standard deviations, or of a larger shift; 1e-3 of the variance) for m within +-50, s from 1e-6 to 1e4 and y up
    to 1000.

    Observes batch x outputs counts. Predicts counts; mean exposure e^(m + s/2).

    Args:
        exposure: time, area or population of a count, the same for all counts; e^z is the rate for an exposure of 1.

    Raises:
        ValueError: an exposure that is not positive; in `observe`, counts that are negative or not whole numbers.
        TypeError: an array of exposures; the message says how to use it.
    """

    def __init__(self, exposure: float = 1.0):
        if np.ndim(exposure):
            raise TypeError(
                f"Poisson needs one number as exposure, got an array of shape {np.shape(exposure)}: add the logarithms "
                'of exposures that differ to the output, by Parallel(..., None, merge="sum", split=[k, 1])'
            )
        self.exposure = positive("exposure", self, exposure)
        self._trials, self._shift = one(TRIALS), one(np.log(self.exposure) - LOG_TRIALS)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        outputs.observe("binomial", _counts(self, outputs, y), self._trials, self._shift, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        sp, m = special(), mu + np.log(self.exposure)
        mean = np.exp(m + 0.5 * var)
        return LinkedPrediction(
            m,
            var,
            mean,
            mean + mean**2 * np.expm1(var),
            lambda y, z: y * z - np.exp(np.minimum(z, 700)) - sp.gammaln(y + 1),
            lambda y, z: sp.gammaincc(y + 1, np.exp(np.minimum(z, 700))),
            lambda random, z: random.poisson(np.exp(np.minimum(z, 43))).astype(float),
            True,
            lambda y: 1 / np.sqrt(1 + y),
        )


class NegativeBinomial(Likelihood):
    """Counts with mean e^z and variance e^z + e^2z/size: more spread than `Poisson`, which it is for size to infinity.

    log p(y | z) = y z - (y + size) log(size + e^z) + const. Z and its errors are as for `Poisson`, for sizes from
    0.1 to 100.

    Observes batch x outputs counts. Predicts counts; mean e^(m + s/2).

    Args:
        size: of the gamma distribution of rates, also called r or 1/overdispersion.

    Raises:
        ValueError: a size that is not positive; in `observe`, counts that are negative or not whole numbers.
    """

    noise_parameters: ClassVar = {"size": (0.1, 100.0)}

    def __init__(self, size: float = 1.0):
        self.size = positive("size", self, size)
        self._shift = one(-np.log(self.size))

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        counts = _counts(self, outputs, y)
        outputs.observe("binomial", counts, counts + np.float32(self.size), self._shift, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        sp, r = special(), self.size
        mean = np.exp(mu + 0.5 * var)
        square = np.exp(2 * mu + 2 * var)  # E[e^2z]

        def log_density(y: np.ndarray, z: np.ndarray) -> np.ndarray:
            odds = z - np.log(r)
            const = sp.gammaln(y + r) - sp.gammaln(y + 1) - sp.gammaln(r)
            return const + y * odds - (y + r) * np.logaddexp(0, odds)

        return LinkedPrediction(
            mu,
            var,
            mean,
            mean + square * (1 + 1 / r) - mean**2,
            log_density,
            lambda y, z: sp.betainc(r, y + 1, sp.expit(np.log(r) - z)),
            lambda random, z: random.poisson(np.minimum(random.gamma(r, np.exp(np.minimum(z, 43)) / r), 5e18)) * 1.0,
            True,
            lambda y: 1 / np.sqrt(np.minimum(1 + y, r)),
        )


def _counts(likelihood: Likelihood, outputs: Outputs, y: Any) -> np.ndarray:
    values = outputs.numbers(y)
    known = values[~np.isnan(values)]
    refuse_where((known < 0) | (known != np.floor(known)), likelihood, "counts, whole numbers from 0 on")
    return values

"""Positive numbers, whose mean is e^z."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.likelihoods.base import ONE, Likelihood, Outputs, one, positive, refuse_where
from pytagi_ddp.likelihoods.prediction import LinkedPrediction, Prediction, special


class Gamma(Likelihood):
    """Positive y with mean e^z and variance e^2z/shape; shape = 1 is the exponential distribution, of waiting times.

    log p(y | z) = -shape (z + y e^-z) + const. Z = E[p(y | z)] by nodes around the posterior's mode. Posterior moments
    have errors below 1e-3 of the prior's (1e-3 standard deviations, or of a larger shift; 1e-3 of the variance) for m
    within +-50, s from 1e-6 to 1e4, shape from 0.01 to 3000, y from 0.001 to 1000.

    Observes batch x outputs positive numbers. Predicts positive numbers; mean e^(m + s/2).

    Args:
        shape: 1/shape is the square of the relative standard deviation of y.

    Raises:
        ValueError: a shape that is not positive; in `observe`, a y that is not.
    """

    noise_parameters: ClassVar = {"shape": (0.01, 3000.0)}

    def __init__(self, shape: float = 1.0):
        self.shape = positive("shape", self, shape)
        self._shape = one(self.shape)

    def _checked(self, outputs: Outputs, y: Any) -> np.ndarray:
        values = outputs.numbers(y)
        refuse_where(values <= 0, self, "positive numbers")
        return values

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        outputs.observe("gamma", self._checked(outputs, y), self._shape, ONE, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        sp, k = special(), self.shape
        mean = np.exp(mu + 0.5 * var)
        const = k * np.log(k) - sp.gammaln(k)

        def log_density(y: np.ndarray, z: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore", invalid="ignore"):
                return const + (k - 1) * np.log(y) - k * z - k * y * np.exp(np.minimum(-z, 700))

        return LinkedPrediction(
            mu,
            var,
            mean,
            mean**2 * (np.expm1(var) + np.exp(var) / k),
            log_density,
            lambda y, z: sp.gammainc(k, k * y * np.exp(np.minimum(-z, 700))),
            lambda random, z: random.gamma(k, np.exp(np.minimum(z, 700)) / k),
            False,
            lambda y: np.full(y.shape, 1 / np.sqrt(max(k, 1.0))),
            lambda y: (np.log(y) + np.log(k) - sp.digamma(k), np.full(y.shape, np.sqrt(sp.polygamma(1, k)))),
        )

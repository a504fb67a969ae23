"""Negative binomial distributions with given means and variances, for forecasts of counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, gammaln, hyp2f1, nbdtrik, xlog1py

from pytagi_ddp.likelihoods.prediction import SCORE, PredictionOfMoments, check_q, observed_as

LEAST_MEAN = 0.05  # in standard deviations: a network may forecast a mean below 0
LEAST_VARIANCE = 1e-20
OVERDISPERSED = 1.01  # least ratio of the variance to the mean; with 1, it is a Poisson distribution


class CountPrediction(PredictionOfMoments):
    """Negative binomial distributions of counts 0, 1, 2 ... with these means and variances.

    Means are raised to 0.05 standard deviations, and variances to 1.01 times the mean.
    """

    discrete = True

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        variance = np.maximum(variance, LEAST_VARIANCE)
        self._mean = np.maximum(mean, LEAST_MEAN * np.sqrt(variance))
        self._variance = np.maximum(variance, OVERDISPERSED * self._mean)
        self._p = self._mean / self._variance
        self._size = self._mean * self._p / (1 - self._p)

    def log_prob(self, y: Any) -> np.ndarray:
        k, n, p = observed_as(y, self._mean), self._size, self._p
        with np.errstate(invalid="ignore"):
            found = gammaln(k + n) - gammaln(k + 1) - gammaln(n) + n * np.log(p) + xlog1py(k, -p)
            return np.where((k < 0) | (k % 1 != 0), np.where(np.isnan(k), np.nan, -np.inf), found)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return _up_to(observed_as(y, self._mean), self._size, self._p)

    def quantile(self, q: float) -> np.ndarray:
        return self.at(np.full(self._mean.shape, check_q(q)))

    def at(self, q: np.ndarray) -> np.ndarray:
        """The quantile q[..., k] of each distribution k."""
        most = np.ceil(nbdtrik(q, self._size, self._p))
        less = np.maximum(most - 1, 0)
        return np.where(_up_to(less, self._size, self._p) >= q, less, most)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        return self.at(np.random.default_rng(seed).random((n, *self._mean.shape)))

    def crps(self, y: ArrayLike) -> np.ndarray:
        values, m, p = observed_as(y, self._mean), self._mean, self._p
        z = -4 * (1 - p) / p**2
        with np.errstate(over="ignore", invalid="ignore"):
            apart = m / p / np.sqrt(1 - z) * hyp2f1(1 - self._size, 0.5, 2, z / (z - 1))  # E|Y - Y'|/2
        apart = np.where(np.isfinite(apart), apart, np.sqrt(self._variance / np.pi))  # as of a Gaussian
        below, smaller = _up_to(values, self._size, p), _up_to(values - 1, self._size + 1, p)
        return values * (2 * below - 1) - m * (2 * smaller - 1) - apart

    crps.__doc__ = f"""{SCORE}

        Source: Wei & Held (2014), "Calibration tests for count data", TEST 23.
        """


def _up_to(k: np.ndarray, size: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The probability of at most k."""
    with np.errstate(invalid="ignore"):
        return np.where(k < 0, 0.0, betainc(size, np.floor(np.maximum(k, 0)) + 1, p))

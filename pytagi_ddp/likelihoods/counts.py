"""Counts, whose mean is e^z."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.formulas.likelihood import LOG_TRIALS, TRIALS
from pytagi_ddp.likelihoods.base import Likelihood, Outputs, one, positive, refuse_where
from pytagi_ddp.likelihoods.prediction import LinkedPrediction, Prediction, special
from pytagi_ddp.nn.core.state import check_samples

LARGEST_RATE = 5e18  # that NumPy draws from


class Poisson(Likelihood):
    """Counts y ~ Poisson(exposure e^z): log p(y | z) = y z - exposure e^z + const.

    Z = E[p(y | z)] by nodes around the posterior's mode. Posterior moments have errors below 1e-3 of the prior's (1e-3
    standard deviations, or of a larger shift; 1e-3 of the variance) for m within +-50, s from 1e-6 to 1e4 and y up
    to 1000.

    Observes batch x outputs counts. Predicts counts; mean exposure e^(m + s/2).

    Args:
        exposure: time, area or population of a count; e^z is the rate for an exposure of 1. One number for all counts,
            or an array with one for each sample, time step or count, in the order of `observe` or `predict`:

                Poisson(hours[rows]).observe(net, counts[rows])
                Poisson(hours_new).predict(net, x_new)

    Raises:
        ValueError: an exposure that is not positive; in `observe`, counts that are negative or not whole numbers, or
            another number of exposures.
    """

    def __init__(self, exposure: ArrayLike = 1.0):
        self.exposure = _exposures(self, exposure)
        self._trials, self._shift = one(TRIALS), np.asarray(np.log(self.exposure) - LOG_TRIALS, np.float32)

    def _checked(self, outputs: Outputs, y: Any) -> np.ndarray:
        return _counts(self, outputs, y)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        shift = outputs.spread(self._shift, "exposure", outputs.width)
        outputs.observe("binomial", self._checked(outputs, y), self._trials, shift, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        sp, m = special(), mu + _logarithms(self, mu.shape)
        mean = np.exp(m + 0.5 * var)
        return LinkedPrediction(
            m,
            var,
            mean,
            mean + mean**2 * np.expm1(var),
            lambda y, z: y * z - np.exp(np.minimum(z, 700)) - sp.gammaln(y + 1),
            lambda y, z: sp.gammaincc(y + 1, np.exp(np.minimum(z, 700))),
            lambda random, z: _drawn(random, np.exp(np.minimum(z, 700))),
            True,
            lambda y: 1 / np.sqrt(1 + y),
            lambda y: (sp.digamma(1 + y), np.sqrt(sp.polygamma(1, 1 + y))),
        )


class NegativeBinomial(Likelihood):
    """Counts with mean M = exposure e^z and variance M + M^2/size: overdispersed, and `Poisson` for size to infinity.

    log p(y | z) = y z - (y + size) log(size + M) + const. Z and its errors are as for `Poisson`, for sizes from
    0.01 to 1000; for y = 0, a size below 0.5 and s above 1000 they are below 4e-3.

    Observes batch x outputs counts. Predicts counts; mean exposure e^(m + s/2).

    Args:
        size: shape of the gamma distribution of rates, also called r or 1/overdispersion.
        exposure: as in `Poisson`.

    Raises:
        ValueError: as `Poisson`; a size that is not positive.
    """

    noise_parameters: ClassVar = {"size": (0.01, 1000.0)}

    def __init__(self, size: float = 1.0, exposure: ArrayLike = 1.0):
        self.size, self.exposure = positive("size", self, size), _exposures(self, exposure)
        self._shift = np.asarray(np.log(self.exposure) - np.log(self.size), np.float32)

    def _checked(self, outputs: Outputs, y: Any) -> np.ndarray:
        return _counts(self, outputs, y)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        shift = outputs.spread(self._shift, "exposure", outputs.width)
        outputs.observe("binomial", self._checked(outputs, y), one(self.size), shift, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        sp, r, m = special(), self.size, mu + _logarithms(self, mu.shape)
        mean = np.exp(m + 0.5 * var)

        def log_density(y: np.ndarray, z: np.ndarray) -> np.ndarray:
            odds = z - np.log(r)
            const = sp.gammaln(y + r) - sp.gammaln(y + 1) - sp.gammaln(r)
            return const + y * odds - (y + r) * np.logaddexp(0, odds)

        return LinkedPrediction(
            m,
            var,
            mean,
            mean + mean**2 * (np.expm1(var) + np.exp(var) / r),
            log_density,
            lambda y, z: sp.betainc(r, y + 1, sp.expit(np.log(r) - z)),
            lambda random, z: _drawn(random, random.gamma(r, np.exp(np.minimum(z, 600)) / r)),
            True,
            lambda y: 1 / np.sqrt(np.minimum(1 + y, r)),
            lambda y: (
                sp.digamma(1 + y) - sp.digamma(r) + np.log(r),
                np.sqrt(sp.polygamma(1, 1 + y) + sp.polygamma(1, r)),
            ),
        )


def _drawn(random: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Counts with these rates. One that is too large for NumPy is its own count: its noise is below 1e-9 of it."""
    return np.where(rates > LARGEST_RATE, rates, random.poisson(np.minimum(rates, LARGEST_RATE)))


def _counts(likelihood: Likelihood, outputs: Outputs, y: Any) -> np.ndarray:
    values = outputs.numbers(y)
    known = values[~np.isnan(values)]
    refuse_where((known < 0) | (known != np.floor(known)), likelihood, "counts, whole numbers from 0 on")
    return values


def _exposures(likelihood: Likelihood, exposure: ArrayLike) -> float | np.ndarray:
    if not np.ndim(exposure):
        return positive("exposure", likelihood, exposure)  # type: ignore[arg-type]
    values = np.asarray(exposure, np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{type(likelihood).__name__} needs positive exposures, and some are not")
    return values


def _logarithms(likelihood: Poisson | NegativeBinomial, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithms of the exposures, for outputs (samples, ..., outputs)."""
    logs = np.log(likelihood.exposure)
    rows = prod(shape[:-1])
    if logs.size not in (1, shape[0], rows, prod(shape)):
        raise ValueError(
            f"there are {logs.size} exposures for {shape[0]} samples: give one for each. (A Trainer and net.fit have "
            "one likelihood for all batches: there, give the logarithms to the network as an input)"
        )
    if logs.size > 1:
        check_samples(logs.shape, "exposure", shape[0], rows)
    each = {rows: (*shape[:-1], 1), prod(shape): shape}
    return logs.reshape(each.get(logs.size, (-1, *(1,) * (len(shape) - 1))))

"""Student-t distributions whose scale depends on one feature, fitted to residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import beta, ndtr, ndtri, stdtr, stdtrit

from pytagi_ddp.likelihoods import prediction

DEGREES = (3.0, 4.0, 5.0, 7.0, 10.0, 20.0, math.inf)  # degrees of freedom that are tried; infinity: a Gaussian
_ROUNDS = 60


def log_density(squares: np.ndarray, log_scale2: np.ndarray, degrees: float) -> np.ndarray:
    """Logarithms of the densities of residuals under Student's t-distribution of scale s.

        ln G((v + 1)/2) - ln G(v/2) - 1/2 ln(v pi s^2) - (v + 1)/2 ln(1 + r^2/(v s^2))

    Args:
        squares: squared residuals r^2. log_scale2: ln s^2, as many. degrees: v > 0, may be infinite.
    """
    if math.isinf(degrees):
        return -0.5 * (math.log(2 * math.pi) + log_scale2 + squares * np.exp(-log_scale2))
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    return constant - 0.5 * log_scale2 - (degrees + 1) / 2 * np.log1p(squares * np.exp(-log_scale2) / degrees)


def quantile(probability: float | np.ndarray, degrees: float) -> np.ndarray:
    """Quantiles of Student's t-distribution of scale 1."""
    return ndtri(probability) if math.isinf(degrees) else stdtrit(degrees, probability)


def cumulative(z: np.ndarray, degrees: float) -> np.ndarray:
    """Probabilities of Student's t-distribution of scale 1 up to z."""
    return ndtr(z) if math.isinf(degrees) else stdtr(degrees, z)


def ranked_score(z: np.ndarray, degrees: float) -> np.ndarray:
    """Continuous ranked probability scores of observations z under Student's t-distribution F of scale 1, density f.

        z (2 F(z) - 1) + 2 f(z) (v + z^2)/(v - 1) - 2 sqrt(v)/(v - 1) B(1/2, v - 1/2)/B(1/2, v/2)^2

    Args:
        z: observations. degrees: v > 1, may be infinite.

    Source: Jordan, Krueger & Lerch (2019), "Evaluating probabilistic forecasts with scoringRules", JSS 90.
    """
    if math.isinf(degrees):
        return prediction.ranked_score(z)
    v, near = degrees, np.clip(z, -prediction.FAR, prediction.FAR)  # the terms with a density are 0 there
    density = np.exp(log_density(near**2, np.zeros(np.shape(z)), v))
    within = z * (2 * cumulative(z, v) - 1)
    least = 2 * math.sqrt(v) / (v - 1) * beta(0.5, v - 0.5) / beta(0.5, v / 2) ** 2
    return within + 2 * density * (v + near**2) / (v - 1) - least


@dataclass(frozen=True)
class Scale:
    """ln s^2 = offset + slope h, and the degrees of freedom."""

    offset: float
    slope: float
    degrees: float

    def log_scale2(self, h: np.ndarray) -> np.ndarray:
        return self.offset + self.slope * h


def fit_scale(
    squares: np.ndarray, h: np.ndarray, degrees: tuple[float, ...] = DEGREES, counts: np.ndarray | None = None
) -> Scale:
    """The scale that makes residuals most likely, with the best of the given degrees of freedom.

    Args:
        squares: squared residuals, above 0.
        h: the feature of each residual, around 0. The slope has the prior N(0, 1).
        counts: how often each residual counts; None: once.
    """
    counts = np.ones(len(h)) if counts is None else counts
    fits = [(weights, density, nu) for nu in degrees for weights, density in [_fit(squares, h, nu, counts)]]
    (offset, slope), _, best = max(fits, key=lambda fit: fit[1])
    return Scale(float(offset), float(slope), best)


def _fit(squares: np.ndarray, h: np.ndarray, degrees: float, counts: np.ndarray) -> tuple[np.ndarray, float]:
    """((offset, slope), log-likelihood) by Fisher scoring."""
    features = np.stack([np.ones(len(h)), h], 1)
    weights, ridge = np.array([math.log(np.average(squares, weights=counts)), 0.0]), np.diag([0.0, 1.0])
    information = 0.5 if math.isinf(degrees) else 0.5 * degrees / (degrees + 3)
    for _ in range(_ROUNDS):
        u = squares * np.exp(-features @ weights)
        weighted = u if math.isinf(degrees) else (degrees + 1) * u / (degrees + u)
        gradient = 0.5 * features.T @ (counts * (weighted - 1)) - ridge @ weights
        step = np.linalg.solve(information * (features.T * counts) @ features + ridge, gradient)
        weights = weights + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-6:
            break
    return weights, float(counts @ log_density(squares, features @ weights, degrees))

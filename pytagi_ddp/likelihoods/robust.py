"""Noise with outliers: its tails are heavier than a Gaussian's."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.likelihoods.base import ONE, SCALES, Likelihood, Outputs, one, positive
from pytagi_ddp.likelihoods.prediction import Prediction, ScaleMixturePrediction

NODES = 200  # of a mixture


class StudentT(Likelihood):
    """y = z + scale e, e ~ Student's t: an observation that is far off is treated as an outlier, and has little effect.

    The noise is a mixture of Gaussians of variance scale^2/l, l ~ Gamma(df/2, rate df/2). With q = 1/(s + scale^2/l)
    and expectations under the posterior of l,

        dm = (y - m) E[q],    ds = (y - m)^2 Var[q] - E[q]

    by the trapezoid rule in log l. Posterior moments have errors below 1e-3 of the prior's (1e-3 standard deviations,
    or of a larger shift; 1e-3 of the variance) for m, y within +-50, s from 1e-6 to 1e4, scale from 0.01 to 10, df from
    1 to 100. log Z is not concave: if y may or may not be an outlier, ds > 0, and the variance of the output grows.
    It is never negative, because these are the exact posterior moments: s + s^2 ds = E[s v/(s + v)] + s^2 (y - m)^2
    Var[q] with v = scale^2/l. Nothing is truncated, and the cap of a step also limits the growth.

    Observes batch x outputs numbers. Predicts z + scale e; the variance is infinite for df <= 2.

    Args:
        df: degrees of freedom; 3 to 5 for common outliers. scale: of the noise, in the unit of y.

    Raises:
        ValueError: an argument that is not positive.

    Source: Lange, Little & Taylor (1989), JASA 84.
    """

    noise_parameters: ClassVar = {"scale": SCALES, "df": (1.0, 100.0)}

    def __init__(self, df: float = 4.0, scale: float = 1.0):
        self.df, self.scale = positive("df", self, df), positive("scale", self, scale)
        self._df, self._scale = one(self.df), one(self.scale)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        outputs.observe("student_t", outputs.numbers(y), self._scale, self._df, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        a, scale, df = self.df / 2, self.scale, self.df
        u = np.linspace(-20 / a - 5, 3 + 3 / np.sqrt(a), NODES)  # log l
        logs = a * (u - np.exp(u))
        variance = scale**2 * df / (df - 2) if df > 2 else np.inf
        draw = lambda random, shape: scale * random.standard_t(df, shape)  # noqa: E731
        return ScaleMixturePrediction(mu, var, scale**2 * np.exp(-u), _normed(logs), variance, draw)


class Laplace(Likelihood):
    """y = z + e with the density exp(-|e|/scale)/(2 scale): an observation never shifts the mean by more than s/scale.

    With t = sqrt(s)/scale, u = |y - m|/sqrt(s), R(x) = Phi(-x)/phi(x) and r = R(t + u)/R(t - u),

        sqrt(s) dm = +-t (1 - r)/(1 + r),    s ds = 4 t^2 r/(1 + r)^2 - 2 t/(R(t - u) + R(t + u)).

    Posterior moments have errors below 1e-3 of the prior's (1e-3 standard deviations, or of a larger shift; 1e-3 of the
    variance) for m, y within +-50, s from 1e-6 to 1e4 and scale from 0.01 to 10.

    Observes batch x outputs numbers. Predicts z + e.

    Args:
        scale: mean of |e|, in the unit of y; the standard deviation is sqrt(2) scale.

    Raises:
        ValueError: a scale that is not positive.
    """

    noise_parameters: ClassVar = {"scale": SCALES}

    def __init__(self, scale: float = 1.0):
        self.scale = positive("scale", self, scale)
        self._scale = one(self.scale)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        outputs.observe("laplace", outputs.numbers(y), self._scale, ONE, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        v = np.linspace(-25, 5, NODES)  # logarithm of a variance over 2 scale^2, which is exponential
        draw = lambda random, shape: random.laplace(0, self.scale, shape)  # noqa: E731
        variances = 2 * self.scale**2 * np.exp(v)
        return ScaleMixturePrediction(mu, var, variances, _normed(v - np.exp(v)), 2 * self.scale**2, draw)


def _normed(logs: np.ndarray) -> np.ndarray:
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()

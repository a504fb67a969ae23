"""Noise with outliers: its tails are heavier than a Gaussian's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.likelihoods.base import ONE, SCALES, Likelihood, Outputs, one, positive
from pytagi_ddp.likelihoods.prediction import AT_ONCE, FAR, Prediction, bisected, check_q, observed_as, special

LEFT_OUT = 25.0  # logarithm of the share of a mixture that its nodes leave out at each end
STEP = 0.3  # of nodes in log l
NODES = 32  # of an integral of a score
ALONE = 1e5  # from this multiple of (df + 2) sqrt(s) on, s changes a density by less than 1e-10


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
        return StudentTPrediction(mu, var, self.scale, self.df)


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
        return LaplacePrediction(mu, var, self.scale)


class RobustPrediction(Prediction):
    """y = z + e, z ~ N(m, s), with noise e whose density is symmetric around 0."""

    def __init__(self, mean: np.ndarray, var: np.ndarray, scale: float):
        self._mean, self._var, self._scale = mean, var, scale

    @property
    def mean(self) -> np.ndarray:
        return self._mean

    def log_prob(self, y: Any) -> np.ndarray:
        return self._log_density(*self._deviations(y))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        beyond = self._tail(*self._deviations(y))
        return np.where(observed_as(y, self._mean) < self._mean, beyond, 1 - beyond)

    def quantile(self, q: float) -> np.ndarray:
        tail, sd = min(check_q(q), 1 - q), np.sqrt(self._var)
        # If P(y > m + d) is `tail`, P(e > d) and P(z > m + d) are at most twice as large, and P(e > d/2) or
        # P(z > m + d/2) is at least half as large.
        normal = lambda p: -special().ndtri(p)  # noqa: E731
        near, far = (np.maximum(self._exceeded(p), sd * normal(p)) for p in (min(2 * tail, 0.5), 0.5 * tail))
        distance = bisected(lambda d: self._tail(-d, self._var), tail, -2 * far, -near)
        return self._mean + np.sign(0.5 - q) * distance

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        random = np.random.default_rng(seed)
        shape = (n, *self._mean.shape)
        return random.normal(self._mean, np.sqrt(self._var), shape) + self._drawn(random, shape)

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each observation, as `Prediction.crps`, without draws.

        With the tail T(d) = P(y > m + d) it is

            |y - m| - 2 integral of T from 0 to |y - m| + 2 integral of T^2 from 0 to infinity

        by the Gauss-Legendre rule in x, d = a x/(1 - x) with a = scale + sqrt(s). Its error is below 1e-4 a.
        """
        d, s = self._deviations(y)
        a, near = self._scale + np.sqrt(s), np.minimum(d, FAR)

        def integral(end: np.ndarray, power: int) -> np.ndarray:
            total = np.zeros(s.shape)
            for node, weight in zip(*np.polynomial.legendre.leggauss(NODES), strict=True):
                x = end * (1 + node) / 2
                total += weight / 2 * end * a / (1 - x) ** 2 * self._tail(a * x / (1 - x), s) ** power
            return total

        return d - 2 * integral(near / (near + a), 1) + 2 * integral(np.ones(s.shape), 2)

    def _deviations(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """|y - m| and s, in one shape."""
        distances, variances = np.broadcast_arrays(np.abs(observed_as(y, self._mean) - self._mean), self._var)
        return distances, variances

    @abstractmethod
    def _log_density(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        """The logarithm of the density at m + d, d >= 0."""

    @abstractmethod
    def _tail(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        """P(y > m + d), d >= 0."""

    @abstractmethod
    def _exceeded(self, p: float) -> float:
        """The number that e exceeds with the probability p, 0 < p <= 1/2."""

    @abstractmethod
    def _drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draws of e."""


class StudentTPrediction(RobustPrediction):
    """Of noise scale e, e ~ Student's t, which is N(0, scale^2/l) with l ~ Gamma(a, rate a), a = df/2.

    With u = log l, densities and probabilities are integrals of exp(a (u - e^u)) and those of N(0, s + scale^2 e^-u).
    The trapezoid rule has relative errors below 1e-8. Its nodes reach from where the integrand has fallen to
    exp(-LEFT_OUT) of its maximum on the left to where it has on the right. All maxima lie between
    -log(1 + d^2/(2 a scale^2)) and log(1 + 1/(2 a)). Where d is much larger than sqrt(s), the noise is alone.
    """

    def __init__(self, mean: np.ndarray, var: np.ndarray, scale: float, df: float):
        super().__init__(mean, var, scale)
        self._df = df

    @property
    def variance(self) -> np.ndarray:
        return self._var + (self._scale**2 * self._df / (self._df - 2) if self._df > 2 else np.inf)

    def _log_density(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        a, gammaln = 0.5 * self._df, special().gammaln
        top = gammaln(a + 0.5) - gammaln(a) - 0.5 * np.log(np.pi * self._df) - np.log(self._scale)
        alone = top - (self._df + 1) * np.log(np.hypot(1, d / (self._scale * np.sqrt(self._df))))

        def mixed(logs: np.ndarray, d: np.ndarray, s: np.ndarray) -> np.ndarray:
            logs = logs - 0.5 * (np.log(s) + d * d / s)
            top = logs.max(0)
            return top + np.log(np.exp(logs - top).sum(0)) - np.log(np.sqrt(2 * np.pi) * self._scale)

        return self._mixed(mixed, d, s, alone)

    def _tail(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        alone = special().stdtr(self._df, -d / self._scale)
        return self._mixed(
            lambda logs, d, s: (np.exp(logs) * special().ndtr(-d / np.sqrt(s))).sum(0), d, s, np.asarray(alone)
        )

    def _mixed(
        self,
        mixed: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
        d: np.ndarray,
        s: np.ndarray,
        alone: np.ndarray,
    ) -> np.ndarray:
        """`alone`, and where s counts `mixed` of the logarithms of weights, d and the variances, in units of scale."""
        a, shape = 0.5 * self._df, d.shape
        d, s, found = d.ravel(), s.ravel(), np.where(np.isnan(s), np.nan, alone).ravel()
        rows = np.flatnonzero(d < ALONE * (self._df + 2) * np.sqrt(s))
        if not rows.size:
            return found.reshape(shape)
        d, s = d[rows] / self._scale, s[rows] / self._scale**2
        left, right = LEFT_OUT / a, LEFT_OUT / (a + 0.5)
        low = -np.log1p(d.max() ** 2 / self._df) - 0.5 * (left + np.sqrt(left * (left + 8)))
        high = np.log1p(0.5 / a) + np.log1p(right + np.sqrt(2 * right))
        u = np.linspace(low, high, 2 + int((high - low) / min(STEP, 0.7 / np.sqrt(a))))[:, None]
        logs = a * (u - np.exp(u))
        logs -= logs.max() + np.log(np.exp(logs - logs.max()).sum())
        with np.errstate(over="ignore"):  # of df near 0
            variances = np.exp(-u)
        for part in np.array_split(np.arange(rows.size), 1 + u.size * rows.size // AT_ONCE):
            found[rows[part]] = mixed(logs, d[part], s[part] + variances)
        return found.reshape(shape)

    def _exceeded(self, p: float) -> float:
        return -self._scale * special().stdtrit(self._df, p)

    def _drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return self._scale * random.standard_t(self._df, shape)


class LaplacePrediction(RobustPrediction):
    """Of noise with the density exp(-|e|/scale)/(2 scale). With t = sqrt(s)/scale and u = d/sqrt(s), the density is

        (A + B)/(2 scale),    A = exp(t^2/2 - t u) Phi(u - t),    B = exp(t^2/2 + t u) Phi(-u - t),

    and P(y > m + d) = Phi(-u) + (A - B)/2.
    """

    @property
    def variance(self) -> np.ndarray:
        return self._var + 2 * self._scale**2

    def _log_density(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # of missing observations
            return np.logaddexp(*self._parts(d, s)[1:]) - np.log(2 * self._scale)

    def _tail(self, d: np.ndarray, s: np.ndarray) -> np.ndarray:
        u, log_a, log_b = self._parts(d, s)
        return special().ndtr(-u) + 0.5 * (np.exp(log_a) - np.exp(log_b))

    def _parts(self, d: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """u, log A and log B, without differences of large numbers."""
        t = np.maximum(np.sqrt(s) / self._scale, 1e-12)
        u = d / (self._scale * t)
        log_ratio = lambda x: np.log(0.5 * special().erfcx(x / np.sqrt(2)))  # noqa: E731  log(Phi(-x)/exp(-x^2/2))
        with np.errstate(over="ignore", divide="ignore"):
            near = log_ratio(np.maximum(t - u, 0)) - 0.5 * u * u
            log_b = log_ratio(t + u) - 0.5 * u * u
            far = 0.5 * t * t - d / self._scale + special().log_ndtr(u - t)
        return u, np.where(u < t, near, far), log_b

    def _exceeded(self, p: float) -> float:
        return -self._scale * np.log(2 * p)

    def _drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return random.laplace(0, self._scale, shape)

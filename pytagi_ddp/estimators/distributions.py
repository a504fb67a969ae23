"""Predicted distributions of observations, with the share of the variance that more samples would reduce."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.estimators.student_t import cumulative, log_density, quantile, ranked_score
from pytagi_ddp.likelihoods import Likelihood, Prediction
from pytagi_ddp.likelihoods.prediction import between_whole_numbers, bisected, check_q, observed_as

BLOCK = 20_000  # samples times networks in a block of an integration
HERMITE = np.polynomial.hermite_e.hermegauss(20)  # nodes and weights of expectations over N(0, 1)


class EnsemblePrediction(Prediction):
    """The distribution of an observation at each of n samples: (n,), or (n, targets) where there are several targets.

        distribution = regressor.predict_distribution(X)
        low, high = distribution.interval(0.9)
        print(distribution.std, distribution.aleatoric / distribution.variance)

    Noise is included in everything but `epistemic`. Samples are treated as independent of each other, although their
    means come from the same networks: an interval of a sum over samples, by `sample`, is too narrow.

    Attributes:
        mean, variance, std: moments, in units of y. Of Student's t with up to 2 degrees of freedom the variance is
            infinite.
        epistemic: variance of the value without noise: variances within networks (with a factor, if they are larger
            than the spread), spread between networks, and missing inputs. More samples make it smaller. It is not
            checked by data, and may be several times too large or too small, above all with few samples. (`variance`
            is estimated from errors at held-out samples.)
        spread: the part of `epistemic` that is the variance of the networks' means.
        aleatoric: variance - epistemic, the noise.
    """

    @property
    @abstractmethod
    def epistemic(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def spread(self) -> np.ndarray: ...

    @property
    def aleatoric(self) -> np.ndarray:
        return self.variance - self.epistemic


class StudentTPrediction(EnsemblePrediction):
    """y = m + s t, where t has Student's t-distribution.

    Args:
        mean: m. log_scale2: ln s^2, so that s^2 may be too small for float64.
        degrees: degrees of freedom, infinite for Gaussians.
        epistemic, spread: in units of s^2. If epistemic is larger than the variance, all of the variance is epistemic:
            the scale was estimated from errors, which may be smaller than the variances of the networks.
    """

    def __init__(
        self, mean: np.ndarray, log_scale2: np.ndarray, degrees: float, epistemic: np.ndarray, spread: np.ndarray
    ):
        self._mean, self._log_scale2, self.degrees = mean, log_scale2, degrees
        self._scale = np.exp(log_scale2 / 2)
        self._ratio = 1.0 if np.isinf(degrees) else degrees / (degrees - 2) if degrees > 2 else np.inf
        self._share = np.minimum(epistemic, self._ratio)  # of s^2
        self._spread = self._share * (spread / np.maximum(epistemic, np.finfo(float).tiny))

    @property
    def mean(self) -> np.ndarray:
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        return self._ratio * self._scale**2

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self._ratio) * self._scale  # the variance may be too small for float64

    @property
    def epistemic(self) -> np.ndarray:
        return self._share * self._scale**2

    @property
    def spread(self) -> np.ndarray:
        return self._spread * self._scale**2

    def log_prob(self, y: Any) -> np.ndarray:
        squares = self._scaled(y) ** 2
        return log_density(squares, np.zeros(squares.shape), self.degrees) - self._log_scale2 / 2

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return cumulative(self._scaled(y), self.degrees)

    def quantile(self, q: float) -> np.ndarray:
        return self._mean + self._scale * quantile(check_q(q), self.degrees)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        random, shape = np.random.default_rng(seed), (n, *self._mean.shape)
        t = random.standard_normal(shape) if np.isinf(self.degrees) else random.standard_t(self.degrees, shape)
        return self._mean + self._scale * t

    def crps(self, y: ArrayLike) -> np.ndarray:
        return self._scale * ranked_score(self._scaled(y), self.degrees)

    crps.__doc__ = Prediction.crps.__doc__

    def _scaled(self, y: Any) -> np.ndarray:
        return (observed_as(y, self._mean) - self._mean) * np.exp(-self._log_scale2 / 2)


class MixturePrediction(EnsemblePrediction):
    """y = loc + scale u, where p(u) is the mean over networks k of E[p(u | z)], z ~ N(m_k, s_k).

    Integrals over z need many nodes for each sample, so they are computed in blocks of samples.

    Args:
        likelihood: p(u | z). mu, var: m and s, (networks, n). loc, scale: numbers.
    """

    def __init__(self, likelihood: Likelihood, mu: np.ndarray, var: np.ndarray, loc: float = 0.0, scale: float = 1.0):
        self.likelihood, self._mu, self._var, self._loc, self._scale = likelihood, mu, var, loc, scale
        self._all = likelihood.prediction(mu[..., None], var[..., None])  # (networks, n, 1)
        self._means = self._all.mean[..., 0]
        self.discrete = self._all.discrete

    @property
    def mean(self) -> np.ndarray:
        return self._loc + self._scale * self._means.mean(0)

    @property
    def variance(self) -> np.ndarray:
        return self._scale**2 * (self._all.variance[..., 0].mean(0) + self._means.var(0))

    @property
    def epistemic(self) -> np.ndarray:
        """Variance of E[y | z] over networks and z, by Gauss-Hermite quadrature over z."""
        nodes, weights = HERMITE
        z = self._mu + np.sqrt(self._var) * nodes[:, None, None]
        given = self.likelihood.prediction(z[..., None], np.zeros((*z.shape, 1))).mean[..., 0]
        shares = weights / weights.sum() / len(self._mu)
        centred = given - self._means.mean(0)
        return np.minimum(self._scale**2 * np.einsum("q,qkn->n", shares, centred**2), self.variance)

    @property
    def spread(self) -> np.ndarray:
        return self._scale**2 * self._means.var(0)

    def log_prob(self, y: Any) -> np.ndarray:
        return self._in_blocks(MixturePrediction._log_prob, self._observed(y))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._in_blocks(MixturePrediction._cdf, self._observed(y))

    def quantile(self, q: float) -> np.ndarray:
        return self._in_blocks(MixturePrediction._quantile, np.full(self._mu.shape[1], check_q(q)))

    def _in_blocks(self, function: Callable[[MixturePrediction, np.ndarray], np.ndarray], y: np.ndarray) -> np.ndarray:
        """Applies `function` to blocks of samples and their values y."""
        size = max(BLOCK // len(self._mu), 1)
        found = [np.empty(0)]
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            mu, var = self._mu[:, rows], self._var[:, rows]
            part = self if size >= len(y) else MixturePrediction(self.likelihood, mu, var, self._loc, self._scale)
            found.append(function(part, y[rows]))
        return np.concatenate(found)

    def _log_prob(self, y: np.ndarray) -> np.ndarray:
        logs = self._all.log_prob(self._unscaled(y))[..., 0]
        top = logs.max(0)
        with np.errstate(divide="ignore"):
            total = np.log(np.exp(logs - np.where(np.isfinite(top), top, 0)).mean(0))
        return np.where(np.isfinite(top), top, 0) + total - np.log(self._scale)

    def _cdf(self, y: np.ndarray) -> np.ndarray:
        return self._all.cdf(self._unscaled(y))[..., 0].mean(0)

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        wanted, mean, std = float(q[0]), self.mean, self.std
        width = np.where(np.isfinite(std), std, np.abs(mean) + self._scale) + 1e-300
        low, high = mean - width, mean + width
        for _ in range(200):  # until they enclose the quantile
            short, long = self._cdf(high) < wanted, self._cdf(low) >= wanted
            if not (short.any() or long.any()):
                break
            width = 2 * width
            low, high = np.where(long, low - width, low), np.where(short, high + width, high)
        if self.discrete:
            return between_whole_numbers(self._cdf, wanted, np.maximum(np.floor(low), -1), np.ceil(high))
        return bisected(self._cdf, wanted, low, high)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        random = np.random.default_rng(seed)
        network = random.integers(len(self._mu), size=(n, self._mu.shape[1]))
        mu, var = (np.take_along_axis(part, network, 0)[..., None] for part in (self._mu, self._var))
        return self._loc + self._scale * self.likelihood.prediction(mu, var).sample(1, random)[0, ..., 0]

    def _observed(self, y: Any) -> np.ndarray:
        values, shape = observed_as(y, self._means[0]), self._means[0].shape
        if values.ndim > len(shape):
            raise ValueError(
                f"y has the shape {values.shape}: give one observation, or one for each of {shape[0]} samples"
            )
        return np.broadcast_to(values, shape)

    def _unscaled(self, y: np.ndarray) -> np.ndarray:
        return np.broadcast_to((y - self._loc) / self._scale, self._means.shape)[..., None]


class TargetsPrediction(EnsemblePrediction):
    """Several targets, each with its own distribution: (n, targets). They are independent of each other.

    Args:
        parts: the distribution of each target.
    """

    def __init__(self, parts: Sequence[EnsemblePrediction]):
        self.parts = list(parts)
        self.discrete = all(part.discrete for part in self.parts)

    mean = property(lambda self: self._stacked([part.mean for part in self.parts]))
    variance = property(lambda self: self._stacked([part.variance for part in self.parts]))
    std = property(lambda self: self._stacked([part.std for part in self.parts]))
    epistemic = property(lambda self: self._stacked([part.epistemic for part in self.parts]))
    spread = property(lambda self: self._stacked([part.spread for part in self.parts]))

    def log_prob(self, y: Any) -> np.ndarray:
        return self._stacked([part.log_prob(values) for part, values in self._with(y)])

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._stacked([part.cdf(values) for part, values in self._with(y)])

    def crps(self, y: ArrayLike) -> np.ndarray:
        return self._stacked([part.crps(values) for part, values in self._with(y)])

    def quantile(self, q: float) -> np.ndarray:
        return self._stacked([part.quantile(q) for part in self.parts])

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        random = np.random.default_rng(seed)
        return self._stacked([part.sample(n, random) for part in self.parts])

    @staticmethod
    def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
        return np.stack(arrays, -1)

    def _with(self, y: Any) -> zip[tuple[EnsemblePrediction, np.ndarray]]:
        values, shape = observed_as(y, self.mean), self.mean.shape
        columns = np.broadcast_to(values, np.broadcast_shapes(values.shape, shape))
        return zip(self.parts, np.moveaxis(columns, -1, 0), strict=True)

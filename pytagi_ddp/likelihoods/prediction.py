"""Predictive distributions: mixtures of p(y | z) over outputs z ~ N(m, s), in float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.validate import as_numbers, same_order

ROUNDS, COARSE, FINE = 15, 33, 193  # of `log_expectation`: most rounds, and points of their grids and of the last one
WIDER = 4 * COARSE  # points by which a grid becomes wider that does not hold the integrand
NEGLIGIBLE = 40.0  # logarithm of the ratio to the maximum from which a value is negligible
BISECTIONS, PRECISION = 100, 1e-9  # most steps to a quantile, and the relative error of its q
MOST_NODES = 1001  # of a distribution function between -8 and 8 standard deviations of z
AT_ONCE = 1 << 18  # values of a distribution function that are computed together
LEAST_PROBABILITY = 1e-300  # of a class, in `log_prob`
FAR = 1e100  # its square is finite
SCORE = "Continuous ranked probability score of each observation, as `Prediction.crps`, in closed form."
DRAWS, TURNS = 50, 40  # of a score: draws in a block, and blocks
FEW, RARE = 15, 1e-3  # counts up to FEW have a sum as a score, if more have a probability below RARE
SIGNS = ": for labels -1 and 1 give (y + 1) / 2; NaN is a missing label"


def log_expectation(log_f: Callable[[np.ndarray], np.ndarray], m: np.ndarray, s: np.ndarray) -> np.ndarray:
    """log E[f(z)], z ~ N(m, s), for f whose product with the density has one maximum.

    It uses the trapezoid rule on a grid that is adapted to the integrand, so f may be arbitrarily sharp, and have its
    maximum far from m.

    Args:
        log_f: the logarithm of f, for z of shape (n, *m.shape).
    """
    sd = np.sqrt(np.maximum(s, 1e-24))
    low, high = np.full(m.shape, -12.0), np.full(m.shape, 12.0)

    def on_grid(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logarithms of the integrand at n points, their maximum, and the distance of the points."""
        step = (high - low) / (n - 1)
        u = low + step * np.arange(n).reshape(-1, *[1] * m.ndim)
        logs = -0.5 * u * u + log_f(m + sd * u)
        logs = np.where(np.isnan(logs), -np.inf, logs)
        return logs, logs.max(0), step

    held = np.zeros(m.shape, bool)  # whether the grid has held the integrand: from then on it becomes narrower only
    for _ in range(ROUNDS):
        logs, top, step = on_grid(COARSE)
        inside = logs > top - NEGLIGIBLE
        first, last = inside.argmax(0) - 1, COARSE - inside[::-1].argmax(0)
        held |= (first >= 0) & (last < COARSE)
        low, high = (
            low + step * np.where(held, np.maximum(first, 0), np.where(first < 0, -WIDER, 0)),
            low + step * np.where(held, np.minimum(last, COARSE - 1), COARSE - 1 + np.where(last < COARSE, 0, WIDER)),
        )
        if np.all(held & (2 * (last - first) > COARSE)):
            break
    logs, top, step = on_grid(FINE)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.exp(logs - np.where(np.isfinite(top), top, 0))
        return top + np.log(weights.sum(0) * step / np.sqrt(2 * np.pi))


class Prediction(ABC):
    """The distribution of observations at each sample (and output).

    Attributes:
        mean, variance: its moments, in the unit of observations and its square; float64, of the shape of observations.
        std: standard deviation, in the unit of observations.
        discrete: whether observations are whole numbers.
        probabilities: of every class (samples, classes), or of a 1; of classes only.
        most_probable: the most probable class, or whether a 1 is more probable; of classes only.
    """

    discrete = False

    def __repr__(self) -> str:
        return f"{type(self).__name__} of shape {self.mean.shape}"

    @property
    @abstractmethod
    def mean(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def variance(self) -> np.ndarray: ...

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.variance)

    @property
    def probabilities(self) -> np.ndarray:
        raise AttributeError(f"{type(self).__name__} is not of classes: it has mean, variance, quantile(q) and cdf(y)")

    @property
    def most_probable(self) -> np.ndarray:
        return self.probabilities.argmax(-1)

    @abstractmethod
    def log_prob(self, y: Any) -> np.ndarray:
        """The logarithm of the density, or probability, of each observation; NaN where y is missing."""

    def pdf(self, y: Any) -> np.ndarray:
        """The density, or probability, of each observation; NaN where y is missing."""
        return np.exp(self.log_prob(y))

    @abstractmethod
    def cdf(self, y: ArrayLike) -> np.ndarray:
        """The probability of an observation up to y."""

    @abstractmethod
    def quantile(self, q: float) -> np.ndarray:
        """The smallest value that an observation does not exceed with probability q, 0 < q < 1."""

    @abstractmethod
    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        """n draws for each sample, (n, ...). The outputs of a network are treated as independent."""

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that contains an observation with the probability `level`: (low, high)."""
        (level,) = as_numbers("interval", "(0, 1)", level=level)
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    def coverage(self, y: ArrayLike, level: float = 0.9) -> float:
        """Share of the observations y inside their central intervals: about `level` if the predictions are calibrated.

        Missing observations do not count. Intervals of counts and classes include their bounds, and contain more.

        Raises:
            ValueError: another number of observations, or all are missing.
        """
        low, high, values = map(self._shown, (*self.interval(level), observed_as(y, self.mean)))
        known = ~np.isnan(self.log_prob(y))
        if not known.any():
            raise ValueError("coverage needs an observation, and all of y are missing")
        return float(((low <= values) & (values <= high))[known].mean())

    def _shown(self, values: np.ndarray) -> np.ndarray:
        """The observations of these values: of a likelihood with limits, at most the limits."""
        return values

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each observation, in the unit of y; smaller is better.

            integral over u of (F(u) - [y <= u])^2,    F(u) = P(observation <= u)

        For a prediction without error bars it is the absolute error. It is NaN if y is missing. For counts that are
        hardly ever above 15 the integral is a sum. Otherwise it equals E|Y - y| - E|Y - Y'|/2 for observations Y and
        Y', here means over 2000 draws with a fixed seed: the standard error of a score is about 2 % of the standard
        deviation of the prediction, and much less in a mean over observations.

        Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
        """
        values = observed_as(y, self.mean)
        few = np.array(self.discrete and self.cdf(FEW) > 1 - RARE)
        if not few.any():
            return self._drawn_score(values)
        exact = self._sum_of_counts(values)
        return exact if few.all() else np.where(few, exact, self._drawn_score(values))

    def _sum_of_counts(self, values: np.ndarray) -> np.ndarray:
        """`crps` of counts up to FEW: each is the lower end of an interval of u, where F(u) is constant."""
        score = np.maximum(-values, 0) + np.maximum(values - FEW - 1, 0)
        for k in range(FEW + 1):
            above, share = 1 - self.cdf(k), np.clip(values - k, 0, 1)  # share of u below y
            score = score + share * (1 - above) ** 2 + (1 - share) * above**2
        return score

    def _drawn_score(self, values: np.ndarray) -> np.ndarray:
        random = np.random.default_rng(0)
        ranks = np.arange(1 - DRAWS, DRAWS, 2) / (DRAWS * (DRAWS - 1))  # of sorted draws, in E|Y - Y'|/2
        score = np.zeros(np.broadcast_shapes(values.shape, self.mean.shape))
        for _ in range(TURNS):
            drawn = np.sort(self.sample(DRAWS, random), 0)
            distance = np.sum([np.abs(one - values) for one in drawn], 0) / DRAWS
            score += (distance - np.tensordot(ranks, drawn, 1)) / TURNS
        return score


def check_q(q: float) -> float:
    return as_numbers("quantile", "(0, 1)", q=q)[0]


def ranked_score(z: np.ndarray) -> np.ndarray:
    """Continuous ranked probability scores of observations z under N(0, 1), with the distribution F and the density f.

    z (2 F(z) - 1) + 2 f(z) - 1/sqrt(pi)
    """
    density = np.exp(-0.5 * np.clip(z, -FAR, FAR) ** 2) / np.sqrt(2 * np.pi)
    return z * (2 * special().ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi)


class PredictionOfMoments(Prediction):
    """A distribution whose moments are known: `_mean` and `_variance`."""

    _mean: np.ndarray
    _variance: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        return self._variance


class GaussianPrediction(PredictionOfMoments):
    """Gaussians with these means and variances.

    Args:
        function_variance: `variance` without the noise, if observations may be (y, var) with other noise.
    """

    def __init__(self, mean: np.ndarray, variance: np.ndarray, function_variance: np.ndarray | None = None):
        self._mean, self._variance, self._function_variance = mean, variance, function_variance
        self._sd = np.sqrt(variance)

    def _observed(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Observations, and the variance of each."""
        if not isinstance(y, tuple) or self._function_variance is None:
            return observed_as(y, self._mean), self._variance
        y, noise = y
        return observed_as(y, self._mean), self._function_variance + observed_as(noise, self._mean)

    def log_prob(self, y: Any) -> np.ndarray:
        values, variance = self._observed(y)
        e = values - self._mean
        return -0.5 * (np.log(2 * np.pi * variance) + e * e / variance)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return special().ndtr((observed_as(y, self._mean) - self._mean) / self._sd)

    def quantile(self, q: float) -> np.ndarray:
        return self._mean + self._sd * special().ndtri(check_q(q))

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        return np.random.default_rng(seed).normal(self._mean, self._sd, (n, *self._mean.shape))

    def coverage(self, y: Any, level: float = 0.9) -> float:
        if not isinstance(y, tuple):
            return super().coverage(y, level)
        values, variance = self._observed(y)
        return GaussianPrediction(self._mean, variance).coverage(values, level)

    coverage.__doc__ = Prediction.coverage.__doc__

    def crps(self, y: Any) -> np.ndarray:
        values, variance = self._observed(y)
        sd = np.sqrt(variance)
        return sd * ranked_score((values - self._mean) / sd)

    crps.__doc__ = SCORE


class LogNormalPrediction(Prediction):
    """e^x of a Gaussian x with these moments."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        self.logarithm = GaussianPrediction(mean, variance)

    @property
    def mean(self) -> np.ndarray:
        return np.exp(self.logarithm.mean + 0.5 * self.logarithm.variance)

    @property
    def variance(self) -> np.ndarray:
        return np.expm1(self.logarithm.variance) * self.mean**2

    def log_prob(self, y: Any) -> np.ndarray:
        log_y = self._log(y)
        return np.where(log_y > -np.inf, self.logarithm.log_prob(np.where(log_y > -np.inf, log_y, 0)) - log_y, log_y)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self.logarithm.cdf(self._log(y))

    def quantile(self, q: float) -> np.ndarray:
        return np.exp(self.logarithm.quantile(q))

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        return np.exp(self.logarithm.sample(n, seed))

    def crps(self, y: ArrayLike) -> np.ndarray:
        m, sd, ndtr = self.logarithm.mean, np.sqrt(self.logarithm.variance), special().ndtr
        w = (self._log(y) - m) / sd
        shares = ndtr(w - sd) + ndtr(sd / np.sqrt(2)) - 1
        return observed_as(y, m) * (2 * ndtr(w) - 1) - 2 * self.mean * shares

    crps.__doc__ = f"""{SCORE}

        With w = (ln y - m)/s and the distribution F of N(0, 1), for ln y ~ N(m, s^2):

            y (2 F(w) - 1) - 2 exp(m + s^2/2) (F(w - s) + F(s/sqrt(2)) - 1)

        Source: Baran & Lerch (2015), "Log-normal distribution based EMOS models for probabilistic wind-speed
        forecasting", Quarterly Journal of the Royal Meteorological Society 141.
        """

    def _log(self, y: Any) -> np.ndarray:
        with np.errstate(divide="ignore"):
            values = observed_as(y, self.logarithm.mean)
            return np.where(np.isnan(values), np.nan, np.log(np.maximum(values, 0)))


class LinkedPrediction(PredictionOfMoments):
    """y | z with any distribution, z ~ N(m, s): counts and positive numbers.

    Args:
        mean, variance: of y. log_density, cumulative: functions of (y, z). draw: (generator, z) -> y.
        discrete: whether y are counts.
        width: of y, for the number of nodes: the width in z of the sharpest part of `cumulative`, which falls from 1 to
            0. step: of y: the mean and standard deviation of the z at which it falls.
    """

    def __init__(
        self,
        m: np.ndarray,
        s: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        log_density: Callable[[np.ndarray, np.ndarray], np.ndarray],
        cumulative: Callable[[np.ndarray, np.ndarray], np.ndarray],
        draw: Callable[[np.random.Generator, np.ndarray], np.ndarray],
        discrete: bool,
        width: Callable[[np.ndarray], np.ndarray],
        step: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    ):
        self._m, self._s, self._mean, self._variance = m, s, mean, variance
        self._log_density, self._cumulative, self._draw = log_density, cumulative, draw
        self.discrete, self._width, self._step = discrete, width, step

    def log_prob(self, y: Any) -> np.ndarray:
        values, m, s = np.broadcast_arrays(observed_as(y, self._m), self._m, self._s)
        known = np.isfinite(values) & ((values >= 0) & (values == np.floor(values)) if self.discrete else values > 0)
        safe = np.where(known, values, 1.0)
        found = log_expectation(lambda z: self._log_density(safe, z), m, s)
        return np.where(known, found, np.where(np.isnan(values), np.nan, -np.inf))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        values, m, s = np.broadcast_arrays(observed_as(y, self._m), self._m, self._s)
        values = np.floor(values) if self.discrete else values
        safe = np.where((values >= 0) & np.isfinite(values), values, 0.0)
        sd = np.sqrt(s)
        with np.errstate(divide="ignore", invalid="ignore"):
            place, spread = self._step(safe)
            needed, steep = np.nan_to_num(24 * sd / self._width(safe)), 24 * sd > MOST_NODES * spread
        n = int(np.clip(np.max(needed, where=~steep, initial=0), 41, MOST_NODES)) | 1
        u = np.linspace(-8, 8, n)
        w = np.exp(-0.5 * u * u)
        total, parts = np.zeros(m.shape), 1 + n * m.size // AT_ONCE
        for nodes, weights in zip(np.array_split(u, parts), np.array_split(w / w.sum(), parts), strict=True):
            z = m + sd * nodes.reshape(-1, *[1] * m.ndim)
            total += np.tensordot(weights, self._cumulative(safe, z), 1)
        if steep.any():  # the step of a Gaussian
            far = (place - m) / np.sqrt(np.where(steep, s + spread**2, 1))
            total = np.where(steep, special().ndtr(far), total)
        total = np.where(values == np.inf, 1, total)
        return np.where(np.isnan(values), np.nan, np.where(values >= 0, np.minimum(total, 1), 0.0))

    def quantile(self, q: float) -> np.ndarray:
        at = self._m + np.sqrt(self._s) * max(special().ndtri(check_q(q)), 0)
        high = np.exp(np.clip(at, -300, 300)) + 1.0
        for _ in range(200):
            short = self.cdf(high) < q
            if not short.any():
                break
            high = np.where(short, 2 * high, high)
        if self.discrete:
            found = between_whole_numbers(self.cdf, q, np.full_like(high, -1.0), np.ceil(high))
        else:
            found = bisected(self.cdf, q, np.zeros_like(high), high)
        return np.where(short, np.inf, found)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        random = np.random.default_rng(seed)
        return self._draw(random, random.normal(self._m, np.sqrt(self._s), (n, *self._m.shape)))


class ClassPrediction(Prediction):
    """Probabilities of classes: (..., classes). Observations have the shape (...).

    Probabilities below 1e-300 count as 1e-300 in `log_prob`.
    """

    discrete = True

    def __init__(self, probabilities: np.ndarray):
        self._probabilities = probabilities
        self._shape = probabilities.shape

    @property
    def probabilities(self) -> np.ndarray:
        return self._probabilities

    @property
    def mean(self) -> np.ndarray:
        """Mean of the number of the class: useful if classes have an order."""
        return self.probabilities @ np.arange(self._shape[-1])

    @property
    def variance(self) -> np.ndarray:
        return self.probabilities @ np.arange(self._shape[-1]) ** 2 - self.mean**2

    def log_prob(self, y: Any) -> np.ndarray:
        return self._of_class(self._classes(y), np.log(np.maximum(self.probabilities, LEAST_PROBABILITY)))

    def crps(self, y: ArrayLike) -> np.ndarray:
        classes, sums = self._classes(y)[..., None], np.cumsum(self.probabilities, -1)
        known = classes >= 0
        apart = sums - (classes <= np.arange(sums.shape[-1]))
        return np.where(known, apart**2, np.nan).sum(-1)

    crps.__doc__ = f"""{SCORE}

        With the probability F(k) of a class up to k it is the ranked probability score, the sum over all k of
        (F(k) - [y <= k])^2. It is useful if classes have an order.

        Source: Epstein (1969), "A scoring system for probability forecasts of ranked categories", Journal of Applied
        Meteorology 8.
        """

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._of_class(y, np.cumsum(self.probabilities, -1))

    def quantile(self, q: float) -> np.ndarray:
        below = np.cumsum(self.probabilities, -1) < check_q(q)
        return np.minimum(below.sum(-1), self._shape[-1] - 1)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        sums = np.cumsum(self.probabilities, -1)
        u = np.random.default_rng(seed).random((n, *sums.shape[:-1])) * sums[..., -1]
        return (u[..., None] >= sums).sum(-1)

    def _numbers(self, y: Any) -> np.ndarray:
        wanted, most = observed_as(y, np.broadcast_to(0.0, self._shape[:-1])), self._shape[-1] - 1
        if np.any(wanted >= most + 1):
            raise ValueError(f"y must hold classes from 0 to {most}, got {np.nanmax(wanted)}")
        return wanted

    def _classes(self, y: Any) -> np.ndarray:
        classes = self._numbers(y)
        if np.any(classes < np.ceil(classes)):
            raise ValueError("y must hold classes, whole numbers from 0 on (or NaN or -1: missing), got fractions")
        if np.any((classes < 0) & (classes != -1)):
            raise ValueError(f"y must hold classes from 0 on (or NaN or -1: missing), got {np.nanmin(classes)}")
        return classes

    def _of_class(self, y: ArrayLike, values: np.ndarray) -> np.ndarray:
        wanted = self._numbers(y)
        missing = ~(wanted >= 0)
        shape = np.broadcast_shapes(wanted.shape, values.shape[:-1])
        index = np.broadcast_to(np.where(missing, 0, wanted).astype(int), shape)[..., None]
        found = np.take_along_axis(np.broadcast_to(values, (*shape, values.shape[-1])), index, -1)[..., 0]
        return np.where(missing, np.nan, found)


class BinaryPrediction(Prediction):
    """Probabilities of observations of 0 or 1, given by the logarithms of both."""

    discrete = True

    def __init__(self, log_zero: np.ndarray, log_one: np.ndarray):
        self._log_zero, self._log_one = log_zero, log_one
        self._p = np.exp(log_one)

    @property
    def probabilities(self) -> np.ndarray:
        return self._p

    @property
    def most_probable(self) -> np.ndarray:
        return self._p > 0.5

    @property
    def mean(self) -> np.ndarray:
        return self._p

    @property
    def variance(self) -> np.ndarray:
        return self._p * np.exp(self._log_zero)

    def log_prob(self, y: Any) -> np.ndarray:
        """log P(y) of 0 and 1; y log P(1) + (1 - y) log P(0) of a share; NaN where y is missing.

        Raises:
            ValueError: other numbers.
        """
        values = self._observed(y)
        return values * self._log_one + (1 - values) * self._log_zero

    def crps(self, y: ArrayLike) -> np.ndarray:
        values = self._observed(y)
        return (self._p - values) ** 2 + values * (1 - values)

    crps.__doc__ = f"""{SCORE}

        With the probability p of 1 it is (p - y)^2 + y (1 - y); the second term is 0 unless y is a share.
        """

    def _observed(self, y: Any) -> np.ndarray:
        values = observed_as(y, self._p)
        if np.any((values < 0) | (values > 1)):
            raise ValueError(f"y must hold 0 and 1, or shares between them, got other numbers{SIGNS}")
        return values

    def cdf(self, y: ArrayLike) -> np.ndarray:
        values = observed_as(y, self._p)
        return np.where(values < 0, 0.0, np.where(values < 1, np.exp(self._log_zero), 1.0)) + 0 * values

    def quantile(self, q: float) -> np.ndarray:
        return (np.exp(self._log_zero) < check_q(q)).astype(float)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> np.ndarray:
        return (np.random.default_rng(seed).random((n, *self._p.shape)) < self._p).astype(float)


def bisected(cdf: Callable[[np.ndarray], np.ndarray], q: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The value between `low` and `high` at which `cdf` is q: by secants, and every third time by bisection.

    Source: Dowell & Jarratt (1971), "A modified regula falsi method for computing the root of an equation", BIT 11, for
    halving the value at an end that stays.
    """
    exact = PRECISION * min(q, 1 - q)
    below, above = cdf(low) - q, cdf(high) - q
    stays = np.zeros(np.shape(below))  # -1: the lower end stayed last time, 1: the upper one
    for turn in range(BISECTIONS):
        rise = above - below
        secant = np.where(rise > 0, -below / np.where(rise > 0, rise, 1), 0.5)
        share = np.full(rise.shape, 0.5) if turn % 3 == 2 else np.clip(secant, 0.001, 0.999)
        middle = low + share * (high - low)
        value = cdf(middle) - q
        left = value < 0
        above = np.where(left, np.where(stays > 0, 0.5 * above, above), value)
        below = np.where(left, value, np.where(stays < 0, 0.5 * below, below))
        low, high = np.where(left, middle, low), np.where(left, high, middle)
        stays = np.where(left, 1.0, -1.0)
        if np.all((np.abs(value) <= exact) | (high - low <= 1e-15 * np.abs(middle))):
            break
    return middle


def between_whole_numbers(
    cdf: Callable[[np.ndarray], np.ndarray], q: float, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The least whole number whose `cdf` is at least q; if it is above 1/PRECISION, with a relative error of PRECISION.

    It needs -1 <= low, and cdf(low) < q <= cdf(high).
    """
    for _ in range(BISECTIONS):
        if not np.any(high - low > np.maximum(1, PRECISION * high)):
            break
        even = high < 4 * low + 64  # otherwise their logarithms are halved
        middle = np.where(even, 0.5 * (low + high), np.sqrt(low + 2) * np.sqrt(high + 2) - 2)
        middle = np.clip(np.floor(middle), low, high)
        enough = cdf(middle) >= q
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def special() -> Any:
    from scipy import special as found  # here, so that `import pytagi_ddp.likelihoods` stays fast

    return found


def optimize() -> Any:
    from scipy import optimize as found  # here, as `special`

    return found


def observed_as(y: Any, mean: np.ndarray) -> np.ndarray:
    """`y` as float64, in the shape of the prediction if it has as many values.

    A number, or an array with more dimensions than a prediction of several samples, holds several for each of them.

    Raises:
        ValueError: another number of observations, or as many in another order, as in a transposed array.
    """
    values = np.asarray(to_numpy(y, "y"), np.float64)
    if values.size == mean.size and values.ndim:
        if not same_order(values.shape, mean.shape):
            raise ValueError(f"y has the shape {values.shape}, and predictions have {mean.shape}: is it transposed?")
        return values.reshape(mean.shape)
    several = values.ndim > mean.ndim or mean.size <= 1
    pairs = zip(values.shape[::-1], mean.shape[::-1], strict=False)
    if not all(own in (1, of_mean) or (several and of_mean == 1) for own, of_mean in pairs):
        raise ValueError(
            f"y has the shape {values.shape}, and predictions have {mean.shape}: give one for each of them"
        )
    return values

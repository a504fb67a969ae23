"""Gaussian noise: known, predicted by the network, on a logarithmic scale, or seen through limits and intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.tensors import State
from pytagi_ddp.likelihoods.base import ONE, SCALES, Likelihood, Outputs, one, positive, refuse_where
from pytagi_ddp.likelihoods.prediction import (
    FAR,
    SCORE,
    GaussianPrediction,
    LogNormalPrediction,
    Prediction,
    observed_as,
    special,
)
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates, refuse_negative_noise
from pytagi_ddp.validate import flat_float32, same_order


class Gaussian(Likelihood):
    """y = z + e, e ~ N(0, v): dm = (y - m)/(s + v), ds = -1/(s + v), as `OutputUpdater.update`; exact.

    Observes batch x outputs numbers, or a tuple (y, var) of as many numbers and variances of their noise. Predicts
    N(m, s + v), and `log_prob`, `coverage` and `crps` take observations of both forms.

    Args:
        sigma: standard deviation of the noise, v = sigma^2, in the unit of y.

    Raises:
        ValueError: a sigma that is not positive; in `observe`, also variances that are negative or NaN.

    Source: Goulet, Nguyen & Amiri (2021), JMLR 22.
    """

    noise_parameters: ClassVar = {"sigma": SCALES}

    def __init__(self, sigma: float = 1.0):
        self.sigma = positive("sigma", self, sigma, "; observations (y, var) have a variance each")
        self._var = one(self.sigma**2)

    def observe(self, net: Any, y: Any, weight: ArrayLike = 1.0, var: ArrayLike | None = None) -> None:
        """As `Likelihood.observe`.

        Args:
            var: variances of the noise instead of sigma^2, one for each observation, as in y = (y, var).
        """
        super().observe(net, y if var is None else (y, var), weight)

    def _express(self, states: BaseHiddenStates, y: Any, deltas: BaseDeltaStates, weight: ArrayLike) -> bool:
        if not isinstance(weight, float | int) or states.state.jcb is not None:  # which kernels apply in another order
            return False
        return get_kernels(states.device).output_update.express_update(states, y, self.sigma**2, deltas, weight)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        if isinstance(y, tuple) and len(y) != 2:
            raise ValueError(f"Gaussian observes y, or a tuple (y, var), and got a tuple of {len(y)}")
        values, variances = outputs.numbers(y[0] if isinstance(y, tuple) else y), self._var
        if isinstance(y, tuple):
            given = to_numpy(y[1], "var")
            variances = np.where(np.isnan(values), 1, flat_float32(given, "var", values.size))
            outputs.check_samples(given, "var")
            if not np.all(variances >= 0):
                raise ValueError(
                    f"var holds variances, which must not be negative or NaN; the least is {variances.min()}"
                )
        outputs.observe("gaussian", values, variances, ONE, weight)

    def _fits(self, y: Any) -> bool:
        return not isinstance(y, tuple)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        return GaussianPrediction(mu, var + self.sigma**2, var)


class HeteroscedasticGaussian(Likelihood):
    """y = z + e with a noise variance that the network predicts (AGVI), as `OutputUpdater.update_heteros`.

    Outputs come in pairs [z, noise variance]; the last layers are Linear(..., 2 k) and `EvenExp`. Observes batch x k
    numbers. Predicts N(m, s + noise variance).

    Raises:
        ValueError: in `observe`, also negative noise variances; without `EvenExp` nothing keeps them positive. Outputs
            that are an image, whose pairs would be pixels of a row.

    Source: Deka, Nguyen & Goulet (2024), "Analytically tractable heteroscedastic uncertainty quantification in Bayesian
    neural networks".
    """

    def check_outputs(self, width: int) -> None:
        if width % 2:
            raise ValueError(f"HeteroscedasticGaussian needs outputs in pairs, the network has {width}")

    def update(
        self, output_states: BaseHiddenStates, y: Any, delta_states: BaseDeltaStates, weight: ArrayLike = 1.0
    ) -> None:
        if not output_states.elsewhere and output_states.block_size and output_states.actual_size % 2 == 0:
            refuse_negative_noise(output_states)
        super().update(output_states, y, delta_states, weight)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        kernels, pairs = outputs.kernels, outputs.width // 2
        if outputs.width != outputs.state.mu.shape[1]:
            raise TypeError("HeteroscedasticGaussian takes all outputs of a network, and cannot be a part of Joint")
        image = outputs.shape.image
        if image and image[1:] != (1, 1):
            raise ValueError(
                f"HeteroscedasticGaussian takes outputs in pairs, and those of the image {image} would be "
                "pixels of a row: put nn.Pixels before EvenExp (docs/guide/images.md)"
            )
        observed = replace(outputs, width=pairs).numbers(y)
        weights = np.repeat(np.broadcast_to(outputs.weights(weight, pairs), observed.size), 2)
        kernels.output_update.update_heteros(outputs.state, State(kernels.array.place(observed), None), outputs.delta)
        if np.any(weights != 1):
            placed = kernels.array.place(weights)
            for deltas in outputs.delta[:2]:
                kernels.elementwise.multiply(deltas.reshape(-1), placed)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        return GaussianPrediction(mu[..., 0::2], var[..., 0::2] + np.maximum(mu[..., 1::2], 0))


class LogNormal(Likelihood):
    """log y = z + e, e ~ N(0, sigma^2): positive numbers with a relative error; exact, as `Gaussian` of log y.

    Observes batch x outputs positive numbers. Predicts the log-normal of N(m, s + sigma^2).

    Args:
        sigma: standard deviation of log y, that is, about the relative error of y.

    Raises:
        ValueError: a sigma that is not positive; in `observe`, a y that is not.
    """

    noise_parameters: ClassVar = {"sigma": SCALES}

    def __init__(self, sigma: float = 1.0):
        self.sigma = positive("sigma", self, sigma)
        self._var = one(self.sigma**2)

    def _checked(self, outputs: Outputs, y: Any) -> np.ndarray:
        if isinstance(y, tuple) and len(y) == 2 and np.size(y[0]) == np.size(y[1]) == outputs.rows * outputs.width:
            raise ValueError("LogNormal observes numbers; for intervals, give (log(low), log(high)) to Censored")
        values = outputs.numbers(y)
        refuse_where(values <= 0, self, "positive numbers")
        return values

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        outputs.observe("gaussian", np.log(self._checked(outputs, y)), self._var, ONE, weight)

    def _deviations(self, mu: np.ndarray, y: Any) -> np.ndarray:
        return np.log(observed_as(y, mu)) - mu

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        return LogNormalPrediction(mu, var + self.sigma**2)


class Censored(Likelihood):
    """y = z + e, e ~ N(0, sigma^2), of which only limits are known: P(low < y <= high | z). Also called Tobit.

        dm = (phi(a) - phi(b))/Z/t,   ds = ((a phi(a) - b phi(b))/Z - (t dm)^2)/t^2,
        Z = Phi(b) - Phi(a), a = (low - m)/t, b = (high - m)/t, t^2 = s + sigma^2

    Posterior moments have errors below 1e-3 of the prior's (1e-3 standard deviations, or of a larger shift; 1e-3 of the
    variance) for m, low and high within +-50, s from 1e-6 to 1e4 and sigma from 0.01 to 10.

    Observes batch x outputs numbers, of which those at or beyond `lower` and `upper` say only that y lies there; or a
    tuple (low, high) of such arrays: equal if y is known, infinite without a bound, both NaN if it is missing. Predicts
    y without limits; `log_prob` takes observations of both forms, and `coverage` and `crps` compare what the instrument
    shows. For survival times, give their logarithms.

    Args:
        sigma: standard deviation of the noise. lower, upper: limits of the instrument.

    Raises:
        ValueError: a sigma that is not positive, limits (also observed ones) in the wrong order, or NaN as one of them.
        TypeError: arrays as sigma or limits.

    Source: Tobin (1958), Econometrica 26.
    """

    noise_parameters: ClassVar = {"sigma": SCALES}

    def __init__(self, sigma: float = 1.0, lower: float = -np.inf, upper: float = np.inf):
        self.sigma = positive("sigma", self, sigma)
        if np.ndim(lower) or np.ndim(upper):
            raise TypeError(
                "Censored needs one number as lower, and one as upper; limits that differ are observations (low, high)"
            )
        if not lower < upper:
            raise ValueError(f"Censored needs lower < upper, got {lower} and {upper}")
        self.lower, self.upper = float(lower), float(upper)
        self._var = one(self.sigma**2)

    def bounds(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) of observations."""
        if isinstance(y, tuple):
            low, high = (np.asarray(to_numpy(part, "y"), np.float64) for part in y)
            if low.size == high.size:
                if not same_order(low.shape, high.shape):
                    raise ValueError(f"low has the shape {low.shape}, and high {high.shape}: is one transposed?")
                high = high.reshape(low.shape)
            half, wrong = (np.atleast_1d(bad) for bad in (np.isnan(low) != np.isnan(high), low > high))
            for bad, remedy in (
                (half, "write inf (or -inf) where there is no bound; NaN in both is a missing observation"),
                (wrong, "low is above high. A known number t is (t, t), a number above t is (t, inf)"),
            ):
                if bad.any():
                    at = tuple(np.argwhere(bad)[0])
                    one, other = (np.broadcast_to(bound, bad.shape)[at] for bound in (low, high))
                    raise ValueError(
                        f"Censored observes (low, high), and got ({one:g}, {other:g}) in row {at[0]} of {len(bad)}: "
                        + remedy
                    )
            return low, high
        values = np.asarray(to_numpy(y, "y"), np.float64)
        below, above = values <= self.lower, values >= self.upper
        low = np.where(below, -np.inf, np.where(above, self.upper, values))
        return low, np.where(above, np.inf, np.where(below, self.lower, values))

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        low, high = self.bounds(y)
        low, high = outputs.numbers(low, infinite=True), outputs.numbers(high, infinite=True)
        refuse_where((low == np.inf) | (high == -np.inf), self, "finite numbers, or limits with something between them")
        outputs.observe("interval", low, high, self._var, weight)

    def _deviations(self, mu: np.ndarray, y: Any) -> np.ndarray:
        low, high = (np.abs(observed_as(bound, mu) - mu) for bound in self.bounds(y))
        return np.minimum(low, high)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        return CensoredPrediction(mu, var + self.sigma**2, self)


class CensoredPrediction(GaussianPrediction):
    """y without limits; the density of an observation that is one, or the probability of its interval.

    Observations at or beyond the limits are limits: `coverage` and `crps` compare them with y within the limits.
    """

    def __init__(self, mean: np.ndarray, variance: np.ndarray, likelihood: Censored):
        super().__init__(mean, variance)
        self._likelihood = likelihood

    def log_prob(self, y: Any) -> np.ndarray:
        low, high = (observed_as(bound, self.mean) for bound in self._likelihood.bounds(y))
        exact = super().log_prob(np.where(low == high, low, self.mean))
        between = log_interval((low - self.mean) / self._sd, (high - self.mean) / self._sd)
        return np.where(low == high, exact, np.where(np.isnan(low), np.nan, between))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return super().cdf(_numbers(y, "cdf"))

    def coverage(self, y: ArrayLike, level: float = 0.9) -> float:
        return super().coverage(_numbers(y, "coverage"), level)

    coverage.__doc__ = f"""{Prediction.coverage.__doc__}
        An observation at or beyond a limit is inside if its interval reaches the limit.
        """

    def crps(self, y: ArrayLike) -> np.ndarray:
        values = self._shown(observed_as(_numbers(y, "crps"), self.mean))
        limits = (self._likelihood.lower, values, self._likelihood.upper)
        low, z, high = ((limit - self.mean) / self._sd for limit in limits)
        return self._sd * (_squares(z) - _squares(low) + _squares(-z) - _squares(-high))

    crps.__doc__ = f"""{SCORE}

        It is the integral from the lower to the upper limit: the score of what the instrument shows.
        """

    def _shown(self, values: np.ndarray) -> np.ndarray:
        return np.clip(values, self._likelihood.lower, self._likelihood.upper)


def _numbers(y: ArrayLike, what: str) -> ArrayLike:
    if isinstance(y, tuple):
        raise TypeError(f"{what} takes numbers, and not a pair (low, high), of which log_prob is the score")
    return y


def _squares(z: np.ndarray) -> np.ndarray:
    """The integral from -inf to z of the square of the distribution function of N(0, 1)."""
    z, ndtr = np.maximum(z, -FAR), special().ndtr
    density = np.exp(-0.5 * np.minimum(z, FAR) ** 2) / np.sqrt(2 * np.pi)
    return z * ndtr(z) ** 2 + 2 * density * ndtr(z) - ndtr(np.sqrt(2) * z) / np.sqrt(np.pi)


def log_interval(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(Phi(b) - Phi(a)), a <= b, in the tail where it does not cancel."""
    with np.errstate(divide="ignore", invalid="ignore"):
        turned = a + b > 0
        a, b = np.where(turned, -b, a), np.where(turned, -a, b)
        low, high = special().log_ndtr(a), special().log_ndtr(b)
        return high + np.log(-np.expm1(np.where(np.isneginf(low), -np.inf, low - high)))

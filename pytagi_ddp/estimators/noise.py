"""The distribution of an observation around an ensemble's prediction: its scale, which may vary, and its tails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.estimators.folds import learnt_by
from pytagi_ddp.estimators.members import Training, moments, moments_apart, run_epoch, values
from pytagi_ddp.estimators.student_t import DEGREES, Scale, fit_scale
from pytagi_ddp.nn import Sequential

# ln r^2 of a Gaussian residual is ln s^2 plus the logarithm of a chi^2 variable with one degree of freedom. The latter
# has this mean and this variance.
LOG_CHI2_MEAN, LOG_CHI2_VAR = -1.27, math.pi**2 / 2
CAUTION = 5  # networks of the noise learn with so many times that variance, as residuals are not Gaussian
HIDDEN, EPOCHS = 50, 20  # units and epochs of a network of the noise
LARGEST = 8.0  # |ln r^2| is cut off here: a residual of almost 0 is chance
LEAST = 1e-8  # smallest variance, where the target has variance 1
Run = Callable[[Callable[..., Any], Iterable[tuple]], list]  # calls a function with each of some tuples of arguments


class Prediction(NamedTuple):
    """Prediction of an ensemble for each sample.

    Attributes:
        networks: number of networks. mu: mean of their means. spread: variance of their means. var: mean of their
            variances, as if no input were missing. missing: variance that missing inputs add to `var`.
    """

    networks: int
    mu: np.ndarray
    spread: np.ndarray
    var: np.ndarray
    missing: np.ndarray

    @classmethod
    def of(cls, networks: list[list[Sequential]], parts: list[Any], x: np.ndarray) -> Prediction:
        """The prediction of x: networks[k] predict the rows parts[k]. Each part has the same number of networks."""
        count = len(networks[0])
        mu, var, missing = np.empty((3, count, len(x)))
        for some, rows in zip(networks, parts, strict=True):
            for s, net in enumerate(some):
                mu[s, rows], var[s, rows], missing[s, rows] = moments_apart(net, x[rows])
        spread = mu.var(0, ddof=1) if count > 1 else np.zeros(len(x))
        return cls(count, mu.mean(0), spread, var.mean(0), missing.mean(0))


@dataclass(frozen=True)
class GivenNoise:
    """Noise of a known variance. Predictions are Gaussian; networks' variances, their spread and the noise add up."""

    variance: float
    degrees: float = math.inf

    def log_scale2(self, x: np.ndarray, prediction: Prediction) -> np.ndarray:
        return np.log(prediction.var + prediction.missing + prediction.spread + self.variance)

    def of_observations(self, x: np.ndarray, prediction: Prediction) -> float:
        """Variance of the noise with which networks learn."""
        return self.variance


@dataclass(frozen=True)
class Features:
    """Inputs of the networks of the noise: standardised ln of the predicted variance, predicted mean, inputs.

    The predicted variance leaves out the spread of the networks, which depends on how many networks there are.

    Attributes:
        mean, std, most: mean, standard deviation and largest value of the logarithm.
    """

    mean: float
    std: float
    most: float

    @classmethod
    def of(cls, prediction: Prediction) -> Features:
        log_var = _log_var(prediction)
        return cls(float(log_var.mean()), float(log_var.std()) or 1.0, float(log_var.max()))

    def __call__(self, x: np.ndarray, prediction: Prediction) -> np.ndarray:
        z = np.clip((_log_var(prediction) - self.mean) / self.std, -3, 3)
        return np.concatenate([z[:, None], prediction.mu[:, None], x], 1).astype(np.float32)

    def beyond(self, prediction: Prediction) -> np.ndarray:
        """ln of the ratio of the predicted variance to the largest one at any sample; 0 where it is no larger."""
        return np.maximum(_log_var(prediction) - self.most, 0)


def _log_var(prediction: Prediction) -> np.ndarray:
    return np.log(prediction.var + LEAST)


@dataclass
class LearntNoise:
    """ln s^2 = a + b h(x), and degrees of freedom, by maximum likelihood on residuals of samples not learnt from.

    Missing inputs multiply s^2 by 1 + (variance that they add)/(mean variance without them).

    h predicts ln r^2. It is the mean of networks that learn from the logarithm of the predicted variance, the predicted
    mean and the inputs. Without such networks h is 0, and the scale is the same everywhere. Beyond the samples networks
    continue as straight lines, and s^2 = exp(...) would become 0 or infinite far away. So h stays within the limits
    that it had at the samples, and s^2 grows beyond them as the predicted variance does.

    Attributes:
        scale: a, b and the degrees of freedom. shrink: ln of a factor below 1 on s^2: all networks together predict
            better than the few that have not seen a sample. networks: h is the mean of these.
        features: makes the inputs of these networks. limits: smallest and largest value of h at the samples.
        complete: mean squared residual without the variance that missing inputs add.
    """

    scale: Scale
    shrink: float
    features: Features
    limits: tuple[float, float]
    complete: float
    networks: list[Sequential] = field(default_factory=list)

    @property
    def degrees(self) -> float:
        return self.scale.degrees

    def log_scale2(self, x: np.ndarray, prediction: Prediction) -> np.ndarray:
        h = np.zeros(len(x))
        if self.networks:
            features = self.features(x, prediction)
            h = np.clip(np.mean([moments(net, features)[0] for net in self.networks], 0), *self.limits)
        wider = self.features.beyond(prediction) + np.log1p(prediction.missing / self.complete)
        return self.scale.log_scale2(h) + self.shrink + wider

    def of_observations(self, x: np.ndarray, prediction: Prediction) -> np.ndarray:
        """Variances of the noise with which networks learn, one for each sample."""
        return np.exp(self.log_scale2(x, prediction)).astype(np.float32)


def learn_noise(
    x: np.ndarray,
    y: np.ndarray,
    prediction: Prediction,
    fold: np.ndarray,
    networks: int,
    heteroscedastic: bool,
    student_t: bool,
    seeds: Sequence[int],
    run: Run,
) -> LearntNoise:
    """Learns the noise from predictions of samples by networks that have not seen them.

    Args:
        x, y: standardised samples. prediction: of y. fold: number of the fold of each sample.
        networks: number of networks that later predictions are made with.
        heteroscedastic: whether networks of the noise are trained. If not, the scale is the same everywhere.
        student_t: whether the degrees of freedom are fitted. If not, they are infinite.
        seeds: one for each fold. run: calls the trainings.
    """
    squares = (prediction.mu - y) ** 2 + LEAST
    complete = max(squares.mean() - prediction.missing.mean(), squares.mean() / 10)
    squares /= 1 + prediction.missing / complete  # as large as if nothing had been missing
    made = Features.of(prediction)
    h, trained = np.zeros(len(y)), []
    if heteroscedastic:
        target = np.clip(np.log(squares / squares.mean()) - LOG_CHI2_MEAN, -LARGEST, LARGEST)
        target = (target - target.mean()).astype(np.float32)
        features = made(x, prediction)
        folds = range(int(fold.max()) + 1)
        insides = [learnt_by(fold, k) for k in folds]
        tasks = ((features[rows], target[rows], seed) for rows, seed in zip(insides, seeds, strict=True))
        trained = run(_fit_noise, tasks)
        for k, net in zip(folds, trained, strict=True):
            h[fold == k] = moments(net, features[fold == k])[0]
    scale = fit_scale(squares, h, DEGREES if student_t else DEGREES[-1:])
    shrink = (1 / prediction.networks - 1 / networks) * prediction.spread.mean() / squares.mean()
    return LearntNoise(scale, math.log(max(1 - shrink, 0.3)), made, (h.min(), h.max()), complete, trained)


def _fit_noise(features: np.ndarray, target: np.ndarray, seed: int) -> Sequential:
    training = Training((HIDDEN,), EPOCHS, gain=0.5)
    net, rng = training.network(features.shape[1], seed), np.random.default_rng(seed)
    last = net.layers[-1]
    last.mu_w, last.mu_b = last.mu_w * np.float32(0.1), last.mu_b * np.float32(0.1)  # h begins near a constant
    for _ in range(EPOCHS):
        run_epoch(net, features, values(target, CAUTION * LOG_CHI2_VAR), training.batch_size, rng)
    return net

"""What an observation may differ by from an ensemble's prediction: its scale at each place, and its tails."""

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

# ln r^2 of a Gaussian residual is ln s^2 plus ln chi^2 of one degree of freedom, which has this mean and this variance.
LOG_CHI2_MEAN, LOG_CHI2_VAR = -1.27, math.pi**2 / 2
CAUTION = 5  # times that variance is what a network of noise takes for its own noise: residuals are no Gaussian ones
HIDDEN, EPOCHS = 50, 20  # of a network of noise
LARGEST = 8.0  # size at which ln r^2 is cut off: a residual of almost 0 is chance
LEAST = 1e-8  # variance, of a target of variance 1
Run = Callable[[Callable[..., Any], Iterable[tuple]], list]  # calls a function with each of some tuples of arguments


class Prediction(NamedTuple):
    """Of an ensemble, sample by sample: mean of the means, their variance, and means of the networks' variances.

    Attributes:
        networks: how many there are. mu: mean of their means. spread: variance of these. var: mean of their variances,
            if nothing were missing. missing: what missing inputs add to these.
    """

    networks: int
    mu: np.ndarray
    spread: np.ndarray
    var: np.ndarray
    missing: np.ndarray

    @classmethod
    def of(cls, networks: list[list[Sequential]], parts: list[Any], x: np.ndarray) -> Prediction:
        """Of x, whose part k (rows) is predicted by networks[k], as many as of the other parts."""
        count = len(networks[0])
        mu, var, missing = np.empty((3, count, len(x)))
        for some, rows in zip(networks, parts, strict=True):
            for s, net in enumerate(some):
                mu[s, rows], var[s, rows], missing[s, rows] = moments_apart(net, x[rows])
        spread = mu.var(0, ddof=1) if count > 1 else np.zeros(len(x))
        return cls(count, mu.mean(0), spread, var.mean(0), missing.mean(0))


@dataclass(frozen=True)
class GivenNoise:
    """Noise of a known variance: predictions are Gaussian, of the networks' variances, their spread and the noise."""

    variance: float
    degrees: float = math.inf

    def log_scale2(self, x: np.ndarray, prediction: Prediction) -> np.ndarray:
        return np.log(prediction.var + prediction.missing + prediction.spread + self.variance)

    def of_observations(self, x: np.ndarray, prediction: Prediction) -> float:
        """Variance to learn with."""
        return self.variance


@dataclass(frozen=True)
class Features:
    """(ln of the predicted variance, standardised; predicted mean; inputs), from which networks learn the noise.

    The variance is that of the networks, without their spread: a spread of few is another feature than one of many.

    Attributes:
        mean, std, most: of the logarithm, the last one its largest value.
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
        """ln of the predicted variance over the largest one there was; 0 where it is no larger."""
        return np.maximum(_log_var(prediction) - self.most, 0)


def _log_var(prediction: Prediction) -> np.ndarray:
    return np.log(prediction.var + LEAST)


@dataclass
class LearntNoise:
    """ln s^2 = a + b h(x), and degrees of freedom, by maximum likelihood on residuals of samples that were not learnt.

    With missing inputs s^2 is larger, by the factor 1 + (variance that these add)/(mean variance without).

    h is what networks of their own have learnt of ln r^2, from the logarithm of the predicted variance, the predicted
    mean and the inputs; or nothing, and the scale is the same everywhere. Networks go on as straight lines beyond what
    they have learnt, and s^2 = exp(...) would become 0 or infinite far away: so h keeps to the limits that it had, and
    s^2 grows there as the predicted variance does.

    Attributes:
        scale: a, b and the degrees of freedom. shrink: ln of the factor on s^2, by which all networks together are
            better than those few that have not seen a sample. networks: that give h, as their mean.
        features: makes what these networks take. limits: of h. complete: mean variance of what is not missing.
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
        """Variances to learn with, one for each sample."""
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
    """Learns the noise from what networks predicted of samples that they had not seen.

    Args:
        x, y: standardised samples. prediction: of y. fold: number of the fold that each sample is in.
        networks: how many will make the predictions to come.
        heteroscedastic: whether networks of the noise are trained; else the scale is the same everywhere.
        student_t: whether degrees of freedom are looked for; else they are infinitely many.
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
    net.arena.theta[0][-HIDDEN - 1 :] *= np.float32(0.1)  # the last layer: begins near a constant
    for _ in range(EPOCHS):
        run_epoch(net, features, values(target, CAUTION * LOG_CHI2_VAR), training.batch_size, rng)
    return net

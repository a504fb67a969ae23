"""Scores of predictions: sums over the samples of all batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.likelihoods.gaussian import CensoredPrediction
from pytagi_ddp.likelihoods.joint import JointPrediction
from pytagi_ddp.likelihoods.prediction import BinaryPrediction

AT_ONCE = 1 << 14  # outputs
WEIGHTS = ""  # the name of the weights of samples, beside those of metrics
# (prediction, observations) -> a number for each observation; NaN where it does not count.
Metric = Callable[[Any, Any], ArrayLike]


def standard_metrics(prediction: Any) -> dict[str, Metric]:
    """The metrics of predictions of this kind: "nll", and "error" for classes or "rmse" for numbers.

    Of `Censored`, whose predictions are without limits, it is "nll" alone: observations are limits. Of `Joint` they are
    also those of its parts, as "error_0".
    """
    found: dict[str, Metric] = {"nll": negative_log_likelihood}
    if isinstance(prediction, JointPrediction):
        for k, part in enumerate(prediction.parts):
            found |= {f"{name}_{k}": OfPart(metric, k) for name, metric in standard_metrics(part).items()}
    elif hasattr(prediction, "probabilities"):
        found["error"] = is_wrong
    elif hasattr(prediction, "mean") and not isinstance(prediction, CensoredPrediction):
        found["rmse"] = squared_error
    return found


def negative_log_likelihood(prediction: Any, y: Any) -> np.ndarray:
    return -prediction.log_prob(y)


def is_wrong(prediction: Any, y: Any) -> np.ndarray:
    """1 if the most probable class is not the observed one, else 0; NaN if the observation is missing."""
    chosen = prediction.most_probable
    observed = to_numpy(y, "y").reshape(chosen.shape)
    true = observed > 0.5 if isinstance(prediction, BinaryPrediction) else observed  # of shares, too
    return np.where(observed >= 0, chosen != true, np.nan)


def squared_error(prediction: Any, y: Any) -> np.ndarray:
    mean = prediction.mean
    y = y[0] if isinstance(y, tuple) else y  # of (y, var)
    return (mean - np.asarray(to_numpy(y, "y"), np.float64).reshape(mean.shape)) ** 2


@dataclass(frozen=True)
class OfPart:
    """A metric of part k of a `Joint`."""

    metric: Metric
    k: int

    def __call__(self, prediction: Any, y: Any) -> ArrayLike:
        part = prediction.parts[self.k]
        return np.full(len(part.mean), np.nan) if y[self.k] is None else self.metric(part, y[self.k])


class Sums:
    """Sums of metrics over the batches of this rank.

    Outputs are collected, and predictions are made for many batches at once, which takes less time.

    Args:
        metrics: functions by their names; the result of `squared_error` is the root of the mean.
        prediction: returns the prediction for moments (samples, ...).
    """

    def __init__(self, metrics: Mapping[str, Metric], prediction: Callable[[np.ndarray, np.ndarray], Any]):
        self._metrics, self._prediction = metrics, prediction
        self._sums = np.zeros((len(metrics), 2))  # of weighted values, and of their weights
        self._collected: list[tuple[np.ndarray, np.ndarray, Any, np.ndarray]] = []
        self._size = self.samples = 0
        self._weights = np.zeros(2)

    def add(self, mu: np.ndarray, var: np.ndarray, y: Any, weight: np.ndarray | None = None) -> None:
        """Adds a batch: means and variances of its outputs, a row for each sample, its observations and weights."""
        self.samples += len(mu)
        self._size += mu.size
        self._collected.append((mu, var, y, np.ones(len(mu)) if weight is None else weight))
        if self._size >= AT_ONCE or isinstance(y, tuple):
            self._settle()

    def _settle(self) -> None:
        """Adds the metrics of the collected outputs to the sums."""
        if not self._collected:
            return
        collected, self._collected, self._size = self._collected, [], 0
        mu, var, y, weight = collected[0] if len(collected) == 1 else map(np.concatenate, zip(*collected, strict=True))
        self._weights += weight.sum(), np.count_nonzero(weight)
        prediction = self._prediction(mu, var)
        for sums, (name, metric) in zip(self._sums, self._metrics.items(), strict=True):
            values = np.asarray(metric(prediction, y), np.float64)
            rows = values.shape[:1] == mu.shape[:1] or values.ndim == 1
            if not rows or not 0 < values.size <= mu.size or values.size % len(mu):
                raise ValueError(
                    f"the metric {name!r} returned the shape {values.shape} for {len(mu)} samples: it must return a "
                    f"number for each observation; outputs (as prediction.mean) have the shape {mu.shape}, and y has "
                    f"{getattr(y, 'shape', None)}"
                )
            own = weight.reshape(len(mu), -1).mean(1) if weight.size > values.size else weight
            weights = np.repeat(own, values.size // own.size).reshape(values.shape)
            known = ~np.isnan(values) & (weights > 0)
            sums += weights[known] @ values[known], weights[known].sum()

    @property
    def weights(self) -> np.ndarray:
        """The sum of the weights so far, of this rank, and the number of those above 0."""
        self._settle()
        return self._weights

    def means(self) -> dict[str, float]:
        """The metrics so far, of this rank."""
        self._settle()
        return self._results(self._sums)

    def totals(self, ranks: Communicator) -> dict[str, list[float]]:
        """The sums over all ranks, of values and of weights, by the names of metrics; collective.

        Raises:
            Exception: a metric has failed on one of the ranks; raised on all.
        """
        with errors_of_all_ranks(ranks, "totals"):
            self._settle()
        sums = np.concatenate([self._sums, self._weights[None]])
        ranks.all_reduce(sums)
        return dict(zip((*self._metrics, WEIGHTS), sums.tolist(), strict=True))

    @staticmethod
    def checked(totals: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The `totals` of a checkpoint; raises an error if they are none."""
        checked = {name: np.array(sums, float).reshape(2) for name, sums in totals.items()}
        if any(np.isnan(total) or not 0 <= weight < np.inf for total, weight in checked.values()):
            raise ValueError(f"sums of metrics that are NaN, or of negative weights: {totals!r:.100}")
        return checked

    def begin_with(self, totals: Mapping[str, Any]) -> None:
        """Adds the `totals` of earlier batches."""
        for name, sums in zip((*self._metrics, WEIGHTS), (*self._sums, self._weights), strict=True):
            sums += totals.get(name, 0.0)

    def over_ranks(self, ranks: Communicator, *more: float) -> tuple[dict[str, float], list[float]]:
        """The metrics of all ranks, and the sums of `more` over ranks; collective."""
        self._settle()
        everything = np.concatenate([self._sums.reshape(-1), more])
        ranks.all_reduce(everything)
        return self._results(everything[: self._sums.size].reshape(-1, 2)), everything[self._sums.size :].tolist()

    def _results(self, sums: np.ndarray) -> dict[str, float]:
        means = {
            name: float(total / n) if n else float("nan") for name, (total, n) in zip(self._metrics, sums, strict=True)
        }
        roots = {name for name, metric in self._metrics.items() if getattr(metric, "metric", metric) is squared_error}
        return {name: float(np.sqrt(mean)) if name in roots else mean for name, mean in means.items()}

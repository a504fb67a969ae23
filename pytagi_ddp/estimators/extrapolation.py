"""The uncertainty of means beyond the samples, where networks continue as straight lines."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pytagi_ddp.estimators.members import CHANGED, PREDICTED, TESTED, moments
from pytagi_ddp.nn import Sequential

STEP = 0.5  # to both sides of a sample, in standard deviations of an input: slopes over this distance
LEAST_TESTED = 4  # samples by which the slopes of one input are estimated
LEAST_WIDTH = 1e-6  # between the two points of a slope


@dataclass(frozen=True)
class Extrapolation:
    """The variance of a mean beyond the range of the samples.

    At the distance d beyond the largest value of an input the mean has continued with its slope there. If slopes by
    this input differ from sample to sample, by the variance v, the function may have continued with another one: the
    variance of the mean is d^2 v, and the sum over inputs. A linear function adds nothing.

    Attributes:
        low, high: smallest and largest value of each input. slopes: variances of slopes, (inputs, targets).
    """

    low: np.ndarray
    high: np.ndarray
    slopes: np.ndarray

    @classmethod
    def of(cls, networks: list[Sequential], x: np.ndarray, inputs: int) -> Extrapolation:
        """That of the mean of networks that have learnt the samples x.

        inputs: the number of inputs that are numbers, which come first; categories have no range.
        """
        low, high = _range(x)
        networks = networks[: max(CHANGED // (2 * LEAST_TESTED * max(inputs, 1)), 1)]
        tested = int(np.clip(CHANGED // (2 * len(networks) * max(inputs, 1)), LEAST_TESTED, TESTED))
        some = x[:: len(x) // tested + 1]
        slopes = np.zeros((x.shape[1], networks[0].layers[-1].output_size))
        together = max(PREDICTED // (2 * len(some)), 1)  # inputs of a prediction: many small ones are slow
        for first in range(0, inputs, together):
            columns = range(first, min(first + together, inputs))
            ends = np.tile(some, (len(columns), 2, 1, 1))
            for k, (before, after) in zip(columns, ends, strict=True):
                for end, step in ((before, -STEP), (after, STEP)):
                    end[:, k] = np.clip(some[:, k] + step, low[k], high[k])
            rows = ends.reshape(-1, x.shape[1])
            means = np.mean([moments(net, rows)[0] for net in networks], 0).reshape(*ends.shape[:3], -1)
            for k, (before, after), mean in zip(columns, ends, means, strict=True):
                width = after[:, k] - before[:, k]
                wide = width > LEAST_WIDTH  # not where the value is missing
                if wide.any():
                    slopes[k] = ((mean[1] - mean[0])[wide] / width[wide, None]).var(0)
        return cls(low, high, slopes)

    def variances(self, x: np.ndarray) -> np.ndarray:
        """Of the means of samples x, (n, targets); 0 within the range, and for missing inputs."""
        beyond = np.nan_to_num(np.maximum(np.maximum(x - self.high, self.low - x), 0)).astype(np.float64)
        return beyond**2 @ self.slopes

    def with_range_of(self, x: np.ndarray) -> Extrapolation:
        """The same after further samples have been learnt."""
        low, high = _range(x)
        return replace(self, low=np.fmin(self.low, low), high=np.fmax(self.high, high))


def _range(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest value of each column; NaN if all are missing."""
    return np.fmin.reduce(x), np.fmax.reduce(x)

"""Measures of the quality of predictions."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.tagi_utils import Utils
from pytagi_ddp.validate import same_order
from pytagi_ddp.warn import warn

__all__ = [
    "HRCSoftmax",
    "HRCSoftmaxMetric",
    "auroc",
    "calibration_error",
    "classification_error",
    "entropy",
    "log_likelihood",
    "mse",
    "mutual_information",
    "reliability_bins",
    "rmse",
]

ROUNDING = 1e-3  # by this much, probabilities in float32 may exceed 1 through rounding
SUMS = 0.01  # by this much, sums of many probabilities of few bits may differ from 1


class HRCSoftmaxMetric:
    """Classification error of a network whose output is a hierarchical softmax.

    Args:
        num_classes: K, at least 2.

    Attributes:
        num_classes: K.
        utils: The functions that decode the outputs.
        hrc_softmax: The tree; `hrc_softmax.len` is the width of the network's output.

    Raises:
        ValueError: Fewer than two classes.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.utils = Utils()
        self.hrc_softmax = self.utils.get_hierarchical_softmax(num_classes)

    def get_predicted_labels(self, m_pred: ArrayLike, v_pred: ArrayLike) -> np.ndarray:
        """Predict the most probable class of every sample.

        Args:
            m_pred: Means of the output units, B * hrc_softmax.len values.
            v_pred: Their variances.

        Returns:
            int32 array of B classes.

        Raises:
            ValueError: Sizes that are not a whole number of samples.
        """
        m_pred = to_numpy(m_pred, "m_pred")
        batch_size = m_pred.size // self.hrc_softmax.len
        return self.utils.get_labels(m_pred, v_pred, self.hrc_softmax, self.num_classes, batch_size)[0]

    def error_rate(self, m_pred: ArrayLike, v_pred: ArrayLike, label: ArrayLike) -> float:
        """Share of the samples whose most probable class is not their label.

        Args:
            m_pred: Means of the output units, B * hrc_softmax.len values.
            v_pred: Their variances.
            label: B true classes.

        Raises:
            ValueError: Sizes that do not belong together.
        """
        return classification_error(self.get_predicted_labels(m_pred, v_pred), label)


def mse(prediction: ArrayLike, observation: ArrayLike) -> float:
    """Mean squared error, mean((prediction - observation)^2).

    Args:
        prediction: Predicted values, as many as observations, or values that NumPy broadcasts to them: one for all, or
            one for each column.
        observation: Observed values; a missing one is NaN, and is left out of the mean.

    Raises:
        ValueError: Sizes that do not belong together.

    Without an observation the result is NaN, with a RuntimeWarning.
    """
    observation = _numbers("observation", observation)
    return _mean(_observed(observation, (_like(observation, "prediction", prediction) - observation) ** 2))


def rmse(prediction: ArrayLike, observation: ArrayLike) -> float:
    """Square root of the mean squared error; see `mse`."""
    return mse(prediction, observation) ** 0.5


def log_likelihood(
    prediction: ArrayLike,
    observation: ArrayLike,
    std: ArrayLike,
    reduction: Literal["mean", "sum"] = "mean",
) -> float:
    """Gaussian log-likelihood of the observations, ln N(observation; prediction, std^2).

    Args:
        prediction: Predicted means, as many as observations, or values that NumPy broadcasts to them: one for all, or
            one for each column.
        observation: Observed values; a missing one is NaN, and is left out.
        std: Predicted standard deviations (not variances), as many as predictions may have.
        reduction: "mean" over the observations, or "sum", as in later versions of pytagi.

    Raises:
        ValueError: Sizes that do not belong together, another reduction, or a standard deviation of 0 or NaN.

    Without an observation the mean is NaN, with a RuntimeWarning.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"unknown reduction {reduction!r}; use 'mean' or 'sum'")
    observation = _numbers("observation", observation)
    prediction, std = _like(observation, "prediction", prediction), _like(observation, "std", std)
    if not np.all(std > 0):
        raise ValueError("std must be standard deviations above 0, and not NaN: include that of the noise")
    log_density = -0.5 * np.log(2 * np.pi) - np.log(std) - 0.5 * ((observation - prediction) / std) ** 2
    log_density = _observed(observation, log_density)
    return _mean(log_density) if reduction == "mean" else float(np.sum(log_density))


def classification_error(prediction: ArrayLike, label: ArrayLike) -> float:
    """Share of the predicted classes that are not the label.

    Args:
        prediction: N predicted classes, in an array of any shape.
        label: N true classes. -1 is a class, too: if it means a missing label, give prediction[label >= 0],
            label[label >= 0].

    Raises:
        ValueError: No predictions, or another number of labels. TypeError: Numbers on one side, text on the other.
    """
    prediction, label = (
        to_numpy(values, name, text=True).ravel() for values, name in ((prediction, "prediction"), (label, "label"))
    )
    if prediction.size != label.size or not prediction.size:
        raise ValueError(f"{prediction.size} predictions and {label.size} labels cannot be compared")
    kinds = [array.dtype.kind in "US" for array in (prediction, label) if array.dtype.kind in "USbiuf"]
    if len(set(kinds)) == 2:
        raise TypeError(f"predictions of {prediction.dtype} and labels of {label.dtype} are never equal")
    return float(np.mean(prediction != label))


def reliability_bins(
    probabilities: ArrayLike, label: ArrayLike, bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How confident a classifier is of its answers, and how often they are right, in bins of equal width.

    The answer for a sample is its most probable class, and the confidence is the probability of that class.

    Args:
        probabilities: (..., K), each from 0 to 1 and not NaN, as those of (samples, pixels, classes); or one column
            (..., 1) with those of the class 1, of two.
        label: A true class for each row of K.
        bins: Of [0, 1].

    Returns:
        (c, a, n) of the bins with answers: mean confidence, share of right answers, and number of answers.

    Raises:
        ValueError: Sizes that do not fit, no sample, no bin, a label that is not a number of a column, or a confidence
            that is not in [0, 1].

    Source: Guo et al. (2017), "On calibration of modern neural networks".
    """
    p, truth = _of_all_classes(probabilities), to_numpy(label, "label", text=True).ravel()
    p = p.reshape(-1, p.shape[-1]) if p.ndim > 2 and p.size else p
    if p.ndim != 2 or not p.size or len(p) != truth.size or bins < 1:
        raise ValueError(
            f"reliability needs (n, classes) probabilities, n labels and at least 1 bin: got {p.shape}, {truth.size} "
            f"and {bins}"
        )
    if truth.dtype.kind not in "iub" or not 0 <= truth.min() <= truth.max() < p.shape[1]:
        remedy = "those of a scikit-learn classifier are np.searchsorted(classifier.classes_, y)"
        if truth.dtype.kind == "i" and truth.min() == -1:
            remedy = "-1 is a missing label; give p[y >= 0], y[y >= 0]"
        raise ValueError(
            f"label must be numbers of columns, integers from 0 to {p.shape[1] - 1}, "
            f"got {np.unique(truth).tolist()!s:.80}: {remedy}"
        )
    confidence, right = p.max(1), p.argmax(1) == truth
    _check_probabilities(confidence, "confidences")
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    count, sums, hits = (np.bincount(bin_of, w, bins) for w in (None, confidence, right))
    used = count > 0
    return sums[used] / count[used], hits[used] / count[used], count[used]


def calibration_error(probabilities: ArrayLike, label: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error (ECE), sum_b n_b |a_b - c_b| / N, of the bins of `reliability_bins`.

    0 is best: of the answers with confidence c, the share c is right. The value depends on the number of bins, and
    is not a measure of the share of right answers.

    Args:
        probabilities: (..., K), or (..., 1) of the class 1. label: A true class for each. bins: Of [0, 1].

    Raises:
        ValueError: As `reliability_bins`.
    """
    confidence, accuracy, count = reliability_bins(probabilities, label, bins)
    return float(np.sum(count * np.abs(accuracy - confidence)) / count.sum())


def entropy(probabilities: ArrayLike) -> np.ndarray:
    """Entropy of class probabilities, -sum_k p_k ln p_k: from 0 (certain) to ln K (equal probabilities).

    Args:
        probabilities: (..., K), each from 0 to 1, with sums of 1; 0 ln 0 is 0. Or (..., 1), of the class 1 of two.

    Returns:
        Array (...) in nats.

    Raises:
        ValueError: A probability that is not in [0, 1], or NaN; a sum that is not about 1.
    """
    p = _of_all_classes(probabilities)
    _check_probabilities(p, "probabilities")
    sums = p.sum(-1)
    if not np.all(np.abs(sums - 1) <= SUMS):
        raise ValueError(
            f"probabilities of all classes sum to 1, got sums from {sums.min():g} to {sums.max():g}; give those of the "
            "class 1 of two as one column, p[..., None]"
        )
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def mutual_information(probabilities: ArrayLike) -> np.ndarray:
    """How much the label of a sample would tell about the network (BALD), in nats: from 0 to ln K.

    The entropy of the mean probabilities over draws, minus the mean of the entropies of the draws. It is large where
    draws of `net.sample` are certain but disagree, and 0 where they agree, also on equal probabilities.

    Args:
        probabilities: (draws, n, K), as for `entropy`, or (draws, n) of the class 1 of two.

    Returns:
        Array (n,).

    Raises:
        ValueError: Another number of dimensions, no draws, or as `entropy`.

    Source: Houlsby, Huszár, Ghahramani & Lengyel (2011), "Bayesian active learning for classification and preference
    learning".
    """
    p = _numbers("probabilities", probabilities)
    if p.ndim not in (2, 3) or not len(p):
        raise ValueError(f"probabilities have the shape (draws, n, classes), or (draws, n) of class 1; got {p.shape}")
    p = _of_all_classes(p if p.ndim == 3 else p[..., None])
    return np.maximum(entropy(p.mean(0)) - entropy(p).mean(0), 0)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """How well scores separate two groups: the probability that one of `outside` is larger than one of `inside`.

    P(outside > inside) + P(outside = inside) / 2, the area under the receiver operating characteristic: 1 if every
    score of `outside` is the larger, 0.5 if the scores are uninformative. For scores p and labels y of 0 and 1, it is
    auroc(p[y == 0], p[y == 1]).

    Args:
        inside: Scores, such as entropies, of samples of the same kind as the training data.
        outside: Scores of other samples. There may be any number of each.

    Raises:
        ValueError: No score of one of them, or NaN; labels.
    """
    low, high = to_numpy(inside, "inside").ravel(), to_numpy(outside, "outside").ravel()
    kinds = [values.dtype.kind for values in (low, high)]
    zero_one = [np.array_equal(np.unique(values), [0, 1]) for values in (low, high)]
    labels = [kind == "b" or (kind in "iu" and both) for kind, both in zip(kinds, zero_one, strict=True)]
    if sum(labels) == 1 and low.size == high.size:
        raise ValueError(
            "auroc takes the scores of two groups, and one argument holds labels: of scores p and labels y give "
            "auroc(p[y == 0], p[y == 1])"
        )
    if not low.size or not high.size or np.isnan(low).any() or np.isnan(high).any():
        raise ValueError(
            f"auroc compares numbers: both groups need some, and none may be NaN; got {low.size} and {high.size} scores"
        )
    low = np.sort(low)
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * low.size))


def _of_all_classes(probabilities: ArrayLike) -> np.ndarray:
    """(..., K) probabilities as float64; from (..., 1) of the class 1, those of both classes."""
    p = _numbers("probabilities", probabilities)
    return np.concatenate([np.maximum(1 - p, 0), p], -1) if p.shape[-1:] == (1,) else p


def _check_probabilities(values: np.ndarray, name: str) -> None:
    """Raises ValueError unless all values lie in [0, 1], up to rounding. NaN does not."""
    if not (np.all(values >= 0) and values.max(initial=0) <= 1 + ROUNDING):
        raise ValueError(
            f"probabilities are from 0 to 1, got {name} from {values.min():g} to {values.max():g}; divide means that "
            "do not sum to 1 by their sum"
        )


def _observed(observation: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values whose observation is not missing. A NaN prediction stays: a prediction must not be missing."""
    return values[~np.isnan(observation)]


def _mean(values: np.ndarray) -> float:
    """The mean; NaN with a warning, as in pytagi, if there are no values."""
    if not values.size:
        warn("there is no observation to take the mean over, or all of them are NaN: the result is NaN", RuntimeWarning)
        return math.nan
    return float(np.mean(values))


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    """The values as float64, as differences and squares of short integers would wrap around."""
    return to_numpy(values, name).astype(np.float64, copy=False)


def _like(observation: np.ndarray, name: str, values: ArrayLike) -> np.ndarray:
    """The values in the shape of the observations.

    Plain broadcasting would silently turn (N, 1) against (N,) into N x N differences. Flat values fit any shape; a
    transposed table does not.
    """
    values = _numbers(name, values)
    if values.size == observation.size and same_order(values.shape, observation.shape):
        return values.reshape(observation.shape)
    try:
        return np.broadcast_to(values, observation.shape)
    except ValueError:
        raise ValueError(
            f"{name} of shape {values.shape} does not fit observations of shape {observation.shape}"
        ) from None

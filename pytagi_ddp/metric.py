"""Measures of the quality of predictions. NaN observations are left out of the averages."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.tagi_utils import Utils

__all__ = [
    "HRCSoftmax",
    "HRCSoftmaxMetric",
    "classification_error",
    "log_likelihood",
    "mse",
    "rmse",
]


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

    def get_predicted_labels(self, m_pred: np.ndarray, v_pred: np.ndarray) -> np.ndarray:
        """Predict the most probable class of every sample.

        Args:
            m_pred: Means of the output units, B * hrc_softmax.len values.
            v_pred: Their variances.

        Returns:
            int32 array of B classes.

        Raises:
            ValueError: Sizes that are no whole number of samples.
        """
        batch_size = np.size(m_pred) // self.hrc_softmax.len
        return self.utils.get_labels(m_pred, v_pred, self.hrc_softmax, self.num_classes, batch_size)[0]

    def error_rate(self, m_pred: np.ndarray, v_pred: np.ndarray, label: np.ndarray) -> float:
        """Share of the samples whose most probable class is not their label.

        Args:
            m_pred: Means of the output units, B * hrc_softmax.len values.
            v_pred: Their variances.
            label: B true classes.

        Raises:
            ValueError: Sizes that do not belong together.
        """
        return classification_error(self.get_predicted_labels(m_pred, v_pred), label)


def mse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Mean squared error, mean((prediction - observation)^2).

    Args:
        prediction: Predicted values, as many as observations (or one for all).
        observation: Observed values; NaN where missing.

    Raises:
        ValueError: Sizes that do not belong together.
    """
    observation = np.asarray(observation)
    return float(np.nanmean((_like(observation, "prediction", prediction) - observation) ** 2))


def rmse(prediction: np.ndarray, observation: np.ndarray) -> float:
    """Square root of the mean squared error; see `mse`."""
    return mse(prediction, observation) ** 0.5


def log_likelihood(
    prediction: np.ndarray,
    observation: np.ndarray,
    std: np.ndarray,
    reduction: Literal["mean", "sum"] = "mean",
) -> float:
    """Gaussian log-likelihood of the observations, ln N(observation; prediction, std^2).

    Args:
        prediction: Predicted means, as many as observations (or one for all).
        observation: Observed values; NaN where missing.
        std: Predicted standard deviations (not variances), as many as observations (or one for all).
        reduction: "mean" over the observations, or "sum", as later versions of pytagi have it.

    Raises:
        ValueError: Sizes that do not belong together, or another reduction.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"unknown reduction {reduction!r}; use 'mean' or 'sum'")
    observation = np.asarray(observation)
    prediction, std = _like(observation, "prediction", prediction), _like(observation, "std", std)
    log_density = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((observation - prediction) / std) ** 2
    return float(np.nanmean(log_density) if reduction == "mean" else np.nansum(log_density))


def classification_error(prediction: np.ndarray, label: np.ndarray) -> float:
    """Share of the predicted classes that are not the label.

    Args:
        prediction: N predicted classes, in an array of any shape.
        label: N true classes.

    Raises:
        ValueError: No predictions, or another number of labels.
    """
    prediction, label = np.ravel(prediction), np.ravel(label)
    if prediction.size != label.size or not prediction.size:
        raise ValueError(f"{prediction.size} predictions and {label.size} labels cannot be compared")
    return float(np.mean(prediction != label))


def _like(observation: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """Return the values in the observations' shape.

    Plain broadcasting would turn (N, 1) against (N,) into N x N differences without a word.
    """
    values = np.asarray(values)
    if values.size == observation.size:
        return values.reshape(observation.shape)
    try:
        return np.broadcast_to(values, observation.shape)
    except ValueError:
        raise ValueError(
            f"{name} of shape {values.shape} does not fit observations of shape {observation.shape}"
        ) from None

"""Class labels as observations of a network's outputs, and outputs as class labels."""

from __future__ import annotations

import numpy as np

from pytagi_ddp import HRCSoftmaxMetric, Utils
from pytagi_ddp.nn import BaseDeltaStates, BaseHiddenStates, DDPSequential, FSDPSequential, OutputUpdater
from pytagi_ddp.nn.hierarchical_softmax import class_probabilities, hierarchical_softmax


def count_outside_top(probabilities: np.ndarray, labels: np.ndarray, top: int) -> int:
    """Number of rows whose label is not among the `top` most probable classes. Ties count against the label."""
    own = np.take_along_axis(probabilities, labels[:, None], 1)
    return int(np.count_nonzero((probabilities < own).sum(1) < probabilities.shape[1] - top))


def forgets_before(epoch: int, epochs: int) -> bool:
    """Whether to forget evidence before an epoch: within the first 70 % of all epochs, but not before the very first.

    Data that are seen again are no new evidence. So variances may shrink for good in the last epochs only.
    """
    return 0 < epoch < 0.7 * epochs


class HierarchicalHead:
    """A label is a path of binary decisions. The outputs on it are observed as +1 or -1 (11 outputs for 10 classes).

    Args:
        num_classes: number of classes.
        device: device of the network.
    """

    def __init__(self, num_classes: int, device: str):
        self._num_classes = num_classes
        self._metric = HRCSoftmaxMetric(num_classes)
        self._tree = hierarchical_softmax(num_classes)
        self._updater = OutputUpdater(device)

    def observe(self, net: DDPSequential | FSDPSequential, labels: np.ndarray, sigma_v: float) -> None:
        """Sets the deltas at the output; `sigma_v` is the standard deviation of an observation."""
        self.update(net.output_z_buffer, labels, sigma_v, net.input_delta_z_buffer)

    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        """Sets the deltas of output states."""
        obs, index, _ = Utils().label_to_obs(labels, self._num_classes)
        self._updater.update_using_indices(states, obs, np.full_like(obs, sigma_v**2), index, deltas)

    def count_errors(self, mu: np.ndarray, var: np.ndarray, labels: np.ndarray, top: int = 1) -> int:
        """Samples whose label is not among the `top` most probable classes."""
        if top > 1:
            return count_outside_top(class_probabilities(mu, var, self._tree), labels, top)
        return int(np.count_nonzero(self._metric.get_predicted_labels(mu, var) != labels))


class RemaxHead:
    """A label is a one-hot vector. Each class probability is observed as 0 or 1 (10 outputs behind a Remax layer).

    Args:
        num_classes: number of classes.
        device: device of the network.
    """

    def __init__(self, num_classes: int, device: str):
        self._num_classes = num_classes
        self._updater = OutputUpdater(device)

    def observe(self, net: DDPSequential | FSDPSequential, labels: np.ndarray, sigma_v: float) -> None:
        """Sets the deltas at the output; `sigma_v` is the standard deviation of an observation."""
        self.update(net.output_z_buffer, labels, sigma_v, net.input_delta_z_buffer)

    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        """Sets the deltas of output states."""
        obs = Utils().label_to_one_hot(labels, self._num_classes)
        self._updater.update(states, obs, np.full_like(obs, sigma_v**2), deltas)

    def count_errors(self, mu: np.ndarray, var: np.ndarray, labels: np.ndarray, top: int = 1) -> int:
        """Samples whose label is not among the `top` most probable classes."""
        if top > 1:
            return count_outside_top(mu.reshape(-1, self._num_classes), labels, top)
        return int(np.count_nonzero(mu.reshape(-1, self._num_classes).argmax(axis=1) != labels))


Head = HierarchicalHead | RemaxHead
HEADS: dict[str, type[Head]] = {"hierarchical": HierarchicalHead, "remax": RemaxHead}

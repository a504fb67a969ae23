"""Class labels as observations of a network's outputs, and outputs as class labels."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from pytagi_ddp import HRCSoftmaxMetric, Utils, exponential_scheduler
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import BaseDeltaStates, BaseHiddenStates, EvidenceSchedule, OutputUpdater
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


def noise_of(args: argparse.Namespace, epoch: int) -> float:
    """The standard deviation of an observed number; the categorical head observes none."""
    if args.head == "categorical":
        return 0.0
    if not hasattr(args, "sigma_v_min"):
        return args.sigma_v
    least = min(args.sigma_v_min, args.sigma_v)
    return float(exponential_scheduler(args.sigma_v, least, args.sigma_v_decay, epoch))


def forget_before(args: argparse.Namespace, net: Any, epoch: int) -> None:
    """Forgets evidence before an epoch, if the options say so; the categorical head counts none twice."""
    if args.head != "categorical" and args.forget > 1 and forgets_before(epoch, args.epochs):
        net.forget_evidence(args.forget)


class Head(ABC):
    """How a network observes labels, and what its outputs say of them.

    Args:
        num_classes: number of classes.
        device: device of the network.

    Attributes:
        outputs: units that the network ends with.
    """

    def __init__(self, num_classes: int, device: str):
        self.outputs = self._num_classes = num_classes
        self._updater = OutputUpdater(device)

    def plan(self, net: Any, steps_per_epoch: int, args: argparse.Namespace) -> None:  # noqa: B027 - most plan nothing
        """To be called before training, and before a checkpoint is loaded."""

    def observe(self, net: Any, labels: np.ndarray, sigma_v: float) -> None:
        """Sets the deltas at the output; `sigma_v` is the standard deviation of an observed number."""
        self.update(net.output_z_buffer, labels, sigma_v, net.input_delta_z_buffer)

    @abstractmethod
    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        """Sets the deltas of output states."""

    @abstractmethod
    def probabilities(self, mu: np.ndarray, var: np.ndarray) -> np.ndarray:
        """Class probabilities, a row for each sample."""

    def count_errors(self, mu: np.ndarray, var: np.ndarray, labels: np.ndarray, top: int = 1) -> int:
        """Samples whose label is not among the `top` most probable classes."""
        probabilities = self.probabilities(mu, var)
        if top > 1:
            return count_outside_top(probabilities, labels, top)
        return int(np.count_nonzero(probabilities.argmax(1) != labels))


class CategoricalHead(Head):
    """A label is one of the classes of a softmax of the outputs, and each image counts equally often in all epochs.

    See `pytagi_ddp.likelihoods.Categorical` and `pytagi_ddp.nn.EvidenceSchedule`.
    """

    def __init__(self, num_classes: int, device: str):
        super().__init__(num_classes, device)
        self._likelihood = Categorical(num_classes)
        self._schedule: EvidenceSchedule | None = None

    def plan(self, net: Any, steps_per_epoch: int, args: argparse.Namespace) -> None:
        options = {"count": args.count, "prior_factor": args.prior_factor}
        self._schedule = EvidenceSchedule(net, steps_per_epoch, args.epochs, **options)

    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        weight = 1.0 if self._schedule is None else self._schedule.weight
        self._likelihood.update(states, labels, deltas, weight)

    def probabilities(self, mu: np.ndarray, var: np.ndarray) -> np.ndarray:
        shape = -1, self._num_classes
        return self._likelihood.prediction(mu.reshape(shape), var.reshape(shape)).probabilities


class HierarchicalHead(Head):
    """A label is a path of binary decisions. The outputs on it are observed as +1 or -1 (11 outputs for 10 classes)."""

    def __init__(self, num_classes: int, device: str):
        super().__init__(num_classes, device)
        self._metric = HRCSoftmaxMetric(num_classes)
        self._tree = hierarchical_softmax(num_classes)
        self.outputs = self._tree.len

    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        obs, index, _ = Utils().label_to_obs(labels, self._num_classes)
        self._updater.update_using_indices(states, obs, np.full_like(obs, sigma_v**2), index, deltas)

    def probabilities(self, mu: np.ndarray, var: np.ndarray) -> np.ndarray:
        return class_probabilities(mu, var, self._tree)

    def count_errors(self, mu: np.ndarray, var: np.ndarray, labels: np.ndarray, top: int = 1) -> int:
        if top > 1:
            return super().count_errors(mu, var, labels, top)
        return int(np.count_nonzero(self._metric.get_predicted_labels(mu, var) != labels))


class RemaxHead(Head):
    """A label is a one-hot vector. Each class probability is observed as 0 or 1 (10 outputs behind a Remax layer)."""

    def update(self, states: BaseHiddenStates, labels: np.ndarray, sigma_v: float, deltas: BaseDeltaStates) -> None:
        obs = Utils().label_to_one_hot(labels, self._num_classes)
        self._updater.update(states, obs, np.full_like(obs, sigma_v**2), deltas)

    def probabilities(self, mu: np.ndarray, var: np.ndarray) -> np.ndarray:
        return mu.reshape(-1, self._num_classes)


HEADS: dict[str, type[Head]] = {"categorical": CategoricalHead, "hierarchical": HierarchicalHead, "remax": RemaxHead}

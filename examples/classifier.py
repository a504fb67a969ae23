"""Class labels as observed numbers, as in pytagi: likelihoods of these programs in addition to `Categorical`."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from pytagi_ddp import Utils, exponential_scheduler
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.likelihoods.prediction import ClassPrediction
from pytagi_ddp.nn import OutputUpdater
from pytagi_ddp.nn.hierarchical_softmax import class_probabilities, hierarchical_softmax
from pytagi_ddp.training import Callback


class RemaxHead:
    """A label is a one-hot vector. Each class probability is observed as 0 or 1 (10 outputs after a Remax layer).

    Args:
        classes: their number. sigma_v: standard deviation of an observed number.

    Attributes:
        outputs: units that the network ends with.
    """

    def __init__(self, classes: int, sigma_v: float = 1.0):
        self.outputs = self.classes = classes
        self.sigma_v = sigma_v
        self._updater = OutputUpdater("cpu")  # or where the network is

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.classes}, {self.sigma_v:g})"

    def observe(self, net: Any, labels: np.ndarray) -> None:
        self.update(net.output_z_buffer, labels, net.input_delta_z_buffer)

    def update(self, output_states: Any, y: np.ndarray, delta_states: Any, weight: float = 1.0) -> None:
        obs = Utils().label_to_one_hot(y, self.classes)
        self._updater.update(output_states, obs, np.full_like(obs, self.sigma_v**2), delta_states)

    def prediction(self, mu: np.ndarray, var: np.ndarray) -> ClassPrediction:
        return ClassPrediction(mu.reshape(-1, self.classes).astype(np.float64))


class HierarchicalHead(RemaxHead):
    """A label is a path of binary decisions. The outputs on it are observed as +1 or -1 (11 outputs for 10 classes)."""

    def __init__(self, classes: int, sigma_v: float = 1.0):
        super().__init__(classes, sigma_v)
        self._tree = hierarchical_softmax(classes)
        self.outputs = self._tree.len

    def update(self, output_states: Any, y: np.ndarray, delta_states: Any, weight: float = 1.0) -> None:
        obs, units, _ = Utils().label_to_obs(y, self.classes)
        self._updater.update_using_indices(output_states, obs, np.full_like(obs, self.sigma_v**2), units, delta_states)

    def prediction(self, mu: np.ndarray, var: np.ndarray) -> ClassPrediction:
        return ClassPrediction(class_probabilities(mu, var, self._tree))


class FallingNoise(Callback):
    """Lets `sigma_v` of a head fall from epoch to epoch, to a least value."""

    on_all_ranks = True

    def __init__(self, first: float, least: float, decay: float):
        self._settings = first, min(least, first), decay

    def epoch_begin(self, trainer: Any) -> None:
        trainer.likelihood.sigma_v = float(exponential_scheduler(*self._settings, trainer.epoch))

    def epoch_end(self, trainer: Any) -> None:
        trainer.results["sigma_v"] = trainer.likelihood.sigma_v


HEADS: dict[str, Any] = {"categorical": Categorical, "hierarchical": HierarchicalHead, "remax": RemaxHead}


def training_options(args: argparse.Namespace, classes: int) -> dict[str, Any]:
    """The likelihood, and other options of a `Trainer` that depend on how labels are observed."""
    if args.head == "categorical":
        first, last = args.rates
        evidence = {"count": args.count, "prior_factor": args.prior_factor, "first": first, "last": last}
        return {"likelihood": Categorical(classes), "evidence": evidence}
    head = HEADS[args.head](classes, args.sigma_v)
    return {"likelihood": head, "evidence": None, "forget": args.forget}

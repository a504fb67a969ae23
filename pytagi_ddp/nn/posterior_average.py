"""The average of the posteriors that a network goes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np

from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.sequential import Sequential


class PosteriorAverage:
    """An average of the posteriors behind the last steps, to evaluate a network by.

    A capped TAGI step of a convolutional network moves most weights by a good part of their standard deviations, as far
    as the last batch has it; the average over many steps lies nearer to where they go. The k-th call of `update`
    replaces the average, a Gaussian N(m, s) for each parameter, by the one with the moments of the mixture

        (1 - w) N(m, s) + w N(m_k, s_k):    d = m_k - m,  m += w d,  s += w (s_k - s) + w (1 - w) d^2

    where N(m_k, s_k) is what the network has now. w = 1/k gives all posteriors the same weight; with a `decay`, w is at
    least 1 - decay, and those of the last 1/(1 - decay) calls count.

        average = PosteriorAverage(net)
        for x, y in batches:
            learn(x, y)
            net.step()
            average.update()
        with average.average_parameters():
            net.update_bn(batches, 40)  # the running statistics of BatchNorm2d are of other parameters
            mu, var = net.predict(x_test)

    On several ranks every rank has an average of its own, of `ddp.model`: as replicas are equal after each step, so are
    the averages. It takes as much memory as the parameters, and half as much again. `CheckpointManager` writes it into
    its checkpoints, and `state_dict` is for files of one's own.

    Args:
        net: the network; with several ranks the `model` of a `DDPSequential`.
        decay: weight of the average beside a new posterior, at most; None: all posteriors weigh the same.

    Attributes:
        net: the network. n_averaged: how many posteriors the average is of.
        theta: (2, P) their means and variances, on the network's device and in the order of its parameters.

    Raises:
        ValueError: a decay outside of [0, 1), or a network in shards. TypeError: no Sequential.

    Source: Polyak & Juditsky (1992), SIAM J. Control Optim. 30; Izmailov et al. (2018), "Averaging weights leads to
    wider optima and better generalization", UAI; the spread of the means as a variance: Maddox et al. (2019), "A simple
    baseline for Bayesian uncertainty in deep learning", NeurIPS. Interface: torch_ema.
    """

    def __init__(self, net: Sequential, decay: float | None = None):
        if not isinstance(net, Sequential):
            raise TypeError(
                f"PosteriorAverage takes a Sequential (of a DDPSequential: its model), got {type(net).__name__}"
            )
        if decay is not None and not (isinstance(decay, Real) and 0 <= decay < 1):
            raise ValueError(f"the decay of a PosteriorAverage must be at least 0 and less than 1, got {decay!r}")
        if net.arena.in_shards:
            raise ValueError("PosteriorAverage of a network that lies in shards: no rank has all of its parameters")
        self.net, self.decay = net, decay
        self._theta, self._kernels, self._device = net.kernels.array.empty(0), net.kernels, net.device
        self.n_averaged = 0
        self._in_place = False

    def update(self) -> None:
        """Takes in the present posterior.

        Raises:
            RuntimeError: inside `average_parameters`.
        """
        if self._in_place:
            raise RuntimeError("update() inside average_parameters(): the network has the average there, no posterior")
        weight = 1 / (self.n_averaged + 1)
        if self.decay is not None:
            weight = max(weight, 1 - self.decay)
        posterior, average = self.net.arena.theta, self.theta
        if self.n_averaged:
            self.net.kernels.merge.mix(Tensor(*posterior), Tensor(*average), weight)
        else:
            self.net.kernels.array.copy(posterior, average)
        self.n_averaged += 1

    def reset(self) -> None:
        """Forgets all posteriors: the next `update` begins anew."""
        self.n_averaged = 0

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        """Gives the network the average inside, and afterwards the parameters and the state that it had before.

        For evaluation, `update_bn`, `save` and the like; what a step inside does to parameters is lost.

        Raises:
            RuntimeError: there is no average yet; deltas wait for a step; inside another `average_parameters`; or this
                rank has made steps that the others do not know of (`every=k`).
        """
        net = self.net
        if not self.n_averaged or self._in_place:
            raise RuntimeError(
                "average_parameters() inside another one" if self._in_place else "average_parameters() before update()"
            )
        net.pending.refuse_waiting("average_parameters()")
        if net.trainer is not None and net.trainer.steps_alone:
            raise RuntimeError(
                "average_parameters() between two merges: replicas differ; call merge() on every rank first"
            )
        arena, copy = net.arena, net.kernels.array.copy
        kept = [
            (memory, net.kernels.array.empty(memory.shape)) for memory in (arena.theta, arena.statistics, arena.carried)
        ]
        for memory, before in kept:
            copy(memory, before)
        self._in_place = True
        try:
            copy(self.theta, arena.theta)
            self._changed()
            yield
        finally:
            self._in_place = False
            for memory, before in kept:
                copy(before, memory)
            self._changed()

    def state_dict(self) -> dict[str, Any]:
        """The average, for a checkpoint: means, variances, and how many posteriors they are of."""
        mean, var = np.zeros((2, 0), np.float32)
        if self.n_averaged:
            mean, var = self.net.kernels.array.to_host(self.theta)
        return {"mean": mean, "var": var, "n_averaged": self.n_averaged}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` gave, for a network of the same architecture.

        Raises:
            KeyError: an entry is missing. ValueError: not as many parameters as the network has, or none that could be
                means and variances.
        """
        n = state_dict["n_averaged"]
        rows = np.array([np.ravel(state_dict["mean"]), np.ravel(state_dict["var"])], np.float32)
        shape = (2, self.net.arena.num_parameters if n else 0)
        if type(n) is not int or n < 0 or rows.shape != shape:
            raise ValueError(
                f"an average of {n!r} posteriors with {rows.shape[1]} parameters for a network of "
                f"{self.net.arena.num_parameters}"
            )
        if not np.isfinite(rows).all() or (rows[1] < 0).any():
            raise ValueError("the average has means or variances that are not finite, or negative variances")
        if n:
            self.net.kernels.array.copy(rows, self.theta)
        self.n_averaged = n

    @property
    def theta(self) -> Array:
        kernels, shape = self.net.kernels, self.net.arena.theta.shape
        if self._device != self.net.device or self._theta.shape != shape:
            before, self._theta = self._kernels.array.to_host(self._theta), kernels.array.empty(shape)
            if self.n_averaged:
                kernels.array.copy(before, self._theta)
            self._kernels, self._device = kernels, self.net.device
        return self._theta

    def _changed(self) -> None:
        if self.net.trainer is not None:
            self.net.trainer.parameters_changed()

"""The average of the posteriors that a network passes through in training."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.core.alone import alone
from pytagi_ddp.nn.core.unpickled import writable
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_numbers


class PosteriorAverage:
    """An average of the posteriors after many steps, for evaluating a network: it is less noisy than the last one.

    The k-th call of `update` replaces the average, a Gaussian N(m, s) for each parameter, by the Gaussian with the
    moments of the mixture

        (1 - w) N(m, s) + w N(m_k, s_k):    d = m_k - m,  m += w d,  s += w (s_k - s) + w (1 - w) d^2

    where N(m_k, s_k) is the network's present posterior. w = 1/k gives all posteriors the same weight. With a `decay`,
    w is at least 1 - decay, so that about the last 1/(1 - decay) calls count.

        average = PosteriorAverage(net)
        for x, y in batches:
            learn(x, y)
            net.step()
            average.update()
        with average.average_parameters():
            net.update_bn(batches, 40)  # the running statistics of BatchNorm2d belong to other parameters
            mu, var = net.predict(x_test)

    On several ranks, every rank keeps its own average, of `ddp.model`. An average takes as much memory as means and
    variances of all parameters, and twice that inside `average_parameters`. `CheckpointManager` writes the average into
    its checkpoints; `state_dict` is for files of your own.

    Args:
        net: the network; with several ranks the `model` of a `DDPSequential`.
        decay: the largest weight 1 - w of the present average in an update; None: all posteriors have the same weight.

    Attributes:
        net: the network. n_averaged: number of posteriors in the average.
        theta: (2, P) means and variances of the average, on the network's device, in the order of its parameters.
        in_place: whether the network now has the average as its parameters, as inside `average_parameters`.

    Raises:
        ValueError: a decay outside of [0, 1), or a network in shards. TypeError: not a Sequential,
            or a decay that is not a number.

    Source: Polyak & Juditsky (1992), SIAM J. Control Optim. 30; Izmailov et al. (2018), "Averaging weights leads to
    wider optima and better generalization", UAI; the spread of the means as a variance: Maddox et al. (2019), "A simple
    baseline for Bayesian uncertainty in deep learning", NeurIPS. Interface: torch_ema.
    """

    def __init__(self, net: Sequential, decay: float | None = None):
        if not isinstance(net, Sequential):
            raise TypeError(
                f"PosteriorAverage takes a Sequential (of a DDPSequential: its model), got {type(net).__name__}"
            )
        if decay is not None:
            as_numbers("PosteriorAverage", "[0, 1)", decay=decay)
        if net.arena.in_shards:
            raise ValueError("PosteriorAverage of a network that lies in shards: no rank has all of its parameters")
        self.net, self.decay = net, decay
        self._theta, self._kernels = net.kernels.array.empty(0), net.kernels
        self.n_averaged = 0
        self.in_place = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_theta": self._kernels.array.to_host(self._theta), "_kernels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(writable(state), _kernels=get_kernels("cpu"))

    @alone
    def update(self) -> None:
        """Adds the present posterior to the average.

        Raises:
            RuntimeError: inside `average_parameters`, or between two merges (`every=k`), where ranks differ; or another
                thread is using the network.
        """
        if self.in_place:
            raise RuntimeError(
                "update() inside average_parameters(): the network holds the average there, and no posterior; call it "
                "after the with block"
            )
        self._refuse_replicas_that_differ("update()")
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
        """Forgets all posteriors: the next `update` starts a new average."""
        self.n_averaged = 0

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        """Inside the block the network holds the average; afterwards it gets back its parameters and state.

        Use it for evaluation, `update_bn` and `save`. Anything that is learnt or loaded inside the block is lost.

        Raises:
            RuntimeError: there is no average yet; deltas wait for a step; inside another `average_parameters`; ranks
                differ, between two merges (`every=k`); or another thread is using the network.
        """
        net = self.net
        with ExitStack() as alone_until_inside:
            alone_until_inside.enter_context(self._one_thread)
            if not self.n_averaged or self.in_place:
                inside = "inside another one" if self.in_place else "before update()"
                raise RuntimeError(f"average_parameters() {inside}")
            net.passes.refuse_waiting("average_parameters()")
            self._refuse_replicas_that_differ("average_parameters()")
            kernels, arena = net.kernels, net.arena
            names = ("theta", "statistics", "carried")
            kept = {name: kernels.array.empty(getattr(arena, name).shape) for name in names}
            for name, memory in kept.items():
                kernels.array.copy(getattr(arena, name), memory)
            self.in_place = True
            try:
                kernels.array.copy(self.theta, arena.theta)
                self._changed()
                alone_until_inside.close()
                yield
            finally:
                self.in_place = False
                for name, memory in kept.items():  # the network may have moved to another device
                    before = memory if net.kernels is kernels else kernels.array.to_host(memory)
                    net.kernels.array.copy(before, getattr(net.arena, name))
                self._changed()
                net.drop_deltas()  # they belong to the average

    def state_dict(self) -> dict[str, Any]:
        """The average, for a checkpoint: means, variances, and the number of posteriors in it."""
        mean, var = np.zeros((2, 0), np.float32)
        if self.n_averaged:
            mean, var = self.net.kernels.array.to_host(self.theta)
        return {"mean": mean, "var": var, "n_averaged": self.n_averaged}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, for a network of the same architecture.

        Raises:
            KeyError: an entry is missing. ValueError: the network has another number of parameters, or the values
                cannot be means and variances. TypeError: a number of posteriors that is not an integer.
        """
        rows, n = check_average(state_dict, self.net.arena.num_parameters)
        if n:
            self.net.kernels.array.copy(rows, self.theta)
        self.n_averaged = n

    @property
    def theta(self) -> Array:
        kernels, shape = self.net.kernels, self.net.arena.theta.shape
        if self._kernels is not kernels or self._theta.shape != shape:
            before, self._theta = self._kernels.array.to_host(self._theta), kernels.array.empty(shape)
            if self.n_averaged:
                kernels.array.copy(before, self._theta)
            self._kernels = kernels
        return self._theta

    @property
    def _one_thread(self) -> Any:
        return self.net._one_thread

    def _refuse_replicas_that_differ(self, call: str) -> None:
        if self.net.trainer is not None and self.net.trainer.steps_since_merge:
            raise RuntimeError(f"{call} between two merges: replicas differ; call merge() on every rank first")

    def _changed(self) -> None:
        (self.net.trainer or self.net).parameters_changed()


def check_average(state_dict: Mapping[str, Any], num_parameters: int) -> tuple[np.ndarray, int]:
    """(means and variances, number of posteriors) of the `state_dict` of an average.

    Raises:
        KeyError, ValueError, TypeError: as `PosteriorAverage.load_state_dict`.
    """
    n = operator.index(state_dict["n_averaged"])
    mean, var = np.ravel(state_dict["mean"]), np.ravel(state_dict["var"])
    if n < 0 or not mean.size == var.size == (num_parameters if n else 0):
        raise ValueError(
            f"an average of {n} posteriors with {mean.size} means and {var.size} variances for a network of "
            f"{num_parameters}"
        )
    rows = np.array([mean, var], np.float32)
    if not np.isfinite(rows).all() or (rows[1] < 0).any():
        raise ValueError("the average has means or variances that are not finite, or negative variances")
    return rows, n

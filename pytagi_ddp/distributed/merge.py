"""Posteriors of ranks that train on their own for some steps, merged into one."""

from __future__ import annotations

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.exchange import batch_norms
from pytagi_ddp.kernels.tensors import Delta, Tensor
from pytagi_ddp.nn.arena import HEADER
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array

MERGES = ("mean", "precision_weighted")


class PosteriorMerge:
    """Gives all ranks one posterior, from theirs and the prior N(m0, s0) that they started from together.

        "mean":                m = mean of m_r                     s = mean of s_r
        "precision_weighted":  m = sum m_r/s_r / sum 1/s_r         1/s = 1/s0 + sum (1/s_r - 1/s0)

    over the ranks that have seen samples since the last merge. Running statistics are averaged over them. One
    all-reduce over the buffer of the deltas, which local steps have used up.

    Args:
        model: this rank's replica.
        rule: one of `MERGES`.

    Attributes:
        steps: local steps since the last merge.

    Raises:
        ValueError: another rule.
    """

    def __init__(self, model: Sequential, rule: str):
        if rule not in MERGES:
            raise ValueError(f"merge must be one of {', '.join(map(repr, MERGES))}, got {rule!r}")
        self.steps = 0
        self._samples = 0
        self._model = model
        self._weighted = rule == "precision_weighted"
        self._norms = batch_norms(model)
        self._kernels = model.kernels
        empty = model.kernels.array.empty
        self._prior, self._prior_statistics = empty(model.arena.theta.shape), empty(model.arena.statistics.shape)
        self._begun = False

    def begin(self) -> None:
        """To be called before a forward pass: the first one since the last merge starts from the common prior."""
        if not self._begun:
            self._follow()
            copy, arena = self._kernels.array.copy, self._model.arena
            copy(arena.theta, self._prior)
            copy(arena.statistics, self._prior_statistics)
            self._begun = True

    def restart(self) -> None:
        """Forgets local steps: all ranks have been given other parameters."""
        self.steps = self._samples = 0
        self._begun = False

    def local_step(self) -> FloatingPointError | None:
        """`Sequential.step` with this rank's own deltas; without any, nothing. Returns what it raises.

        It is this rank's alone, which has to meet the others all the same before it is raised.

        Raises:
            RuntimeError: deltas of a forward pass that `begin` was not called for.
        """
        model, problem = self._model, None
        if model._samples and not self._begun:
            raise RuntimeError(
                "the prior that these deltas start from is unknown: call forward() of the DDPSequential, not of the "
                "network in it, and load no parameters between forward() and step()"
            )
        self.steps += 1
        if model._samples:
            try:
                model.step()
            except FloatingPointError as error:
                problem = error
        self._samples += model._samples
        model._samples, model._accumulate = 0, False
        return problem

    def merge(self, communicator: Communicator, stop: bool) -> Array:
        """Merges; collective. Returns the header: samples since the last merge, ranks that saw any, stop requests."""
        arena, array = self._model.arena, self._model.kernels.array
        self.begin()
        self._follow()
        if self._samples:
            for moments, prior, sums, weighted in self._quantities():
                self._model.kernels.merge.contribute(Tensor(*moments), Tensor(*prior), Delta(*sums), weighted)
        else:
            array.clear(arena.buffer)
        header = arena.tail[:HEADER]
        array.copy(np.array([self._samples, self._samples > 0, stop], np.float32), header)
        communicator.all_reduce(arena.buffer)
        for moments, prior, sums, weighted in self._quantities():
            self._model.kernels.merge.merge_sums(Tensor(*moments), Tensor(*prior), Delta(*sums), header, weighted)
        pooled = array.snapshot(header)
        array.clear(arena.buffer)  # layers expect to find their sums at zero
        self.restart()
        return pooled

    def _follow(self) -> None:
        """Takes the prior to the device of the network, if that has been moved."""
        old, self._kernels = self._kernels.array, self._model.kernels
        if old is not self._kernels.array:
            priors = [old.to_host(prior) for prior in (self._prior, self._prior_statistics)]
            self._prior, self._prior_statistics = (self._kernels.array.place(prior, None) for prior in priors)

    def _quantities(self):
        """(moments, their prior, their summands, by precision or not) of the parameters and of every BatchNorm2d."""
        arena, first = self._model.arena, 0
        yield arena.theta, self._prior, arena.delta, self._weighted
        for norm in self._norms:
            prior = self._prior_statistics[first : first + norm.num_statistics].reshape(2, -1)
            yield norm.statistics.reshape(2, -1), prior, norm.sums[1:], False
            first += norm.num_statistics

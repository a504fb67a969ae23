"""Merges of posteriors of ranks that train independently for some steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_replicas
from pytagi_ddp.distributed.engine.debug import NonFiniteError
from pytagi_ddp.distributed.exchange import Exchange, Options, pool_statistics
from pytagi_ddp.kernels.formulas.rules import DAMPED_PRODUCT, MEAN, PRECISION_WEIGHTED
from pytagi_ddp.kernels.tensors import Array, Delta, Tensor
from pytagi_ddp.nn.core.arena import HEADER, READ
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_integers

MERGES = {"mean": MEAN, "precision_weighted": PRECISION_WEIGHTED, "damped_product": DAMPED_PRODUCT}


class PosteriorMerge(Exchange):
    """Ranks take local steps. Each k-th step merges the posteriors of all ranks into one.

    With their common prior N(m0, s0) at the last merge, the merged posterior N(m, s) is

        "mean":                m = mean of m_r                     s = mean of s_r
        "precision_weighted":  m = sum m_r/s_r / sum 1/s_r         1/s = 1/s0 + sum (1/s_r - 1/s0)
        "damped_product":      m = m0 + sum (m_r - m0)/s_r / t     as "precision_weighted"
                               t = sqrt(R)/s0 + sum (1/s_r - 1/s0), or sum (1/s_r)/sqrt(R) if the sum is below 0

    with sums and means over the R ranks that have had samples since the last merge. Running statistics are averaged
    over these ranks. It takes one all-reduce, in the buffer of the deltas. "damped_product" moves the means at most
    sqrt(R) times as far as "precision_weighted". It learns more from few small steps between two merges.

    The rule is the option `merge`, by default "precision_weighted"; k is `every`.
    """

    option = "merges (every > 1, or merge=...)"
    merges = True
    _memory: tuple[str, ...] = ("_prior", "_prior_statistics")  # arrays that move with the network

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        pool_statistics(model, False)
        self._every = options.every
        self._samples = 0
        self._rule = MERGES[options.merge or "precision_weighted"]
        self._begun = self._refused = False
        self._make_memory()

    def _make_memory(self) -> None:
        """Allocates arrays on the device of the network."""
        self._kernels = self.model.kernels
        empty, arena = self._kernels.array.empty, self.model.arena
        self._prior, self._prior_statistics = empty(arena.theta.shape), empty(arena.statistics.shape)
        self._no_moments = self._kernels.array.zeros((3, arena.statistics.size))

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        as_integers("DDPSequential", 1, every=options.every)
        if options.merge not in (None, *MERGES):
            raise ValueError(f"merge must be one of {', '.join(map(repr, MERGES))}, or None, got {options.merge!r}")
        asked = (options.every > 1 or options.merge is not None) and options.max_wait is None
        if asked and options.sync_batch_norm:
            raise ValueError(
                f"{cls.option} have no sync_batch_norm; got every={options.every}, merge={options.merge!r}, "
                "sync_batch_norm=True"
            )
        return asked

    def forward(self) -> AbstractContextManager[None]:
        self._begin()
        return nullcontext()

    def _begin(self) -> None:
        """Copies the common prior, before the first pass after a merge."""
        if not self._begun:
            self._move_prior()
            copy, arena = self._kernels.array.copy, self.model.arena
            copy(arena.theta, self._prior)
            copy(arena.statistics, self._prior_statistics)
            self._begun = True

    def parameters_changed(self) -> None:
        """Resets the number of local steps."""
        self.steps = self._samples = 0
        self._begun = False

    def deltas_dropped(self) -> None:
        """Called if the network gets new parameters, perhaps not by a method of the DDPSequential."""
        self.parameters_changed()

    def barrier(self, call: str) -> None:
        if call == "update_bn" and (self.steps or self.model.passes.waiting):
            raise RuntimeError("update_bn() between two merges: replicas differ; call merge() on every rank first")

    def step(self, stop: bool, now: bool = False) -> None:
        """A local step. Each k-th step, or any step with `now`, also merges the posteriors of all ranks.

        With `now`, there is a step only if deltas are pending.
        """
        problem = None if now and not self.model.passes.waiting else self._local_step()
        if now or self.steps >= self._every:
            problem = self._late_problem() or problem
        self._exchange(stop, now)
        if problem is not None:
            raise problem

    def joined(self) -> None:
        """Gives all ranks the position in their schedules of the rank with the most steps."""
        schedule = self.model.schedule
        steps = self.communicator.all_gather_object(0 if schedule is None else schedule.steps, "join")
        if schedule is not None and schedule.steps != max(steps):
            schedule.load_state_dict(schedule.state_dict() | {"steps": max(steps)})

    def _exchange(self, stop: bool, now: bool) -> None:
        if now or self.steps >= self._every:
            self._merge(stop)

    def _local_step(self) -> FloatingPointError | None:
        """`Sequential.step` with this rank's own deltas, if there are any.

        Returns a FloatingPointError instead of raising it, because this rank first has to take part in the merge.
        """
        samples, problem = self.model.passes.waiting, None
        if samples and not self._begun:
            raise RuntimeError(
                "the prior that these deltas start from is unknown: call forward() of the DDPSequential, not of the "
                "network in it, and load no parameters between forward() and step()"
            )
        self.steps += 1
        if samples:
            try:
                self.model.passes.step(self.communicator.world_size)
            except FloatingPointError as error:
                problem, self._refused = error, True
        elif self.model.schedule is not None:  # a schedule counts steps of all ranks
            self.model.schedule.moves_on()
        self._samples += samples
        return problem

    def _late_problem(self) -> FloatingPointError | None:
        """The error of the last local step on a GPU, which the next step would raise."""
        try:
            self.model.arena.check()
        except FloatingPointError as error:
            self._refused = True
            return error
        return None

    def _merge(self, stop: bool) -> None:
        arena, array = self.model.arena, self.model.kernels.array
        bad = self._contribute(arena.buffer, stop)
        try:
            self.communicator.all_reduce(arena.buffer)
        except NonFiniteError:
            array.clear(arena.buffer)
            raise
        self.pooled = self._spread(arena.buffer, arena.theta, self.communicator, bad)
        arena.drop_sums()  # layers expect zeros
        self.parameters_changed()
        self.model.parameters_changed()
        if self.communicator.debug:
            compare_replicas(self.communicator, self.model, "merge")

    def _contribute(self, buffer: Array, stop: bool) -> bool:
        """Writes the contribution of this rank to a merge, in the order of the arena's buffer.

        Returns whether its posterior is not valid (NaN, infinity, negative variances), which would spoil that of all
        ranks. Its number of samples is NaN then, and so is the sum over ranks.
        """
        array = self.model.kernels.array
        self._begin()
        self._move_prior()
        if self._samples:
            for moments, prior, sums, rule in self._quantities(buffer, self.model.arena.theta):
                self.model.kernels.merge.contribute(moments, prior, sums, rule)
        else:
            array.clear(buffer)
        bad = self._refused and not self._is_sound()
        samples = np.nan if bad else self._samples
        array.copy(np.array([samples, self._samples > 0, stop, False], np.float32), self._tail(buffer)[:HEADER])
        return bad

    def _spread(self, buffer: Array, theta: Array, ranks: Communicator, bad: bool) -> Array:
        """Computes the merged posterior from the sums in `buffer`, and writes it to `theta` and to the prior.

        Returns a copy of the summed counters. If the posterior of some rank was `bad`, all `ranks` raise
        FloatingPointError, and nothing changes.
        """
        array, counters = self.model.kernels.array, self._tail(buffer)[:HEADER]
        if np.isnan(array.to_host(counters)[0]):
            self.model.arena.drop_sums()
            whose = [rank for rank, was_bad in enumerate(ranks.all_gather_object(bad, "merge")) if was_bad]
            raise FloatingPointError(
                f"merge refused: rank {', '.join(map(str, whose))} has parameters that are not finite, or negative "
                "variances. No rank has changed: give that rank other parameters, by load() or, from rank 0, by "
                "synchronize()"
            )
        for moments, prior, sums, rule in self._quantities(buffer, theta):
            self.model.kernels.merge.merge_sums(moments, prior, sums, counters[:READ], rule)
        return array.snapshot(counters)

    def _tail(self, buffer: Array) -> Array:
        return buffer[2 * self.model.arena.num_parameters :]

    def _is_sound(self) -> bool:
        """Whether the parameters of this rank are finite, and variances not negative."""
        self._refused = False
        mu, var = self.model.kernels.array.to_host(self.model.arena.theta)
        return bool(np.isfinite(mu).all() and np.isfinite(var).all() and (var >= 0).all())

    def _move_prior(self) -> None:
        """Moves the prior to the device of the network, after a move of the network."""
        old = self._kernels.array
        if old is not self.model.kernels.array:
            kept = {name: old.to_host(getattr(self, name)) for name in self._memory}
            self._make_memory()
            for name, values in kept.items():
                self._kernels.array.copy(values, getattr(self, name))

    def _quantities(self, buffer: Array, theta: Array) -> Iterator[tuple[Tensor, Tensor, Delta, int]]:
        """(moments, prior, summands, rule) of parameters and of running statistics.

        The moments of the parameters are in `theta`, the summands in `buffer`. The kernel takes rows of means and
        variances. Running statistics are averaged as rows of means; the row of variances is empty.
        """
        arena = self.model.arena
        n = arena.num_parameters
        yield Tensor(*theta), Tensor(*self._prior), Delta(buffer[:n], buffer[n : 2 * n]), self._rule
        running = arena.statistics, self._prior_statistics, self._tail(buffer)[HEADER:]
        for spec in arena.tensors:
            if spec.kind == "running":
                own = [values[spec.begin : spec.end] for values in running]
                none = [row[: len(spec)] for row in self._no_moments]
                moments, prior, sums = (pair[:: -1 if spec.variance else 1] for pair in zip(own, none, strict=True))
                yield Tensor(*moments), Tensor(*prior), Delta(*sums), MEAN

"""The memory of a network's parameters.

`Arena` is the interface of a flat parameter buffer. `ParameterArena` keeps all parameters in one: `theta` (2, P) has
their means and variances, and `buffer` their batch sums (2 P) followed by a few counters. Data-parallel training adds
`buffer` over the ranks by one all-reduce, without packing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.core.forgetting import Forgetting, prior_pieces
from pytagi_ddp.nn.core.init import check_count
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters, ParametersNotHereError
from pytagi_ddp.nn.core.prior import drawn
from pytagi_ddp.nn.core.running import RunningStatistics
from pytagi_ddp.nn.core.stepping import Stepping, cut, refusal
from pytagi_ddp.nn.core.tensors import FIELDS, TensorSpec, table_of

READ, HEADER = 3, 4  # tail[:4]: samples, ranks with samples (kernels read 3), ranks that ask to stop, new schedules


def _size_of(tensors: Iterable[TensorSpec], kind: str) -> int:
    """The number of values of a kind; a parameter counts once, not twice for mean and variance."""
    return max((spec.end for spec in tensors if spec.kind == kind), default=0)


class Arena(ABC):
    """The parameters, batch sums and running statistics of `leaves`, in forward order, on any device or in shards.

    Args:
        leaves: the layers that compute, by their keys in a state dict. kernels: those of the network's device.
        sums: numbers in `buffer` before its tail.

    Attributes:
        tensors: the table of all tensors: parameters, running and carried state of each leaf, in forward order.
        leaves: the layers that compute.
        buffer: the values that are added over ranks in a step. tail: its end, with the numbers of samples, active
            ranks, stop requests and new schedules, and then the sums that layers share.
        statistics: state of kind "running" of all leaves, flat. carried: that of kind "carried" (see `TensorSpec`).
        running: the leaves that have running statistics.
        num_parameters: P.
        deferred: whether parameters are still to be drawn, see `nn.deferred_init`.
        in_shards: whether each rank holds only a part of the parameters.
        keeps_sums: whether the batch sums stay in place until the next backward pass writes its own.
        prior_factor: factor on the variance of the prior towards which steps can pull parameters; 0: steps do not use
            the prior. `cut_steps` sets it.
        unchecked: counts of non-finite deltas of a step, until `check` has looked at them.
        agree: called in each step before anything changes; raises an error if another rank refuses the step, or None.
    """

    unchecked: Array | None = None
    agree: Callable[[], None] | None = None
    in_shards = deferred = False
    keeps_sums = True
    prior_factor = 0.0

    def __init__(self, leaves: Mapping[str, BaseLayer], kernels: Kernels, sums: int):
        self.leaves = list(leaves.values())
        self.tensors = table_of(leaves)
        self._kernels = kernels
        self.num_parameters = _size_of(self.tensors, "learned")
        self._places: dict[BaseLayer, slice] = {}  # of the parameters of each leaf that has some
        for spec in self.tensors:
            if spec.kind == "learned" and spec.field == "mu_w":
                leaf = self.leaves[spec.leaf]
                self._places[leaf] = slice(spec.begin, spec.end + leaf.num_biases)
        self.running = [leaf for leaf in self.leaves if isinstance(leaf, RunningStatistics)]
        self.buffer = kernels.array.zeros(sums + HEADER + sum(norm.num_sums for norm in self.running))
        self.tail = self.buffer[sums:]
        self._factors = kernels.array.zeros(4)  # scale, samples, caps and rate of the step

    def _attach_state(self) -> None:
        running, carried = (_size_of(self.tensors, kind) for kind in ("running", "carried"))
        zeros = self._kernels.array.zeros
        self._moved = zeros(running + carried)
        self.statistics, self.carried = self._moved[:running], self._moved[running:]
        self._settled = zeros(running + carried)
        self._before = zeros(running + carried), zeros(self.tail.size)
        views: list[dict[str, Array]] = [{} for _ in self.leaves]
        for spec in self.tensors:
            if spec.kind != "learned":
                memory = self.statistics if spec.kind == "running" else self.carried
                views[spec.leaf][spec.field] = memory[spec.begin : spec.end]
        for leaf, own in zip(self.leaves, views, strict=True):
            leaf._attach_state(own)
        sums = HEADER
        for norm in self.running:
            norm.shared_sums = self.tail[sums : sums + norm.num_sums]
            sums += norm.num_sums
        self.keep_state()

    # A pass changes statistics and carried state. If it fails, they are restored to their values before the pass; if
    # the step is refused, to those after the previous step.

    def begin_pass(self, backward: bool = False) -> None:
        """Saves the state that a pass is about to change, for `undo_pass`; it only calls kernels."""
        for values, noted in self._moved_by(backward):
            self._kernels.array.copy(values, noted)

    def undo_pass(self, backward: bool = False) -> None:
        """Restores the state that `begin_pass` has saved."""
        for values, noted in self._moved_by(backward):
            self._kernels.array.copy(noted, values)

    def _moved_by(self, backward: bool) -> Iterator[tuple[Array, Array]]:
        """(memory that a pass changes, memory of its copy); a forward pass also changes statistics."""
        if self._moved.size and not (backward and not self.carried.size):
            yield self._moved, self._before[0]
        if self.running and not backward:
            yield self.tail, self._before[1]

    def keep_state(self) -> None:
        """Saves the state for `undo_step`. To be called after a step, and after state was set in another way."""
        if self._moved.size:
            self._kernels.array.copy(self._moved, self._settled)

    def undo_step(self) -> None:
        """Restores statistics and carried state to those of the last `keep_state`."""
        if self._moved.size:
            self._kernels.array.copy(self._settled, self._moved)

    def unfrozen(self, variances: bool = False) -> list[TensorSpec]:
        """The means of the parameters that steps change (not those of frozen layers), or their variances."""
        learned = (spec for spec in self.tensors if spec.kind == "learned" and spec.variance == variances)
        return [spec for spec in learned if not self.leaves[spec.leaf].frozen]

    def _stepped(self) -> list[TensorSpec]:
        """The means that steps change, together with their variances; in pieces of one prior if steps use the prior."""
        means = self.unfrozen()
        if not self.prior_factor:
            return means
        found = []
        for spec in prior_pieces(means, self.leaves):
            mean, var = spec.prior
            factor = self.leaves[spec.leaf].pull_factor
            found.append(spec.having(prior=(mean, var * (self.prior_factor if factor is None else factor))))
        return found

    def values(self, spec: TensorSpec) -> Array:
        """The memory of a tensor, or of a part of it. In a network in shards, ask for tensors in forward order."""
        leaf = self.leaves[spec.leaf]
        if spec.kind != "learned":
            return leaf.state[spec.field][spec.start : spec.stop]
        self.bring(leaf)
        assert leaf.parameters is not None
        return leaf.parameters.views[FIELDS.index(spec.field)][spec.start : spec.stop]

    def step(
        self,
        samples: int,
        scale: float = 1.0,
        caps: float = 1.0,
        rate: float = 0.0,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Adds the capped deltas to every parameter, and then pulls it towards its prior.

        Args:
            samples: number of samples in the batch sums. The divisor c of a layer's cap is `cap_factor` of samples x
                time steps.
            scale: factor on the batch sums (1/R for the average over R ranks); 0 for no step.
            caps: factor on the divisors.
            rate: of the pull, see the formula `pulled`; without a `prior_factor` there is none.
            run: a function that gets the step as a function, and calls it or replays a recording of it; None: the step
                is called.

        Raises:
            FloatingPointError: some delta is not finite; then nothing changes. On a GPU, the next step or `check`
                raises it, so that no step waits for the previous one.
        """
        self.check()
        self._kernels.array.copy(np.array([scale, samples, caps, rate], np.float32), self._factors)
        self._apply() if run is None else run(self._apply)
        self.finish()

    def step_pooled(self, average: bool, rate: float = 0.0) -> None:
        """`step` after `tail` was added over all ranks: scale and caps follow from its numbers of samples and ranks.

        Without samples on any rank, there is no step.
        """
        self.check()
        self._kernels.step.pooled_factors(self.tail[:READ], self._factors, average, rate)
        self._apply()
        self.finish()

    @abstractmethod
    def _apply(self) -> None:
        """The step, with the factors in `_factors`."""

    def finish(self) -> None:  # noqa: B027 - ranks check together
        """Checks for deltas that were not finite, now or (on a GPU) with the next step or `check`."""

    def check(self) -> None:  # noqa: B027 - as `finish`
        """Raises FloatingPointError if the last step met deltas that are not finite; see `step`."""

    def cut_steps(self, prior_factor: float | None = None) -> None:
        """Divides the step into parts for threads again; to be called after layers were frozen, unfrozen or drawn anew.

        Args:
            prior_factor: a new one; None: as before.
        """
        self.check()  # which needs the parts of the last step
        if prior_factor is not None:
            self.prior_factor = prior_factor
        self._cut()

    @abstractmethod
    def _cut(self) -> None:
        """Makes the parts of a step of `_stepped`."""

    @abstractmethod
    def forget_evidence(self, factor: float) -> None:
        """`Sequential.forget_evidence` of the parameters on this rank; `factor` comes from `check_factor`."""

    def drop_sums(self) -> None:
        """Clears batch sums and counters, and the factors of the step that used them."""
        self._kernels.array.clear(self.buffer)
        self._kernels.array.clear(self._factors)

    def bring(self, leaf: BaseLayer) -> None:  # noqa: B027 - in most arenas they are there
        """Makes the parameters of `leaf` available. A loop over all leaves calls this for each of them in turn."""

    def detach(self) -> None:
        """Copies all parameters and state to the host, before the network moves to another device."""
        for leaf in self.leaves:
            leaf._detach()

    def leaf_at(self, position: int) -> str:
        """The layer that a position among the parameters belongs to, for messages."""
        learned = (spec for spec in self.tensors if spec.kind == "learned")
        number = next(spec.leaf for spec in learned if spec.begin <= position < spec.end)
        return f"layer {number} ({self.leaves[number].get_layer_info()})"

    @abstractmethod
    def _counted(self) -> Iterable[tuple[int, int]]:
        """(number of a leaf, weights whose variance fell to <= 0 in the last step); a leaf may occur several times."""

    def negative_variances(self) -> dict[int, int]:
        """Weights (not biases) of each leaf whose variance fell to <= 0 in the last step, by `id` of the leaf."""
        counts = {id(leaf): 0 for leaf in self.leaves}
        for number, count in self._counted():
            counts[id(self.leaves[number])] += count
        return counts

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("theta", "delta"):
            raise ParametersNotHereError(f"arena.{name} is there only where a network is drawn and whole on this rank")
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @property
    def dtype(self) -> np.dtype:
        """Of parameters and batch sums."""
        return self.buffer.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters, sums and state."""
        return self.buffer.nbytes + self.statistics.nbytes + self.carried.nbytes


class ParameterArena(Arena):
    """One flat memory for all parameters.

    Attributes:
        theta: (2, P) means and variances.
        delta: (2, P) batch sums g = sum A dm and h = sum A^2 ds, a view of `buffer`.
    """

    def __init__(self, leaves: Mapping[str, BaseLayer], kernels: Kernels):
        P = sum(leaf.num_weights + leaf.num_biases for leaf in leaves.values())
        check_count("this network", P)
        super().__init__(leaves, kernels, 2 * P)
        self.theta = kernels.array.empty((2, P))
        self.delta = self.buffer[: 2 * P].reshape(2, P)
        self._attach()
        self._attach_state()
        self.cut_steps()

    def _cut(self) -> None:
        self._stepping = Stepping(cut(self._stepped(), 0, self.num_parameters), self._kernels)
        self._forgetting: Forgetting | None = None  # made when it is needed

    def _attach(self) -> None:
        rows = (*self.theta, *self.delta)
        for leaf in drawn(self.leaves):  # one after the other, so that drawn values of only one layer take memory
            old = leaf.parameters
            if not old:
                continue
            place = self._places.get(leaf, slice(0, 0))
            if len(old) != place.stop - place.start:  # exchanges between ranks would leave it out
                raise RuntimeError(
                    f"{leaf.get_layer_info()} has {len(old)} parameters now, and had {place.stop - place.start} before"
                )
            views = Tensor(*(row[place] for row in rows))
            leaf.parameters = Parameters(views, old.weight_shape, self._kernels.array)
            used = 2 if old.no_deltas else 4
            for source, target in zip(old.rows[:used], leaf.parameters.rows[:used], strict=True):
                self._kernels.array.copy(source, target)

    @property
    def step_memory(self) -> tuple[Array, Array]:
        """(factors, counts of non-finite deltas): the memory that a step reads, and that it writes."""
        return self._factors, self._stepping.non_finite

    def _apply(self) -> None:
        parameters = Tensor(*self.theta, *self.delta)
        if self.agree is not None:
            self._stepping.look(parameters, self._factors)
            self.agree()
        self._stepping.step(parameters, self._factors)
        if self._moved.size:
            self._kernels.step.settle(self._moved, self._settled, self._stepping.non_finite)

    def finish(self) -> None:
        self.unchecked = self._kernels.array.snapshot(self._stepping.non_finite)
        if not self._kernels.array.asynchronous:
            self.check()

    def check(self) -> None:
        counts, self.unchecked = self.unchecked, None
        if counts is not None and (error := self.refusal(counts)):
            raise error

    def refusal(self, counts: Array | None = None) -> FloatingPointError | None:
        """The error of a step whose batch sums are not finite, by `counts` or else by those of the step in progress."""
        counts = self._kernels.array.to_host(self._stepping.non_finite) if counts is None else counts
        if not (bad := int(counts.sum())):
            return None
        first = self._stepping.start_of(int((counts > 0).argmax()))
        return refusal(bad, self.num_parameters, self.leaf_at(first))

    def forget_evidence(self, factor: float) -> None:
        if self._forgetting is None:
            pieces = prior_pieces(self.unfrozen(variances=True), self.leaves)
            self._forgetting = Forgetting(pieces, self._kernels, 0, self.num_parameters)
        self._forgetting(self.theta[1], factor)

    def _counted(self) -> Iterable[tuple[int, int]]:
        return self._stepping.negative_variances()

    @property
    def dtype(self) -> np.dtype:
        return self.theta.dtype

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.theta.nbytes


class DeferredArena(Arena):
    """The arena of a network whose parameters are not drawn yet, see `nn.deferred_init`: it has no values."""

    deferred = True

    def __init__(self, leaves: Mapping[str, BaseLayer], kernels: Kernels):
        super().__init__(leaves, kernels, 0)
        for leaf in self.leaves:
            if leaf.parameters is None:
                leaf.init_weight_bias()  # which records the order
        self._attach_state()

    def step(self, *_: Any, **options: Any) -> NoReturn:
        raise ParametersNotHereError(
            "this network was made inside deferred_init(), and has no parameters yet: give it to FSDPSequential, or "
            "call its materialize()"
        )

    _apply = forget_evidence = step

    def _cut(self) -> None:
        pass

    def detach(self) -> None:
        for leaf in self.leaves:
            leaf._keep_state()

    def _counted(self) -> Iterable[tuple[int, int]]:
        return ()

"""The memory of a network in shards, and its communication between ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.core.arena import Arena
from pytagi_ddp.nn.core.forgetting import Forgetting, prior_pieces
from pytagi_ddp.nn.core.hooks import Direction
from pytagi_ddp.nn.core.init import check_count
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import REMEDY, AbsentParameters, Parameters
from pytagi_ddp.nn.core.prior import drawn
from pytagi_ddp.nn.core.stepping import Stepping, cut, refusal
from pytagi_ddp.nn.core.tensors import TensorSpec

ALIGNMENT = 16  # the number of parameters in a shard is a multiple of this: 64 bytes


@dataclass(frozen=True, eq=False)
class ParameterGroup:
    """Neighbouring leaves with parameters, each of them whole, in forward order."""

    leaves: tuple[BaseLayer, ...]
    start: int  # position of the first parameter among those of the network
    size: int  # N, the number of parameters
    shard: int  # n, the number on each of R ranks; rank r has those from r n on, the last R n - N are padding

    def own(self, rank: int) -> tuple[int, int]:
        """[start, stop) of the parameters of a rank in the group, maybe empty."""
        return min(rank * self.shard, self.size), min((rank + 1) * self.shard, self.size)


def groups_of(leaves: Iterable[BaseLayer], ranks: int, min_num_params: int) -> list[ParameterGroup]:
    """Divides leaves, in order, into groups of at most `min_num_params` parameters, or one larger leaf.

    n = 16 ceil(N / (16 R)).
    """
    members: list[list[BaseLayer]] = []
    size = 0
    for leaf in leaves:
        own = leaf.num_weights + leaf.num_biases
        if not own:
            continue
        if not members or size + own > min_num_params:
            members.append([])
            size = 0
        members[-1].append(leaf)
        size += own
    groups, start = [], 0
    for member in members:
        size = sum(leaf.num_weights + leaf.num_biases for leaf in member)
        groups.append(ParameterGroup(tuple(member), start, size, ALIGNMENT * -(-size // (ALIGNMENT * ranks))))
        start += size
    return groups


@dataclass(frozen=True)
class Section:
    """The memory of a group. Arrays have two rows: means and variances, or the batch sums g and h."""

    theta: tuple[Array, Array]  # R blocks of n, in the order of the ranks; groups may share this memory
    sums: tuple[Array, Array]  # the same
    own_theta: tuple[Array, Array]  # the block of this rank
    own_sums: Array
    stepping: Stepping  # steps the parameters in that block


class ShardedArena(Arena):
    """Each rank has a block of every `ParameterGroup`: of its means and variances, and of both batch sums.

    Gathered groups use two slots in turn, one for parameters and one for batch sums. The addresses of a group never
    change. With `whole`, all parameters stay whole on every rank, and only the slot for batch sums is used in turn. The
    memory of a rank, in float32 numbers, is

        4 sum n + 4 R max n        with `whole`: 2 R sum n + 2 sum n + 2 R max n

    The constructor gives all ranks the parameters of rank 0, leaf by leaf. It is collective, and so are `gather`,
    `all_gather`, `scatter`, `share`, `forget_evidence` and `reading`.

    Args:
        min_num_params: see `groups_of`. whole: whether every rank has all parameters.
        offloaded: whether the shards are in host memory, and the step is made there.
    """

    in_shards = True
    keeps_sums = False

    def __init__(
        self,
        leaves: Mapping[str, BaseLayer],
        kernels: Kernels,
        communicator: Communicator,
        min_num_params: int,
        whole: bool,
        offloaded: bool = False,
    ):
        super().__init__(leaves, kernels, 0)
        self.offloaded = offloaded
        self.keeper = get_kernels("cpu") if offloaded else kernels  # of the device of the shards
        self._communicator = communicator
        self.whole, self._rank, self._ranks = whole, communicator.rank, communicator.world_size
        self.groups = groups_of(self.leaves, self._ranks, min_num_params)
        check_count("the share of a rank", sum(group.shard for group in self.groups) * (self._ranks if whole else 1))
        self.group_of = {leaf: group for group in self.groups for leaf in group.leaves}
        self._memory: list[Array] = []
        self.sections = dict(zip(self.groups, self._sections(), strict=True))
        self._at = {leaf: place.start - self.group_of[leaf].start for leaf, place in self._places.items()}
        self._views: dict[tuple[BaseLayer, Direction], Any] = {}
        self._absent: dict[BaseLayer, Any] = {}
        self._bring: Callable[[BaseLayer], None] | None = None
        self._written: ParameterGroup | None = None
        self.held: ParameterGroup | None = None  # the gathered group
        self._with_variances = False  # whether its variances are gathered, too
        for leaf in drawn(self.leaves):
            if leaf in self.group_of:
                self._take_over(leaf)
        self._attach_state()
        communicator.broadcast(self.statistics)
        communicator.barrier()

    # -- layout -----------------------------------------------------------------------------------------------

    def _zeros(self, *shape: int) -> Array:
        self._memory.append(self._kernels.array.zeros(shape))
        return self._memory[-1]

    def _kept(self, *shape: int) -> Array:
        """Memory for shards."""
        return self.keeper.array.zeros(shape) if self.offloaded else self._zeros(*shape)

    def _sections(self) -> Iterator[Section]:
        ranks, rank = self._ranks, self._rank
        total, widest = (
            sum(group.shard for group in self.groups),
            max((group.shard for group in self.groups), default=0),
        )
        sums = self._kept(2 * total)
        theta = self._kept(2, ranks * total if self.whole else total)
        slot = theta if self.whole else self._zeros(2, ranks * widest)
        sums_of_group, begin, means = self._zeros(2, ranks * widest), 0, self._stepped()
        for group in self.groups:
            n = group.shard
            width, first = ranks * n, ranks * begin if self.whole else 0
            own_first = first + rank * n if self.whole else begin
            yield Section(
                _rows(slot, first, first + width),
                _rows(sums_of_group, 0, width),
                _rows(theta, own_first, own_first + n),
                sums[2 * begin : 2 * (begin + n)].reshape(2, n),
                self._stepping_of(group, means),
            )
            begin += n

    def _stepping_of(self, group: ParameterGroup, means: list[TensorSpec]) -> Stepping:
        begin, end = (group.start + place for place in group.own(self._rank))
        return Stepping(cut(means, begin, end), self.keeper, group.start + self._rank * group.shard)

    def _cut(self) -> None:
        means = self._stepped()
        for group, section in self.sections.items():
            self.sections[group] = replace(section, stepping=self._stepping_of(group, means))

    def _take_over(self, leaf: BaseLayer) -> None:
        """Moves the parameters of a leaf, with the values of rank 0, to this arena."""
        array, section, old = self._kernels.array, self.sections[self.group_of[leaf]], leaf.parameters
        assert old is not None
        mu, var = self.part(leaf, section.theta)
        g, h = self.part(leaf, section.sums)
        for source, target in zip(old.rows[:2], (mu, var), strict=True):
            array.copy(source, target)
            self._communicator.broadcast(target)
        kept = var if self.whole else None  # backward passes do not read variances
        self._views[leaf, "forward"] = Parameters(Tensor(mu, var, None, None), old.weight_shape, array)
        self._views[leaf, "backward"] = Parameters(Tensor(mu, kept, g, h), old.weight_shape, array)
        what = f"the parameters of {leaf.get_layer_info()} are not here, as this network lies in shards: {REMEDY}"
        self._absent[leaf] = AbsentParameters(old.weight_shape, old.num_biases, what)
        self._keep_part(leaf)
        self.release(leaf)

    def _keep_part(self, leaf: BaseLayer) -> None:
        """Copies the values of `leaf` in the block of this rank from the memory of the whole group."""
        group, begin = self.group_of[leaf], self._at[leaf]
        section, offset = self.sections[group], self._rank * group.shard
        first, last = group.own(self._rank)
        start, stop = max(begin, first), min(begin + leaf.num_weights + leaf.num_biases, last)
        for row, own in zip(section.theta, section.own_theta, strict=True):
            if start < stop and not self.whole:
                self._kernels.array.copy(row[start:stop], own[start - offset : stop - offset])

    def part(self, leaf: BaseLayer, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        """The part of the rows of a group that belongs to `leaf`."""
        first = self._at[leaf]
        stop = first + leaf.num_weights + leaf.num_biases
        return rows[0][first:stop], rows[1][first:stop]

    # -- communication ----------------------------------------------------------------------------------------

    def gather(self, group: ParameterGroup, variances: bool = True) -> None:
        """Gathers the means and variances of a group, unless they are gathered already."""
        there = 1 + self._with_variances if self.held is group else 0
        section = self.sections[group]
        if not there:
            self.held = None
        for own, row in list(zip(section.own_theta, section.theta, strict=True))[there : 1 + variances]:
            self.all_gather(group, own, row)
        self.held, self._with_variances = group, max(there, 1 + variances) == 2

    def all_gather(self, group: ParameterGroup, own: Array, row: Array) -> None:
        """Gathers the blocks of all ranks (`own` on this rank) into a row of the whole group."""
        if self.offloaded:
            block = self._block(group, row)
            self._kernels.array.copy(own, block)
            own = block
        self._communicator.all_gather(own, row)

    def _block(self, group: ParameterGroup, row: Array) -> Array:
        """This rank's block of a row."""
        return row[self._rank * group.shard : (self._rank + 1) * group.shard]

    def scatter(self, group: ParameterGroup, first: bool) -> None:
        """Adds the batch sums of all ranks; each rank keeps those of its block.

        first: whether they replace the sums in the shards instead of being added to them.
        """
        section, array = self.sections[group], self._kernels.array
        into = [
            own if first and not self.offloaded else self._block(group, row)
            for row, own in zip(section.sums, section.own_sums, strict=True)
        ]
        start = self._communicator.start_reduce_scatter  # does not check for non-finite values, as the step does
        for handle in [start(*rows) for rows in zip(section.sums, into, strict=True)]:
            handle.wait()
        for added, own in zip(into, section.own_sums, strict=True):
            if first and self.offloaded:
                array.copy(added, own)
            elif not first:
                on_keeper = array.to_host(added) if self.offloaded else added
                self.keeper.elementwise.add(own, on_keeper, own)

    def forget_gathered(self) -> None:
        """To be called after a change of the parameters in the shards: drops the gathered group."""
        self.held = None

    def share(self) -> None:
        """To be called after a change of the shards: updates parameters that are whole on every rank."""
        self.forget_gathered()
        for section in self.sections.values() if self.whole else ():
            for own, row in zip(section.own_theta, section.theta, strict=True):
                self._communicator.all_gather(own, row)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside the block, parameters can be read leaf by leaf, in forward order; collective.

        A rank that does not read all of them takes part in the remaining collectives at the end of the block.
        """
        groups = deque(self.groups)

        def bring(leaf: BaseLayer) -> None:
            while groups and self.held is not self.group_of[leaf]:
                self.gather(groups.popleft())
            if self.held is not self.group_of[leaf]:
                raise RuntimeError(f"{leaf.get_layer_info()} is read after layers that follow it")
            self.hold(leaf, "forward")

        self.forget_gathered()
        try:
            with self.bringing(bring):
                yield
        finally:
            for group in groups:
                self.gather(group)
            self.forget_gathered()

    # -- memory of leaves -------------------------------------------------------------------------------------

    def hold(self, leaf: BaseLayer, direction: Direction) -> None:
        """Makes `leaf` use its part of the group's memory, with any values."""
        leaf.parameters = self._views[leaf, direction]

    def hold_in(self, leaf: BaseLayer, rows: tuple[Array, Array]) -> None:
        """Makes `leaf` use its part of other rows of its group, which hold means and variances."""
        parts, shape = self.part(leaf, rows), self._absent[leaf].weight_shape
        leaf.parameters = Parameters(Tensor(*parts, None, None), shape, self._kernels.array)

    def release(self, leaf: BaseLayer) -> None:
        """Removes the memory from `leaf`, unless its parameters are whole."""
        leaf.parameters = self._views[leaf, "forward"] if self.whole else self._absent[leaf]

    def keep(self, group: ParameterGroup, rows: tuple[Array, Array] | None = None) -> None:
        """Copies this rank's block from the rows of the whole group (None: those of its section)."""
        section = self.sections[group]
        for row, own in zip(rows or section.theta, section.own_theta, strict=True):
            if rows is not None or not self.whole:
                self._kernels.array.copy(self._block(group, row), own)

    def bring(self, leaf: BaseLayer) -> None:
        if self._bring is not None and leaf in self.group_of:
            self._bring(leaf)

    @contextmanager
    def bringing(self, bring: Callable[[BaseLayer], None]) -> Iterator[None]:
        """Inside the block, `bring` is called for each leaf before its parameters are read or written."""
        self._bring = bring
        try:
            yield
        finally:
            self._bring = None
            for leaf in self.group_of:
                self.release(leaf)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block all parameters have to be written, in forward order; they are copied to the shards.

        The shards of a group change when the group is complete; after an exception, those of an incomplete group have
        not changed.
        """
        self._written = None
        with self.bringing(self._hold_to_write):
            yield
            self._end_group()

    def _hold_to_write(self, leaf: BaseLayer) -> None:
        group = self.group_of[leaf]
        if group is not self._written:
            self._end_group()
        self._written = group
        self.hold(leaf, "forward")

    def _end_group(self) -> None:
        if self._written is not None:
            self.keep(self._written)
            self._written = None

    def detach(self) -> NoReturn:
        raise RuntimeError(
            "a network in shards cannot be moved: give it to the device, and then to a new FSDPSequential"
        )

    # -- step -------------------------------------------------------------------------------------------------

    def step(self, *_: Any, **options: Any) -> NoReturn:
        raise RuntimeError("this network lies in shards, and all ranks step them: call step() of its FSDPSequential")

    def _apply(self) -> None:
        factors = self._kernels.array.to_host(self._factors) if self.offloaded else self._factors
        parts = [(each.stepping, Tensor(*each.own_theta, *each.own_sums)) for each in self.sections.values()]
        if self.agree is not None:
            for stepping, parameters in parts:
                stepping.look(parameters, factors)
            self.agree()
        for stepping, parameters in parts:
            stepping.step(parameters, factors)

    def forget_evidence(self, factor: float) -> None:
        pieces = list(prior_pieces(self.unfrozen(variances=True), self.leaves))
        for group, section in self.sections.items():
            start, stop = (group.start + position for position in group.own(self._rank))
            Forgetting(pieces, self.keeper, start, stop)(section.own_theta[1][: stop - start], factor)
        self.share()

    def bad(self) -> np.ndarray:
        """(number of non-finite deltas in the shards of this rank, position of the first of them)."""
        count, first = 0, np.iinfo(np.int64).max
        for section in self.sections.values():
            counts = self.keeper.array.to_host(section.stepping.non_finite)
            if counts.any():
                count += int(counts.sum())
                first = min(first, section.stepping.start_of(int((counts > 0).argmax())))
        return np.array([count, first], np.int64)

    def refuse(self, bad: int, first: int) -> NoReturn:
        """Raises FloatingPointError for the results of `bad` on all ranks, combined."""
        raise refusal(bad, self.num_parameters, self.leaf_at(first))

    def _counted(self) -> Iterable[tuple[int, int]]:
        for section in self.sections.values():
            yield from section.stepping.negative_variances()

    @property
    def nbytes(self) -> int:
        state = self.buffer, self.statistics, self.carried
        return sum(array.nbytes for array in (*self._memory, *state))


def _rows(memory: Array, start: int, stop: int) -> tuple[Array, Array]:
    return memory[0, start:stop], memory[1, start:stop]

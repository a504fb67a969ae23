"""The memory of a network whose parameters and deltas are in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.units import Unit, units_of
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.arena import Arena
from pytagi_ddp.nn.forgetting import forget, prior_pieces
from pytagi_ddp.nn.hooks import Direction
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.parameters import REMEDY, AbsentParameters, Parameters
from pytagi_ddp.nn.prior import drawn
from pytagi_ddp.nn.stepping import Stepping, cut, refusal
from pytagi_ddp.nn.tensors import TensorSpec

SLOTS = 2  # memories for batch sums that other ranks read: they read one while the next unit fills the other


@dataclass(frozen=True)
class Section:
    """The memory of a unit. Arrays have two rows: means and variances, or the batch sums g and h.

    Attributes:
        theta, sums: R blocks of n, in the order of the ranks. Units may share this memory and use it in turn.
        own_theta, own_sums: this rank's block, which it keeps.
        stepping: makes the step of the parameters in that block.
        slot: number of the memory of `sums`.
        parts: (R, 2, n), this rank's block of the `sums` of each rank, if it sees their memory; else None.
    """

    theta: tuple[Array, Array]
    sums: tuple[Array, Array]
    own_theta: tuple[Array, Array]
    own_sums: Array
    stepping: Stepping
    slot: int = 0
    parts: np.ndarray | None = None


class ShardedArena(Arena):
    """Each rank holds a block of every `Unit`: of its means and variances, and of both batch sums.

    Whole units use two slots in turn, one for parameters and one for batch sums; the addresses of a unit never change.
    With `whole`, all parameters stay whole on every rank, and only the slot for batch sums is used in turn. The memory
    of a rank, in float32 numbers, is

        4 sum n + 4 R max n        with `whole`: 2 R sum n + 2 sum n + 2 R max n

    Ranks that share memory see each other's shards. The blocks of all ranks are then side by side, so that nothing has
    to be gathered; and there are two slots for batch sums, which other ranks read:

        4 sum n + 4 R max n        with `whole`: 2 R sum n + 2 sum n + 4 R max n

    Construction gives all ranks the parameters of rank 0, leaf by leaf; it is collective.

    Args:
        leaves, kernels: of the network.
        communicator: of the ranks.
        min_num_params: see `units_of`.
        whole: whether every rank holds all parameters.
        shares: whether ranks share memory if they can.
        offloaded: whether the shards are in host memory, and the step is made there.

    Attributes:
        units: the units, in forward order. unit_of: the unit of each leaf with parameters.
        sections: the memory of each unit, in the same order.
        keeper: the kernels of the device that holds the shards.
        common: whether all ranks see the parameters in one shared memory, where each rank keeps its blocks.
        everywhere: (R, 2, R sum n) with `whole`, if ranks share memory: the whole parameters of each rank.
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
        shares: bool = True,
        offloaded: bool = False,
    ):
        super().__init__(leaves, kernels, 0)
        self.offloaded = offloaded
        self.keeper = get_kernels("cpu") if offloaded else kernels
        self.whole, self._rank, self._ranks = whole, communicator.rank, communicator.world_size
        self.units = units_of(self.leaves, self._ranks, min_num_params)
        self.unit_of = {leaf: unit for unit in self.units for leaf in unit.leaves}
        self._memory: list[Array] = []
        self.everywhere: np.ndarray | None = None
        self.common, self._own_nbytes = False, 0
        self._shared = self._share(communicator) if shares and kernels.array is get_kernels("cpu").array else None
        self.sections = dict(zip(self.units, self._sections(), strict=True))
        self._at = {leaf: place.start - self.unit_of[leaf].start for leaf, place in self._places.items()}
        self._views: dict[tuple[BaseLayer, Direction], Any] = {}
        self._absent: dict[BaseLayer, Any] = {}
        self._bring: Callable[[BaseLayer], None] | None = None
        self._written: Unit | None = None
        self._rows_to_write: tuple[Array, Array] | None = None  # of that unit, where others read what is kept
        for leaf in drawn(self.leaves):
            if leaf in self.unit_of:
                self._take_over(leaf, communicator)
        self._attach_state()
        communicator.broadcast(self.statistics)
        communicator.barrier()

    # -- layout -----------------------------------------------------------------------------------------------

    def _share(self, communicator: Communicator) -> tuple[Array, Array] | None:
        """(parameters, slots of sums of each rank) in memory that all ranks see; None if they cannot share memory."""
        ranks, shards = self._ranks, [unit.shard for unit in self.units]
        total, widest = ranks * sum(shards), ranks * max(shards, default=0)
        copies = ranks if self.whole else 1
        memory = communicator.shared_zeros(2 * copies * total + ranks * SLOTS * 2 * widest)
        if memory is None:
            return None
        theta, sums = memory[: 2 * copies * total], memory[2 * copies * total :]
        self._own_nbytes = memory.nbytes // ranks
        self.common = not self.whole
        if self.whole:
            self.everywhere = theta.reshape(ranks, 2, total)
            theta = self.everywhere[self._rank]
        return theta.reshape(2, total), sums.reshape(ranks, SLOTS, 2, widest)

    def _zeros(self, *shape: int) -> Array:
        self._memory.append(self._kernels.array.zeros(shape))
        return self._memory[-1]

    def _kept(self, *shape: int) -> Array:
        """Memory for shards."""
        return self.keeper.array.zeros(shape) if self.offloaded else self._zeros(*shape)

    def _sections(self) -> Iterator[Section]:
        ranks, rank = self._ranks, self._rank
        total, widest = sum(unit.shard for unit in self.units), max((unit.shard for unit in self.units), default=0)
        sums, apart = self._kept(2 * total), self.whole or self.common  # apart: each unit has its own parameters
        if self._shared is None:
            theta = self._kept(2, ranks * total if self.whole else total)
            slot = theta if self.whole else self._zeros(2, ranks * widest)
            slots, brought = [self._zeros(2, ranks * widest)], None
        else:
            theta, brought = self._shared
            slot, slots = theta, brought[rank]
        begin, means = 0, self.unfrozen()
        for k, unit in enumerate(self.units):
            n, turn = unit.shard, k % len(slots)
            width, first = ranks * n, ranks * begin if apart else 0
            own_first = first + rank * n if apart else begin
            yield Section(
                _rows(slot, first, first + width),
                _rows(slots[turn], 0, width),
                _rows(theta, own_first, own_first + n),
                sums[2 * begin : 2 * (begin + n)].reshape(2, n),
                self._stepping_of(unit, means),
                turn,
                None if brought is None else brought[:, turn, :, rank * n : (rank + 1) * n],
            )
            begin += n

    def _stepping_of(self, unit: Unit, means: list[TensorSpec]) -> Stepping:
        begin, end = (unit.start + place for place in unit.own(self._rank))
        return Stepping(cut(means, begin, end), self.keeper, unit.start + self._rank * unit.shard)

    def cut_steps(self) -> None:
        means = self.unfrozen()
        for unit, section in self.sections.items():
            self.sections[unit] = replace(section, stepping=self._stepping_of(unit, means))

    def _take_over(self, leaf: BaseLayer, communicator: Communicator) -> None:
        """Puts the parameters of a leaf, with the values of rank 0, into this arena."""
        array, section, old = self._kernels.array, self.sections[self.unit_of[leaf]], leaf.parameters
        assert old is not None
        mu, var = self.part(leaf, section.theta)
        g, h = self.part(leaf, section.sums)
        for source, target in zip(old.rows[:2], (mu, var), strict=True):
            if self._rank == 0 or not self.common:
                array.copy(source, target)
            if not self.common:
                communicator.broadcast(target)
        kept = var if self.whole else None  # no pass back reads variances
        self._views[leaf, "forward"] = Parameters(Tensor(mu, var, None, None), old.weight_shape, array)
        self._views[leaf, "backward"] = Parameters(Tensor(mu, kept, g, h), old.weight_shape, array)
        what = f"the parameters of {leaf.get_layer_info()} are not here, as this network lies in shards: {REMEDY}"
        self._absent[leaf] = AbsentParameters(old.weight_shape, old.num_biases, what)
        self._keep_part(leaf)
        self.release(leaf)

    def _keep_part(self, leaf: BaseLayer) -> None:
        """Copies what `leaf` has in this rank's block from the memory of the whole unit."""
        unit, begin = self.unit_of[leaf], self._at[leaf]
        section, offset = self.sections[unit], self._rank * unit.shard
        first, last = unit.own(self._rank)
        start, stop = max(begin, first), min(begin + leaf.num_weights + leaf.num_biases, last)
        for row, own in zip(section.theta, section.own_theta, strict=True):
            if start < stop and self.gathers:
                self._kernels.array.copy(row[start:stop], own[start - offset : stop - offset])

    @property
    def gathers(self) -> bool:
        """Whether a unit has to be gathered before it is used."""
        return not self.whole and not self.common

    def part(self, leaf: BaseLayer, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        """The part of the rows of a unit that belongs to `leaf`."""
        first = self._at[leaf]
        stop = first + leaf.num_weights + leaf.num_biases
        return rows[0][first:stop], rows[1][first:stop]

    def blocks_of_others(self) -> Iterator[tuple[Array, Array]]:
        """(memory of that rank, memory of this rank) of each block that another rank keeps, with `everywhere`."""
        assert self.everywhere is not None
        begin = 0
        for unit in self.units:
            for rank in range(self._ranks):
                block = slice(begin, begin := begin + unit.shard)
                if rank != self._rank:
                    for row in range(2):
                        yield self.everywhere[rank, row, block], self.everywhere[self._rank, row, block]

    # -- what leaves see --------------------------------------------------------------------------------------

    def hold(self, leaf: BaseLayer, direction: Direction) -> None:
        """Lets `leaf` use its part of the unit's memory, whatever values are there."""
        leaf.parameters = self._views[leaf, direction]

    def hold_in(self, leaf: BaseLayer, rows: tuple[Array, Array]) -> None:
        """Lets `leaf` use its part of other rows of its unit, which hold means and variances."""
        parts, shape = self.part(leaf, rows), self._absent[leaf].weight_shape
        leaf.parameters = Parameters(Tensor(*parts, None, None), shape, self._kernels.array)

    def release(self, leaf: BaseLayer) -> None:
        """Takes the memory away from `leaf` again, unless its parameters are whole."""
        leaf.parameters = self._views[leaf, "forward"] if self.whole else self._absent[leaf]

    @property
    def is_shared(self) -> bool:
        """Whether other ranks see the memory of the parameters."""
        return self._shared is not None and self._ranks > 1

    def take_away(self, why: str) -> None:
        """Takes the parameters away from all leaves for good; `why` ends the error when they are read."""
        for leaf, old in self._absent.items():
            what = f"the parameters of {leaf.get_layer_info()} are not here: {why}"
            absent: Any = AbsentParameters(old.weight_shape, old.num_biases, what)
            self._absent[leaf] = leaf.parameters = absent
            self._views[leaf, "forward"] = self._views[leaf, "backward"] = absent

    def keep(self, unit: Unit, rows: tuple[Array, Array] | None = None) -> None:
        """Copies this rank's block from the rows of the whole unit (None: those of its section)."""
        section, n = self.sections[unit], unit.shard
        for row, own in zip(rows or section.theta, section.own_theta, strict=True):
            if rows is not None or self.gathers:
                self._kernels.array.copy(row[self._rank * n : (self._rank + 1) * n], own)

    def bring(self, leaf: BaseLayer) -> None:
        if self._bring is not None and leaf in self.unit_of:
            self._bring(leaf)

    @contextmanager
    def bringing(self, bring: Callable[[BaseLayer], None]) -> Iterator[None]:
        """Inside the block, `bring` is called for each leaf before its parameters are read or written."""
        self._bring = bring
        try:
            yield
        finally:
            self._bring = None
            for leaf in self.unit_of:
                self.release(leaf)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside the block all parameters have to be written, in forward order; they are put into the shards.

        This happens when a unit is complete: after an exception, the shards of an incomplete unit are as they were.
        """
        self._written = self._rows_to_write = None
        with self.bringing(self._hold_to_write):
            yield
            self._end_unit()

    def _hold_to_write(self, leaf: BaseLayer) -> None:
        unit = self.unit_of[leaf]
        if unit is not self._written:
            self._end_unit()
            if self.common:
                width = self._ranks * unit.shard
                self._rows_to_write = self._kernels.array.empty(width), self._kernels.array.empty(width)
        self._written = unit
        self.hold(leaf, "forward") if self._rows_to_write is None else self.hold_in(leaf, self._rows_to_write)

    def _end_unit(self) -> None:
        if self._written is not None:
            self.keep(self._written, self._rows_to_write)
            self._written = self._rows_to_write = None

    def detach(self) -> NoReturn:
        raise RuntimeError(
            "a network in shards cannot be moved: give it to the device, and then to a new FSDPSequential"
        )

    # -- step -------------------------------------------------------------------------------------------------

    def step(self, *_: Any, **options: Any) -> NoReturn:
        raise RuntimeError("this network lies in shards, which step together: call step() of its FSDPSequential")

    def _apply(self) -> None:
        factors = self._kernels.array.to_host(self._factors) if self.offloaded else self._factors
        for section in self.sections.values():
            section.stepping.step(Tensor(*section.own_theta, *section.own_sums), factors)

    def forget_evidence(self, factor: float) -> None:
        pieces = list(prior_pieces(self.unfrozen(variances=True), self.leaves))
        for unit, section in self.sections.items():
            start, stop = (unit.start + position for position in unit.own(self._rank))
            forget(section.own_theta[1][: stop - start], pieces, self.keeper, factor, start)

    def finish(self) -> None:
        pass  # ranks check together, by `bad`

    def check(self) -> None:
        pass

    def bad(self) -> np.ndarray:
        """(deltas in the shards of this rank that were not finite in the last step, position of the first of them)."""
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
        return self._own_nbytes + sum(array.nbytes for array in (*self._memory, *state))


def _rows(memory: Array, start: int, stop: int) -> tuple[Array, Array]:
    return memory[0, start:stop], memory[1, start:stop]

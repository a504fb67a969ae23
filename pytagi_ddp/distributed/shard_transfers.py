"""What ranks send each other of a network in shards: parameters, and the batch sums of their deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.sharded_arena import ShardedArena
from pytagi_ddp.distributed.units import Unit
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


class ShardTransfers:
    """Moves parameters and sums between the shards of all ranks. Every method but `forget` is collective.

    Args:
        communicator: of all ranks. model: this rank's part, with a `ShardedArena`.

    Attributes:
        held: the unit that is gathered now.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self._communicator, self._model = communicator, model
        self._array = model.kernels.array
        self.held: Unit | None = None
        self._with_variances = False  # whether its variances are gathered too
        self._under_way: dict[int, tuple[Unit, bool, Handle]] = {}  # by slot: a unit whose sums are being added

    @property
    def arena(self) -> ShardedArena:
        return cast(ShardedArena, self._model.arena)

    def gather(self, unit: Unit, variances: bool = True) -> None:
        """Gathers the means of a unit, and its variances, unless they are there already."""
        if not self.arena.gathers:
            self.held = unit
            return
        there = 1 + self._with_variances if self.held is unit else 0
        section = self.arena.sections[unit]
        if not there:
            self.held = None
        rows = list(zip(section.own_theta, section.theta, strict=True))
        for own, row in rows[there : 1 + variances]:
            self.all_gather(unit, own, row)
        self.held, self._with_variances = unit, max(there, 1 + variances) == 2

    def all_gather(self, unit: Unit, own: Array, row: Array) -> None:
        if self.arena.offloaded:
            block = self._block(unit, row)
            self._array.copy(own, block)
            own = block
        self._communicator.all_gather(own, row)

    def _block(self, unit: Unit, row: Array) -> Array:
        """This rank's block of a row."""
        rank = self._communicator.rank
        return row[rank * unit.shard : (rank + 1) * unit.shard]

    def scatter(self, unit: Unit, first: bool) -> None:
        """Starts to add the batch sums of all ranks. Each rank has those of its block after `end_sums`.

        first: whether they replace what is in the shards, and are not added to it.
        """
        section, offloaded = self.arena.sections[unit], self.arena.offloaded
        if section.parts is not None:
            into = section.own_sums if first else section.parts[self._communicator.rank]
            handle = self._communicator.start_reduce_shared(section.parts, into, "reduce_shared")
            self._under_way[section.slot] = unit, first, handle
            return
        for row, own in zip(section.sums, section.own_sums, strict=True):
            into = own if first and not offloaded else self._block(unit, row)
            self._communicator.start_reduce_scatter(row, into).wait()  # the step looks for what is not finite
            if first and offloaded:
                self._array.copy(into, own)
            elif not first:
                added = self._array.to_host(into) if offloaded else into
                self.arena.keeper.elementwise.add(own, added, own)

    def end_sums(self, *slots: int) -> None:
        """Waits for the sums in these slots that are being added, or, without slots, for all."""
        for slot in slots or sorted(self._under_way):
            if slot in self._under_way:
                unit, first, handle = self._under_way.pop(slot)
                handle.wait()
                section = self.arena.sections[unit]
                for own, row in () if first else zip(section.own_sums, section.sums, strict=True):
                    self.arena.keeper.elementwise.add(own, self._block(unit, row), own)

    def forget(self) -> None:
        """To be called when the parameters in the shards have changed: the gathered unit is outdated."""
        self.held = None

    def share(self, met: bool = False) -> None:
        """To be called after a change of the shards: updates parameters that are whole on every rank.

        met: whether a collective of all ranks has ended since the change.
        """
        self.forget()
        arena = self.arena
        if arena.everywhere is not None:
            if not met:
                self._communicator.barrier()
            for source, target in arena.blocks_of_others():
                self._array.copy(source, target)
            self._communicator.barrier()  # nobody changes what others read
            return
        for section in arena.sections.values() if arena.whole else ():
            for own, row in zip(section.own_theta, section.theta, strict=True):
                self._communicator.all_gather(own, row)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside the block, the parameters of all leaves can be read, in forward order; collective, after `come`.

        A rank that does not read them, or not all, takes part in the remaining collectives at the end of the block.
        """
        units = deque(self.arena.units)

        def bring(leaf: BaseLayer) -> None:
            while units and self.held is not self.arena.unit_of[leaf]:
                self.gather(units.popleft())
            if self.held is not self.arena.unit_of[leaf]:
                raise RuntimeError(f"{leaf.get_layer_info()} is read behind layers that come after it")
            self.arena.hold(leaf, "forward")

        self.forget()
        try:
            with self.arena.bringing(bring):
                yield
        finally:
            for unit in units:
                self.gather(unit)
            self.forget()

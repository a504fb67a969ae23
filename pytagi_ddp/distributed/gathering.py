"""Passes of a network in shards: when ranks come together to gather parameters and to scatter deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError
from pytagi_ddp.distributed.exchange import pool_statistics
from pytagi_ddp.distributed.shard_transfers import ShardTransfers
from pytagi_ddp.distributed.sharded_arena import ShardedArena
from pytagi_ddp.distributed.units import Unit
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.hooks import Direction, HookHandle
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array

# What ranks do together. Passes come first, in this order, and may be run by some of the ranks only; everything after
# them is begun by all ranks. Forward passes of training come last among the passes, as the k-th ones of all ranks
# belong together (`sync_batch_norm`).
PASSES = ("predict", "backward", "forward")
KINDS = (*PASSES, "step", "update_bn", "forget_evidence", "unshard", "load", "state_dict", "save", "barrier")
# Further votes: ranks with deltas in the shards, ranks whose deltas there were cut short, ranks that recompute blocks.
CONTRIBUTED, CUT_SHORT, RECOMPUTES = range(len(KINDS), len(KINDS) + 3)
VOTES = RECOMPUTES + 1


class Gathering:
    """Gathers units of parameters, and scatters their deltas, around the leaves of a network.

    Every pass begins with a vote: an all-reduce that tells how many ranks are about to do what. While some rank runs a
    pass, the others take part in its collectives, with zeros for deltas, until all have reached the same point. So
    ranks may run different numbers of passes, or none.

    Args:
        communicator: of all ranks. model: this rank's part, with a `ShardedArena`.
        sync_batch_norm: whether batch statistics come from all ranks.

    Attributes:
        transfers: what moves parameters and sums between ranks. unsharded: whether this rank is inside `unshard`.
    """

    def __init__(self, communicator: Communicator, model: Sequential, sync_batch_norm: bool):
        self._communicator, self._model = communicator, model
        self._array = model.kernels.array
        self.transfers = ShardTransfers(communicator, model)
        pool_statistics(model, not sync_batch_norm)
        self._norms = set(model.arena.running) if sync_batch_norm else set()
        for norm in self._norms:
            norm.reduce_sums = self._reduce_sums
        self._votes = self._array.zeros(VOTES)
        self._any_bad = self._array.zeros(1)  # ranks whose deltas were not finite in the last step
        self._visits: deque[tuple[BaseLayer, Direction]] = deque()  # leaves that the present pass has still to visit
        self._inside = False  # whether the first of these is being visited, between its two hooks
        self._reduced = False  # whether its BatchNorm sums have been reduced
        self._begun = 0  # backward passes since the last step
        self._contributed = 0  # samples of this rank whose deltas are in the shards
        self._goes_back = False  # whether `backward` runs now
        self._went_back = False  # whether this `backward` has come to its collectives
        self._cut_short = False  # whether deltas in the shards were cut short before it
        self._mode = ""  # kind of the present pass
        self._call = model.kernels.graph.call  # makes calls that a replay of a recorded pass has to make again
        self._hook: HookHandle
        self.unsharded = False
        self._whole: dict[Unit, tuple[Array, Array]] = {}  # rows of means and variances, inside `unshard`
        self._watch()

    @property
    def arena(self) -> ShardedArena:
        return self.transfers.arena

    @property
    def meets_in_forward(self) -> bool:
        """Whether ranks communicate in forward passes."""
        return not self.arena.whole or bool(self._norms)

    def _watch(self) -> None:
        """Adds the hooks of this class outside all others, so that these find parameters and batch sums."""
        self._hook = self._model.add_hook(self._before, self._after, outermost=True)
        self._hook.of_parameters, self._hook.parameters_stay = True, not self.arena.gathers

    # -- ranks come together ------------------------------------------------------------------------------------

    def come(self, kind: str) -> None:
        """Returns when all ranks can begin `kind` together, or, for a pass, all ranks that run it; collective.

        Raises:
            RuntimeError: ranks are about to do different things, or a backward pass was interrupted on one of them;
                raised on every rank.
        """
        self._end_visits()
        self.transfers.end_sums()
        if self.unsharded:
            raise RuntimeError(f"{kind} inside unshard(): leave it first, on every rank")
        ranks = self._communicator.world_size
        while True:
            votes = self._vote(kind)
            turn = next(k for k, count in enumerate(votes) if count)
            if KINDS[turn] not in PASSES and votes[turn] < ranks:
                places = ", ".join(f"{round(votes[k])} in {name}()" for k, name in enumerate(KINDS) if votes[k])
                raise RuntimeError(f"ranks of an FSDPSequential are at different places: {places}; each is collective")
            if 0 < votes[RECOMPUTES] < ranks:
                raise RuntimeError(
                    f"checkpoint_blocks is set on {round(votes[RECOMPUTES])} of {ranks} ranks of an FSDPSequential: "
                    "set it on all of them, or on none, as passes back then gather in another order"
                )
            if KINDS[turn] in ("backward", "step"):
                self._look_at_contributions(KINDS[turn], votes[CONTRIBUTED], votes[CUT_SHORT])
            if KINDS[turn] == kind:
                break
            self._follow(KINDS[turn])
            self.transfers.end_sums()
        if kind == "backward":
            self._begun += 1
            self._went_back = True

    def _vote(self, kind: str) -> list[float]:
        votes = np.zeros(VOTES, np.float32)
        votes[KINDS.index(kind)] = 1
        votes[CONTRIBUTED] = self._contributed > 0
        votes[RECOMPUTES] = self._model.checkpoint_blocks
        votes[CUT_SHORT] = self._cut_short if self._goes_back else self._is_cut_short()
        if self._communicator.world_size == 1:
            return votes.tolist()
        self._array.copy(votes, self._votes)
        try:
            self._communicator.all_reduce(self._votes)
        except (RankLeftError, CollectiveTimeoutError) as error:
            raise type(error)(
                f"{kind}() of FSDPSequential is collective, and every rank has to come to it, or to its next step(): "
                f"{error}"
            ) from error
        return self._array.to_host(self._votes).tolist()

    def _is_cut_short(self) -> bool:
        """Whether this rank has deltas in the shards of an interrupted pass or accumulation, which must not be used."""
        return self._contributed > 0 and self._model.pending.waiting != self._contributed

    def _look_at_contributions(self, kind: str, contributed: float, cut_short: float) -> None:
        if not cut_short:
            return
        again = kind == "backward" and cut_short >= contributed
        self._contributed = self._begun = 0
        if not again:
            self._model.pending.drop()
            raise RuntimeError(
                f"{kind}() after a backward pass, or an accumulation, that was cut short on {round(cut_short)} ranks: "
                "its deltas are part of the sums of all; run the passes of this step again, on every rank"
            )

    def _follow(self, kind: str) -> None:
        """Takes part in a pass of other ranks."""
        if kind == "backward":
            self._begun += 1
        self._visits.extend(self._visits_of(kind))
        self._end_visits()

    def _visits_of(self, kind: str) -> list[tuple[BaseLayer, Direction]]:
        self._mode = kind
        return self._model.visits("backward" if kind == "backward" else "forward")

    def _end_visits(self) -> None:
        """Takes part in the remaining collectives of the present pass: all of them, or those after an error."""
        while self._visits:
            leaf, direction = self._visits[0]
            if not self._inside:
                self._enter(leaf, direction)
            if leaf in self._norms and self._mode == "forward" and not self._reduced:
                self._array.clear(leaf.shared_sums)
                self._communicator.all_reduce(leaf.shared_sums)
                leaf.update_running()
            if direction == "backward":
                for part in self.arena.part(leaf, self.arena.sections[self.arena.unit_of[leaf]].sums):
                    self._array.clear(part)
            self._leave(leaf, direction)

    def _reduce_sums(self, sums: Array) -> None:
        if self.unsharded:
            raise RuntimeError("a forward pass in training mode inside unshard(), with sync_batch_norm: leave it first")
        self._communicator.all_reduce(sums)
        self._reduced = True

    # -- around each leaf -----------------------------------------------------------------------------------------

    def _is_local(self, leaf: BaseLayer) -> bool:
        """Whether other ranks are not needed around a leaf: in evaluation, if parameters are whole."""
        alone = self.arena.whole and not self._goes_back and not (self._model.training and self._norms)
        return alone or leaf not in self.arena.unit_of

    def _before(self, leaf: BaseLayer, direction: Direction) -> None:
        if self._is_local(leaf):
            return
        if self._inside or not self._visits or self._visits[0] != (leaf, direction):
            if direction == "backward" and not self._goes_back:
                raise RuntimeError("backward() of a network in shards: call that of its FSDPSequential")
            if self._goes_back and self._went_back:  # in the middle of a pass that the other ranks follow
                raise RuntimeError(
                    f"a backward pass comes to {leaf.get_layer_info()} in another order than that in which ranks "
                    "gather: leave out checkpoint_blocks, or use_frame, in a network in shards"
                )
            kind = "backward" if self._goes_back else "forward" if self._model.training else "predict"
            self._call(self.come, kind)
            self._visits.extend(self._visits_of(kind))
        self._enter(leaf, direction)

    def _after(self, leaf: BaseLayer, direction: Direction) -> None:
        if not self._is_local(leaf):
            self._leave(leaf, direction)

    def _enter(self, leaf: BaseLayer, direction: Direction) -> None:
        self._inside, self._reduced = True, False
        unit = self.arena.unit_of[leaf]
        if self.arena.gathers:
            self._call(self.transfers.gather, unit, direction == "forward")
        if direction == "backward" and leaf is unit.leaves[-1]:
            section = self.arena.sections[unit]
            if section.parts is not None:
                self._call(self.transfers.end_sums, section.slot)
            for row in section.sums:
                if row.size > unit.size:
                    self._array.clear(row[unit.size :])
        self.arena.hold(leaf, direction)

    def _leave(self, leaf: BaseLayer, direction: Direction) -> None:
        self._visits.popleft()
        self._inside = False
        self.arena.release(leaf)
        unit = self.arena.unit_of[leaf]
        if direction == "backward" and leaf is unit.leaves[0]:
            self._call(self._scatter, unit)

    def _scatter(self, unit: Unit) -> None:
        self.transfers.scatter(unit, first=self._begun == 1)

    # -- a training step ------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """`Sequential.backward`.

        Raises:
            RuntimeError: deltas of an earlier pass wait for a step, and this pass is not to be added to them.
        """
        if self.unsharded:
            raise RuntimeError("backward() inside unshard(): leave it first, on every rank")
        pending = self._model.pending
        if pending.waiting and not pending.adds:
            raise RuntimeError(
                "a second backward() before step(), while the deltas of the first are in the shards of all ranks: put "
                "all but the last one of a step into no_sync()"
            )
        self._cut_short = self._is_cut_short()
        self._goes_back, self._went_back = True, False
        try:
            self._model.backward()
        finally:
            self._goes_back = False
            if self._went_back:
                self._contributed = max(pending.waiting, 1)

    def end_passes(self) -> None:
        """To be called before an exchange: takes part in the passes of other ranks until all have ended."""
        self.come("step")

    def begin_passes(self) -> None:
        self._begun = self._contributed = 0

    def stepped(self) -> None:
        """To be called after the step on the shards: updates parameters that are whole on every rank.

        Raises:
            FloatingPointError: deltas were not finite on some rank; raised on every rank.
        """
        arena, communicator = self.arena, self._communicator
        mine = arena.bad()
        self._array.copy(np.array(mine[:1] > 0, np.float32), self._any_bad)
        communicator.all_reduce(self._any_bad)
        self.transfers.share(met=True)
        if self._array.to_host(self._any_bad).any():
            bad = np.array(communicator.all_gather_object(mine))
            arena.refuse(int(bad[:, 0].sum()), int(bad[:, 1].min()))

    # -- all parameters -------------------------------------------------------------------------------------------

    @contextmanager
    def unshard(self) -> Iterator[None]:
        """Inside the block every rank has all parameters; collective. Changes are put into the shards at its end."""
        arena = self.arena
        with ExitStack() as holding:
            holding.enter_context(self._model.one_thread)
            holding.enter_context(held_back())
            self.come("unshard")
            self._hook.remove()
            try:
                self._bring_all()
                self._model.forget_graphs()
                holding.close()  # an interrupt that has come is answered here, where all ranks are inside
                yield
            finally:
                holding.enter_context(held_back())
                if self.unsharded:  # or the rows are not those of all ranks
                    self.keep_changes()
                for leaf in (leaf for unit in self._whole for leaf in unit.leaves):
                    arena.release(leaf)
                self._whole = {}
                self.unsharded = False
                self.transfers.forget()
                self._model.forget_graphs()
                self._watch()

    def _bring_all(self) -> None:
        """Copies all parameters into memory of this rank, and lets the layers use it."""
        arena = self.arena
        for unit in () if arena.whole else arena.units:
            section = arena.sections[unit]
            rows = tuple(self._array.empty(self._communicator.world_size * unit.shard) for _ in range(2))
            self._whole[unit] = rows
            for own, whole, row in zip(section.own_theta, section.theta, rows, strict=True):
                self._array.copy(whole, row) if arena.common else self.transfers.all_gather(unit, own, row)
            for leaf in unit.leaves:
                arena.hold_in(leaf, rows)
        if arena.common:
            self._communicator.barrier()  # else a rank that ends the block early would change what others copy
        self.unsharded = True

    def keep_changes(self) -> None:
        """Puts values that were assigned inside `unshard` into the shards."""
        for unit, rows in self._whole.items():
            self.arena.keep(unit, rows)

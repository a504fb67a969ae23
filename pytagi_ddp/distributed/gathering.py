"""Passes of a network in shards: when ranks come together to gather parameters and to scatter deltas."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, RankLeftError
from pytagi_ddp.distributed.exchange import Exchange, Options, exchange_deltas, pool_statistics
from pytagi_ddp.distributed.sharded_arena import ShardedArena, Unit
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.hooks import Direction, HookHandle
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.sequential import Sequential

# What ranks do together. Passes come first, in this order, and may be run by some of the ranks only; everything after
# them is begun by all ranks. Forward passes of training come last among the passes, as the k-th ones of all ranks
# belong together (`sync_batch_norm`).
PASSES = ("predict", "backward", "forward")
KINDS = (*PASSES, "step", "update_bn", "forget_evidence", "unshard", "load", "state_dict", "save", "barrier")
# Further votes: ranks with deltas in the shards, ranks whose deltas there were cut short, ranks that recompute blocks.
CONTRIBUTED, CUT_SHORT, RECOMPUTES = range(len(KINDS), len(KINDS) + 3)
VOTES = RECOMPUTES + 1


@dataclass
class Pass:
    """The pass that ranks run now.

    Attributes:
        kind: one of `PASSES`. visits: leaves that it has still to visit.
        inside: whether the first of these is being visited, between its two hooks.
        reduced: whether the BatchNorm sums of that leaf have been reduced.
    """

    kind: str = ""
    visits: deque[tuple[BaseLayer, Direction]] = field(default_factory=deque)
    inside: bool = False
    reduced: bool = False


@dataclass
class InShards:
    """What the batch sums in the shards are of: so many backward passes, and so many samples of this rank."""

    passes: int = 0
    samples: int = 0


@dataclass
class OwnBackward:
    """A `backward` of this rank.

    Attributes:
        cut_short: whether deltas in the shards were cut short before it. met: whether it has come to its collectives.
    """

    cut_short: bool
    met: bool = False


class Gathering(Exchange):
    """The strategy of a network in shards, whose arena is a `ShardedArena`.

    Units of parameters are gathered, and their deltas scattered, around the leaves of each pass; a step adds the
    reduced counters over ranks, and changes the shards.

    Every pass begins with a vote: an all-reduce that tells how many ranks are about to do what. While some rank runs a
    pass, the others take part in its collectives, with zeros for deltas, until all have reached the same point. So
    ranks may run different numbers of passes, or none.

    Args:
        communicator, model, options: as in `Exchange`; with `sync_batch_norm`, batch statistics come from all ranks.
    """

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        pool_statistics(model, not options.sync_batch_norm)
        self._norms = set(model.arena.running) if options.sync_batch_norm else set()
        for norm in self._norms:
            norm.reduce_sums = self._reduce_sums
        self._votes = model.kernels.array.zeros(VOTES)
        self._pass = Pass()
        self._in_shards = InShards()
        self._backward: OwnBackward | None = None  # while it runs
        self._whole: dict[Unit, tuple[Array, Array]] | None = None  # means and variances of units, inside `unshard`
        self._watch()

    @property
    def arena(self) -> ShardedArena:
        return cast(ShardedArena, self.model.arena)

    @property
    def unsharded(self) -> bool:
        """Whether this rank is inside `unshard`."""
        return self._whole is not None

    def _watch(self) -> None:
        """Adds the hooks of this class outside all others, so that these find parameters and batch sums."""
        self._hook: HookHandle = self.model.add_hook(self._before, self._after, outermost=True)
        self._hook.of_parameters, self._hook.parameters_stay = True, self.arena.whole

    # -- ranks come together ------------------------------------------------------------------------------------

    def come(self, kind: str) -> None:
        """Returns when all ranks can begin `kind` together, or, for a pass, all ranks that run it; collective.

        Raises:
            RuntimeError: ranks are about to do different things, or a backward pass was interrupted on one of them;
                raised on every rank.
        """
        self._end_visits()
        if self.unsharded:
            raise RuntimeError(f"{kind} inside unshard(): leave it first, on every rank")
        ranks = self.communicator.world_size
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
        if kind == "backward" and self._backward is not None:
            self._in_shards.passes += 1
            self._backward.met = True

    def _vote(self, kind: str) -> list[float]:
        votes = np.zeros(VOTES, np.float32)
        votes[KINDS.index(kind)] = 1
        votes[CONTRIBUTED] = self._in_shards.samples > 0
        votes[RECOMPUTES] = self.model.checkpoint_blocks
        votes[CUT_SHORT] = self._is_cut_short() if self._backward is None else self._backward.cut_short
        if self.communicator.world_size == 1:
            return votes.tolist()
        self.model.kernels.array.copy(votes, self._votes)
        try:
            self.communicator.all_reduce(self._votes)
        except (RankLeftError, CollectiveTimeoutError) as error:
            raise type(error)(
                f"{kind}() of FSDPSequential is collective, and every rank has to come to it, or to its next step(): "
                f"{error}"
            ) from error
        return self.model.kernels.array.to_host(self._votes).tolist()

    def _is_cut_short(self) -> bool:
        """Whether this rank has deltas in the shards of an interrupted pass or accumulation, which must not be used."""
        return self._in_shards.samples not in (0, self.model.passes.waiting)

    def _look_at_contributions(self, kind: str, contributed: float, cut_short: float) -> None:
        if not cut_short:
            return
        again = kind == "backward" and cut_short >= contributed
        self._in_shards = InShards()
        if not again:
            self.model.passes.drop()
            raise RuntimeError(
                f"{kind}() after a backward pass, or an accumulation, that was cut short on {round(cut_short)} ranks: "
                "its deltas are part of the sums of all; run the passes of this step again, on every rank"
            )

    def _follow(self, kind: str) -> None:
        """Takes part in a pass of other ranks."""
        if kind == "backward":
            self._in_shards.passes += 1
        self._begin_pass(kind)
        self._end_visits()

    def _begin_pass(self, kind: str) -> None:
        self._pass = Pass(kind, deque(self.model.passes.visits("backward" if kind == "backward" else "forward")))

    def _end_visits(self) -> None:
        """Takes part in the remaining collectives of the present pass: all of them, or those after an error."""
        while self._pass.visits:
            leaf, direction = self._pass.visits[0]
            if not self._pass.inside:
                self._enter(leaf, direction)
            if leaf in self._norms and self._pass.kind == "forward" and not self._pass.reduced:
                self.model.kernels.array.clear(leaf.shared_sums)
                self.communicator.all_reduce(leaf.shared_sums)
                leaf.update_running()
            if direction == "backward":
                for part in self.arena.part(leaf, self.arena.sections[self.arena.unit_of[leaf]].sums):
                    self.model.kernels.array.clear(part)
            self._leave(leaf, direction)

    def _reduce_sums(self, sums: Array) -> None:
        if self.unsharded:
            raise RuntimeError("a forward pass in training mode inside unshard(), with sync_batch_norm: leave it first")
        self.communicator.all_reduce(sums)
        self._pass.reduced = True

    # -- around each leaf -----------------------------------------------------------------------------------------

    def _is_local(self, leaf: BaseLayer) -> bool:
        """Whether other ranks are not needed around a leaf: in evaluation, if parameters are whole."""
        alone = self.arena.whole and self._backward is None and not (self.model.training and self._norms)
        return alone or leaf not in self.arena.unit_of

    def _before(self, leaf: BaseLayer, direction: Direction) -> None:
        if self._is_local(leaf):
            return
        now = self._pass
        if now.inside or not now.visits or now.visits[0] != (leaf, direction):
            if direction == "backward" and self._backward is None:
                raise RuntimeError("backward() of a network in shards: call that of its FSDPSequential")
            if self._backward is not None and self._backward.met:  # in the middle of a pass that the other ranks follow
                raise RuntimeError(
                    f"a backward pass comes to {leaf.get_layer_info()} in another order than that in which ranks "
                    "gather: leave out checkpoint_blocks, or frames, in a network in shards"
                )
            training = "forward" if self.model.training else "predict"
            kind = training if self._backward is None else "backward"
            self._call(self.come, kind)
            self._begin_pass(kind)
        self._enter(leaf, direction)

    def _after(self, leaf: BaseLayer, direction: Direction) -> None:
        if not self._is_local(leaf):
            self._leave(leaf, direction)

    def _enter(self, leaf: BaseLayer, direction: Direction) -> None:
        self._pass.inside, self._pass.reduced = True, False
        unit = self.arena.unit_of[leaf]
        if not self.arena.whole:
            self._call(self.arena.gather, unit, direction == "forward")
        if direction == "backward" and leaf is unit.leaves[-1]:
            for row in self.arena.sections[unit].sums:
                if row.size > unit.size:
                    self.model.kernels.array.clear(row[unit.size :])
        self.arena.hold(leaf, direction)

    def _leave(self, leaf: BaseLayer, direction: Direction) -> None:
        self._pass.visits.popleft()
        self._pass.inside = False
        self.arena.release(leaf)
        unit = self.arena.unit_of[leaf]
        if direction == "backward" and leaf is unit.leaves[0]:
            self._call(self._scatter, unit)

    def _scatter(self, unit: Unit) -> None:
        self.arena.scatter(unit, first=self._in_shards.passes == 1)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Makes a call that a replay of the recorded pass has to make again."""
        self.model.kernels.graph.call(function, *arguments)

    # -- a training step ------------------------------------------------------------------------------------------

    def forward(self) -> AbstractContextManager[None]:
        return held_back() if self._norms or not self.arena.whole else nullcontext()

    @held_back()
    def backward(self, last: bool) -> None:
        """`Sequential.backward`.

        Raises:
            RuntimeError: deltas of an earlier pass wait for a step, and this pass is not to be added to them.
        """
        if self.unsharded:
            raise RuntimeError("backward() inside unshard(): leave it first, on every rank")
        passes = self.model.passes
        if passes.waiting and not passes.adds:
            raise RuntimeError(
                "a second backward() before step(), while the deltas of the first are in the shards of all ranks: put "
                "all but the last one of a step into no_sync()"
            )
        self._backward = own = OwnBackward(self._is_cut_short())
        try:
            self.model.backward()
        finally:
            self._backward = None
            if own.met:
                self._in_shards.samples = max(passes.waiting, 1)

    def step(self, stop: bool, now: bool = False) -> None:
        self.come("step")
        self.pooled = exchange_deltas(self.communicator, self.model, self.average, stop, self._add_counters)
        self.finish_step()

    def _add_counters(self) -> None:
        self.communicator.all_reduce(self.arena.tail)

    def finish_step(self) -> None:
        """The step on the shards, and then on parameters that are whole on every rank.

        Raises:
            FloatingPointError: deltas were not finite on some rank; raised on every rank.
        """
        self._in_shards = InShards()
        self.model.passes.step()
        array, mine, any_bad = self.model.kernels.array, self.arena.bad(), self._votes[:1]
        array.copy(np.array(mine[:1] > 0, np.float32), any_bad)
        self.communicator.all_reduce(any_bad)
        self.arena.share()
        if array.to_host(any_bad).any():
            bad = np.array(self.communicator.all_gather_object(mine))
            self.arena.refuse(int(bad[:, 0].sum()), int(bad[:, 1].min()))

    def meet(self, call: str) -> None:
        if call != "barrier" or not self.unsharded:
            self.come(call)

    def deltas_dropped(self) -> None:
        self._in_shards = InShards()

    def parameters_changed(self) -> None:
        self.arena.forget_gathered()

    # -- all parameters -------------------------------------------------------------------------------------------

    @contextmanager
    def unshard(self) -> Iterator[None]:
        """Inside the block every rank has all parameters; collective. Changes are put into the shards at its end."""
        with ExitStack() as holding:
            holding.enter_context(self.model.passes.one_thread)
            holding.enter_context(held_back())
            self.come("unshard")
            self._hook.remove()
            try:
                self._bring_all()
                self.model.passes.invalidate(Change.CALLS)
                holding.close()  # an interrupt that has come is answered here, where all ranks are inside
                yield
            finally:
                holding.enter_context(held_back())
                self.keep_changes()
                self._whole = None
                for leaf in self.arena.unit_of:
                    self.arena.release(leaf)
                self.arena.forget_gathered()
                self.model.passes.invalidate(Change.CALLS)
                self._watch()

    def _bring_all(self) -> None:
        """Copies all parameters into memory of this rank, and lets the layers use it."""
        arena, empty = self.arena, self.model.kernels.array.empty
        whole: dict[Unit, tuple[Array, Array]] = {}
        for unit, section in () if arena.whole else arena.sections.items():
            width = self.communicator.world_size * unit.shard
            whole[unit] = rows = empty(width), empty(width)
            for own, row in zip(section.own_theta, rows, strict=True):
                arena.all_gather(unit, own, row)
            for leaf in unit.leaves:
                arena.hold_in(leaf, rows)
        self._whole = whole

    def keep_changes(self) -> None:
        """Puts values that were assigned inside `unshard` into the shards."""
        for unit, rows in (self._whole or {}).items():
            self.arena.keep(unit, rows)

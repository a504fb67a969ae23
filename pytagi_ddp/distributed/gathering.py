"""Passes of a network in shards: ranks gather parameters, and scatter deltas."""

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
from pytagi_ddp.distributed.sharded_arena import ParameterGroup, ShardedArena
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.hooks import Direction, HookHandle
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.sequential import Sequential

# Collective calls, in the order in which they run. Passes come first; some ranks may not run them. All ranks run the
# other calls. Forward passes in training are the last passes: with `sync_batch_norm`, the k-th passes of all ranks are
# one collective pass.
PASSES = ("predict", "backward", "forward")
KINDS = (*PASSES, "step", "update_bn", "forget_evidence", "unshard", "load", "state_dict", "save", "barrier")
# Other counts in a vote: ranks with deltas in the shards, ranks with incomplete deltas, ranks that recompute.
CONTRIBUTED, CUT_SHORT, RECOMPUTES = range(len(KINDS), len(KINDS) + 3)
VOTES = RECOMPUTES + 1


@dataclass
class Pass:
    """The current pass of the ranks."""

    kind: str = ""  # one of `PASSES`
    remaining: deque[tuple[BaseLayer, Direction]] = field(default_factory=deque)  # leaves that have not run, in order
    inside: bool = False  # whether the first of them is running, between its two hooks
    reduced: bool = False  # whether the BatchNorm sums of that leaf have been reduced


@dataclass
class ShardCounts:
    """The number of backward passes, and of samples of this rank, in the batch sums of the shards."""

    passes: int = 0
    samples: int = 0


@dataclass
class BackwardState:
    """A `backward` of this rank."""

    cut_short: bool  # whether deltas in the shards were incomplete before it
    synchronized: bool = False  # whether all ranks have begun it


class Gathering(Exchange):
    """The strategy of a network in shards, whose arena is a `ShardedArena`.

    Each pass gathers groups of parameters before its leaves, and scatters their deltas after them. A step adds the
    counters over ranks, and changes the shards.

    Every collective call begins with a vote: an all-reduce that counts the ranks by their next call. While one rank
    runs a pass, the others take part in its collectives, with zeros for deltas. So ranks may run different numbers of
    passes, or none. With the option `sync_batch_norm`, batch statistics are those of all ranks.
    """

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        pool_statistics(model, not options.sync_batch_norm)
        self._norms = set(model.arena.running) if options.sync_batch_norm else set()
        for norm in self._norms:
            norm.reduce_sums = self._reduce_sums
        self._votes = model.kernels.array.zeros(VOTES)
        self._pass = Pass()
        self._shard_counts = ShardCounts()
        self._backward: BackwardState | None = None  # while it runs
        self._whole: dict[ParameterGroup, tuple[Array, Array]] | None = None  # means, variances; inside `unshard`
        self._add_hooks()
        self.arena.agree = self._agree

    @property
    def arena(self) -> ShardedArena:
        return cast(ShardedArena, self.model.arena)

    @property
    def unsharded(self) -> bool:
        """Whether this rank is inside `unshard`."""
        return self._whole is not None

    def _add_hooks(self) -> None:
        """Adds the hooks of this class around all others, so that other hooks can read parameters and batch sums."""
        self._hook: HookHandle = self.model.add_hook(self._before, self._after, outermost=True)
        self._hook.of_parameters, self._hook.parameters_stay = True, self.arena.whole

    # -- synchronization of ranks ---------------------------------------------------------------------------------

    def synchronize(self, kind: str) -> None:
        """Takes part in the passes of other ranks until every rank has reached `kind`; collective.

        If `kind` is a pass, it returns when all ranks that run it have reached it. Errors are raised on every rank.
        """
        self._finish_pass()
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
                    "set it on all of them, or on none: with it, backward passes gather in another order"
                )
            if KINDS[turn] in ("backward", "step"):
                self._check_contributions(KINDS[turn], votes[CONTRIBUTED], votes[CUT_SHORT])
            if KINDS[turn] == kind:
                break
            self._join_pass(KINDS[turn])
        if kind == "backward" and self._backward is not None:
            self._shard_counts.passes += 1
            self._backward.synchronized = True

    def _vote(self, kind: str) -> list[float]:
        votes = np.zeros(VOTES, np.float32)
        votes[KINDS.index(kind)] = 1
        votes[CONTRIBUTED] = self._shard_counts.samples > 0
        votes[RECOMPUTES] = self.model.checkpoint_blocks
        votes[CUT_SHORT] = self._is_cut_short() if self._backward is None else self._backward.cut_short
        if self.communicator.world_size == 1:
            return votes.tolist()
        self.model.kernels.array.copy(votes, self._votes)
        try:
            self.communicator.all_reduce(self._votes)
        except (RankLeftError, CollectiveTimeoutError) as error:
            raise type(error)(
                f"{kind}() of FSDPSequential is collective: every rank has to call it, or its next step(): {error}"
            ) from error
        return self.model.kernels.array.to_host(self._votes).tolist()

    def _is_cut_short(self) -> bool:
        """Whether the shards have deltas of an interrupted pass or accumulation of this rank; no step may use them."""
        return self._shard_counts.samples not in (0, self.model.passes.waiting)

    def _check_contributions(self, kind: str, contributed: float, cut_short: float) -> None:
        if not cut_short:
            return
        again = kind == "backward" and cut_short >= contributed
        self._shard_counts = ShardCounts()
        if not again:
            self.model.passes.drop()
            raise RuntimeError(
                f"{kind}() after a backward pass, or an accumulation, that was cut short on {round(cut_short)} ranks: "
                "the sums of all ranks hold its deltas; run the passes of this step again, on every rank"
            )

    def _join_pass(self, kind: str) -> None:
        """Takes part in the collectives of a pass of other ranks."""
        if kind == "backward":
            self._shard_counts.passes += 1
        self._begin_pass(kind)
        self._finish_pass()

    def _begin_pass(self, kind: str) -> None:
        self._pass = Pass(kind, deque(self.model.passes.visits("backward" if kind == "backward" else "forward")))

    def _finish_pass(self) -> None:
        """Takes part in the remaining collectives of the current pass, also after an error."""
        while self._pass.remaining:
            leaf, direction = self._pass.remaining[0]
            if not self._pass.inside:
                self._enter(leaf, direction)
            if leaf in self._norms and self._pass.kind == "forward" and not self._pass.reduced:
                self.model.kernels.array.clear(leaf.shared_sums)
                self.communicator.all_reduce(leaf.shared_sums)
                leaf.update_running()
            if direction == "backward":
                for part in self.arena.part(leaf, self.arena.sections[self.arena.group_of[leaf]].sums):
                    self.model.kernels.array.clear(part)
            self._leave(leaf, direction)

    def _reduce_sums(self, sums: Array) -> None:
        if self.unsharded:
            raise RuntimeError("a forward pass in training mode inside unshard(), with sync_batch_norm: leave it first")
        self.communicator.all_reduce(sums)
        self._pass.reduced = True

    # -- around each leaf -----------------------------------------------------------------------------------------

    def _is_local(self, leaf: BaseLayer) -> bool:
        """Whether a leaf runs without other ranks: in evaluation, if parameters are whole."""
        local = self.arena.whole and self._backward is None and not (self.model.training and self._norms)
        return local or leaf not in self.arena.group_of

    def _before(self, leaf: BaseLayer, direction: Direction) -> None:
        if self._is_local(leaf):
            return
        now = self._pass
        if now.inside or not now.remaining or now.remaining[0] != (leaf, direction):
            if direction == "backward" and self._backward is None:
                raise RuntimeError("backward() of a network in shards: call that of its FSDPSequential")
            if self._backward is not None and self._backward.synchronized:  # other ranks take part in this pass
                raise RuntimeError(
                    f"a backward pass reaches {leaf.get_layer_info()} in another order than that in which ranks "
                    "gather: leave out checkpoint_blocks, or frames, in a network in shards"
                )
            training = "forward" if self.model.training else "predict"
            kind = training if self._backward is None else "backward"
            self._call(self.synchronize, kind)
            self._begin_pass(kind)
        self._enter(leaf, direction)

    def _after(self, leaf: BaseLayer, direction: Direction) -> None:
        if not self._is_local(leaf):
            self._leave(leaf, direction)

    def _enter(self, leaf: BaseLayer, direction: Direction) -> None:
        self._pass.inside, self._pass.reduced = True, False
        group = self.arena.group_of[leaf]
        if not self.arena.whole:
            self._call(self.arena.gather, group, direction == "forward")
        if direction == "backward" and leaf is group.leaves[-1]:
            for row in self.arena.sections[group].sums:
                if row.size > group.size:
                    self.model.kernels.array.clear(row[group.size :])
        self.arena.hold(leaf, direction)

    def _leave(self, leaf: BaseLayer, direction: Direction) -> None:
        self._pass.remaining.popleft()
        self._pass.inside = False
        self.arena.release(leaf)
        group = self.arena.group_of[leaf]
        if direction == "backward" and leaf is group.leaves[0]:
            self._call(self._scatter, group)

    def _scatter(self, group: ParameterGroup) -> None:
        self.arena.scatter(group, first=self._shard_counts.passes == 1)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Makes a call and records it, so that a replay of the pass makes it again."""
        self.model.kernels.graph.call(function, *arguments)

    # -- a training step ------------------------------------------------------------------------------------------

    def forward(self) -> AbstractContextManager[None]:
        return held_back() if self._norms or not self.arena.whole else nullcontext()

    @held_back()
    def backward(self, last: bool) -> None:
        """`Sequential.backward`, unless deltas of an earlier pass wait to which it would not add."""
        if self.unsharded:
            raise RuntimeError("backward() inside unshard(): leave it first, on every rank")
        passes = self.model.passes
        if passes.waiting and not passes.adds and self.communicator.world_size == 1:
            self._shard_counts = ShardCounts()  # after an interrupt, which other ranks did not have
        elif passes.waiting and not passes.adds:
            raise RuntimeError(
                "a second backward() before step(), while the deltas of the first are in the shards of all ranks: put "
                "all but the last one of a step into no_sync()"
            )
        self._backward = own = BackwardState(self._is_cut_short())
        try:
            self.model.backward()
        finally:
            self._backward = None
            if own.synchronized:
                self._shard_counts.samples = max(passes.waiting, 1)

    def step(self, stop: bool, now: bool = False) -> None:
        self.synchronize("step")
        ranks, tail = self.communicator, self.arena.tail
        self.pooled = exchange_deltas(ranks, self.model, self.average, stop, lambda: ranks.all_reduce(tail))
        self.finish_step()

    def finish_step(self) -> None:
        """Steps the shards, and then the parameters that are whole on every rank.

        If deltas are not finite on some rank, all raise FloatingPointError, and none has changed.
        """
        self._shard_counts = ShardCounts()
        self.model.passes.step()
        self.arena.share()
        self.arena.keep_state()

    def _agree(self) -> None:
        """Refuses a step on all ranks, before any change, if deltas of one rank are not finite."""
        array, mine, any_bad = self.model.kernels.array, self.arena.bad(), self._votes[:1]
        array.copy(np.array(mine[:1] > 0, np.float32), any_bad)
        self.communicator.all_reduce(any_bad)
        if array.to_host(any_bad).any():
            self.arena.undo_step()
            bad = np.array(self.communicator.all_gather_object(mine, "step"))
            self.arena.refuse(int(bad[:, 0].sum()), int(bad[:, 1].min()))

    def barrier(self, call: str) -> None:
        if call != "barrier" or not self.unsharded:
            self.synchronize(call)

    def deltas_dropped(self) -> None:
        self._shard_counts = ShardCounts()

    def parameters_changed(self) -> None:
        self.arena.forget_gathered()

    # -- all parameters -------------------------------------------------------------------------------------------

    @contextmanager
    def unshard(self) -> Iterator[None]:
        """Inside the block every rank has all parameters; collective. Its end copies changes to the shards."""
        with ExitStack() as holding:
            holding.enter_context(self.model.passes.one_thread)
            holding.enter_context(held_back())
            self.synchronize("unshard")
            self._hook.remove()
            try:
                self._bring_all()
                self.model.passes.invalidate(Change.CALLS)
                holding.close()  # raises a pending interrupt here, when all ranks are inside
                yield
            finally:
                holding.enter_context(held_back())
                self.keep_changes()
                self._whole = None
                for leaf in self.arena.group_of:
                    self.arena.release(leaf)
                self.arena.forget_gathered()
                self.model.passes.invalidate(Change.CALLS)
                self._add_hooks()

    def _bring_all(self) -> None:
        """Copies all parameters into memory of this rank, which the layers then use."""
        arena, empty = self.arena, self.model.kernels.array.empty
        whole: dict[ParameterGroup, tuple[Array, Array]] = {}
        for group, section in () if arena.whole else arena.sections.items():
            width = self.communicator.world_size * group.shard
            whole[group] = rows = empty(width), empty(width)
            for own, row in zip(section.own_theta, rows, strict=True):
                arena.all_gather(group, own, row)
            for leaf in group.leaves:
                arena.hold_in(leaf, rows)
        self._whole = whole

    def keep_changes(self) -> None:
        """Copies values that were assigned inside `unshard` to the shards."""
        for group, rows in (self._whole or {}).items():
            self.arena.keep(group, rows)

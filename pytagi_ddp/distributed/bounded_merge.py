"""Merges of posteriors with a limit on waiting."""

from __future__ import annotations

import math
import time
import weakref

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_replicas
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.exchange import Options
from pytagi_ddp.distributed.merge import PosteriorMerge
from pytagi_ddp.kernels.tensors import Tensor
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.validate import as_integers, as_numbers
from pytagi_ddp.warn import warn


class BoundedMerge(PosteriorMerge):
    """Merges "precision_weighted". A late rank delays the other ranks by at most `max_wait` seconds in each merge.

    Each rank sends its posterior N(m_r, s_r) after k steps. If other ranks have not sent theirs after `max_wait`
    seconds, it continues training. The merged posterior N(m, s) then arrives after a later step. By then this rank has
    N(m', s'). Its new evidence is added to the merged posterior (`kernels.formulas.merge.rebased`), and is sent with
    the next merge:

        N(m, s) N(m', s') / N(m_r, s_r)        1/s + 1/s' - 1/s_r       m/s + m'/s' - m_r/s_r

    The division removes the posterior that both factors contain, so that every sample counts once. Each merge includes
    all ranks. Running statistics are those of the last merge. `merge` and `join` wait for all ranks; afterwards, all
    have the same bits. A request to stop takes effect there.
    """

    option = "max_wait"
    _memory = (*PosteriorMerge._memory, "_sent", "_before")

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        assert options.max_wait is not None
        self._max_wait = float(options.max_wait)
        ranks = communicator.split(0)  # a copy, for merges during other collectives of the program
        assert ranks is not None
        weakref.finalize(self, ranks.close).atexit = False  # it does not wait for other ranks
        self._ranks, ranks.debug = ranks, False  # debug mode would wait for all ranks before a merge
        self._flight: Handle | None = None  # the merge in progress
        communicator.at_end(self._abandon)
        self._flown = self._sent_samples = 0  # the steps and samples in it
        self._bad = False  # whether this rank has sent no posterior, because its own is not valid

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        wait = options.max_wait
        if wait is None:
            return False
        as_numbers("DDPSequential", "[0, inf)", max_wait=wait)
        as_integers("DDPSequential", 1, every=options.every)
        if options.merge not in (None, "precision_weighted") or options.sync_batch_norm:
            raise ValueError(
                'max_wait needs merge="precision_weighted" and no sync_batch_norm: a late merge adds what ranks have '
                f"learnt; got merge={options.merge!r}, sync_batch_norm={options.sync_batch_norm}"
            )
        return True

    def _make_memory(self) -> None:
        super()._make_memory()
        array, arena = self._kernels.array, self.model.arena
        self._sent = array.zeros(arena.buffer.size + 1)  # the last number: whether the rank waits in `merge`
        self._before = array.empty(arena.theta.shape)  # the posterior that was sent

    def parameters_changed(self) -> None:
        if self._flight is not None:
            raise RuntimeError(
                "a merge is under way, and would mix with other parameters: call merge() on every rank before these "
                "are loaded"
            )
        super().parameters_changed()

    def _exchange(self, stop: bool, now: bool) -> None:
        if now:
            self._end_merge()
            while not self._send(stop, last=True):
                pass
            if self.communicator.debug:
                compare_replicas(self.communicator, self.model, "merge")
            return
        self._end_merge(until=0)
        if self._flight is None and self.steps >= self._every:
            self._send(stop, until=time.monotonic() + self._max_wait)

    def _send(self, stop: bool, until: float = math.inf, last: bool = False) -> bool:
        """Begins a merge, and ends it if it is done in time. Returns whether all ranks call this with `last`."""
        array = self.model.kernels.array
        self._move_prior()
        self._bad = self._contribute(self._sent[:-1], stop)
        array.copy(np.array([last], np.float32), self._sent[-1:])
        array.copy(self.model.arena.theta, self._before)
        self._sent_samples, self._samples, self._flown = self._samples, 0, self.steps
        self._flight = self._ranks.start_all_reduce(self._sent, name="merge")
        self._end_merge(until)
        return last and array.to_host(self._sent[-1:])[0] == self._ranks.world_size

    def _end_merge(self, until: float = math.inf) -> None:
        """Takes the merged posterior, if a merge is in progress and ends before the time `until`."""
        flight, arena = self._flight, self.model.arena
        if flight is None:
            return
        done = until == math.inf or flight.wait_until(until)
        if done:
            flight.wait()
        for name in ("reduce_calls", "reduce_bytes", "reduce_seconds"):  # count with those of all ranks
            setattr(self.communicator, name, getattr(self.communicator, name) + getattr(self._ranks, name))
            setattr(self._ranks, name, 0)
        if not done:
            return
        self._move_prior()
        self._flight = None
        try:
            pooled = self._spread(self._sent[:-1], arena.delta, self._ranks, self._bad)
        except FloatingPointError:  # the same evidence is sent again
            self._samples, self._flown = self._samples + self._sent_samples, 0
            raise
        self.model.kernels.merge.rebase(Tensor(*arena.theta), Tensor(*self._before), Tensor(*self._prior))
        self.steps, self._flown = self.steps - self._flown, 0
        if until == math.inf:
            self.pooled = pooled
        arena.drop_sums()  # layers expect zeros
        self.model.parameters_changed()

    def _abandon(self) -> None:
        if self._flight is not None:
            warn(f"rank {self._ranks.rank} ends while a merge is under way: call merge() on every rank before")

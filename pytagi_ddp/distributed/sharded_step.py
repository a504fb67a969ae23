"""The exchange of deltas in `FSDPSequential`, which is done in shards."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.exchange import EveryStep
from pytagi_ddp.distributed.gathering import Gathering
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.sequential import Sequential


class ShardedStep(EveryStep):
    """Each backward pass adds deltas over ranks into shards; a step adds the tail, and changes the shards.

    Args:
        communicator, model, average: as in `EveryStep`. gathering: of the same network.
    """

    def __init__(self, communicator: Communicator, model: Sequential, average: bool, gathering: Gathering):
        super().__init__(communicator, model, average, lambda: communicator.all_reduce(model.arena.tail), gathering)
        self._gathering = gathering

    def around_forward(self) -> AbstractContextManager[None]:
        return held_back() if self._gathering.meets_in_forward else super().around_forward()

    @held_back()
    def backward(self, last: bool) -> None:
        self._gathering.backward()

    def _apply(self) -> None:
        if self.model.pending.average is not None:
            super()._apply()
            self._gathering.stepped()

    def _compare(self) -> None:
        """Does nothing: what is on several ranks was computed from the same sums."""

    def before_forgetting(self) -> None:
        super().before_forgetting()
        self._gathering.come("forget_evidence")

    def after_forgetting(self) -> None:
        self._gathering.transfers.share()

    def before_statistics(self) -> None:
        self._gathering.come("update_bn")

    after_statistics = before_statistics

    def deltas_dropped(self) -> None:
        self._gathering.begin_passes()

    def parameters_changed(self) -> None:
        self._gathering.transfers.forget()

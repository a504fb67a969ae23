"""BatchNorm statistics over the batches of all ranks."""

from __future__ import annotations

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


class SyncBatchNorm:
    """Lets every BatchNorm2d of a network add counts, sums and sums of squares over ranks in its forward pass.

    Batches may have different sizes, and ranks may run different numbers of passes between two exchanges: the k-th
    passes of all ranks belong together, and in `end_passes` a rank that runs fewer takes part with empty batches.

    Args:
        communicator: of all ranks. model: this rank's replica.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self._communicator, self._model = communicator, model
        self._norms = model.arena.running
        self._ended = False
        for norm in self._norms:
            norm.reduce_sums = self._all_reduce

    def _all_reduce(self, sums: Array) -> None:
        if self._ended and self._communicator.world_size > 1:
            raise RuntimeError(
                "a forward pass in training mode between backward() and step(): with buckets and sync_batch_norm, the "
                "other ranks no longer take part in it"
            )
        self._communicator.all_reduce(sums)

    def end_passes(self) -> None:
        """Takes part in the forward passes of others until no rank runs one; collective, once before each exchange.

        The sums of the first BatchNorm2d tell whether some rank runs a pass: if none does, their count is 0.
        """
        ended, self._ended = self._ended, True
        if ended or self._communicator.world_size == 1:
            return
        array = self._model.kernels.array
        while self._norms:
            for norm in self._norms:
                array.clear(norm.shared_sums)
                self._communicator.all_reduce(norm.shared_sums)
                if norm is self._norms[0] and not array.to_host(norm.shared_sums)[0] > 0:
                    return
                norm.update_running()

    def begin_passes(self) -> None:
        """To be called after an exchange: forward passes may follow."""
        self._ended = False

"""BatchNorm statistics over the batches of all ranks."""

from __future__ import annotations

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.exchange import batch_norms
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state import Array


class SyncBatchNorm:
    """Lets every BatchNorm2d of a network add counts, sums and sums of squares over ranks in its forward pass.

    Batches may be of different sizes. A rank that has none has to take part all the same: `catch_up`.

    Args:
        communicator: of all ranks. model: this rank's replica.
    """

    def __init__(self, communicator: Communicator, model: Sequential):
        self._communicator, self._model = communicator, model
        self._norms = batch_norms(model)
        self._reductions = 0  # since the last step
        for norm in self._norms:
            norm.reduce_sums = self._all_reduce

    def _all_reduce(self, sums: Array) -> None:
        self._communicator.all_reduce(sums)
        self._reductions += 1

    def catch_up(self) -> None:
        """Before a step: takes part in the one forward pass of the others, if this rank ran none. Collective then."""
        ran, self._reductions = self._reductions, 0
        for norm in self._norms if not ran else ():
            self._model.kernels.array.clear(norm.shared_sums)
            self._communicator.all_reduce(norm.shared_sums)
            norm.update_running()

"""Running statistics that ranks may pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import Array


class RunningStatistics(BaseLayer):
    """Base of layers whose running state follows from sums over the batch, which may be added over ranks.

    Attributes:
        num_sums: how many sums there are.
        shared_sums: their memory, after the reduced counters of the buffer; the network provides it.
        pool_at_step: whether running state waits for the sums of all ranks, until `update_running`.
        reduce_sums: adds the sums of all ranks' batches, in place, or None.
        on_moments: a function that gets the number of rows, the mean and the sums of squares about it of this rank's
            batch, or None.
    """

    num_sums: int
    shared_sums: Array
    pool_at_step = False
    reduce_sums: Callable[[Array], None] | None = None
    on_moments: Callable[[int, Array, Array], None] | None = None

    @abstractmethod
    def update_running(self) -> None:
        """Updates the running state from the batch sums, of this rank or of all ranks, and clears the sums."""

    @abstractmethod
    def normalisation_moments(self) -> tuple[Array, Array, Array, Array]:
        """(means, variances, batch means, batch variances): running ones and those of the last training batch."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()  # a copy belongs to no DDPSequential
        return {name: value for name, value in state.items() if name not in OF_RANKS}


OF_RANKS = ("pool_at_step", "reduce_sums", "on_moments", "shared_sums")

"""The interface by which checkpoints access a network that no rank holds whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.together import on_rank_0, raise_on_all_ranks
from pytagi_ddp.distributed.wrapper import collective
from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.slices import TensorSlice
from pytagi_ddp.nn.state import Array


class ShardedNetwork(ABC):
    """A network of which every rank holds a part.

    Attributes:
        model: this rank's part. communicator: that of the ranks that hold the network together.
    """

    model: Sequential
    communicator: Communicator
    _loading = False
    _one_thread: Any

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Runs a load, which every rank calls. If one rank cannot take it, none does, and all raise that error."""
        self._loading = True
        try:
            yield
            self._agree(None)  # not done yet if the network now belongs to another wrapper
        except Exception as error:
            self._agree(error)
            raise
        finally:
            self._loading = False

    def deltas_dropped(self) -> None:
        """Called by the network after all new values have been checked, and before it takes any of them."""
        self._agree(None)
        super().deltas_dropped()  # type: ignore[misc]  # of `TrainedOnRanks`, the next base of the subclasses

    def _agree(self, problem: Exception | None) -> None:
        if self._loading:
            self._loading = False
            raise_on_all_ranks(self.communicator, problem)

    @abstractmethod
    def slices(self) -> list[TensorSlice]:
        """The parts of parameters and running statistics that this rank holds; the ranks together hold all of them."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The whole network, as `nn.architecture.architecture` describes it."""

    @property
    @abstractmethod
    def sizes(self) -> str:
        """The whole network, as `nn.architecture.sizes` describes it."""

    @abstractmethod
    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The whole network as one file, on rank 0, as `nn.persistence.to_bytes` makes it; collective.

        An error of one rank is raised on all.
        """

    def to_host(self, array: Array) -> np.ndarray:
        """A copy of the array of a slice, in host memory."""
        return self.model.kernels.array.to_host(array)

    @collective
    def save(self, filename: str | bytes | Path) -> None:
        """Writes the file that `Sequential.save` of the whole network would write, on rank 0; collective.

        Raises:
            ValueError: values that are NaN or infinite, on every rank.
            OSError: the file cannot be written; on every rank.
        """
        data = self.to_bytes()
        on_rank_0(self.communicator, partial(atomic_write, filename, data))

    @abstractmethod
    def take(self, values: list[tuple[TensorSlice, np.ndarray]]) -> None:
        """Takes new values of slices; collective."""

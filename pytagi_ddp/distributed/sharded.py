"""What files need to know of a network that no rank holds whole."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn.slices import TensorSlice
from pytagi_ddp.nn.state import Array


class ShardedNetwork(ABC):
    """A network of which every rank holds a part.

    Attributes:
        communicator: of the ranks that hold it together.
    """

    communicator: Communicator

    @abstractmethod
    def slices(self) -> list[TensorSlice]:
        """What this rank holds of parameters and running statistics; the ranks together hold all of them."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The whole network, as `nn.architecture.architecture` describes it."""

    @abstractmethod
    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The whole network as one file, on rank 0, as `nn.persistence.to_bytes` makes it; every rank calls it."""

    @abstractmethod
    def to_host(self, array: Array) -> np.ndarray:
        """A copy of the array of a slice, in host memory."""

    @abstractmethod
    def take(self, values: list[tuple[TensorSlice, np.ndarray]]) -> None:
        """Takes new values of slices; every rank calls it."""

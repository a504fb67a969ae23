"""The interface for checkpoints of a network that is divided among ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.error_propagation import on_rank_0
from pytagi_ddp.distributed.wrapper import collective
from pytagi_ddp.files import atomic_write
from pytagi_ddp.nn.core.state import Array
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.sequential import Sequential


class ShardedNetwork(ABC):
    """A network of which every rank has a part, `model`; `communicator` has the ranks that share the network."""

    model: Sequential
    communicator: Communicator
    _one_thread: Any

    @abstractmethod
    def slices(self) -> list[TensorSpec]:
        """The parts of parameters and running statistics on this rank; the ranks together have all of them."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The whole network, as `nn.files.architecture.architecture` describes it."""

    @property
    @abstractmethod
    def sizes(self) -> str:
        """The whole network, as `nn.files.architecture.sizes` describes it."""

    @abstractmethod
    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The whole network as one file, on rank 0, as `nn.files.persistence.to_bytes` makes it; collective.

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
    def take(self, values: list[tuple[TensorSpec, np.ndarray]]) -> None:
        """Sets new values of slices; collective."""

"""State dicts and files of a network whose layers are on several ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.error_propagation import errors_of_all_ranks
from pytagi_ddp.distributed.sharded import ShardedNetwork
from pytagi_ddp.distributed.wrapper import collective
from pytagi_ddp.files import as_path, read_file
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.files import file_format, persistence
from pytagi_ddp.nn.files.state_dicts import StateDict, check, held, layer_of, put
from pytagi_ddp.nn.sequential import Sequential


class StagedNetwork(ShardedNetwork):
    """State dicts, files and checkpoints of a network in stages; they are those of the whole network.

    Attributes are those of `PipelineSequential`.
    """

    model: Sequential
    pipe_group: Communicator
    data_group: Communicator
    _architecture: str  # of the whole network, as `_sizes`
    _sizes: str

    @collective
    def state_dict(self) -> StateDict:
        """Parameters and running statistics of all stages, on every rank; collective over this pipeline."""
        with errors_of_all_ranks(self.pipe_group):
            mine = dict(self.model.state_dict())
        parts = self.pipe_group.all_gather_object(mine)
        return StateDict({key: values for part in parts for key, values in part.items()})

    @collective
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the values of this stage from the state dict of the whole network, equal on every rank; collective.

        Raises:
            KeyError, ValueError, TypeError: as `Sequential.load_state_dict`; raised on every rank, and no rank has
                changed.
        """
        if isinstance(state_dict, Mapping):
            elsewhere = self._layers_elsewhere()
            state_dict = {key: arrays for key, arrays in state_dict.items() if layer_of(str(key)) not in elsewhere}
        with errors_of_all_ranks(self.communicator):
            values = check(self.model, state_dict)
        put(self.model, values)

    def _layers_elsewhere(self) -> set[str]:
        """The keys of the layers of other stages."""
        return json.loads(self._architecture).keys() - dict(self.model.named_layers()).keys()

    @collective
    def load(self, filename: str | bytes | Path) -> None:
        """Reads this stage from a file of `Sequential.save` of the whole network, or of `save`; collective.

        Raises:
            ValueError, OSError: as `Sequential.load`; raised on every rank, and no rank has changed.
        """
        with errors_of_all_ranks(self.communicator):
            what, metadata, tensors = file_format.read(read_file(filename), str(as_path(filename)))
            persistence.check_architecture(self._architecture, self._sizes, metadata, what)
            elsewhere = self._layers_elsewhere()
            mine = {name: a for name, a in tensors.items() if layer_of(name.rpartition("/")[0]) not in elsewhere}
            values = persistence.check_tensors(self.model, mine, what)
        put(self.model, values)

    def slices(self) -> list[TensorSpec]:
        """The whole tensors of this stage; the first of its replicas saves them."""
        saved = self.data_group.rank == 0
        return [spec.having(saved=saved) for spec in held(self.model)]

    @property
    def architecture(self) -> str:
        return self._architecture

    @property
    def sizes(self) -> str:
        return self._sizes

    @collective
    def to_bytes(self, extra: dict[str, str] | None = None) -> bytes:
        """The file of `save` on rank 0, nothing elsewhere; errors are those of `save`."""
        with errors_of_all_ranks(self.communicator):
            mine = persistence.tensors(self.model)
        parts = self.pipe_group.all_gather_object(mine)
        with errors_of_all_ranks(self.communicator):
            if self.communicator.rank:
                return b""
            arrays = {name: array for part in parts for name, array in part.items()}
            return file_format.packed(arrays, {"architecture": self._architecture, **(extra or {})})

    def take(self, values: list[tuple[TensorSpec, np.ndarray]]) -> None:
        put(self.model, values)

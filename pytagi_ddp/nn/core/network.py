"""What files and tools ask of a network: they stand below `Sequential`, which calls them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.arena import ParameterArena
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.hooks import Hook, HookHandle
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pending import PendingDeltas
from pytagi_ddp.nn.core.state import State


class Network(Protocol):
    """The layers of a network and their parameters."""

    arena: ParameterArena
    kernels: Kernels

    @property
    def layers(self) -> tuple[BaseLayer, ...]: ...
    def named_layers(self) -> Iterator[tuple[str, BaseLayer]]: ...
    def named_leaves(self) -> Iterator[tuple[str, BaseLayer]]: ...
    def drop_deltas(self) -> None: ...


class TrainableNetwork(Network, Protocol):
    """The same, and its passes."""

    pending: PendingDeltas
    checkpoint_blocks: bool
    output_z_buffer: BaseHiddenStates
    input_delta_z_buffer: BaseDeltaStates

    @property
    def device(self) -> str: ...
    @property
    def _bytes_between(self) -> int: ...
    @property
    def training(self) -> bool: ...
    def buffer_bytes(self, layer: BaseLayer) -> int: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def in_mode(self, training: bool) -> AbstractContextManager[None]: ...
    def forward(self, mu_x: ArrayLike, var_x: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]: ...
    def pass_forward(self, mu_x: ArrayLike) -> State: ...
    def backward(self) -> None: ...
    def step(self) -> None: ...
    def add_hook(self, before: Hook | None = None, after: Hook | None = None) -> HookHandle: ...

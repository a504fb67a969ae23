"""The interface of a network for files and tools; `Sequential` implements it."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.arena import ParameterArena
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.hooks import Hook, HookHandle
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import Shape


class Network(Protocol):
    """The layers of a network, their parameters, and its passes.

    Attributes:
        passes, _chain: see `nn.run.passes` and `nn.layers.chain`, which this file must not import.
    """

    arena: ParameterArena
    kernels: Kernels
    passes: Any
    trainer: Any
    num_samples: int | None
    in_shape: Shape
    out_shape: Shape
    checkpoint_blocks: bool
    missing_inputs: str
    input_state_update: bool
    output_z_buffer: BaseHiddenStates
    input_delta_z_buffer: BaseDeltaStates
    output_delta_z_buffer: BaseDeltaStates

    _chain: Any
    _make_arena: Any
    _precision: str
    _device: str
    _first_layer: int

    @property
    def layers(self) -> tuple[BaseLayer, ...]: ...
    def named_layers(self) -> Iterator[tuple[str, BaseLayer]]: ...
    def named_leaves(self) -> Iterator[tuple[str, BaseLayer]]: ...
    def drop_deltas(self) -> None: ...
    @property
    def device(self) -> str: ...
    @property
    def training(self) -> bool: ...
    def _set_training(self, training: bool) -> None: ...
    def _attach(self) -> None: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def forward(self, mu_x: ArrayLike, var_x: ArrayLike | None = None) -> tuple[np.ndarray, np.ndarray]: ...
    def backward(self) -> None: ...
    def step(self) -> None: ...
    def add_hook(self, before: Hook | None = None, after: Hook | None = None) -> HookHandle: ...

"""What a rank does with its network without other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.nn.attributes import NETWORK, KnownAttributes
from pytagi_ddp.nn.chain import listing
from pytagi_ddp.nn.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.recurrent_network import States
from pytagi_ddp.nn.sequential import Sequential
from pytagi_ddp.nn.state_dicts import StateDict

if TYPE_CHECKING:
    from typing_extensions import Self


class Wrapper(KnownAttributes):
    """Wraps the network `model`. Settings of the network cannot be assigned here; they have to be assigned to `model`.

    Reading such a setting here gives an error that says where it is. Arguments of the constructor (`_settled`) cannot
    be assigned either, once the constructor has ended (`_made`).
    """

    model: Sequential
    _remedy = "assign it to `model`, on every rank alike"
    _settled: tuple[str, ...] = ()
    _made = False

    def _unknown(self, name: str) -> str:
        if hasattr(self.__dict__.get("model"), name):
            return f"{name!r} is an attribute of the network, not of {type(self).__name__}: {self._remedy}"
        return super()._unknown(name)

    def __repr__(self) -> str:
        return listing(type(self).__name__, {"model": self.__dict__.get("model")})

    if not TYPE_CHECKING:  # or every name would pass as an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if self._made and name in self._settled:
                raise AttributeError(
                    f"{name!r} of a {type(self).__name__} is settled by its constructor: make another one, of a new "
                    "network"
                )
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(type(self.__dict__.get("model")), name):
                text += f": it is one of the network, `model.{name}`"
            elif name == "module":
                text += ": the network is `model`"
            elif name in NETWORK:
                text += f"; of the network, `model`: {NETWORK[name]}"
            raise AttributeError(text, name=name, obj=self)


class Replica(Wrapper):
    """Modes and results of the network `model`; nothing here waits for another rank."""

    def train(self, mode: bool = True) -> Self:
        """Training mode, see `Sequential.train`."""
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        """Evaluation mode, see `Sequential.eval`."""
        self.model.eval()
        return self

    def predict(
        self, x: ArrayLike, batch_size: int = 256, var_x: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.predict` on this rank."""
        return self.model.predict(x, batch_size, var_x)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """(mu, var) of this rank's last forward pass, flat copies."""
        return self.model.get_outputs()

    def output_to_host(self) -> None:
        self.model.output_to_host()

    def get_device_with_index(self) -> str:
        """The device of this rank's replica, such as "cpu"."""
        return self.model.device

    def state_dict(self) -> StateDict:
        """Parameters and running statistics. They are equal on every rank, except between merges.

        Where ranks merge, running statistics differ after a pass in training mode, until the next step that merges.
        """
        return self.model.state_dict()

    def get_lstm_states(self, time_step: int = -1) -> States:
        """`Sequential.get_lstm_states` of this rank: each has its own memory."""
        return self.model.get_lstm_states(time_step)

    def set_lstm_states(self, states: Mapping[int, Any] | Mapping[str, Any]) -> None:
        self.model.set_lstm_states(states)

    def reset_lstm_states(self) -> None:
        self.model.reset_lstm_states()

    def smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """`Sequential.smoother` of the time steps that this rank has seen, with the weights that all ranks share."""
        return self.model.smoother()

    def get_outputs_smoother(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.get_outputs_smoother()

    @property
    def output_z_buffer(self) -> BaseHiddenStates:
        return self.model.output_z_buffer

    @output_z_buffer.setter
    def output_z_buffer(self, states: BaseHiddenStates) -> None:
        self.model.output_z_buffer = states

    @property
    def input_delta_z_buffer(self) -> BaseDeltaStates:
        return self.model.input_delta_z_buffer

    @input_delta_z_buffer.setter
    def input_delta_z_buffer(self, deltas: BaseDeltaStates) -> None:
        self.model.input_delta_z_buffer = deltas

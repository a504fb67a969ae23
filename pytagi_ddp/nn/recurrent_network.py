"""What one asks of a network with recurrent layers: their memory, and the smoother."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.nn.lstm import LSTM
from pytagi_ddp.nn.network_parameters import NetworkParameters
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32

NAMES = ("mu_h", "var_h", "mu_c", "var_c")
States = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


class RecurrentNetwork(NetworkParameters):
    """Access to the memory of the LSTM layers of a network: the part of `Sequential` that is about time."""

    def _lstm_layers(self) -> dict[int, LSTM]:
        return {k: layer for k, layer in enumerate(self.layers) if isinstance(layer, LSTM)}

    def get_lstm_states(self) -> States:
        """Memory of each LSTM by the number of the layer: (mu_h, var_h, mu_c, var_c), moments of h and C, copies.

        That of layers in blocks is in `state_dict(carried=True)`. A layer of several time steps has none: zeros.
        """
        return {k: layer.get_memory() for k, layer in self._lstm_layers().items()}

    def set_lstm_states(self, states: Mapping[int, Any]) -> None:
        """Sets what `get_lstm_states` gives, of all layers or of some; also before the first forward pass.

        Raises:
            KeyError: a number that is not that of an LSTM. ValueError: wrong number of values, values that are not
                finite, a negative variance, or a memory for a layer that has none.
        """
        layers, checked = self._lstm_layers(), {}
        for k, state in states.items():
            if k not in layers:
                raise KeyError(f"layer {k} is no LSTM of this network; these are: {sorted(layers)}")
            checked[k] = _checked(state, layers[k], k)
        for k, state in checked.items():
            layers[k].set_memory(state)

    def reset_lstm_states(self) -> None:
        """Sets the memory of all LSTM layers to 0."""
        self.reset_state()


def _checked(state: Any, layer: LSTM, k: int) -> list[np.ndarray]:
    values: list[ArrayLike] = list(state)
    what = f"LSTM state of layer {k}"
    if len(values) != len(NAMES):
        raise ValueError(f"{what}: expected {', '.join(NAMES)}, got {len(values)} arrays")
    arrays = [flat_float32(a, f"{what}, {name}", layer.output_size) for a, name in zip(values, NAMES, strict=True)]
    for name, array in zip(NAMES, arrays, strict=True):
        check_finite(array, f"{what}, {name}")
        if name.startswith("var"):
            check_variances(array, f"{what}, {name}")
    if not layer.carries and any(array.any() for array in arrays):
        raise ValueError(f"{what}: every call of {layer!r} begins at 0; only a layer of one time step has a memory")
    return arrays

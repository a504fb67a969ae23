"""What networks with recurrent layers offer: access to their memory, and the smoother."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.tensors import State
from pytagi_ddp.nn.alone import alone
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.layer_block import LayerBlock
from pytagi_ddp.nn.lstm import LSTM
from pytagi_ddp.nn.network_parameters import NetworkParameters
from pytagi_ddp.nn.slinear import SLinear
from pytagi_ddp.nn.slstm import SLSTM
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32

NAMES = ("mu_h", "var_h", "mu_c", "var_c")
States = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


class RecurrentNetwork(NetworkParameters):
    """The part of `Sequential` for LSTM layers: access to their memory, and smoothing.

    Attributes:
        num_samples: the least number of time steps that `smoother` returns, for which SLSTM layers make room; None: as
            many as were recorded.
    """

    num_samples: int | None = None
    _smoothed_outputs: tuple[np.ndarray, np.ndarray] | None = None

    def _lstm_layers(self) -> dict[int, LSTM]:
        return {k: layer for k, layer in enumerate(self.layers) if isinstance(layer, LSTM)}

    @alone
    def get_lstm_states(self, time_step: int = -1) -> States:
        """Memory of each LSTM by the number of the layer: (mu_h, var_h, mu_c, var_c), moments of h and C, copies.

        The memory of layers in blocks is in `state_dict(carried=True)`. A layer of several time steps carries none, and
        gives zeros.

        Args:
            time_step: -1 for the present memory; else the states of that step, of each SLSTM, which the last `smoother`
                has found.

        Raises:
            IndexError: the last `smoother` had no such time step.
        """
        layers = self._lstm_layers()
        if time_step == -1:
            return {k: layer.get_memory() for k, layer in layers.items()}
        return {k: layer.get_smoothed(time_step) for k, layer in layers.items() if isinstance(layer, SLSTM)}

    @alone
    def set_lstm_states(self, states: Mapping[int, Any] | Mapping[str, Any]) -> None:
        """Sets the memory of all LSTM layers or of some, as `get_lstm_states` gives it.

        Args:
            states: by the number of the layer, or by that number as text, which JSON makes of it.

        Raises:
            KeyError: a number that is not that of an LSTM. ValueError: wrong number of values, values that are not
                finite, a negative variance, or a memory for a layer that has none.
        """
        layers, checked = self._lstm_layers(), {}
        for key, state in states.items():
            k = int(key) if isinstance(key, str) and key.isdecimal() else key
            if k not in layers:
                raise KeyError(f"layer {k!r} is not an LSTM of this network; these are: {sorted(layers)}")
            if k in checked:
                raise KeyError(f"the memory of layer {k} is given twice, by {k} and by '{k}'")
            checked[k] = _checked(state, layers[k], k)
        for k, state in checked.items():
            layers[k].set_memory(state)

    def reset_lstm_states(self) -> None:
        """Sets the memory of all LSTM layers to 0."""
        self.reset_state()

    @alone
    def smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Smooths the training steps since the last call: their states and outputs, given all of their observations.

        A step has one sample of one time step. The states of each `SLSTM` are smoothed from the last step to the first
        (`get_lstm_states` returns them). The `SLinear` behind the last `SLSTM`, which must end the network, makes the
        outputs from the smoothed h. Afterwards the memory is 0, and a new record begins. Without a step since the last
        call, the states are those of that call, and `SLinear` makes the outputs from them with its present weights.

        Returns:
            (mu, var): means and variances of the outputs, flat, time step by time step; those of h without an
            `SLinear`. If `num_samples` is more than there are steps, the rest is what `SLinear` makes of h = 0.

        Raises:
            RuntimeError: there is no SLSTM, or no step was recorded; or an `SLinear` does not come right behind the
                last SLSTM, or does not end the network, so that its results would not be the outputs.

        Source: Rauch, Tung & Striebel (1965); cuTAGI.
        """
        leaves = self.arena.leaves
        layers = [leaf for leaf in leaves if isinstance(leaf, SLSTM)]
        behind = leaves[leaves.index(layers[-1]) + 1 :] if layers else []
        linear = next((leaf for leaf in behind if isinstance(leaf, SLinear)), None)
        if linear is not None and [*_written_out(self.layers)][-2:] != [layers[-1], linear]:
            raise RuntimeError(
                "smoother() makes outputs of smoothed h by an SLinear right behind the last SLSTM, at the end of the "
                "network; this one has other layers there, which would be left out:\n" + self.get_layer_stack_info()
            )
        for layer in layers:
            if layer.recorded:
                layer.smooth()
        smoothed = layers[-1].smoothed if layers else None
        if smoothed is None:
            raise RuntimeError(
                "smoother() needs SLSTM layers, and training steps with one sample of one time step behind it"
            )
        last = layers[-1]
        steps = len(smoothed[0])
        total = max(steps, self.num_samples or 0)
        array = self.kernels.array
        h = State(*(array.zeros((total, last.output_size)) for _ in range(2)))
        for source, target in zip(smoothed[:2], h[:2], strict=True):
            array.copy(source, target[:steps])
        if linear is not None:
            out = State(*(array.empty((total, linear.output_size)) for _ in range(2)))
            self.kernels.linear.forward(h, linear.parameters.w, linear.parameters.b, out)
            h = out
        self.reset_lstm_states()
        self._smoothed_outputs = array.to_host(h.mu).reshape(-1), array.to_host(h.var).reshape(-1)
        return self.get_outputs_smoother()

    def get_outputs_smoother(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of what the last `smoother` has returned.

        Raises:
            RuntimeError: there was none.
        """
        if self._smoothed_outputs is None:
            raise RuntimeError("get_outputs_smoother() returns the result of smoother(): call that first")
        mu, var = self._smoothed_outputs
        return mu.copy(), var.copy()


def _written_out(layers: Iterable[BaseLayer]) -> Iterator[BaseLayer]:
    """The layers, with each `LayerBlock` replaced by the layers in it."""
    for layer in layers:
        yield from _written_out(layer.layers) if isinstance(layer, LayerBlock) else (layer,)


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

"""The memory of the recurrent layers of a network, and the smoother."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.tensors import State
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.layers.layer_block import LayerBlock
from pytagi_ddp.nn.layers.lstm import LSTM
from pytagi_ddp.nn.layers.slinear import SLinear
from pytagi_ddp.nn.layers.slstm import SLSTM
from pytagi_ddp.validate import check_finite, check_variances, flat_float32

NAMES = ("mu_h", "var_h", "mu_c", "var_c")
States = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


def _lstm_layers(net: Network) -> dict[int, LSTM]:
    return {k: layer for k, layer in enumerate(net.layers) if isinstance(layer, LSTM)}


def lstm_states(net: Network, time_step: int) -> States:
    """`Sequential.get_lstm_states`."""
    if time_step < -1:
        raise ValueError(f"time_step must be -1 (the current memory), or a time step from 0 on, got {time_step}")
    layers = _lstm_layers(net)
    if time_step == -1:
        return {k: layer.get_memory() for k, layer in layers.items()}
    return {
        k: layer.get_smoothed(time_step) if isinstance(layer, SLSTM) else layer.get_memory()
        for k, layer in layers.items()
    }


def set_lstm_states(net: Network, states: Mapping[int, Any] | Mapping[str, Any]) -> None:
    """`Sequential.set_lstm_states`."""
    layers, checked = _lstm_layers(net), {}
    for key, state in states.items():
        k = int(key) if isinstance(key, str) and key.isdecimal() else key
        if k not in layers:
            raise KeyError(f"layer {k!r} is not an LSTM of this network; these are: {sorted(layers)}")
        if k in checked:
            raise KeyError(f"the memory of layer {k} is given twice, by {k} and by '{k}'")
        checked[k] = _checked(state, layers[k], k)
    for k, state in checked.items():
        layers[k].set_memory(state)


def smooth(net: Network, least_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """`Sequential.smoother` without the reset of the memory; returns the outputs of at least `least_steps` steps."""
    leaves = net.arena.leaves
    layers = [leaf for leaf in leaves if isinstance(leaf, SLSTM)]
    behind = leaves[leaves.index(layers[-1]) + 1 :] if layers else []
    linear = next((leaf for leaf in behind if isinstance(leaf, SLinear)), None)
    if linear is not None and [*_written_out(net.layers)][-2:] != [layers[-1], linear]:
        raise RuntimeError(
            "smoother() makes outputs of smoothed h by an SLinear right after the last SLSTM, at the end of the "
            "network; this one has other layers there, which would be left out:\n"
            + "".join(f"{layer.get_layer_info()}\n" for layer in net.layers)
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
    total = max(steps, least_steps)
    array = net.kernels.array
    h = State(*(array.zeros((total, last.output_size)) for _ in range(2)))
    for source, target in zip(smoothed[:2], h[:2], strict=True):
        array.copy(source, target[:steps])
    if linear is not None:
        out = State(*(array.empty((total, linear.output_size)) for _ in range(2)))
        net.kernels.linear.forward(h, linear.parameters.w, linear.parameters.b, out)
        h = out
    return array.to_host(h.mu).reshape(-1), array.to_host(h.var).reshape(-1)


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

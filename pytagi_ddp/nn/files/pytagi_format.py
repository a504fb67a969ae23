"""Reads and writes the binary files of pytagi's `Sequential.save`.

For each layer that is not an activation, in forward order (blocks: main, then shortcut): uint64 length of the layer's
info string, the string, then float32 mu_w, var_w, mu_b, var_b; BatchNorm2d adds running mean and variance, LayerNorm
the statistics of its last batch (of unknown size; pytagi cannot load them back, and none are written here). Little
endian, no header.
"""

import numpy as np

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.files.state_dicts import Values, by_entry, savable
from pytagi_ddp.nn.layers.activation import Activation
from pytagi_ddp.nn.layers.layer_norm import LayerNorm


def parse(model: Network, data: bytes, what: str) -> dict:
    """The state dict of `model` in the file contents `data`; `what` names the file in errors.

    Raises:
        ValueError: another architecture, or a truncated or foreign file.
    """
    layers = [(key, leaf) for key, leaf in model.named_leaves() if not isinstance(leaf, Activation)]
    tensors: dict[str, list[TensorSpec]] = {key: [] for key, _ in layers}
    for spec in model.arena.tensors:
        if spec.kind != "carried" and spec.layer in tensors:
            tensors[spec.layer].append(spec)
    values: Values = []
    position = 0

    def take(count: int, key: str) -> np.ndarray:
        nonlocal position
        stop = position + 4 * count
        if stop > len(data):
            raise ValueError(f"{what} is truncated: {key} needs {stop} bytes, the file has {len(data)}")
        values = np.frombuffer(data[position:stop], "<f4").astype(np.float32)
        position = stop
        return values

    for index, (key, leaf) in enumerate(layers):
        header = _header(leaf)
        found = data[position : position + len(header)]
        if found != header:
            raise ValueError(
                f"{what} is not a file of this architecture: expected {leaf.get_layer_info()!r} ({key}) at byte "
                f"{position}, found {found!r}"
            )
        position += len(header)
        values += [(spec, take(spec.size, key)) for spec in tensors[key]]
        if isinstance(leaf, LayerNorm) and tensors[key]:  # skip the batch statistics, up to the next layer
            following = layers[index + 1 :]
            end = data.find(_header(following[0][1]), position) if following else len(data)
            if end < 0 or (end - position) % 8:
                raise ValueError(f"{what}: no layer follows {key}, expected {following[0][0]}")
            position = end
    if position != len(data):
        raise ValueError(f"{what} goes on for {len(data) - position} bytes after the last layer")
    return by_entry(values)


def format_bytes(model: Network) -> bytes:
    """The contents of a file that pytagi loads into the same network; errors are those of `savable`."""
    parts = {key: [_header(leaf)] for key, leaf in model.named_leaves() if not isinstance(leaf, Activation)}
    for spec, array in savable(model):
        if spec.layer in parts:
            parts[spec.layer].append(array.astype("<f4").tobytes())
    return b"".join(part for of_layer in parts.values() for part in of_layer)


def _header(leaf: BaseLayer) -> bytes:
    info = leaf.get_layer_info().encode()
    return len(info).to_bytes(8, "little") + info

"""Where the time of a training step goes, layer by layer."""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pytagi_ddp.nn.chain import Reorder
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.output_updater import OutputUpdater

if TYPE_CHECKING:
    from pytagi_ddp.nn.sequential import Sequential

BETWEEN, STEP = "between layers", "parameter step"


@dataclass(frozen=True)
class LayerTime:
    """One row of a `Profile`.

    Attributes:
        key: the layer's key in `state_dict`, such as "Conv2d.0"; empty for what belongs to no layer.
        layer: name and sizes; or "between layers" (the copy of the input, image orders, additions of residual blocks,
            the output update; its memory: the input and the deltas), or "parameter step" (`step`, under backward).
        forward_ms, backward_ms: medians, milliseconds.
        memory: bytes of what is kept for one batch (outputs, Jacobians, scratch); parameters are not counted.
        share: part of the time of a whole step, 0 to 1.
    """

    key: str
    layer: str
    forward_ms: float
    backward_ms: float
    memory: int
    share: float


@dataclass(frozen=True)
class Profile:
    """Times and memory by layer in forward order, then what belongs to no layer; printed as a table.

    Attributes:
        rows: one `LayerTime` per computing layer, then two for the rest. batch: samples. device: where it ran.
    """

    rows: tuple[LayerTime, ...]
    batch: int
    device: str

    @property
    def total_ms(self) -> float:
        """Milliseconds of a whole training step."""
        return sum(row.forward_ms + row.backward_ms for row in self.rows)

    def __str__(self) -> str:
        cells = [("layer", "", "forward ms", "backward ms", "memory MB", "share")]
        for row in self.rows:
            numbers = (f"{row.forward_ms:.3f}", f"{row.backward_ms:.3f}", f"{row.memory / 1e6:.2f}", f"{row.share:.1%}")
            cells.append((row.key, row.layer, *numbers))
        columns = [sum(getattr(row, name) for row in self.rows) for name in ("forward_ms", "backward_ms", "memory")]
        where = f"batch {self.batch}, {self.device}"
        cells.append(("total", where, f"{columns[0]:.3f}", f"{columns[1]:.3f}", f"{columns[2] / 1e6:.2f}", "100.0%"))
        width = [max(len(row[k]) for row in cells) for k in range(6)]
        align = "<<>>>>"
        return "\n".join(
            "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, width, strict=True)).rstrip() for row in cells
        )


class _Watch:
    """Times calls by name, one after the other or one inside the other; what is inside counts only there."""

    def __init__(self, synchronize: Callable[[], None]):
        self._synchronize = synchronize
        self._inside = 0.0  # seconds of calls that were watched within the current one
        self.seconds: defaultdict[Any, float] = defaultdict(float)

    def __call__(self, name: Any, function: Callable, *args) -> Any:
        before, self._inside = self._inside, 0.0
        self._synchronize()
        start = time.perf_counter()
        result = function(*args)
        self._synchronize()
        spent = time.perf_counter() - start
        self.seconds[name] += spent - self._inside
        self._inside = before + spent
        return result

    def put_on(self, layer: Any, name: str) -> None:
        for direction in ("forward", "backward"):
            method = getattr(layer, direction)
            setattr(layer, direction, lambda *args, d=direction, m=method: self((name, d), m, *args))


def profile(net: Sequential, x, y=None, repeat: int = 3) -> Profile:
    """`Sequential.profile`."""
    if repeat < 1:
        raise ValueError(f"profile needs at least one round, got repeat={repeat}")
    net = copy.deepcopy(net)
    net.train()
    net._meets_ranks = True  # pass by pass: a captured CUDA graph would be replayed without the watches
    array = net.kernels.array
    watch = _Watch(array.synchronize if array.asynchronous else lambda: None)
    leaves = dict(net.named_leaves())
    for key, leaf in leaves.items():
        watch.put_on(leaf, key)
    updater = OutputUpdater(net.device)

    def round_() -> dict[Any, float]:
        watch.seconds.clear()
        watch((BETWEEN, "forward"), net._run, x)
        batch_y = np.zeros(net.output_z_buffer.size, np.float32) if y is None else y
        noise = np.ones(net.output_z_buffer.size, np.float32)
        buffers = (net.output_z_buffer, batch_y, noise, net.input_delta_z_buffer)
        watch((BETWEEN, "backward"), updater.update, *buffers)
        watch((BETWEEN, "backward"), net.backward)
        watch((STEP, "backward"), net.step)
        return dict(watch.seconds)

    round_()  # compiles, and touches all memory once
    rounds = [round_() for _ in range(repeat)]
    return _table(net, leaves, rounds)


def _table(net: Sequential, leaves: dict, rounds: list[dict[Any, float]]) -> Profile:
    def ms(name: str, direction: str) -> float:
        return 1e3 * statistics.median(seconds.get((name, direction), 0.0) for seconds in rounds)

    names = [(key, leaf.get_layer_info(), _bytes(leaf)) for key, leaf in leaves.items()]
    orders = sum(_bytes(operation) for operation in net._chain.operations if isinstance(operation, Reorder))
    deltas = sum(block.nbytes for block in net._pool._free)
    names += [("", BETWEEN, net._input.nbytes + orders + deltas), ("", STEP, 0)]
    times = [(ms(key or layer, "forward"), ms(key or layer, "backward")) for key, layer, _ in names]
    total = sum(map(sum, times))
    rows = (
        LayerTime(key, layer, *pair, memory, sum(pair) / total)
        for (key, layer, memory), pair in zip(names, times, strict=True)
    )
    return Profile(tuple(rows), net.output_z_buffer.block_size, net.device)


def _bytes(layer: BaseLayer) -> int:
    return sum(buffer.nbytes for buffer in layer._buffers.values())

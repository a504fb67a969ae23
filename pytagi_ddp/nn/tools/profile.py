"""The time of a training step by layer."""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.table import columns
from pytagi_ddp.nn.run.output_updater import OutputUpdater
from pytagi_ddp.validate import as_integers

BETWEEN, STEP = "between layers", "parameter step"


@dataclass(frozen=True)
class LayerTime:
    """One row of a `Profile`.

    Attributes:
        key: the layer's key in `state_dict`, such as "Conv2d.0"; empty for the rows of the rest.
        layer: name and sizes; or "between layers" (the copy of the input, image orders, additions of residual blocks,
            the output update; its memory: the input, image orders, outputs of recomputed blocks, shared memory), or
            "parameter step" (`step`, under backward).
        forward_ms, backward_ms: medians, milliseconds.
        memory: bytes for one batch (means, Jacobians, scratch memory), without parameters.
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
    """Times and memory by layer in forward order, then those of the rest; printed as a table.

    Attributes:
        rows: one `LayerTime` per computing layer, then two for the rest. batch: samples. device: the device.
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
        sums = [sum(getattr(row, name) for row in self.rows) for name in ("forward_ms", "backward_ms", "memory")]
        where = f"batch {self.batch}, {self.device}"
        cells.append(("total", where, f"{sums[0]:.3f}", f"{sums[1]:.3f}", f"{sums[2] / 1e6:.2f}", "100.0%"))
        return columns(cells, "<<>>>>")


class _Watch:
    """Measures calls by name, and leaves by hooks. The time of a call does not include that of leaves inside."""

    def __init__(self, synchronize: Callable[[], None], keys: dict[BaseLayer, str]):
        self._synchronize, self._keys = synchronize, keys
        self._inside = 0.0  # seconds of leaves within the current call
        self._start = 0.0
        self.seconds: defaultdict[Any, float] = defaultdict(float)

    def __call__(self, name: Any, function: Callable, *args: Any) -> Any:
        self._inside, start = 0.0, self._now()
        result = function(*args)
        self.seconds[name] += self._now() - start - self._inside
        return result

    def before(self, leaf: BaseLayer, direction: str) -> None:
        self._start = self._now()

    def after(self, leaf: BaseLayer, direction: str) -> None:
        spent = self._now() - self._start
        self.seconds[self._keys[leaf], direction] += spent
        self._inside += spent

    def _now(self) -> float:
        self._synchronize()
        return time.perf_counter()


def profile(net: Network, x: ArrayLike, y: ArrayLike | None = None, repeat: int = 3) -> Profile:
    """`Sequential.profile`."""
    as_integers("profile", 1, repeat=repeat)
    net = copy.deepcopy(net)
    net.train()
    leaves = dict(net.named_leaves())
    keys = {leaf: key for key, leaf in leaves.items()}
    watch = _Watch(net.kernels.array.synchronize, keys)
    net.add_hook(watch.before, watch.after)
    updater = OutputUpdater(net.device)

    def round_() -> dict[Any, float]:
        watch.seconds.clear()
        watch((BETWEEN, "forward"), net.forward, x)
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


def _table(net: Network, leaves: dict, rounds: list[dict[Any, float]]) -> Profile:
    def ms(name: str, direction: str) -> float:
        return 1e3 * statistics.median(seconds.get((name, direction), 0.0) for seconds in rounds)

    names = [(key, leaf.get_layer_info(), net.passes.buffer_bytes(leaf)) for key, leaf in leaves.items()]
    names += [("", BETWEEN, net.passes.bytes_between), ("", STEP, 0)]
    times = [(ms(key or layer, "forward"), ms(key or layer, "backward")) for key, layer, _ in names]
    total = sum(map(sum, times))
    rows = (
        LayerTime(key, layer, *pair, memory, sum(pair) / total)
        for (key, layer, memory), pair in zip(names, times, strict=True)
    )
    return Profile(tuple(rows), net.output_z_buffer.block_size, net.device)

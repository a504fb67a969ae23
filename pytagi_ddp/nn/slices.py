"""Parts of a network's tensors, as they lie on ranks that share the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytagi_ddp.nn.network import Network
from pytagi_ddp.nn.state import Array
from pytagi_ddp.nn.state_dicts import entries


class TensorSlice(NamedTuple):
    """A part of one of a network's tensors, and where it lies on this rank.

    Attributes:
        name: of the tensor, as in files: "Linear.2/mu_w".
        start, stop: the range of the tensor's values that the part holds. size: number of values of the whole tensor.
        array: the memory with the part, on the network's device.
        variance: whether they are variances, which are not negative.
        saved: whether this rank writes the part into checkpoints. One of the ranks that hold the same part does.
    """

    name: str
    start: int
    stop: int
    size: int
    array: Array
    variance: bool
    saved: bool = True

    def part(self, start: int, stop: int, array: Array, saved: bool = True) -> TensorSlice:
        """Values `start` to `stop` of the same tensor, which lie in `array`."""
        return self._replace(start=start, stop=stop, array=array, saved=saved)


def whole_tensors(model: Network, kinds: Sequence[str] = ("", "running")) -> Iterator[TensorSlice]:
    """The tensors of a network that this rank holds whole, without empty ones; `kinds` are those of their `Entry`."""
    for entry in entries(model):
        if entry.kind in kinds:
            for (name, size), array in zip(entry.sizes.items(), entry.arrays(), strict=True):
                if size:
                    yield TensorSlice(f"{entry.key}/{name}", 0, size, size, array, name in entry.variances)

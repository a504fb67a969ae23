"""What flows through a network: shapes, hidden states (forward) and deltas (backward)."""

from dataclasses import dataclass, replace
from typing import Literal

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Delta, State


@dataclass(frozen=True)
class Shape:
    """Units of one sample.

    Attributes:
        size: number of units.
        image: (channels, height, width) where the units are pixels, else None.
        channels_last: order of an image in memory; False is the public order, channels first.
    """

    size: int
    image: tuple[int, int, int] | None = None
    channels_last: bool = False

    @classmethod
    def of_image(cls, channels: int, height: int, width: int, channels_last: bool = True) -> "Shape":
        return cls(channels * height * width, (channels, height, width), channels_last)

    def ordered(self, channels_last: bool) -> "Shape":
        """The same units in the given order of memory."""
        return replace(self, channels_last=channels_last and self.image is not None)

    @property
    def channels(self) -> int:
        """Of the image; 0 for flat units, as `height` and `width`."""
        return self.image[0] if self.image else 0

    @property
    def height(self) -> int:
        return self.image[1] if self.image else 0

    @property
    def width(self) -> int:
        return self.image[2] if self.image else 0

    @property
    def order_matters(self) -> bool:
        """False where channels-first and channels-last are the same memory."""
        return self.channels > 1 and self.height * self.width > 1

    def __str__(self) -> str:
        return f"{self.size}" if self.image is None else "x".join(map(str, self.image))


UNKNOWN = Shape(0)  # of a layer that is not part of a network yet


@dataclass(frozen=True)
class StateTensor:
    """Values that a layer keeps between passes and does not learn.

    Attributes:
        name: unique in the layer.
        size: numbers.
        kind: "running": statistics of the data, equal on every rank, moved in training, saved with the parameters.
            "carried": memory from one call to the next, such as that of a recurrent layer; each rank's own, saved when
            asked for, and reset by the user (`Sequential.reset_state`). A layer reads and writes it by `_carried` and
            `_carry`.
        initial: value of a new network.
        variance: whether the values are variances, which must not be negative.
    """

    name: str
    size: int
    kind: Literal["running", "carried"]
    initial: float = 0.0
    variance: bool = False


def apply_jacobian(kernels: Kernels, delta: Delta, state: State) -> None:
    """Takes deltas through the activation that made `state`: times J and J^2, in place."""
    if state.jcb is not None:
        kernels.elementwise.apply_jacobian(delta, state.jcb)


class DeltaPool:
    """Blocks of memory for deltas, taken and given back during a backward pass and kept between passes."""

    def __init__(self, kernels: Kernels):
        self._array = kernels.array
        self._capacity = 0
        self._free: list[Array] = []

    def reserve(self, units: int) -> None:
        """Makes every block hold at least `units` numbers; call before a pass."""
        if units > self._capacity:
            self._capacity = units
            self._free.clear()

    def take(self, batch: int, size: int) -> Delta:
        memory = self._free.pop() if self._free else self._array.empty((2, self._capacity))
        n = batch * size
        return Delta(memory[0, :n].reshape(batch, size), memory[1, :n].reshape(batch, size), memory)

    def take_copy(self, delta: Delta) -> Delta:
        copy = self.take(*delta.mu.shape)
        self._array.copy(delta.mu, copy.mu)
        self._array.copy(delta.var, copy.var)
        return copy

    def give(self, delta: Delta) -> None:
        self._free.append(delta.memory)

    @property
    def nbytes(self) -> int:
        """Size of the blocks that are not taken."""
        return sum(block.nbytes for block in self._free)

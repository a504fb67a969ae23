"""The values that a network propagates: hidden states (forward) and deltas (backward), and their shapes."""

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Delta, State
from pytagi_ddp.validate import same_order


@dataclass(frozen=True)
class Shape:
    """Units of one sample.

    Attributes:
        size: number of units.
        image: (channels, height, width) where the units are pixels, else None.
        channels_last: order of an image in memory; False is the public order, channels first.
        sequence: (time steps, features) where the units are those of several steps, one after the other, else None.
        pixels: (height, width) where the steps of a sequence are pixels, else None.
        of_one_step: whether the units are those of the single time step that a recurrent or attention layer would see.
    """

    size: int
    image: tuple[int, int, int] | None = None
    channels_last: bool = False
    sequence: tuple[int, int] | None = None
    pixels: tuple[int, int] | None = field(default=None, compare=False)
    of_one_step: bool = field(default=False, compare=False)

    @classmethod
    def of_image(cls, channels: int, height: int, width: int, channels_last: bool = False) -> "Shape":
        return cls(channels * height * width, (channels, height, width), channels_last)

    @classmethod
    def of_sequence(cls, steps: int, features: int) -> "Shape":
        """The shape of a sequence; a sequence of one step is flat units."""
        return cls(steps * features, sequence=(steps, features) if steps > 1 else None)

    @property
    def extents(self) -> tuple[int, ...]:
        """(channels, height, width) of an image, (time steps, features) of a sequence, else (units,)."""
        return self.image or self.sequence or (self.size,)

    @property
    def steps(self) -> int:
        """Time steps; 1 without a sequence."""
        return self.sequence[0] if self.sequence else 1

    @property
    def features(self) -> int:
        """Units of a time step; all units without a sequence."""
        return self.size // self.steps

    def ordered(self, channels_last: bool) -> "Shape":
        """The same units in the given order of memory."""
        return replace(self, channels_last=channels_last and self.image is not None)

    @property
    def channels(self) -> int:
        """Channels of the image; 0 for flat units, as are `height` and `width`."""
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
        return "x".join(map(str, self.extents))


UNKNOWN = Shape(0)  # of a layer that is not part of a network yet


def check_samples(given: tuple[int, ...], what: str, samples: int, rows: int, shape: Shape = UNKNOWN) -> None:
    """Raises ValueError if the first of several dimensions of `what` counts neither samples nor rows (time steps).

    Also if the others are not in the order of (time steps, features), or of (height, width, features) of the pixels of
    `shape`, or of its image if that has as many values.
    """
    if len(given) > 1 and given[0] not in (samples, rows):
        raise ValueError(
            f"{what} has the shape {given}, and the first dimension counts samples, of which there are {samples}: "
            "transpose it, or pass what is in another shape flat"
        )
    if len(given) > 2 and given[0] == samples > 0:
        size = math.prod(given)
        outputs = (samples, *(shape.image or ()))
        if shape.image is None or math.prod(outputs) != size:
            outputs = (samples, *(shape.pixels or (rows // samples,)), size // rows)
        if not same_order(given, outputs):
            raise ValueError(f"{what} has the shape {given}, and the outputs are {outputs}: is it transposed?")


Moments = TypeVar("Moments", State, Delta)


def by_step(units: Moments, steps: int) -> Moments:
    """(batch, units) as (batch * steps, features): the same memory, a row for each time step."""
    return units if steps == 1 else units.reshape(len(units.mu) * steps, -1)


def apply_jacobian(kernels: Kernels, delta: Delta, state: State) -> None:
    """Propagates deltas through the activation that made `state`: times J and J^2, in place."""
    if state.jcb is not None:
        kernels.elementwise.apply_jacobian(delta, state.jcb)


class Lifetime(IntEnum):
    """How long a buffer of a forward pass stays valid: until it is read by ..."""

    NEXT = 0  # the next operation
    BACKWARD = 1  # the backward pass, if one follows
    USER = 2  # the user, who reads the output of the network


class DeltaPool:
    """Blocks of memory for values that do not outlast a pass. The blocks are kept between passes.

    A backward pass takes blocks for deltas and gives them back. A forward pass acquires the same blocks for values that
    only the next operation reads: nearly all variances, and everything in evaluation.
    """

    def __init__(self, kernels: Kernels):
        self._array = kernels.array
        self._capacity = 0
        self._free: list[Array] = []
        self._acquired: dict[int, Array] = {}  # by address, in order
        self._shared: list[tuple] = []  # memory of deltas, once for each additional reader

    def reserve(self, units: int) -> None:
        """Makes every block hold at least `units` numbers; call before a pass."""
        self._free += self._acquired.values()  # blocks are still acquired or shared after an error in the last pass
        self._acquired.clear()
        self._shared.clear()
        if units > self._capacity:
            self._capacity = units
            self._free.clear()

    def _block(self) -> Array:
        return self._free.pop() if self._free else self._array.empty(self._capacity)

    def acquire(self, batch: int, size: int) -> Array:
        """An array for a forward pass, valid until `release`."""
        if batch * size > self._capacity:  # outside a pass: a layer is called directly
            self.reserve(batch * size)
        block = self._block()
        self._acquired[self._array.address(block)] = block
        return block[: batch * size].reshape(batch, size)

    @property
    def acquired(self) -> int:
        """The number of arrays that are acquired now."""
        return len(self._acquired)

    def release(self, first: int, kept: State) -> None:
        """Releases all acquired arrays except the first `first` ones and those of `kept`."""
        if len(self._acquired) > first:
            still = {self._array.address(array) for array in kept if array is not None}
            ended = [address for address in list(self._acquired)[first:] if address not in still]
            self._free += map(self._acquired.pop, ended)

    def take(self, batch: int, size: int) -> Delta:
        n, memory = batch * size, (self._block(), self._block())
        mu, var = (block[:n].reshape(batch, size) for block in memory)
        return Delta(mu, var, memory)

    def share(self, delta: Delta) -> None:
        """Keeps the memory of `delta` until `give` was called once more, because two branches read it."""
        self._shared.append(delta.memory)

    def own(self, delta: Delta) -> Delta:
        """Memory for a result of `delta`: its own, or a new block if another branch still reads it."""
        if self._unshare(delta):
            return self.take(*delta.mu.shape)
        return delta

    def own_copy(self, delta: Delta) -> Delta:
        """`delta`, for changes in place: itself, or a copy if another branch still reads it."""
        into = self.own(delta)
        if into is not delta:
            self._array.copy(delta.mu, into.mu)
            self._array.copy(delta.var, into.var)
        return into

    def give(self, delta: Delta) -> None:
        if not self._unshare(delta):
            self._free += delta.memory

    def _unshare(self, delta: Delta) -> bool:
        """Removes one additional reader of shared memory. Returns whether there was one."""
        for k, memory in enumerate(self._shared):
            if memory is delta.memory:
                del self._shared[k]
                return True
        return False

    @property
    def nbytes(self) -> int:
        """Size of the blocks that are not in use."""
        return sum(block.nbytes for block in self._free)


class BlockMemory:
    """Memory for the activations of one block, which all recomputed blocks of a network share.

    The k-th array that a pass through any block requests is the k-th here. It grows to the largest size.

    Attributes:
        holder: the block whose activations are here now.
    """

    def __init__(self, kernels: Kernels):
        self.holder: object = None
        self._empty = kernels.array.empty
        self._arrays: dict[tuple, Array] = {}
        self._taken = 0

    def begin(self, block: object) -> None:
        """Begins a pass through `block`."""
        self.holder, self._taken = block, 0

    def take(self, batch: int, size: int, dtype: type) -> Array:
        key = (self._taken, dtype)
        self._taken += 1
        array = self._arrays.get(key)
        if array is None or array.size < batch * size:
            self._arrays[key] = None  # frees the smaller array before the larger one is made
            array = self._arrays[key] = self._empty(batch * size, dtype)
        return array[: batch * size].reshape(batch, size)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

"""Geometry of layers that slide a square window over an image."""

from typing import Any, NamedTuple, TypeVar

from pytagi_ddp.nn.core.state import Array, Delta, Shape, State
from pytagi_ddp.validate import as_integers

LARGEST = (1 << 13) - 1  # sides of a window: kernels count the pixels of 16 windows in 32 bits
Units = TypeVar("Units", Array, State, Delta)


class Window(NamedTuple):
    """A k x k window, its stride and the zeros around the image.

    Attributes:
        padding_type: 1 pads `padding` zeros on all four sides, 2 on the right and at the bottom only. Both refuse an
            image that the windows do not fill exactly. 3 pads as 1 does, and ignores pixels after the last window.
    """

    layer: str
    kernel_size: int
    stride: int
    padding: int
    padding_type: int

    def check(self) -> "Window":
        kernel_size, stride = as_integers(self.layer, 1, LARGEST, kernel_size=self.kernel_size, stride=self.stride)
        (padding,) = as_integers(self.layer, 0, LARGEST, padding=self.padding)
        (padding_type,) = as_integers(self.layer, padding_type=self.padding_type)
        if padding and padding_type not in (1, 2, 3):
            raise ValueError(f"{self.layer} with padding needs padding_type 1, 2 or 3, got {padding_type}")
        return Window(self.layer, kernel_size, stride, padding, padding_type)

    def settings(self) -> dict[str, Any]:
        """The arguments by name. Without padding the types 1 and 2 mean the same, and are given as 0."""
        return {
            "kernel_size": self.kernel_size,
            "stride": self.stride,
            "padding": self.padding,
            "padding_type": self.padding_type if self.padding or self.padding_type == 3 else 0,
        }

    @property
    def before(self) -> int:
        """Zero rows above and zero columns left of the image."""
        return self.padding if self.padding_type in (1, 3) else 0

    @property
    def total(self) -> int:
        """Zeros before and after the pixels of a side."""
        return {1: 2, 2: 1, 3: 2}.get(self.padding_type, 0) * self.padding

    def output(self, size: int) -> int:
        """Windows that fit along an image side of `size` pixels: (size - k + P)/stride + 1, rounded down for type 3."""
        total = self.total
        steps, rest = divmod(size - self.kernel_size + total, self.stride)
        if steps < 0 or (rest and self.padding_type != 3):
            raise ValueError(
                f"{self.layer}: windows of {self.kernel_size} with stride {self.stride} do not fill {size} pixels with "
                f"{total} zeros; change padding or stride, or take padding_type 3"
            )
        return steps + 1

    def spread(self, windows: int) -> int:
        """Pixels that `windows` windows cover along a side, without those cut off: (windows - 1) stride + k - P."""
        size = (windows - 1) * self.stride + self.kernel_size - self.total
        if size < 1:
            raise ValueError(
                f"{self.layer}: {windows} windows of {self.kernel_size} with stride {self.stride} have no pixel left "
                f"when {self.total} are cut off; change padding or stride"
            )
        return size

    def slide(self, shape: Shape, channels: int) -> Shape:
        return Shape.of_image(channels, self.output(shape.height), self.output(shape.width), channels_last=True)


def as_image(layer: str, shape: Shape, channels: int, width: int, height: int) -> Shape:
    """`shape` as the image that a layer takes; channels, width and height are those of the layer, or 0.

    Raises:
        ValueError: `shape` is not such an image.
    """
    image = shape.image
    if image is None:
        if not channels:
            raise ValueError(
                f"{layer} needs an image, and gets {shape}: put it after a layer that gives images, such as a "
                "Conv2d, which has in_width and in_height for flat inputs"
            )
        if channels * height * width != shape.size:
            raise ValueError(
                f"{layer} needs an image: give in_width and in_height so that channels x height x width = {shape.size} "
                f"(got {channels} x {height} x {width})"
            )
        image = (channels, height, width)
    elif width and height and image[1:] != (height, width):
        raise ValueError(f"{layer} has in_height {height} and in_width {width}, the layer before gives {shape}")
    if channels and image[0] != channels:
        raise ValueError(f"{layer} needs {channels} channels, the layer before gives {shape}")
    return Shape(shape.size, image, shape.channels_last)


def pixels(units: Units, shape: Shape) -> Units:
    """Arrays of (batch, units) as (batch, height, width, channels)."""
    return units.reshape(-1, shape.height, shape.width, shape.channels)

"""The pixels of an image as a sequence."""

from dataclasses import replace

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Shape, State, apply_jacobian
from pytagi_ddp.nn.core.window import as_image


class Pixels(BaseLayer):
    """The pixels of an image, row by row, as a sequence with the channels as features; moments do not change.

    If a likelihood observes the channels of a pixel together, put it last, or before `Softmax`, `Remax` or `EvenExp`:

        Sequential(..., Conv2d(8, 3, 1), Pixels())  # for Categorical(3) and labels (samples, height, width)

    Raises:
        ValueError: an input that is not an image.
    """

    replayable = True
    needs_variances = False

    def input_shape(self, shape: Shape) -> Shape:
        return as_image(self.name, shape, 0, 0, 0).ordered(channels_last=True)

    def infer_output(self, shape: Shape) -> Shape:
        pixels = shape.height, shape.width
        return replace(Shape.of_sequence(shape.height * shape.width, shape.channels), pixels=pixels)

    def forward(self, state: State, saved: Saved) -> State:
        saved.input, out = state, saved.output(state.batch)  # channels are last in memory, so this is a copy
        x = saved.with_variance(state)
        assert x.var is not None and out.var is not None
        for source, target in ((x.mu, out.mu), (x.var, out.var)):
            self.kernels.elementwise.copy_columns(source, 0, target, 0, self.input_size)
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        if saved.needs_input:
            apply_jacobian(self.kernels, delta, saved.input)
            return delta
        saved.pool.give(delta)
        return None

    def get_layer_info(self) -> str:
        return f"{self.name}({self.in_channels},{self.in_width},{self.in_height})"

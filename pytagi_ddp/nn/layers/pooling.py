"""Average and max pooling."""

from abc import abstractmethod
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pytagi_view import WindowView
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Shape, State, apply_jacobian
from pytagi_ddp.nn.core.window import Window, as_image, pixels


class _Pool2d(WindowView, BaseLayer):
    """Base of both poolings: geometry, and the Jacobian of the input in the backward pass."""

    replayable = True
    needs_variances = False

    def __init__(self, kernel_size: int, stride: int, padding: int, padding_type: int):
        super().__init__()
        stride = kernel_size if stride == -1 else stride
        self.window = Window(self.name, kernel_size, stride, padding, padding_type).check()
        if padding >= kernel_size:
            raise ValueError(f"{self.name}: padding {padding} leaves windows of {kernel_size} without a pixel")

    def input_shape(self, shape: Shape) -> Shape:
        return as_image(self.name, shape, 0, 0, 0).ordered(channels_last=True)

    def infer_output(self, shape: Shape) -> Shape:
        return self.window.slide(shape, shape.channels)

    @property
    def _geometry(self) -> tuple[int, int, int]:
        return self.window.kernel_size, self.window.stride, self.window.before

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        into = None
        if saved.needs_input:
            into = saved.pool.take(saved.input.batch, self.input_size)
            self._spread(pixels(delta, self.out_shape), pixels(into, self.in_shape), saved)
            apply_jacobian(self.kernels, into, saved.input)
        saved.pool.give(delta)
        return into

    @abstractmethod
    def _spread(self, delta: Delta, into: Delta, saved: Saved) -> None:
        """Distributes the deltas of the windows over their pixels."""

    def settings(self) -> dict[str, Any]:
        return self.window.settings()

    def get_layer_info(self) -> str:
        c, o = self.in_channels, self.out_channels
        return f"{self.name}({c},{o},{self.out_width},{self.out_height},{self.window.kernel_size})"


class AvgPool2d(_Pool2d):
    """Mean over k x k windows: m = sum m_a / k^2, s = sum s_a / k^4, for independent units; padding counts as zeros.

    Backward: dm_a = J sum dm / k^2, ds_a = J^2 sum ds / k^4.

    Args:
        kernel_size: k.
        stride: window step; -1 means k.
        padding, padding_type: as in `Conv2d`; padding needs type 1, 2 or 3.

    Raises:
        ValueError: invalid sizes, a padding that is not smaller than k, an input that is not an image, or windows that
            do not fill it. TypeError: sizes that are not integers.
    """

    def __init__(self, kernel_size: int, stride: int = -1, padding: int = 0, padding_type: int = 0):
        super().__init__(kernel_size, stride, padding, padding_type)

    def forward(self, state: State, saved: Saved) -> State:
        out = saved.output(state.batch)
        saved.input = state
        x = pixels(saved.with_variance(state), self.in_shape)
        self.kernels.pooling.average_forward(x, pixels(out, self.out_shape), *self._geometry)
        return out

    def _spread(self, delta: Delta, into: Delta, saved: Saved) -> None:
        self.kernels.pooling.average_backward(delta, into, *self._geometry)


class MaxPool2d(_Pool2d):
    """Selects the unit with the largest mean in each k x k window: its mean and variance are the output.

    Backward: the deltas of a window go to that unit, times J and J^2.

    Args:
        kernel_size: k.
        stride: window step, 1 by default as in pytagi; -1 means k.
        padding, padding_type: as in `Conv2d`; padding is never selected.

    Raises:
        ValueError: invalid sizes, a padding that is not smaller than k, an input that is not an image, or windows that
            do not fill it. TypeError: sizes that are not integers.
    """

    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0, padding_type: int = 0):
        super().__init__(kernel_size, stride, padding, padding_type)

    def forward(self, state: State, saved: Saved) -> State:
        out = saved.output(state.batch)
        saved.input = state
        saved.winner = pixels(saved.buffer("winner", state.batch, self.output_size, np.int32), self.out_shape)
        x = pixels(saved.with_variance(state), self.in_shape)
        self.kernels.pooling.max_forward(x, pixels(out, self.out_shape), saved.winner, *self._geometry)
        return out

    def _spread(self, delta: Delta, into: Delta, saved: Saved) -> None:
        self.kernels.pooling.max_backward(delta, saved.winner, into, *self._geometry)

"""Two-dimensional convolution."""

from typing import Any

from pytagi_ddp.nn.init import check_gains, fan_scale, gaussian_prior
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.parameters import Parameters
from pytagi_ddp.nn.pytagi_view import WindowView
from pytagi_ddp.nn.state import Delta, DeltaPool, Shape, State
from pytagi_ddp.nn.window import Window, as_image, pixels


class Conv2d(WindowView, BaseLayer):
    """Cross-correlation of images with Gaussian weights: the algebra of `Linear`, with weights shared by position.

    Output (o, y, x) sums over input pixels (c, y s + r - p, x s + q - p); taps outside the image contribute nothing.

    Args:
        in_channels, out_channels, kernel_size: the weights are (out_channels, in_channels, k, k).
        bias: with one bias per output channel or without.
        stride, padding: window step and zeros around the image.
        padding_type: 1 pads all four sides, 2 only the right and the bottom.
        in_width, in_height: image size; needed where the layer before (if any) does not give an image.
        gain_weight, gain_bias: factors on the prior standard deviations (not on the prior means).
        init_method: "He" or "Xavier", with fan k^2 channels.

    The prior is drawn when the layer becomes part of a `Sequential`.

    Raises:
        ValueError: sizes that make no window, an input with other channels, or windows that do not fill the image.

    On the CPU, 3 x 3 kernels with stride 1 and padding 1 are computed in the Winograd form, where it pays: rounding
    errors are near 1e-6 of the largest term, not of each result, and a variance that rounds to less than 0 becomes 0.

    Source: Goulet & Nguyen (2021), "Analytically tractable inference in deep neural networks", arXiv:2103.05461.
    """

    name = "Conv2d"
    parameters: Parameters

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        bias: bool = True,
        stride: int = 1,
        padding: int = 0,
        padding_type: int = 1,
        in_width: int = 0,
        in_height: int = 0,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
    ):
        super().__init__()
        if in_channels < 1 or out_channels < 1:
            raise ValueError(f"Conv2d needs channels of at least 1, got ({in_channels}, {out_channels})")
        self.bias = bias
        self._channels = (in_channels, out_channels)
        self._side = (in_width, in_height)
        self.window = Window("Conv2d", kernel_size, stride, padding, padding_type).check()
        check_gains(gain_weight, gain_bias)  # now, not when the prior is drawn
        fan_scale(in_channels, out_channels, init_method)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method

    def default_input_shape(self) -> Shape | None:
        width, height = self._side
        if not (width and height):
            raise ValueError("Conv2d as first layer needs in_width and in_height")
        return Shape.of_image(self._channels[0], height, width, channels_last=False)

    def input_shape(self, shape: Shape) -> Shape:
        return as_image("Conv2d", shape, self._channels[0], *self._side).ordered(channels_last=True)

    def _infer_output(self, shape: Shape) -> Shape:
        return self.window.slide(shape, self._channels[1])

    @property
    def num_weights(self) -> int:
        """Known before the prior is drawn, once the layer is part of a network."""
        c, o = self._channels
        return o * c * self.window.kernel_size**2 if self.in_shape.size or self.parameters else 0

    @property
    def num_biases(self) -> int:
        return self._channels[1] if self.bias and self.num_weights else 0

    def init_weight_bias(self) -> None:
        """Draws the prior anew."""
        k = self.window.kernel_size
        c, o = self._channels
        prior = gaussian_prior(
            o * c * k * k,
            o if self.bias else 0,
            k * k * c,
            k * k * o,
            self.gain_weight,
            self.gain_bias,
            self.init_method,
        )
        self._set_prior(prior, (o, c, k, k))

    def draw_prior(self) -> None:
        if self.parameters is None:
            self.init_weight_bias()

    def forward(self, state: State) -> State:
        out = self._output(state.batch)
        self._input = state
        self.kernels.conv2d.forward(
            pixels(state, self.in_shape),
            self.parameters.w,
            self.parameters.b,
            pixels(out, self.out_shape),
            self.window.stride,
            self.window.before,
        )
        return out

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        into = pool.take(self._input.batch, self.input_size) if need_input else None
        self.kernels.conv2d.backward(
            pixels(self._input, self.in_shape),
            pixels(delta, self.out_shape),
            self.parameters.w,
            self.parameters.b,
            into and pixels(into, self.in_shape),
            self.window.stride,
            self.window.before,
            accumulate,
        )
        pool.give(delta)
        return into

    def settings(self) -> dict[str, Any]:
        """Of the image, the size that it has in the network, wherever that is stated."""
        in_width, in_height = (self.in_width, self.in_height) if self.in_shape.size else self._side
        return {
            "in_channels": self._channels[0],
            "out_channels": self._channels[1],
            **self.window.settings(),
            "bias": self.bias,
            "in_width": in_width,
            "in_height": in_height,
        }

    def get_layer_info(self) -> str:
        c, o = self._channels
        return f"Conv2d({c},{o},{self.out_width},{self.out_height},{self.window.kernel_size})"

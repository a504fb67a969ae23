"""The base of `Conv2d` and `ConvTranspose2d`: arguments, prior and kernel calls."""

from abc import abstractmethod
from typing import Any

from pytagi_ddp.kernels.protocol import Convolution as ConvolutionKernels
from pytagi_ddp.kernels.tensors import PartialMoments
from pytagi_ddp.nn.core.init import check_gains, fan_scale, gaussian_prior
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.pytagi_view import WindowView
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Delta, Shape, State
from pytagi_ddp.nn.core.window import Window, as_image, pixels
from pytagi_ddp.validate import as_bools, as_integers


class Convolution(WindowView, BaseLayer):
    """Base of convolutions. The arguments are those of `Conv2d`."""

    parameters: Parameters
    replayable = True
    needs_variances = False
    spares_deltas = True
    bias = Fixed()

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
        in_channels, out_channels = as_integers(self.name, 1, in_channels=in_channels, out_channels=out_channels)
        in_width, in_height = as_integers(self.name, in_width=in_width, in_height=in_height)
        self.bias = as_bools(self.name, bias=bias)[0]
        self._channels = (in_channels, out_channels)
        self._side = (in_width, in_height)
        self.in_shape = Shape(0, (in_channels, in_height, in_width))  # as far as known before the network is built
        self.out_shape = Shape(0, (out_channels, 0, 0))
        self.window = Window(self.name, kernel_size, stride, padding, padding_type).check()
        check_gains(gain_weight, gain_bias)  # now, not when the prior is drawn
        fan_scale(in_channels, out_channels, init_method)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method

    @property
    def gives_moments(self) -> bool:
        """Whether the kernels have the option `moments`, for partial moments of the output."""
        return self._kernels.gives_moments

    @property
    def adds(self) -> bool:
        """Whether the kernels have the option `added`, which adds to the deltas of the input."""
        return self._kernels.adds

    @property
    @abstractmethod
    def _kernels(self) -> ConvolutionKernels:
        """The kernels of this kind of convolution."""

    @property
    @abstractmethod
    def _weight_channels(self) -> tuple[int, int]:
        """Both numbers of channels, in the order of the shape of the weights."""

    def default_input_shape(self) -> Shape | None:
        width, height = self._side
        if not (width and height):
            raise ValueError(f"{self.name} as first layer needs in_width and in_height, the size of the image")
        return Shape.of_image(self._channels[0], height, width, channels_last=False)

    def input_shape(self, shape: Shape) -> Shape:
        return as_image(self.name, shape, self._channels[0], *self._side).ordered(channels_last=True)

    @property
    def num_weights(self) -> int:
        """Known before the prior is drawn, once the layer is part of a network."""
        c, o = self._channels
        return o * c * self.window.kernel_size**2 if self.in_shape.size or self.parameters else 0

    @property
    def num_biases(self) -> int:
        return self._channels[1] if self.bias and self.num_weights else 0

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior."""
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
        self._set_prior(prior, (*self._weight_channels, k, k))

    def forward(self, state: State, saved: Saved) -> State:
        return self.convolve(state, saved)[0]

    def convolve(self, state: State, saved: Saved, **options: Any) -> tuple[State, PartialMoments | None]:
        """`forward` with options of the kernel; also returns the result of the kernel."""
        out = saved.output(state.batch)
        saved.input = state
        made = self._kernels.forward(
            pixels(state, self.in_shape),
            self.parameters.w,
            self.parameters.b,
            pixels(out, self.out_shape),
            self.window.stride,
            self.window.before,
            **options,
        )
        return out, made

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        into = saved.pool.take(saved.input.batch, self.input_size) if saved.needs_input else None
        self.convolve_back(delta, saved, into)
        return into

    def convolve_back(self, delta: Delta, saved: Saved, into: Delta | None, **options: bool) -> None:
        """`backward` with options of the kernel, and the deltas of the input in `into`."""
        self._kernels.backward(
            pixels(saved.input, self.in_shape),
            pixels(delta, self.out_shape),
            self.parameters.w,
            self.parameters.b,
            into and pixels(into, self.in_shape),
            self.window.stride,
            self.window.before,
            saved.accumulate,
            **options,
        )
        saved.pool.give(delta)

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, with the size of the image in the network."""
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            **self.window.settings(),
            "bias": self.bias,
            "in_width": self.in_width,
            "in_height": self.in_height,
        }

    def get_layer_info(self) -> str:
        c, o = self._channels
        return f"{self.name}({c},{o},{self.out_width},{self.out_height},{self.window.kernel_size})"

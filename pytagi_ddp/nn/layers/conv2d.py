"""Two-dimensional convolution."""

from pytagi_ddp.kernels.protocol import Convolution as ConvolutionKernels
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.convolution import Convolution


class Conv2d(Convolution):
    """Cross-correlation of images with Gaussian weights: the formulas of `Linear`, with the same weights at each pixel.

    Output (o, y, x) sums over input pixels (c, y s + r - p, x s + q - p), except those outside the image.

    Args:
        in_channels, out_channels, kernel_size: the weights are (out_channels, in_channels, k, k).
        bias: with one bias per output channel or without.
        stride, padding: window step and zeros around the image.
        padding_type: 1 pads all four sides, 2 only the right and the bottom; windows must fill the image exactly. 3
            pads as 1 does, and ignores pixels after the last window, as PyTorch does.
        in_width, in_height: image size; needed if this is the first layer, or if the previous one has flat outputs.
        gain_weight, gain_bias: factors on the prior standard deviations (not on the prior means).
        init_method: "He" or "Xavier", with fan k^2 channels.

    The prior is drawn when the layer becomes part of a `Sequential`.

    Raises:
        ValueError: invalid sizes, gains or `init_method`, an input with other channels, or windows that do not fill the
            image. TypeError: sizes that are not integers.

    On the CPU, kernels of 3 x 3 and 5 x 5 with stride 1, and of 3 x 3 and 4 x 4 with stride 2, use Winograd algorithms
    if that is faster, for numbers of channels that are multiples of 16. Their rounding errors are 1e-6 to 3e-6 of the
    largest result. A variance that rounds to less than 0 becomes 0.

    Source: Goulet & Nguyen (2021), "Analytically tractable inference in deep neural networks", arXiv:2103.05461.
    """

    @property
    def _kernels(self) -> ConvolutionKernels:
        return self.kernels.conv2d

    @property
    def _weight_channels(self) -> tuple[int, int]:
        inputs, outputs = self._channels
        return outputs, inputs

    def infer_output(self, shape: Shape) -> Shape:
        return self.window.slide(shape, self._channels[1])

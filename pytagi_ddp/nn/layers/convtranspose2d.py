"""Transposed two-dimensional convolution."""

from pytagi_ddp.kernels.protocol import Convolution as ConvolutionKernels
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.convolution import Convolution


class ConvTranspose2d(Convolution):
    """The adjoint of a convolution, which enlarges images: input pixel (y, x) adds to a window of output pixels.

        z[o, y s + r - p, x s + q - p] += W[c, o, r, q] a[c, y, x]

    Moments and deltas are those of `Conv2d` with forward and backward swapped. Output pixels outside all windows have
    the bias only. A side of n pixels becomes s (n - 1) + k - 2p, or s (n - 1) + k - p with padding_type 2.

    Args:
        in_channels, out_channels, kernel_size: the weights are (in_channels, out_channels, k, k).
        bias: with one bias per output channel or without.
        stride: output pixels from one window to the next.
        padding: rows and columns of pixels that are cut off.
        padding_type: 1 (and 3) cuts at all four sides, 2 only at the right and the bottom.
        in_width, in_height: image size; needed if this is the first layer, or if the previous one has flat outputs.
        gain_weight, gain_bias: factors on the prior standard deviations (not on the prior means).
        init_method: "He" or "Xavier", with fan k^2 channels.

    The prior is drawn when the layer becomes part of a `Sequential`. The Winograd algorithms of `Conv2d` are used, too.

    Raises:
        ValueError: invalid sizes, gains or `init_method`, an input with other channels, or a padding that leaves no
            pixel. TypeError: sizes that are not integers.

    Source: as `Conv2d`; the order of the weights is PyTorch's and cuTAGI's.
    """

    @property
    def _kernels(self) -> ConvolutionKernels:
        return self.kernels.convtranspose2d

    @property
    def _weight_channels(self) -> tuple[int, int]:
        return self._channels

    def infer_output(self, shape: Shape) -> Shape:
        height, width = map(self.window.spread, (shape.height, shape.width))
        return Shape.of_image(self._channels[1], height, width, channels_last=True)

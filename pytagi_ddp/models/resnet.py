"""Bayesian residual networks for CIFAR-10 (3 x 32 x 32 images, 10 classes)."""

from pytagi_ddp.nn import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    LayerBlock,
    Linear,
    MixtureReLU,
    Remax,
    ResNetBlock,
    Sequential,
)
from pytagi_ddp.nn.layer import BaseLayer


def resnet18_cifar10(
    gain_w: float = 1.0, gain_b: float = 1.0, is_remax: bool = False, *, checkpoint_blocks: bool = False
) -> Sequential:
    """ResNet18 for CIFAR-10, as in cuTAGI's examples: 11,690,571 parameter means with the hierarchical head.

    Stem Conv(3 -> 64, k3)-MixtureReLU-BatchNorm; residual blocks of width 64, 64 | 128, 128 | 256, 256 | 512, 512,
    the first of each further width with stride 2; AvgPool(4); Linear(512, 11).

    Args:
        gain_w, gain_b: factors on the prior standard deviations of weights and biases.
        is_remax: end in Linear(512, 10) and Remax (one-hot observations) instead of 11 hierarchical outputs.
        checkpoint_blocks: less memory for more time, see `Sequential`.

    Source: He et al. (2016), "Deep residual learning for image recognition"; cuTAGI.
    """
    return _resnet((64, 128, 256, 512), 2, gain_w, gain_b, is_remax, checkpoint_blocks)


def resnet8_cifar10(
    gain_w: float = 1.0, gain_b: float = 1.0, is_remax: bool = False, *, checkpoint_blocks: bool = False
) -> Sequential:
    """The small sibling: one block each of width 16, 32 and 64, then AvgPool(8); for tests and quick trials."""
    return _resnet((16, 32, 64), 1, gain_w, gain_b, is_remax, checkpoint_blocks)


def _resnet(
    widths: tuple[int, ...], depth: int, gain_w: float, gain_b: float, is_remax: bool, checkpoint_blocks: bool
) -> Sequential:
    gains = {"gain_weight": gain_w, "gain_bias": gain_b}
    layers: list[BaseLayer] = _unit(3, widths[0], gains, kernel_size=3, padding=1, in_width=32, in_height=32)
    channels = widths[0]
    for width in widths:
        for _ in range(depth):
            layers.append(_block(channels, width, gains))
            channels = width
    layers.append(AvgPool2d(32 // 2 ** (len(widths) - 1)))
    layers += [Linear(channels, 10, **gains), Remax()] if is_remax else [Linear(channels, 11, **gains)]
    return Sequential(*layers, checkpoint_blocks=checkpoint_blocks)


def _unit(c_in: int, c_out: int, gains: dict, **conv) -> list[BaseLayer]:
    """Convolution, activation, normalisation."""
    return [Conv2d(c_in, c_out, bias=False, **conv, **gains), MixtureReLU(), BatchNorm2d(c_out)]


def _block(c_in: int, c_out: int, gains: dict) -> ResNetBlock:
    """Two units beside the identity, or (where the width grows) beside a strided unit."""
    if c_in == c_out:
        first, shortcut = _unit(c_in, c_out, gains, kernel_size=3, padding=1), None
    else:
        first = _unit(c_in, c_out, gains, kernel_size=3, stride=2, padding=1, padding_type=2)
        shortcut = LayerBlock(*_unit(c_in, c_out, gains, kernel_size=2, stride=2))
    return ResNetBlock(LayerBlock(*first, *_unit(c_out, c_out, gains, kernel_size=3, padding=1)), shortcut)

"""Bayesian residual networks for CIFAR-10 (3 x 32 x 32 images, 10 classes)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pytagi_ddp import nn

RESNET18 = (64, 64, 128, 128, 256, 256, 512, 512)  # channels of each block
RESNET8 = (16, 32, 64)


def resnet18_cifar10(
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    is_remax: bool = False,
    *,
    checkpoint_blocks: bool = False,
    through_statistics: bool = False,
    outputs: int | None = None,
) -> nn.Sequential:
    """ResNet18 for CIFAR-10, as in cuTAGI's examples: 11,690,571 parameter means with the hierarchical head.

    Stem Conv(3 -> 64, k3)-MixtureReLU-BatchNorm; residual blocks of width 64, 64 | 128, 128 | 256, 256 | 512, 512,
    the first of each further width with stride 2; AvgPool(4); Linear(512, 11).

    Args:
        gain_w, gain_b: factors on the prior standard deviations of weights and biases.
        is_remax: end in Linear(512, 10) and Remax (one-hot observations) instead of 11 hierarchical outputs.
        checkpoint_blocks: saves memory at the cost of time, see `Sequential`.
        through_statistics: argument of every `BatchNorm2d`.
        outputs: units of the last dense layer: 10 for a `Categorical` likelihood; None: as said above.

    Source: He et al. (2016), "Deep residual learning for image recognition"; cuTAGI.
    """
    layers = resnet_layers(nn, RESNET18, gain_w, gain_b, is_remax, through_statistics, outputs)
    return nn.Sequential(*layers, checkpoint_blocks=checkpoint_blocks)


def resnet8_cifar10(
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    is_remax: bool = False,
    *,
    checkpoint_blocks: bool = False,
    through_statistics: bool = False,
    outputs: int | None = None,
) -> nn.Sequential:
    """A small variant with one block each of width 16, 32 and 64, then AvgPool(8); for tests and quick trials."""
    layers = resnet_layers(nn, RESNET8, gain_w, gain_b, is_remax, through_statistics, outputs)
    return nn.Sequential(*layers, checkpoint_blocks=checkpoint_blocks)


def resnet_layers(
    library: Any,
    widths: tuple[int, ...],
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    is_remax: bool = False,
    through_statistics: bool = False,
    outputs: int | None = None,
) -> list:
    """The layers of a residual network, in order.

    Args:
        library: module of the layers: `pytagi_ddp.nn`, or another with layers of the same names and arguments.
        widths: channels of each block; one with more than the block before has stride 2.
        gain_w, gain_b, is_remax, through_statistics, outputs: as for `resnet18_cifar10`; `through_statistics` is for
            `pytagi_ddp.nn` only.
    """
    gains = {"gain_weight": gain_w, "gain_bias": gain_b}
    norms = {"through_statistics": True} if through_statistics else {}

    def unit(c_in: int, c_out: int, kernel_size: int, **conv: int) -> list:
        """Convolution, activation, normalisation."""
        convolution = library.Conv2d(c_in, c_out, kernel_size, bias=False, **conv, **gains)
        return [convolution, library.MixtureReLU(), library.BatchNorm2d(c_out, **norms)]

    def block(c_in: int, c_out: int) -> Any:
        """Residual block of two units, whose shortcut is the identity or, where the width grows, a strided unit."""
        second = unit(c_out, c_out, 3, padding=1)
        if c_in == c_out:
            return library.ResNetBlock(library.LayerBlock(*unit(c_in, c_out, 3, padding=1), *second))
        first = unit(c_in, c_out, 3, stride=2, padding=1, padding_type=2)
        shortcut = library.LayerBlock(*unit(c_in, c_out, 2, stride=2))
        return library.ResNetBlock(library.LayerBlock(*first, *second), shortcut)

    layers = unit(3, widths[0], 3, padding=1, in_width=32, in_height=32)
    layers += [block(c_in, c_out) for c_in, c_out in pairwise((widths[0], *widths))]
    layers.append(library.AvgPool2d(32 // 2 ** (len(set(widths)) - 1)))
    if outputs is None:
        outputs = 10 if is_remax else 11
    return [*layers, library.Linear(widths[-1], outputs, **gains), *([library.Remax()] if is_remax else [])]

"""Residual networks for ImageNet (3 x 224 x 224 images, 1000 classes), in torchvision's layout.

Layers and their order are those of torchvision, so that its trained weights fit (`nn.load_torch_state_dict`).
"""

from __future__ import annotations

from functools import partial

from pytagi_ddp import nn


def resnet18_imagenet(
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    outputs: int = 1000,
    image_size: int = 224,
    activation: type[nn.BaseLayer] = nn.MixtureReLU,
    *,
    is_remax: bool = False,
    checkpoint_blocks: bool = False,
    through_statistics: bool = False,
) -> nn.Sequential:
    """ResNet18: 11,689,512 parameter means with 1000 outputs.

    Args:
        gain_w, gain_b: factors on the prior standard deviations of weights and biases.
        outputs: units of the last layer; for a hierarchical softmax, its `len`.
        image_size: side of the images.
        activation: class of the activations; `nn.ReLU` passes on no variance of units that are off.
        is_remax: whether to add a Remax layer at the end, for one-hot observations.
        checkpoint_blocks: saves memory at the cost of time, see `Sequential`.
        through_statistics: argument of every `BatchNorm2d`.

    Source: He et al. (2016), "Deep residual learning for image recognition".
    """
    last = nn.Remax() if is_remax else None
    options = last, checkpoint_blocks, through_statistics
    return _resnet((2, 2, 2, 2), 64, False, outputs, image_size, activation, gain_w, gain_b, *options)


def resnet50_imagenet(
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    outputs: int = 1000,
    image_size: int = 224,
    activation: type[nn.BaseLayer] = nn.MixtureReLU,
    *,
    is_remax: bool = False,
    checkpoint_blocks: bool = False,
    through_statistics: bool = False,
) -> nn.Sequential:
    """ResNet50, with strides in the 3 x 3 convolutions: 25,557,032 parameter means. Arguments: `resnet18_imagenet`."""
    last = nn.Remax() if is_remax else None
    options = last, checkpoint_blocks, through_statistics
    return _resnet((3, 4, 6, 3), 64, True, outputs, image_size, activation, gain_w, gain_b, *options)


def _resnet(
    blocks: tuple[int, ...],
    width: int,
    bottleneck: bool,
    outputs: int,
    image_size: int,
    activation: type[nn.BaseLayer],
    gain_w: float = 1.0,
    gain_b: float = 1.0,
    last: nn.BaseLayer | None = None,
    checkpoint_blocks: bool = False,
    through_statistics: bool = False,
) -> nn.Sequential:
    """Stem, stages of `blocks` blocks each (stages after the first begin with stride 2), mean over pixels, Linear."""

    norm = partial(nn.BatchNorm2d, through_statistics=through_statistics)

    def conv(c_in: int, c_out: int, kernel_size: int, stride: int = 1, side: int = 0) -> list[nn.BaseLayer]:
        rest = 3 if stride > 1 else 1
        window = c_in, c_out, kernel_size, False, stride, kernel_size // 2, rest
        return [nn.Conv2d(*window, side, side, gain_w, gain_b), norm(c_out)]

    def block(c_in: int, c: int, stride: int) -> list[nn.BaseLayer]:
        c_out = 4 * c if bottleneck else c
        if bottleneck:
            main = [*conv(c_in, c, 1), activation(), *conv(c, c, 3, stride), activation(), *conv(c, c_out, 1)]
        else:
            main = [*conv(c_in, c, 3, stride), activation(), *conv(c, c, 3)]
        short = nn.LayerBlock(*conv(c_in, c_out, 1, stride)) if stride > 1 or c_in != c_out else None
        return [nn.ResNetBlock(nn.LayerBlock(*main), short), activation()]

    layers = [*conv(3, width, 7, 2, image_size), activation()]
    layers.append(nn.MaxPool2d(3, 2, 1, 3))
    channels = width
    for stage, count in enumerate(blocks):
        for k in range(count):
            layers += block(channels, width * 2**stage, 2 if stage and not k else 1)
            channels = width * 2**stage * (4 if bottleneck else 1)
    side = -(-image_size // 32)
    layers += [nn.AvgPool2d(side), nn.Linear(channels, outputs, True, gain_w, gain_b)]
    return nn.Sequential(*layers, *([last] if last else []), checkpoint_blocks=checkpoint_blocks)

"""The networks that are measured, written once for every library that has these layers.

A builder takes a namespace `nn` with pytagi's names and arguments: `pytagi_ddp.nn`, `pytagi.nn`, or one of
`benchmarks.peers` that makes PyTorch modules of them. Importing this module imports none of the libraries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np


def mlp(nn: Any, *sizes: int) -> Any:
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


Head = Callable[[int], list[Any]]  # called with the number of units before it; its layers


def tree_head(nn: Any) -> Head:
    """A tree of ten classes."""
    return lambda inputs: [nn.Linear(inputs, 11)]


def mnist_cnn(nn: Any, head: Head | None = None, pool: str = "AvgPool2d") -> Any:
    """None: `tree_head`."""
    pool2d = getattr(nn, pool)
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, bias=False, padding=1, in_width=28, in_height=28),
        nn.MixtureReLU(),
        nn.BatchNorm2d(16),
        pool2d(3, 2),
        nn.Conv2d(16, 32, 5, bias=False),
        nn.MixtureReLU(),
        nn.BatchNorm2d(32),
        pool2d(3, 2),
        nn.Linear(32 * 4 * 4, 100),
        nn.MixtureReLU(),
        *(head or tree_head(nn))(100),
    )


def cifar_cnn(
    nn: Any, head: Head | None = None, kernel: int = 3, widths: tuple[int, ...] = (16, 32, 32), units: int = 64
) -> Any:
    """Three convolutions with batch normalisation, then two dense layers; as `mnist_cnn`."""
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise((3, *widths)):
        size = {} if layers else {"in_width": 32, "in_height": 32}
        convolution = nn.Conv2d(inputs, outputs, kernel, bias=False, padding=kernel // 2, **size)
        layers += [convolution, nn.MixtureReLU(), nn.BatchNorm2d(outputs), nn.AvgPool2d(2, 2)]
    dense = nn.Linear(widths[-1] * 4 * 4, units), nn.MixtureReLU()
    return nn.Sequential(*layers, *dense, *(head or tree_head(nn))(units))


def let_deltas_through(net: Any) -> None:
    """Sets `through_statistics` of every BatchNorm2d of a network of this library."""
    for _, leaf in net.named_leaves():
        if hasattr(leaf, "through_statistics"):
            leaf.through_statistics = True


def conv(nn: Any, channels: int, pixels: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, bias=False, padding=1, in_width=pixels, in_height=pixels),
    )


def deconv(nn: Any, channels: int, pixels: int) -> Any:
    """Doubles the sides of images, as a decoder does."""
    return nn.Sequential(
        nn.ConvTranspose2d(channels, channels, 4, bias=False, stride=2, padding=1, in_width=pixels, in_height=pixels),
    )


def attention(nn: Any, features: int, heads: int, steps: int) -> Any:
    """Causal, with an output map, and without rotary positions, which not every library has."""
    return nn.Sequential(nn.MultiheadAttention(features, heads, seq_len=steps, use_rope=False))


def lstm(nn: Any, units: int, steps: int) -> Any:
    """Two layers, and a dense one over what the second gives at all time steps."""
    layers = nn.LSTM(1, units, steps), nn.LSTM(units, units, steps), nn.Linear(units * steps, 1)
    return nn.Sequential(*layers)


def resnet(nn: Any, which: str) -> Any:
    """A network of `pytagi_ddp.models`, by the name of its widths there."""
    from pytagi_ddp.models import resnet as models  # here, because other workloads of a peer do without this library

    return nn.Sequential(*models.resnet_layers(nn, getattr(models, which), 0.1, 0.1))


@dataclass(frozen=True)
class Spec:
    """A network and its batch.

    Attributes:
        build: called with the namespace of a library. batch: samples of a step.
        in_shape: (units,), (channels, height, width) or (time steps, features). outputs: units of one sample.
        inside: a layer as it is inside a network: variances come in, and deltas of the input are asked for.
        predict: a prediction is measured instead of a training step.
    """

    build: Callable[[Any], Any]
    batch: int
    in_shape: tuple[int, ...]
    outputs: int
    inside: bool = False
    predict: bool = False

    def data(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """(x, variances of x or None, y): random numbers, each (batch, units) float32."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch, math.prod(self.in_shape)), np.float32)
        y = rng.standard_normal((self.batch, self.outputs), np.float32)
        return x, np.full_like(x, 0.1) if self.inside else None, y


IMAGE = (3, 32, 32)
RESNET18 = partial(resnet, which="RESNET18")
SPECS = {
    "mlp-128-b32": Spec(lambda nn: mlp(nn, 784, 128, 128, 11), 32, (784,), 11),
    "mlp-128-b512": Spec(lambda nn: mlp(nn, 784, 128, 128, 11), 512, (784,), 11),
    "mlp-4096-b256": Spec(lambda nn: mlp(nn, 784, 4096, 4096, 10), 256, (784,), 10),
    "mnist-cnn-b128": Spec(mnist_cnn, 128, (1, 28, 28), 11),
    "lstm-40-t24-b16": Spec(lambda nn: lstm(nn, 40, 24), 16, (24,), 1),
    "conv64-b32": Spec(lambda nn: conv(nn, 64, 32), 32, (64, 32, 32), 64 * 32 * 32, inside=True),
    "deconv64-b32": Spec(lambda nn: deconv(nn, 64, 16), 32, (64, 16, 16), 64 * 32 * 32, inside=True),
    "attention-b16": Spec(lambda nn: attention(nn, 256, 8, 128), 16, (128, 256), 128 * 256, inside=True),
    "resnet18-b16": Spec(RESNET18, 16, IMAGE, 11),
    "resnet18-b128": Spec(RESNET18, 128, IMAGE, 11),
}
# Left out unless they are named: networks of the section "latency", some that are small enough for tests, one that
# differs from one above by its pooling, and one with larger kernels.
SMALL = {
    # With the kernels and widths of pytagi's example for CIFAR-10.
    "cifar-5x5-b128": Spec(partial(cifar_cnn, kernel=5, widths=(32, 32, 64), units=256), 128, IMAGE, 11),
    "mnist-cnn-max-b128": Spec(partial(mnist_cnn, pool="MaxPool2d"), 128, (1, 28, 28), 11),
    "1-50-1-b1": Spec(lambda nn: mlp(nn, 1, 50, 1), 1, (1,), 1),
    "1-50-1-b16": Spec(lambda nn: mlp(nn, 1, 50, 1), 16, (1,), 1),
    "8-64-64-1-b1": Spec(lambda nn: mlp(nn, 8, 64, 64, 1), 1, (8,), 1),
    "8-64-64-1-b16": Spec(lambda nn: mlp(nn, 8, 64, 64, 1), 16, (8,), 1),
    "lstm-40-t1-b1": Spec(lambda nn: lstm(nn, 40, 1), 1, (1,), 1),
    "lstm-4-t3-b2": Spec(lambda nn: lstm(nn, 4, 3), 2, (3,), 1),
    "1-50-1-predict": Spec(lambda nn: mlp(nn, 1, 50, 1), 1, (1,), 1, predict=True),
    "mlp-16-b8": Spec(lambda nn: mlp(nn, 12, 16, 16, 3), 8, (12,), 3),
    "conv4-b4": Spec(lambda nn: conv(nn, 4, 8), 4, (4, 8, 8), 4 * 8 * 8, inside=True),
    "deconv4-b4": Spec(lambda nn: deconv(nn, 4, 4), 4, (4, 4, 4), 4 * 8 * 8, inside=True),
    "attention-b2": Spec(lambda nn: attention(nn, 8, 2, 4), 2, (4, 8), 4 * 8, inside=True),
    "resnet8-b2": Spec(partial(resnet, which="RESNET8"), 2, IMAGE, 11),
}
KNOWN = SPECS | SMALL


def find(name: str) -> Spec:
    """The workload of this name; the number after its last "-b" is the batch.

    Raises:
        ValueError: there is none.
    """
    if name in KNOWN:
        return KNOWN[name]
    base, _, batch = name.rpartition("-b")
    for other, spec in KNOWN.items():
        if other.rpartition("-b")[0] == base and batch.isdecimal() and int(batch):
            return replace(spec, batch=int(batch))
    raise ValueError(f"no workload {name!r}: {', '.join(KNOWN)}, with any number after -b")

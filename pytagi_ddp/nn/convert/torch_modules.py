"""Networks made from PyTorch modules, which give the layers and the means; the variances come from a prior.

PyTorch itself is not needed: modules are recognised by the names of their classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.nn.convert.torch_state import load_torch_state_dict
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.activation import ELU, LeakyReLU, ReLU, Sigmoid, Softmax, Softplus, Tanh
from pytagi_ddp.nn.layers.batch_norm import BatchNorm2d
from pytagi_ddp.nn.layers.conv2d import Conv2d
from pytagi_ddp.nn.layers.convtranspose2d import ConvTranspose2d
from pytagi_ddp.nn.layers.embedding import Embedding
from pytagi_ddp.nn.layers.layer_block import LayerBlock
from pytagi_ddp.nn.layers.layer_norm import LayerNorm
from pytagi_ddp.nn.layers.linear import Linear
from pytagi_ddp.nn.layers.pooling import AvgPool2d, MaxPool2d
from pytagi_ddp.nn.layers.resnet_block import ResNetBlock
from pytagi_ddp.nn.layers.rmsnorm import RMSNorm
from pytagi_ddp.nn.sequential import Sequential

Make = Callable[[Any], BaseLayer | Sequence[BaseLayer]]
PLAIN: dict[str, Callable[[Any], BaseLayer]] = {  # modules that always have a counterpart
    "ELU": lambda module: ELU(module.alpha),
    "LeakyReLU": lambda module: LeakyReLU(module.negative_slope),
    "Linear": lambda module: Linear(module.in_features, module.out_features, bias=module.bias is not None),
    "ReLU": lambda module: ReLU(),
    "Sigmoid": lambda module: Sigmoid(),
    "Tanh": lambda module: Tanh(),
}
LEFT_OUT = ("Identity", "Dropout", "Dropout2d", "Flatten")  # images are flattened where a dense layer needs it
RESNET = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "fc")
BLOCKS = {
    "BasicBlock": ("conv1", "bn1", "relu", "conv2", "bn2"),
    "Bottleneck": ("conv1", "bn1", "relu", "conv2", "bn2", "relu", "conv3", "bn3"),
}


def from_torch(
    module: Any,
    input_shape: Sequence[int] | None = None,
    variance: float | str = "prior",
    layers: Mapping[str, Make] | None = None,
) -> Sequential:
    """A network with the layers of a PyTorch module, and its parameters as means.

    With variances of 0, the means of a forward pass in evaluation mode are the outputs of the module.

    Args:
        module: a `Sequential` (others inside are taken apart), a ResNet of torchvision's layout, or one layer. It may
            have `Linear`, `Conv2d` and `ConvTranspose2d` (square windows, without groups and dilation), `BatchNorm2d`,
            `BatchNorm1d`, `LayerNorm`, `RMSNorm`, `Embedding` (first), `AvgPool2d`, `MaxPool2d`, `AdaptiveAvgPool2d`
            to one pixel, `ReLU`, `LeakyReLU`, `ELU`, `Sigmoid`, `Tanh`, `Softplus`, `Softmax`, `Flatten` and
            `Unflatten` of a sample; `Dropout` and `Identity` are left out. A `Softmax` is over all units of a sample,
            or of a time step.
        input_shape: of one sample: (channels, height, width) where a convolution comes first, (positions,) where an
            embedding does. Otherwise the first layer determines it.
        variance: of every weight and bias: a number, or "prior" for the variances that new layers have. Those of
            the prior are too large for learnt means; 1e-3 was best in `python -m benchmarks.quality pretrained`.
        layers: how to convert modules, by the name of their class: a function of the module that returns a layer, or a
            list of layers, which may be empty. `{"ReLU": lambda module: nn.MixtureReLU()}` propagates variances more
            accurately.

    LayerNorm divides by n - 1 here and by n in PyTorch; weights and eps are scaled so that the results are equal.

    Raises:
        TypeError: an unknown module; the message names it, and says what to do.
        ValueError: a module without a counterpart (such as a grouped convolution), or sizes that do not match.
    """
    converter = _Converter(layers or {})
    if input_shape is not None:
        converter.shape = _shape(tuple(input_shape))
    made = converter.convert(module, "")
    if not made:
        raise ValueError(f"from_torch: {type(module).__name__} has no layer")
    try:
        net = Sequential(*made)
    except ValueError as error:
        if input_shape is None:
            raise
        raise ValueError(
            f"from_torch: input_shape is given, but {type(made[0]).__name__} comes first, which cannot take it: begin "
            f"with a dense layer, a convolution or an embedding, or with activations before one of them ({error})"
        ) from None
    names = [converter.names[id(leaf)] for _, leaf in net.named_leaves() if leaf.parameters is not None]
    load_torch_state_dict(net, module.state_dict(), variance, names)
    return net


def _shape(sizes: tuple[int, ...]) -> Shape:
    if len(sizes) not in (1, 3) or min(sizes) < 1:
        raise ValueError(f"input_shape must be (channels, height, width) or (units,), got {sizes}")
    return Shape.of_image(*sizes, channels_last=False) if len(sizes) == 3 else Shape(sizes[0])


class _Converter:
    """Converts modules into layers.

    Attributes:
        names: the path of the module that became a layer, by the layer's id.
        shape: output shape of the last layer; None: not known yet.
        flat: whether a `Flatten` has turned an image or a sequence into flat units.
    """

    def __init__(self, layers: Mapping[str, Make]):
        self._layers = layers
        self.names: dict[int, str] = {}
        self.shape: Shape | None = None
        self.flat = False

    def convert(self, module: Any, path: str) -> list[BaseLayer]:
        """The layers of a module at a place such as "layer1.0"."""
        kind = type(module).__name__
        if kind not in self._layers:
            if kind == "Sequential":
                names = [name for name, _ in module.named_modules(remove_duplicate=False) if name and "." not in name]
                return self._parts(module, names, path)
            if kind == "ResNet":
                _check_layout(module, RESNET, (), path)
                return self._parts(module, RESNET, path)
            if kind in BLOCKS:
                _check_layout(module, BLOCKS[kind], ("downsample",), path)
                return self._block(module, BLOCKS[kind], path)
            if kind == "Flatten":
                self._check_flatten(module, path)
            self.flat = kind == "Flatten" or (self.flat and kind != "Unflatten")
            if kind == "Unflatten":
                self.shape = _shape(tuple(module.unflattened_size))
                return []
        made = self._layers[kind](module) if kind in self._layers else self._one(kind, module, path)
        layers = [made] if isinstance(made, BaseLayer) else made
        if not isinstance(layers, Sequence) or not all(isinstance(layer, BaseLayer) for layer in layers):
            raise TypeError(f"from_torch: {kind} at {path or 'the top'} became {made!r:.100}: not layers in a list")
        leaves = [leaf for layer in layers for leaf in layer.leaves()]
        self.names |= dict.fromkeys(map(id, leaves), path)
        for layer in layers:
            self._pass(layer)
        return list(layers)

    def _check_flatten(self, module: Any, path: str) -> None:
        """Raises ValueError if PyTorch would leave some dimensions of a sample, or join samples."""
        shape = self.shape
        image, sequence = shape is not None and shape.image, shape is not None and shape.sequence
        last = 1 if self.flat else 3 if image else 2 if sequence else 1
        if module.start_dim != 1 or module.end_dim not in (-1, last):
            raise ValueError(
                f"from_torch: Flatten({module.start_dim}, {module.end_dim}) at {path or 'the top'} makes no flat units "
                "of a sample, which has no counterpart here"
            )

    def _parts(self, module: Any, names: Sequence[str], path: str) -> list[BaseLayer]:
        prefix = f"{path}." if path else ""
        return [layer for name in names for layer in self.convert(getattr(module, name), prefix + name)]

    def _block(self, module: Any, names: Sequence[str], path: str) -> list[BaseLayer]:
        before = self.shape
        main = LayerBlock(*self._parts(module, names, path))
        after, self.shape = self.shape, before
        short = self._parts(module, ["downsample"], path) if module.downsample is not None else []
        self.shape = after
        return [ResNetBlock(main, LayerBlock(*short) if short else None), *self.convert(module.relu, path)]

    def _pass(self, layer: BaseLayer) -> None:
        """Replaces `shape` by the output shape of a layer."""
        if self.shape is None:
            self.shape = layer.default_input_shape()
        if self.shape is not None:
            self.shape = layer.build(layer.input_shape(self.shape))

    def _one(self, kind: str, module: Any, path: str) -> BaseLayer | list[BaseLayer]:
        if kind in PLAIN:
            return PLAIN[kind](module)
        if kind in LEFT_OUT:
            return []
        make = getattr(self, f"_make_{kind.lower()}", None)
        if make is None:
            raise TypeError(
                f"from_torch does not know {kind} (at {path or 'the top'}): say what to make of it, as in "
                f"layers={{'{kind}': lambda module: ...}}, or build the network and use load_torch_state_dict"
            )

        def need(fits: bool, what: str) -> None:
            if not fits:
                raise ValueError(f"from_torch: {kind} at {path or 'the top'} {what}, which has no counterpart here")

        return make(module, need)

    @property
    def _image(self) -> dict[str, int]:
        if self.shape is None:
            raise ValueError("from_torch needs input_shape=(channels, height, width) before the first convolution")
        return {"in_width": self.shape.width, "in_height": self.shape.height}

    def _make_conv2d(self, module: Any, need: Callable) -> BaseLayer:
        arguments = self._convolution(module, need)
        window = (arguments[name] for name in ("kernel_size", "stride", "padding"))
        return Conv2d(**arguments, padding_type=self._padding_type(*window))

    def _padding_type(self, kernel: int, stride: int, padding: int) -> int:
        """3 if pixels remain after the last window."""
        sides = self._image.values()
        return 3 if any((side + 2 * padding - kernel) % stride for side in sides) else 1

    def _make_convtranspose2d(self, module: Any, need: Callable) -> BaseLayer:
        need(not np.any(module.output_padding), "has an output_padding")
        return ConvTranspose2d(**self._convolution(module, need))

    def _convolution(self, module: Any, need: Callable) -> dict[str, Any]:
        need(module.groups == 1, f"has {module.groups} groups")
        need(_one_number(module.dilation, need) == 1, "is dilated")
        need(module.padding_mode == "zeros", f"pads with {module.padding_mode}")
        kernel, stride = _one_number(module.kernel_size, need), _one_number(module.stride, need)
        padding = module.padding
        if padding == "same":
            need(kernel % 2 == 1 and stride == 1, "pads its sides differently")
            padding = kernel // 2
        padding = 0 if padding == "valid" else _one_number(padding, need)
        return self._image | {
            "in_channels": module.in_channels,
            "out_channels": module.out_channels,
            "kernel_size": kernel,
            "bias": module.bias is not None,
            "stride": stride,
            "padding": padding,
        }

    def _make_batchnorm2d(self, module: Any, need: Callable) -> BaseLayer:
        need(module.affine, "has no weights")
        need(module.track_running_stats, "has no running statistics")
        need(module.momentum is not None, "averages over all batches (momentum=None)")
        return BatchNorm2d(module.num_features, module.eps, 1 - module.momentum)

    def _make_batchnorm1d(self, module: Any, need: Callable) -> BaseLayer:
        sequence = self.shape is not None and self.shape.sequence and not self.flat
        need(not sequence, "normalises the time steps of a sequence")
        return self._make_batchnorm2d(module, need)

    def _make_layernorm(self, module: Any, need: Callable) -> BaseLayer:
        need(module.elementwise_affine, "has no weights")
        n = math.prod(module.normalized_shape)
        need(n > 1, "has a single unit")
        return LayerNorm([n], module.eps * n / (n - 1), module.bias is not None)

    def _make_rmsnorm(self, module: Any, need: Callable) -> BaseLayer:
        need(module.elementwise_affine and len(module.normalized_shape) == 1, "has no weights, or several sides")
        eps = float(np.finfo(np.float32).eps) if module.eps is None else module.eps
        return RMSNorm(module.normalized_shape[0], eps)

    def _make_embedding(self, module: Any, need: Callable) -> BaseLayer:
        need(module.max_norm is None, "has a max_norm")
        padding = -1 if module.padding_idx is None else module.padding_idx
        need(padding < 0 or not np.any(to_numpy(module.weight, "weight")[padding]), "has padding that is not 0")
        positions = 0 if self.shape is None else self.shape.size
        return Embedding(module.num_embeddings, module.embedding_dim, positions, padding_idx=padding)

    def _make_avgpool2d(self, module: Any, need: Callable) -> BaseLayer:
        need(module.count_include_pad or not np.any(module.padding), "leaves the padding out of its means")
        need(module.divisor_override is None, "has a divisor of its own")
        return AvgPool2d(*self._pooling(module, need))

    def _make_maxpool2d(self, module: Any, need: Callable) -> BaseLayer:
        need(_one_number(module.dilation, need) == 1, "is dilated")
        return MaxPool2d(*self._pooling(module, need))

    def _pooling(self, module: Any, need: Callable) -> tuple[int, int, int, int]:
        need(not module.ceil_mode, "rounds sizes up")
        kernel, stride, padding = (_one_number(n, need) for n in (module.kernel_size, module.stride, module.padding))
        return kernel, stride, padding, self._padding_type(kernel, stride, padding)

    def _make_adaptiveavgpool2d(self, module: Any, need: Callable) -> BaseLayer:
        image = self._image
        need(_one_number(module.output_size, need) == 1, "gives more than one pixel")
        need(image["in_width"] == image["in_height"], "is given an image that is not a square")
        return AvgPool2d(image["in_width"], padding_type=0)

    def _make_softmax(self, module: Any, need: Callable) -> BaseLayer:
        """Here it is over all units, or over those of a time step."""
        shape = self.shape
        if shape is not None and shape.sequence:
            fits = not self.flat and module.dim in (-1, 2)
        elif shape is not None and shape.image and not self.flat:
            fits = shape.image[1:] == (1, 1) and module.dim in (None, -3, 1)
        else:
            fits = module.dim in (None, -1, 1)
        need(fits, f"is over dimension {module.dim}")
        return Softmax()

    def _make_softplus(self, module: Any, need: Callable) -> BaseLayer:
        need(module.beta == 1, f"has beta {module.beta}")
        need(module.threshold >= 20, f"is linear from {module.threshold} on")
        return Softplus()


def _check_layout(module: Any, names: Sequence[str], others: Sequence[str], path: str) -> None:
    """Raises TypeError unless a module has exactly the parts `names` and `others` of torchvision's module."""
    parts = {name: part for name, part in module.named_children() if type(part).__name__ not in LEFT_OUT}
    strange = sorted(parts.keys() - {*names, *others})
    if strange or not all(hasattr(module, name) for name in (*names, *others)):
        kind = type(module).__name__
        raise TypeError(
            f"from_torch: {kind} at {path or 'the top'} is not laid out as that of torchvision, with "
            f"{', '.join(dict.fromkeys(names))}: it has {', '.join(parts)}. Say what to make of it, as in "
            f"layers={{'{kind}': lambda module: ...}}, or build the network and use load_torch_state_dict"
        )


def _one_number(sizes: Any, need: Callable) -> int:
    """A size of a window that is the same for both sides."""
    numbers = set(sizes) if isinstance(sizes, tuple | list) else {sizes}
    need(len(numbers) == 1, f"has different sizes {sizes}")
    return numbers.pop()

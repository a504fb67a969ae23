"""Layer normalisation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.norm import Moments, RowNorm
from pytagi_ddp.validate import as_bools, as_integers


class LayerNorm(RowNorm):
    """Normalises each sample by the mean and variance over all its units.

        mean = sum m / n                    var = (sum (m - mean)^2 + sum s) / (n - 1)

    and the affine map of `BatchNorm2d`, with one weight and bias per unit (1-D shape) or per channel (3-D shape). The
    backward pass treats the statistics as constants. In a sequence, a 1-D shape of [features] normalises each time step
    separately. The priors of weights and biases are N(1, 1/n) and N(0, 1/n), n = normalized_shape[0].

    Args:
        normalized_shape: [units], or [channels, height, width] of an image.
        eps: added to the variance.
        bias: with biases or without.

    Raises:
        ValueError: a shape that is neither 1-D nor 3-D, has fewer than two units, or differs from the input's; or an
            eps that is negative or not finite. TypeError: sizes that are not integers.

    Source: cuTAGI.
    """

    bias = Fixed()

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-4, bias: bool = True):
        super().__init__()
        dims = np.atleast_1d(normalized_shape).tolist()
        dims = as_integers("LayerNorm", 1, **{f"normalized_shape[{k}]": n for k, n in enumerate(dims)})
        if len(dims) not in (1, 3) or math.prod(dims) < 2:
            raise ValueError(f"LayerNorm needs [units] or [channels, height, width], at least 2 units, got {dims}")
        self.normalized_shape, self.eps, self.bias = dims, eps, as_bools("LayerNorm", bias=bias)[0]
        self.num_features = dims[0]
        self.in_shape = self.out_shape = self.default_input_shape()
        self.init_weight_bias()

    def default_input_shape(self) -> Shape:
        if len(self.normalized_shape) == 3:
            channels, height, width = self.normalized_shape
            return Shape.of_image(channels, height, width, channels_last=False)
        return Shape(self.num_features)

    def input_shape(self, shape: Shape) -> Shape:
        by_channel = len(self.normalized_shape) == 3
        size = math.prod(self.normalized_shape)
        fits = (
            shape.size == size and shape.channels == self.num_features
            if by_channel
            else size in (shape.size, shape.features)
        )
        if not fits:
            raise ValueError(f"LayerNorm of {self.normalized_shape} after a layer that gives {shape}")
        return shape.ordered(channels_last=by_channel)

    def settings(self) -> dict[str, Any]:
        return {"normalized_shape": list(self.normalized_shape), "eps": self.eps, "bias": self.bias}

    def _moments(self) -> Moments:
        return self.kernels.layer_norm.moments

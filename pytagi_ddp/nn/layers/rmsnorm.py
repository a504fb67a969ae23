"""Root mean square normalisation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.norm import Moments, RowNorm
from pytagi_ddp.validate import as_integers


class RMSNorm(RowNorm):
    """Divides each sample by the root mean square of its units, which the backward pass treats as a constant.

    In a sequence, the shape [features] divides each time step by its own root mean square.

        r = 1/sqrt(sum (m^2 + s) / n + eps)
        m_z = r m w                     s_z = r^2 (s (w^2 + s_w) + s_w m^2)
        dm = J r w dm_z                 ds = (J r w)^2 ds_z
        dm_w = s_w sum r m dm_z         ds_w = s_w^2 sum (r m)^2 ds_z

    m, s: means and variances of the units; J: Jacobian of the activation before; w, s_w: mean and variance of one
    weight per unit. (pytagi computes r from the means only, has a factor s too many in s_z, and neither J nor s_w in
    the deltas. The formulas here agree with sampled units and weights.) The prior of the n weights is N(1, 1/n).

    Args:
        normalized_shape: [units].
        eps: added to the mean square.

    Raises:
        ValueError: a shape that is not 1-D, has no unit, or differs from the input's; or an eps that is negative or not
            finite. TypeError: sizes that are not integers.

    Source: Zhang & Sennrich (2019), "Root mean square layer normalization", arXiv:1910.07467; cuTAGI.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-6):
        super().__init__()
        dims = np.atleast_1d(normalized_shape).tolist()
        dims = as_integers(self.name, 1, **{f"normalized_shape[{k}]": n for k, n in enumerate(dims)})
        if len(dims) != 1:
            raise ValueError(f"RMSNorm needs [units], got {dims}")
        self.normalized_shape, self.eps = dims, eps
        self.num_features = dims[0]
        self.init_weight_bias()

    def default_input_shape(self) -> Shape:
        return Shape(self.num_features)

    def input_shape(self, shape: Shape) -> Shape:
        if self.num_features not in (shape.size, shape.features):
            raise ValueError(f"RMSNorm of {self.normalized_shape} after a layer that gives {shape}")
        return shape.ordered(channels_last=False)

    def settings(self) -> dict[str, Any]:
        return {"normalized_shape": list(self.normalized_shape), "eps": self.eps}

    def _moments(self) -> Moments:
        return self.kernels.layer_norm.mean_squares

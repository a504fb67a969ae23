"""The base of the normalisation layers: their affine map and its prior."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from pytagi_ddp.kernels.tensors import Tensor
from pytagi_ddp.nn.core.init import check_gains
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed, Setting
from pytagi_ddp.nn.core.state import Array, Delta, State, apply_jacobian

Moments = Callable[[State, float, Array, Array], None]


class Norm(BaseLayer):
    """z = r (a - mean) w + b with Gaussian w and b, one of each per feature."""

    replayable = True
    pull_factor = 1 / 16  # with 1, scales grow to several times their prior, and networks learn few images by heart
    parameters: Parameters
    num_features = Fixed()
    eps = Setting(0, 1e30)

    @property
    def steps(self) -> int:
        of_steps = self.in_shape.features == self.num_features
        return self.in_shape.steps if of_steps else 1

    def features_by_step(self, features: int) -> int | None:
        return features if features == self.num_features else None

    @property
    def _gains(self) -> tuple[float, float]:
        """Those of weights and biases."""
        return 1.0, 1.0

    def init_weight_bias(self) -> None:
        """Sets the prior: weights (1, gain^2/n), biases (0, gain^2/n), with the gain 1 if the layer takes none."""
        gain_weight, gain_bias = self._gains
        check_gains(gain_weight, gain_bias)
        n = self.num_features
        n_b = n if self.bias else 0
        scale = np.float32(1 / n)
        self._set_prior(
            (
                np.ones(n, np.float32),
                np.full(n, gain_weight**2 * scale, np.float32),
                np.zeros(n_b, np.float32),
                np.full(n_b, gain_bias**2 * scale, np.float32),
            ),
            (n,),
        )

    def _bias(self, saved: Saved) -> Tensor:
        """The biases; for a layer without bias, zeros with variance 0 and empty batch sums."""
        if self.parameters.b is not None:
            return self.parameters.b
        zeros = saved.constant("no bias", lambda: np.zeros(self.num_features, np.float32))
        return Tensor(zeros, zeros, zeros[:0], zeros[:0])


class RowNorm(Norm):
    """A norm with statistics of each row: of a sample, or of a time step of a sequence."""

    needs_variances = False
    normalized_shape = Fixed()

    def _rows(self, batch: int) -> tuple[int, int, int]:
        """The shape of a batch for kernels: (rows, positions in a row, features)."""
        rows = batch * self.steps
        return rows, batch * self.in_shape.size // (rows * self.num_features), self.num_features

    @abstractmethod
    def _moments(self) -> Moments:
        """The kernel that computes mean and r of each row."""

    def forward(self, state: State, saved: Saved) -> State:
        shape = self._rows(state.batch)
        x, out = saved.with_variance(state).reshape(*shape), saved.output(state.batch)
        saved.input, saved.mean, saved.r = state, saved.scratch("mean", shape[:1]), saved.scratch("r", shape[:1])
        self._moments()(x, self.eps, saved.mean, saved.r)
        bias, rows = self._bias(saved), out.reshape(*shape)
        self.kernels.layer_norm.forward(x, saved.mean, saved.r, self.parameters.w, bias, rows)
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        shape = self._rows(saved.input.batch)
        self.kernels.layer_norm.backward(
            saved.input.reshape(*shape),
            delta.reshape(*shape),
            saved.mean,
            saved.r,
            self.parameters.w,
            self._bias(saved),
            saved.scratch("partial", (4, shape[0], self.num_features)),
            saved.accumulate,
        )
        apply_jacobian(self.kernels, delta, saved.input)
        return delta

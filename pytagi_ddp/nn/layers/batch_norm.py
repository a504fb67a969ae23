"""Batch normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization, PartialMoments, Sums
from pytagi_ddp.nn.core.running import RunningStatistics
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed, Setting, Switch
from pytagi_ddp.nn.core.state import Array, Delta, Shape, State
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.layers.norm import Norm
from pytagi_ddp.validate import as_bools, as_integers

NO_VALUE = 2.0**-30  # a tiny weight that keeps the pooled mean defined when the norms of all ranks are frozen


class BatchNorm2d(RunningStatistics, Norm):
    """Normalises each channel of an image, or each unit of a flat input, by statistics of the batch.

        mean = sum m / N                    var = (sum (m - mean)^2 + sum s) / (N - 1)
        r = 1/sqrt(var + eps), t = m - mean
        m_z = r t w + b                     s_z = r^2 (s (w^2 + s_w) + s_w t^2) + s_b
        dm = r w J dm_z                     ds = (r w J)^2 ds_z

    over the N values of the channel (batch and pixels) or unit (batch and time steps). Training uses the statistics of
    the batch and updates the running ones, running = momentum running + (1 - momentum) batch; evaluation uses the
    running ones (mean 0, variance 1 at the start).

    By default the backward pass treats the statistics as constants, as pytagi does. With `through_statistics`, the
    deltas of the means take into account that the statistics depend on the batch,

        dm = r w J (dm_z - sum dm_z / N - r t sum(r t dm_z) / (N - 1))

    (ds is as above; its change would be of order 1/N). Deep convolutional networks learn better with it.

    If all values of a channel are equal, m_z equals b up to a rounding error. With b = 0, the sign of this error
    decides whether a ReLU is on. Then results can differ between devices, and from pytagi.

    Args:
        num_features: channels of an image input, or units of a flat one.
        eps: added to the variance.
        momentum: weight of the OLD running value (0.9).
        bias: with biases or without.
        gain_weight, gain_bias: factors on the prior standard deviations sqrt(1/num_features); the prior means of
            weights and biases are 1 and 0.
        through_statistics: whether deltas take into account that the statistics of a batch depend on its units; may
            be assigned. It cannot be combined with `DDPSequential(..., sync_batch_norm=True)`.

    Raises:
        ValueError: num_features below 1, a negative eps, a momentum that is not from 0 to 1, gains that are negative or
            not finite; an input with neither num_features channels nor num_features units; or (in training) a batch
            with one value per feature, which has no variance. TypeError: num_features that is not an integer.

    Source: cuTAGI, without its rule for the first batch.
    """

    _setting_names = ("num_features", "eps", "momentum", "bias", "through_statistics")
    spares_deltas = True
    _batch: tuple[Array, Array] | None = None  # mean and r of the last training batch
    momentum = Setting(0, 1)
    through_statistics = Switch()
    bias = Fixed()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        *,
        through_statistics: bool = False,
    ):
        super().__init__()
        (num_features,) = as_integers("BatchNorm2d", 1, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.bias = as_bools("BatchNorm2d", bias=bias)[0]
        self.gain_weight, self.gain_bias = gain_weight, gain_bias
        self.through_statistics = through_statistics
        self.num_sums = 1 + 2 * num_features
        self.init_weight_bias()

    @property
    def _gains(self) -> tuple[float, float]:
        return self.gain_weight, self.gain_bias

    def default_input_shape(self) -> Shape:
        return Shape(self.num_features)

    def input_shape(self, shape: Shape) -> Shape:
        channels = shape.channels == self.num_features
        if not channels and self.num_features not in (shape.size, shape.features):
            raise ValueError(f"BatchNorm2d of {self.num_features} features after a layer that gives {shape}")
        return shape.ordered(channels_last=channels)

    def _attach(self, kernels: Kernels) -> None:
        super()._attach(kernels)
        self._batch = None

    def state_tensors(self) -> tuple[TensorSpec, TensorSpec]:
        n = self.num_features
        return TensorSpec("mean", n, "running"), TensorSpec("var", n, "running", initial=1, variance=True)

    @property
    def _sums(self) -> Sums:
        n = self.num_features
        return Sums(self.shared_sums[:1], self.shared_sums[1 : 1 + n], self.shared_sums[1 + n :])

    @property
    def running_mean(self) -> Array:
        return self.state["mean"]

    @property
    def running_var(self) -> Array:
        return self.state["var"]

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        """True if the kernels also compute the previous activation, because they repeat it in the backward pass."""
        return bool(self.kernels.batch_norm.activations)

    def takes_statistics(self, saved: Saved) -> bool:
        """Whether the forward pass computes statistics of its batch."""
        return self.training and not saved.recomputed

    def forward(self, state: State, saved: Saved) -> State:
        norm = self.normalization(state, saved)
        self.kernels.batch_norm.forward(norm)
        return norm.out.reshape(state.batch, self.out_shape.size)

    def normalization(
        self, state: State, saved: Saved, activation: str = "", made: PartialMoments | None = None
    ) -> Normalization:
        """`forward` without the last kernel call, which the next operation may fuse with its own.

        Args:
            activation: the activation before this layer, if kernels compute it here.
            made: partial moments of the (activated) input, if the previous operation has computed them.
        """
        n, kernels = self.num_features, self.kernels.batch_norm
        x = saved.with_variance(state).reshape(-1, n)
        # Evaluation uses other memory for r, because `batch_statistics` needs that of the last training batch.
        mean, r = self.running_mean, saved.scratch("r" if self.training else "running r", (n,))
        if self.training:
            mean = saved.scratch("mean", (n,))
            if self.takes_statistics(saved):
                self._take_statistics(x, mean, r, saved, activation, made)
        else:
            if saved.training and not saved.recomputed and self.reduce_sums is not None:
                self._take_no_statistics(self.reduce_sums)
            kernels.rescale(self.running_var, 1, self.eps, r)
        out = saved.output(state.batch).reshape(-1, n)
        saved.norm = Normalization(x, mean, r, self.parameters.w, self._bias(saved), out, activation)
        return saved.norm

    def _take_statistics(
        self, x: State, mean: Array, r: Array, saved: Saved, activation: str, made: PartialMoments | None
    ) -> None:
        """Computes mean and r of a training batch, and updates the running statistics."""
        rows, n, kernels = x.batch, self.num_features, self.kernels.batch_norm
        if rows < 2 and self.reduce_sums is None:
            raise ValueError(
                "BatchNorm2d needs more than one value per feature in training, and this batch has one: use a larger "
                "batch. If it is the rest of an epoch, leave it out, as ArrayLoader(x, y, ..., drop_last=True) does. "
                "On several ranks, DDPSequential(..., sync_batch_norm=True) also takes one value of each"
            )
        options: Any = {name: value for name, value in (("made", made), ("activation", activation)) if value}
        m2, partial = saved.scratch("m2", (n,)), saved.scratch("partial", kernels.partial_shape(rows, n))
        sums = self._sums
        if self.reduce_sums is None:
            running, momentum = State(self.running_mean, self.running_var), None if self.pool_at_step else self.momentum
            kernels.statistics(x, partial, mean, m2, r, self.eps, running, sums, momentum, **options)
        else:
            kernels.moments(x, partial, mean, m2, **options)
        if self.on_moments is not None:
            self.on_moments(rows, mean, m2)
        if self.reduce_sums is not None:
            if self.through_statistics:
                raise RuntimeError(
                    "through_statistics of a BatchNorm2d cannot go together with sync_batch_norm, as ranks do not "
                    "exchange anything in the backward pass: leave one of them out"
                )
            kernels.pool_moments(mean, m2, rows, self.running_mean, sums)
            self.reduce_sums(self.shared_sums)
            kernels.pooled_statistics(self.running_mean, sums, mean, m2)
            kernels.rescale(m2, 1, self.eps, r)
            if not self.pool_at_step:
                self.update_running()
        self._batch = mean, r

    def _take_no_statistics(self, reduce_sums: Callable[[Array], None]) -> None:
        """Takes part in the exchange of statistics between ranks, as a frozen norm that adds no values."""
        array = self.kernels.array
        array.clear(self.shared_sums)
        array.copy(np.full(1, NO_VALUE, np.float32), self._sums.count)
        reduce_sums(self.shared_sums)
        array.clear(self.shared_sums)

    def update_running(self) -> None:
        self.kernels.batch_norm.update_running(self.running_mean, self.running_var, self.momentum, self._sums)

    def normalisation_moments(self) -> tuple[Array, Array, Array, Array]:
        return self.running_mean, self.running_var, *self.batch_statistics()

    def batch_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the last training batch, per feature (this rank's batch, or all with synchronisation).

        Zeros if there was no training batch, or if the network has dropped its memory for passes since then: with
        `checkpoint_blocks`, another device or precision.
        """
        # A replayed pass computes r = 1/sqrt(variance + eps) and not the variance.
        n = self.num_features
        if self._batch is None:
            return np.zeros(n, np.float32), np.zeros(n, np.float32)
        mean, r = map(self.kernels.array.to_host, self._batch)
        return mean, np.maximum(r.astype(np.float64) ** -2 - self.eps, 0).astype(np.float32)

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        into = saved.pool.own(delta)
        norm = saved.norm._replace(weights=self.parameters.w, bias=self._bias(saved))  # memory of batch sums may be new
        n, kernels = self.num_features, self.kernels.batch_norm
        partial = saved.scratch("partial", kernels.partial_shape(norm.x.batch, n))
        changed = delta.reshape(-1, n)
        moved = changed if into is delta else into.reshape(-1, n)
        kernels.backward(norm, changed, moved, partial, saved.accumulate)
        if self.through_statistics and self.training:
            kernels.subtract_statistics(norm, moved, partial, saved.scratch("means", (2, n)))
        return into

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_batch": None}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__({"through_statistics": False} | state)  # version 0.2.0 did not have it

"""Fully connected layer."""

from pytagi_ddp.nn.core.init import gaussian_prior
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.pytagi_view import SizesView
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Delta, Shape, State, by_step
from pytagi_ddp.validate import as_bools, as_integers


class Linear(SizesView, BaseLayer):
    """Fully connected layer with Gaussian weights and biases.

        m_z = W m_a + b                     s_z = (W^2 + S) s_a + S m_a^2 + s_b
        dm_a = J (W^T dm)                   ds_a = J^2 ((W^2)^T ds)
        dm_W = S sum_b dm m_a               ds_W = S^2 sum_b ds m_a^2

    W, S: means and variances of the weights, (output_size, input_size) row by row; m, s: means and variances of the
    units; J: Jacobian of the activation before. Deltas are summed over the batch.

    In a sequence, (time steps, features) per sample, a layer with input_size = features processes each time step alone:
    the output is (time steps, output_size), and the cap (`Sequential.step`) counts batch x time steps. A layer with
    input_size = time steps x features takes the whole sequence as one flat sample.

    Args:
        input_size, output_size: units per sample, or per time step.
        bias: with biases or without.
        gain_weight, gain_bias: factors on the prior standard deviations (not on the prior means).
        init_method: "He" (scale sqrt(1/fan_in)) or "Xavier" (sqrt(2/(fan_in + fan_out))).

    Raises:
        ValueError: sizes below 1, unknown `init_method`, gains that are negative or not finite, or (in a network) an
            input of another size. TypeError: sizes that are not integers.

    Source: Goulet, Nguyen & Amiri (2021), JMLR 22.
    """

    _setting_names = ("input_size", "output_size", "bias")
    replayable = True
    needs_variances = False
    spares_deltas = True
    bias = Fixed()
    parameters: Parameters

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gain_weight: float = 1.0,
        gain_bias: float = 1.0,
        init_method: str = "He",
    ):
        super().__init__()
        input_size, output_size = as_integers("Linear", 1, input_size=input_size, output_size=output_size)
        self.bias = as_bools("Linear", bias=bias)[0]
        self._sizes = input_size, output_size
        self.in_shape, self.out_shape = Shape(input_size), Shape(output_size)
        self.gain_weight, self.gain_bias, self.init_method = gain_weight, gain_bias, init_method
        self.init_weight_bias()

    def init_weight_bias(self) -> None:
        """Draws the parameters again from the prior."""
        prior = gaussian_prior(
            self.input_size * self.output_size,
            self.output_size if self.bias else 0,
            self.input_size,
            self.output_size,
            self.gain_weight,
            self.gain_bias,
            self.init_method,
        )
        self._set_prior(prior, (self.output_size, self.input_size))

    @property
    def steps(self) -> int:
        return self.in_shape.size // self.input_size

    def default_input_shape(self) -> Shape:
        return Shape(self.input_size)

    def features_by_step(self, features: int) -> int | None:
        return self.output_size if features == self.input_size else None

    def input_shape(self, shape: Shape) -> Shape:
        if self.input_size not in (shape.size, shape.features):
            raise ValueError(f"{self.get_layer_info()} needs {self.input_size} inputs, the layer before gives {shape}")
        return shape.ordered(channels_last=False)

    def infer_output(self, shape: Shape) -> Shape:
        return Shape.of_sequence(self.steps, self.output_size)

    def forward(self, state: State, saved: Saved) -> State:
        out = saved.output(state.batch)
        saved.input = state = by_step(state, self.steps)
        self.kernels.linear.forward(state, self.parameters.w, self.parameters.b, by_step(out, self.steps))
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        steps, pool = self.steps, saved.pool
        into = pool.take(saved.input.batch // steps, self.in_shape.size) if saved.needs_input else None
        weights, bias = self.parameters.w, self.parameters.b
        by_rows = into and by_step(into, steps)
        self.kernels.linear.backward(saved.input, by_step(delta, steps), weights, bias, by_rows, saved.accumulate)
        pool.give(delta)
        return into

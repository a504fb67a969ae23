"""Activations: moments of a nonlinear function of Gaussian units, and its Jacobian.

An activation has no backward pass of its own: its Jacobian is part of the state, and the next layer applies it.
Jacobians of consecutive activations are multiplied. For a unit with zero variance (a deterministic input), the limit of
the formulas is used.

Source: Goulet, Nguyen & Amiri (2021), JMLR 22; the mixture activations, Remax and the closed-form softmax: cuTAGI.
"""

from typing import Any

import numpy as np

from pytagi_ddp.nn.core.attributes import is_ours
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import FINITE, Setting
from pytagi_ddp.nn.core.state import Delta, Shape, State, by_step


class Activation(BaseLayer):
    """Base of all activations.

    An elementwise activation names its formula in `kernels.formulas.activation.ELEMENTWISE`, from which the kernels are
    made. An activation with its own kernel overrides `_run`.

    Attributes:
        formula: the name of the formula.
        formula_settings: attributes that the formula takes, in its order.
    """

    name = BaseLayer.name  # of derived classes without a name
    gives_jacobian = True
    replayable = True
    needs_variances = False
    formula = ""
    formula_settings: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.in_place = False  # set by the chain if nothing else reads the output of the previous layer

    def features_by_step(self, features: int) -> int | None:
        return features

    def forward(self, state: State, saved: Saved) -> State:
        x = saved.with_variance(state)
        # Without variances, those of `x` are zeros that the next passes read again.
        out = x if self.in_place and state.var is not None else saved.output(state.batch)
        out = State(out.mu, out.var, saved.units("jcb", state.batch))
        self._run(x, out)
        if state.jcb is not None:
            self.kernels.elementwise.multiply(out.jcb, state.jcb)
        return out

    def _run_forward(self, state: State, saved: Saved) -> State:
        """As that of every layer.

        Raises:
            TypeError, ValueError: also an activation with neither a Jacobian nor a `backward` of its own.
        """
        out = super()._run_forward(state, saved)
        if out.jcb is None and is_ours(type(self).backward):
            to_host = self.kernels.array.to_host
            adds = state.var is None or np.array_equal(to_host(out.var), to_host(state.var))  # z plus a number
            if state.jcb is not None or not adds:
                raise ValueError(
                    f"forward() of {self.get_layer_info()} has to give the Jacobian jcb: its slope, times the Jacobian "
                    "of its input if that is not None"
                )
        return out

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.formula_settings}

    def _run(self, x: State, out: State) -> None:
        """Calls the kernel."""
        settings = [getattr(self, name) for name in self.formula_settings]
        self.kernels.activation.elementwise(self.formula, x, out, *settings)

    def _by_step(self, *states: State) -> tuple[State, ...]:
        return tuple(by_step(state, self.in_shape.steps) for state in states)

    def backward(self, delta: Delta, saved: Saved) -> Delta:
        return delta


class ReLU(Activation):
    """max(0, z), linearised: (m, s, J = 1) where m > 0, else (0, 0, 0)."""

    formula = "relu"


class LeakyReLU(Activation):
    """(J m, J^2 s), J = 1 where m > 0 and negative_slope elsewhere.

    Args:
        negative_slope: slope below 0; 0.1 is pytagi's.

    Raises:
        ValueError: a slope that is not finite.
    """

    formula = "leaky_relu"
    formula_settings = ("negative_slope",)
    negative_slope = Setting(*FINITE)

    def __init__(self, negative_slope: float = 0.1):
        super().__init__()
        self.negative_slope = float(negative_slope)

    def get_layer_name(self) -> str:
        return "leakReLU"

    def get_layer_info(self) -> str:
        return "leakyReLU()" if self.negative_slope == 0.1 else f"leakyReLU({self.negative_slope})"


class ELU(Activation):
    """(m, s, J = 1) where m > 0, else (alpha (e^m - 1), J^2 s), J = alpha e^m.

    Args:
        alpha: the output tends to -alpha for large negative means.

    Raises:
        ValueError: an alpha that is not finite.

    Source: Clevert, Unterthiner & Hochreiter (2016), arXiv:1511.07289, linearised around the mean.
    """

    formula = "elu"
    formula_settings = ("alpha",)
    alpha = Setting(*FINITE)

    def __init__(self, alpha: float = 1.0):
        super().__init__()
        self.alpha = float(alpha)

    def get_layer_info(self) -> str:
        return f"ELU({self.alpha})"


class Sigmoid(Activation):
    """p = 1/(1 + e^-m), J = p (1 - p): (p, J^2 s)."""

    formula = "sigmoid"


class Tanh(Activation):
    """p = tanh m, J = 1 - p^2: (p, J^2 s)."""

    formula = "tanh"


class Softplus(Activation):
    """(ln(1 + e^m), p^2 s), J = p = sigmoid(m)."""

    formula = "softplus"


class MixtureReLU(Activation):
    """Exact moments of max(0, z), z ~ N(m, s), each at least 1e-6; J = Phi(m/sqrt s)."""

    formula = "mixture_relu"


class MixtureSigmoid(Activation):
    """Exact moments of the hard sigmoid (clip(z, -1, 1) + 1)/2, variance at least 1e-6; J = P(-1 < z < 1)/2."""

    formula = "mixture_sigmoid"


class MixtureTanh(Activation):
    """Exact moments of clip(z, -1, 1), variance at least 1e-6; J = P(-1 < z < 1)."""

    formula = "mixture_tanh"


class Softmax(Activation):
    """a = softmax(m) over the units of a sample, J = a (1 - a), variance J^2 (s + s of the largest unit).

    In a sequence it is over the units of each time step; `Remax` and `ClosedFormSoftmax` do the same.
    """

    def _run(self, x: State, out: State) -> None:
        self.kernels.softmax.softmax(*self._by_step(x, out))


class EvenExp(Activation):
    """Units in pairs [mean, noise]: even ones do not change, odd ones become e^z (log-normal moments, J = mean).

    For `OutputUpdater.update_heteros`: the odd outputs are predicted observation variances.

    Raises:
        ValueError: an odd number of units.
    """

    positive_noise = True

    def _run(self, x: State, out: State) -> None:
        self.kernels.activation.even_exp(x, out)

    def input_shape(self, shape: Shape) -> Shape:
        if shape.features % 2:
            raise ValueError(f"EvenExp needs an even number of units, the layer before gives {shape}")
        return shape.ordered(channels_last=False)


class Remax(Activation):
    """Rectified units divided by their sum, with log-normal moments; means sum to 1 over the units of a sample."""

    def _run(self, x: State, out: State) -> None:
        self.kernels.softmax.remax(*self._by_step(x, out))


class ClosedFormSoftmax(Activation):
    """e^z divided by its sum, with log-normal moments; means are not renormalised.

    Input means may have any size, input variances up to 29.
    """

    def _run(self, x: State, out: State) -> None:
        self.kernels.softmax.closed_form_softmax(*self._by_step(x, out))

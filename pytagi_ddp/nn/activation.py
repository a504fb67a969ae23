"""Activations: moments of a nonlinear function of Gaussian units, and its Jacobian.

An activation has no backward pass of its own: its Jacobian travels with the state, and the next layer applies it.
Stacked activations multiply their Jacobians. A unit with zero variance (a deterministic input) takes the limit of
the formulas.

Source: Goulet, Nguyen & Amiri (2021), JMLR 22; the mixture activations, Remax and the closed-form softmax: cuTAGI.
"""

from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.state import Delta, DeltaPool, Shape, State


class Activation(BaseLayer):
    """Base of all activations. `kernel` names the kernel; `per_sample` marks those that mix the units of a sample."""

    kernel = ""
    per_sample = False

    def __init__(self) -> None:
        super().__init__()
        self.in_place = False  # set by the chain where nobody else reads the layer before

    def forward(self, state: State) -> State:
        batch, size = state.mu.shape
        mu, var = state.mu, self._variance(state)
        out = State(mu, var) if self.in_place else self._output(batch)
        jcb = self._buffer("jcb", batch, size)
        arrays = (mu, var, out.mu, out.var, jcb)
        if self.per_sample:
            getattr(self.kernels.softmax, self.kernel)(*arrays)
        else:
            getattr(self.kernels.activation, self.kernel)(*(a.reshape(-1) for a in arrays))
        if state.jcb is not None:
            self.kernels.elementwise.multiply(jcb.reshape(-1), state.jcb.reshape(-1))
        return State(out.mu, out.var, jcb)

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta:
        return delta


class ReLU(Activation):
    """max(0, z), linearised: (m, s, J = 1) where m > 0, else (0, 0, 0)."""

    name = "ReLU"
    kernel = "relu"


class LeakyReLU(Activation):
    """Slope 1 where m > 0, else 0.1: (m, s, 1) or (0.1 m, 0.01 s, 0.1)."""

    name = "LeakyReLU"
    kernel = "leaky_relu"

    def get_layer_name(self) -> str:
        return "leakReLU"

    def get_layer_info(self) -> str:
        return "leakyReLU()"


class Sigmoid(Activation):
    """p = 1/(1 + e^-m), J = p (1 - p): (p, J^2 s)."""

    name = "Sigmoid"
    kernel = "sigmoid"


class Tanh(Activation):
    """p = tanh m, J = 1 - p^2: (p, J^2 s)."""

    name = "Tanh"
    kernel = "tanh"


class Softplus(Activation):
    """(ln(1 + e^m), p^2 s), J = p = sigmoid(m)."""

    name = "Softplus"
    kernel = "softplus"


class MixtureReLU(Activation):
    """Exact moments of max(0, z), z ~ N(m, s), each at least 1e-6; J = Phi(m/sqrt s)."""

    name = "MixtureReLU"
    kernel = "mixture_relu"


class MixtureSigmoid(Activation):
    """Exact moments of the hard sigmoid (clip(z, -1, 1) + 1)/2; variance at least 1e-6."""

    name = "MixtureSigmoid"
    kernel = "mixture_sigmoid"


class MixtureTanh(Activation):
    """Exact moments of clip(z, -1, 1); variance at least 1e-6."""

    name = "MixtureTanh"
    kernel = "mixture_tanh"


class Softmax(Activation):
    """a = softmax(m) over the units of a sample, J = a (1 - a), variance J^2 (s + s of the largest unit)."""

    name = "Softmax"
    kernel = "softmax"
    per_sample = True


class EvenExp(Activation):
    """Units in pairs [mean, noise]: even ones are passed on, odd ones become e^z (log-normal moments, J = mean).

    For `OutputUpdater.update_heteros`: the odd outputs are predicted observation variances.

    Raises:
        ValueError: an odd number of units.
    """

    name = "EvenExp"
    kernel = "even_exp"

    def expects(self, shape: Shape) -> Shape:
        if shape.size % 2:
            raise ValueError(f"EvenExp needs an even number of units, the layer before gives {shape}")
        return shape.ordered(channels_last=False)


class Remax(Activation):
    """Rectified units over their sum, all taken as log-normal; means sum to 1 over the units of a sample."""

    name = "Remax"
    kernel = "remax"
    per_sample = True


class ClosedFormSoftmax(Activation):
    """e^z over its sum with log-normal moments; means are not renormalised. m of any size, s up to 29."""

    name = "ClosedFormSoftmax"
    kernel = "closed_form_softmax"
    per_sample = True

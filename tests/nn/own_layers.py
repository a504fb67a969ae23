"""The layers that a page of the gallery writes in NumPy, taken from its text, and others of somebody's programs."""

import ast
from pathlib import Path

import numpy as np

from pytagi_ddp import nn

PAGE = Path(__file__).parents[2] / "examples" / "gallery" / "plot_own_layer.py"
_classes = [node for node in ast.parse(PAGE.read_text()).body if isinstance(node, ast.ClassDef)]
exec(compile(ast.Module(_classes, []), PAGE, "exec"))  # its classes `Sine` and `Scale`, and nothing that it computes
Sine, Scale = (globals()[node.name] for node in _classes)


def scale(layer, m, s):
    """`Scale` in float64, for `tests.nn.reference`."""
    w, v = (np.asarray(values, np.float64) for values in (layer.mu_w, layer.var_w))
    nothing = np.zeros(0)

    def back(dm, ds, sums):
        sums[layer] = (v * (dm * m).sum(0), v**2 * (ds * m**2).sum(0), nothing, nothing)
        return w * dm, w**2 * ds

    return w * m, (w**2 + v) * s + v * m**2, back


def sine(m, s):
    """`Sine` in float64, for `tests.nn.reference_activation`."""
    return np.sin(m), np.cos(m) ** 2 * s, np.cos(m)


def own_layers() -> nn.Sequential:
    """With both layers, in a row and in a block."""
    block = nn.ResNetBlock(nn.LayerBlock(Scale(), nn.ReLU(), Sine(), Scale()))
    return nn.Sequential(nn.Linear(8, 12), Sine(), Scale(), nn.Tanh(), block, Sine(), nn.Linear(12, 4))


class KeepsItsOutput(nn.BaseLayer):
    """e^z, linearised: in float64, column by column. Its derivative is the output itself."""

    name = "KeepsItsOutput"

    def forward(self, state, saved):
        saved.input, saved.out = state, np.asfortranarray(np.exp(state.mu, dtype=np.float64))
        return nn.State(saved.out, saved.out**2 * (0 if state.var is None else state.var))

    def backward(self, delta, saved):
        slope = saved.out * (1 if saved.input.jcb is None else saved.input.jcb)
        return nn.Delta(slope * delta.mu, slope**2 * delta.var)


class Passes(nn.BaseLayer):
    """Gives what it got."""

    name = "Passes"

    def forward(self, state, saved):
        return nn.State(state.mu, state.var, state.jcb)

    def backward(self, delta, saved):
        return delta


class Shifts(nn.BaseLayer):
    """z + b: biases, and no weights."""

    name = "Shifts"

    def build(self, shape):
        shape = super().build(shape)
        if self.parameters is None:
            self.init_weight_bias()
        return shape

    def init_weight_bias(self):
        n = self.in_shape.size
        self.set_prior([], [], np.zeros(n), np.full(n, 0.1))

    def forward(self, state, saved):
        return nn.State(state.mu + self.mu_b, state.var + self.var_b)

    def backward(self, delta, saved):
        b = self.parameters.b
        b.delta_mu_sum[:], b.delta_var_sum[:] = delta.mu.sum(0), delta.var.sum(0)
        return delta

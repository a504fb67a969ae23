"""Dense networks and regressors as ONNX graphs, which predict means and variances without this library.

    pytagi_ddp.onnx.export(regressor, "regressor.onnx", quantiles=[0.05, 0.95])

    session = onnxruntime.InferenceSession("regressor.onnx")
    mean, std, quantiles = session.run(None, {"X": X})

It needs the package `onnx` (`pip install 'pytagi-ddp[onnx]'`), which `export` loads. A program that only predicts
needs `onnxruntime`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytagi_ddp.files import AnyPath, atomic_write
from pytagi_ddp.kernels.formulas.activation import FLOOR, SD_MIN, X_MAX
from pytagi_ddp.kernels.formulas.encoding import ROUNDING
from pytagi_ddp.nn import (
    ELU,
    LeakyReLU,
    Linear,
    MixtureReLU,
    PiecewiseLinearEncoding,
    ReLU,
    Sequential,
    Sigmoid,
    Softplus,
    Tanh,
)
from pytagi_ddp.warn import warn

__all__ = ["export"]

OPSET, IR = 17, 8  # which runtimes from 2022 on read
SINGLE, DOUBLE = 1, 11  # numbers of ONNX for float32 and float64
Moments = tuple[str, str]


def export(model: Any, path: AnyPath, quantiles: Sequence[float] | None = None) -> None:
    """Writes a network, or a fitted `TAGIRegressor`, as an ONNX graph.

    Of a network, the input "x" is float32 (n, inputs), without variances; outputs are "mean" and "variance", float32
    (n, outputs), as `Sequential.predict` gives them. They contain no noise of observations.

    Of a regressor, the input "X" is float64 (n, features), not scaled; outputs are "mean" and "std" (and "quantiles"),
    float64, as `TAGIRegressor.predict` gives them, noise included. A sample with NaN has the results NaN: missing
    inputs are not in the graph, and neither are random intercepts. `degrees_of_freedom` is in the model's metadata.

    The graph computes in float32, as the library does. Sums are in another order, so results differ in the last digits.

    Args:
        model: a `Sequential` of `Linear`, `ReLU`, `LeakyReLU`, `ELU`, `Sigmoid`, `Tanh`, `Softplus` and `MixtureReLU`
            layers, with a `PiecewiseLinearEncoding` in front or without; or a `TAGIRegressor` without `likelihood`.
        path: the file, which is replaced as a whole.
        quantiles: of a regressor: probabilities, for one more output (n, number of them), or (n, targets, number).

    Raises:
        ImportError: `onnx` is not installed. TypeError: another model, or a layer that has no graph; says which.
        ValueError: quantiles of a network, or such as `TAGIRegressor.predict` refuses. RuntimeError: the regressor is
            not fitted.

    Warns:
        UserWarning: the regressor has random intercepts for inputs that were learnt, which the graph does not have.
    """
    try:
        import onnx  # here, as an option
    except ImportError:
        raise ImportError("export needs the package onnx: pip install 'pytagi-ddp[onnx]'") from None
    graph = _Graph(onnx.helper)
    if isinstance(model, Sequential):
        if quantiles is not None:
            raise ValueError("quantiles are of a regressor: those of a network's output depend on the noise")
        inputs, outputs = _network(graph, model)
        notes = {"precision": "means and variances of the outputs, without noise"}
    elif _is_regressor(model):
        inputs, outputs = _regressor(graph, model, quantiles)
        notes = {"degrees_of_freedom": str(np.asarray(model.degrees_of_freedom_).tolist())}
    else:
        raise TypeError(
            f"export takes a Sequential or a TAGIRegressor, got {type(model).__name__}; of a Pipeline export the last "
            "step, and of a classifier its networks_"
        )
    made = graph.model(inputs, outputs)
    made.producer_name = "pytagi_ddp"
    onnx.helper.set_model_props(made, notes)
    onnx.checker.check_model(made)
    atomic_write(path, made.SerializeToString())


def _is_regressor(model: Any) -> bool:
    estimators = sys.modules.get("pytagi_ddp.estimators")  # which one cannot have without having loaded it
    return estimators is not None and isinstance(model, estimators.TAGIRegressor)


class _Graph:
    """Nodes and constants, which have names."""

    def __init__(self, helper: Any):
        self.helper = helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *inputs: str | np.ndarray | np.generic | float, name: str = "", **settings: Any) -> str:
        """The name of the result of a new node; arrays and numbers (float32) among its inputs become constants."""
        out = name or f"{kind.lower()}_{len(self.nodes)}"
        names = [part if isinstance(part, str) else self.constant(part) for part in inputs]
        self.nodes.append(self.helper.make_node(kind, names, [out], **settings))
        return out

    def constant(self, value: np.ndarray | np.generic | float) -> str:
        array = np.asarray(value if isinstance(value, np.ndarray | np.generic) else np.float32(value))
        kind = {"float32": SINGLE, "float64": DOUBLE, "int64": 7, "bool": 9}[array.dtype.name]
        name = f"constant_{len(self.constants)}"
        tensor = self.helper.make_tensor(name, kind, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)
        self.constants.append(tensor)
        return name

    def model(self, inputs: Sequence[tuple[str, int, list]], outputs: Sequence[tuple[str, int, list]]) -> Any:
        """The model, given (name, type, shape) of what goes in and comes out."""
        values = [[self.helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)]
        graph = self.helper.make_graph(self.nodes, "pytagi_ddp", *values, self.constants)
        return self.helper.make_model(graph, opset_imports=[self.helper.make_opsetid("", OPSET)], ir_version=IR)


def _network(graph: _Graph, net: Sequential) -> tuple[list, list]:
    mean, var = _moments(graph, net, "x")
    graph.op("Identity", mean, name="mean")
    graph.op("Identity", var, name="variance")
    inputs, outputs = _sizes(net)
    return [("x", SINGLE, ["n", inputs])], [(name, SINGLE, ["n", outputs]) for name in ("mean", "variance")]


def _sizes(net: Sequential) -> tuple[int, int]:
    """(inputs, outputs)"""
    return net.layers[0].in_shape.size, net.layers[-1].out_shape.size


def _moments(graph: _Graph, net: Sequential, x: str) -> Moments:
    """Means and variances of the outputs of a network."""
    if not isinstance(net.layers[0], Linear | PiecewiseLinearEncoding):
        raise TypeError(
            "export takes networks that begin with Linear or PiecewiseLinearEncoding, got "
            f"{net.layers[0].get_layer_info()}"
        )
    mean, var = x, None
    for layer in net.layers:
        if isinstance(layer, PiecewiseLinearEncoding) and layer is net.layers[0]:
            mean = _encoding(graph, layer, x)
        elif isinstance(layer, Linear):
            mean, var = _linear(graph, layer, mean, var)
        elif type(layer) in ACTIVATIONS:
            mean, var = ACTIVATIONS[type(layer)](graph, layer, mean, var or _zeros(graph, mean))
        else:
            known = ", ".join(kind.__name__ for kind in (Linear, *ACTIVATIONS))
            raise TypeError(f"export knows no graph for {layer.get_layer_info()}: it takes {known}")
    return mean, var or _zeros(graph, mean)


def _zeros(graph: _Graph, mean: str) -> str:
    """The variances of an encoding."""
    return graph.op("Sub", mean, mean)


def _encoding(graph: _Graph, layer: PiecewiseLinearEncoding, x: str) -> str:
    """The bins of known inputs, bottom + (top - bottom) u, where u is how far an input has come through a bin.

    The units of single numbers follow.
    """
    constants = layer.constants()
    of_numbers = constants[1] == constants[2]
    number, low, high, bottom, top, least, most = constants[:, ~of_numbers]
    u = graph.op("Div", graph.op("Sub", graph.op("Gather", x, number.astype(int), axis=1), low), high - low)
    u = graph.op("Min", graph.op("Max", u, least), most)
    units = graph.op("Add", bottom, graph.op("Mul", u, top - bottom))
    if layer.values is None:
        return units
    source, value = constants[:2, of_numbers]
    away = graph.op("Abs", graph.op("Sub", graph.op("Gather", x, source.astype(int), axis=1), value))
    hit = graph.op("Cast", graph.op("LessOrEqual", away, ROUNDING * np.maximum(np.abs(value), 1)), to=SINGLE)
    return graph.op("Concat", units, graph.op("Mul", hit, np.float32(layer.height)), axis=1)


def _linear(graph: _Graph, layer: Linear, m: str, s: str | None) -> Moments:
    """m' = W m + b and s' = (W^2 + S) s + S m^2 + s_b; s is None for inputs, which are known."""
    if layer.steps != 1:
        raise TypeError(f"export takes dense networks, and {layer.get_layer_info()} has {layer.steps} time steps")
    shape = layer.output_size, layer.input_size
    w, v = (np.asarray(part, np.float32).reshape(shape).T for part in (layer.mu_w, layer.var_w))
    mean = graph.op("MatMul", m, w)
    var = graph.op("MatMul", graph.op("Mul", m, m), v)
    if s is not None:
        var = graph.op("Add", var, graph.op("MatMul", s, w * w + v))
    if layer.bias:
        mean, var = graph.op("Add", mean, np.asarray(layer.mu_b)), graph.op("Add", var, np.asarray(layer.var_b))
    return mean, var


def _relu(graph: _Graph, layer: ReLU, m: str, s: str) -> Moments:
    return graph.op("Relu", m), graph.op("Where", graph.op("Greater", m, 0.0), s, 0.0)


def _leaky_relu(graph: _Graph, layer: LeakyReLU, m: str, s: str) -> Moments:
    j = graph.op("Where", graph.op("Greater", m, 0.0), 1.0, float(layer.negative_slope))
    return graph.op("Mul", j, m), _scaled(graph, j, s)


def _elu(graph: _Graph, layer: ELU, m: str, s: str) -> Moments:
    above = graph.op("Greater", m, 0.0)
    j = graph.op("Where", above, 1.0, graph.op("Mul", graph.op("Exp", graph.op("Min", m, 0.0)), float(layer.alpha)))
    return graph.op("Elu", m, alpha=float(layer.alpha)), _scaled(graph, j, s)


def _sigmoid(graph: _Graph, layer: Sigmoid, m: str, s: str) -> Moments:
    p = graph.op("Sigmoid", m)
    return p, _scaled(graph, graph.op("Mul", p, graph.op("Sub", 1.0, p)), s)


def _tanh(graph: _Graph, layer: Tanh, m: str, s: str) -> Moments:
    p = graph.op("Tanh", m)
    return p, _scaled(graph, graph.op("Sub", 1.0, graph.op("Mul", p, p)), s)


def _softplus(graph: _Graph, layer: Softplus, m: str, s: str) -> Moments:
    return graph.op("Softplus", m), _scaled(graph, graph.op("Sigmoid", m), s)


def _mixture_relu(graph: _Graph, layer: MixtureReLU, m: str, s: str) -> Moments:
    """As `mixture_relu_moments` in kernels.formulas.activation."""
    op = graph.op
    sd = op("Max", op("Sqrt", s), SD_MIN)
    b = op("Min", op("Div", op("Abs", m), sd), X_MAX)
    tail = op("Mul", op("Sub", 1.0, op("Erf", op("Mul", b, math.sqrt(0.5)))), 0.5)
    pdf = op("Mul", op("Exp", op("Mul", op("Mul", b, b), -0.5)), 1 / math.sqrt(2 * math.pi))
    g = op("Max", op("Sub", pdf, op("Mul", b, tail)), 0.0)
    cdf = op("Where", op("Greater", m, 0.0), op("Sub", 1.0, tail), tail)
    mean = op("Add", op("Relu", m), op("Mul", sd, g))
    var = op("Mul", s, op("Sub", cdf, op("Mul", g, op("Add", b, g))))
    return op("Max", mean, FLOOR), op("Max", var, FLOOR)


def _scaled(graph: _Graph, j: str, s: str) -> str:
    return graph.op("Mul", graph.op("Mul", j, j), s)


ACTIVATIONS: dict[type, Callable[[_Graph, Any, str, str], Moments]] = {
    ReLU: _relu,
    LeakyReLU: _leaky_relu,
    ELU: _elu,
    Sigmoid: _sigmoid,
    Tanh: _tanh,
    Softplus: _softplus,
    MixtureReLU: _mixture_relu,
}


def _regressor(graph: _Graph, regressor: Any, quantiles: Sequence[float] | None) -> tuple[list, list]:
    if not hasattr(regressor, "networks_"):
        raise RuntimeError("export takes a regressor that is fitted: call fit first")
    if regressor.likelihood is not None:
        raise TypeError(
            f"export knows no graph for likelihood={regressor.likelihood!r}: export its networks_ one by one"
        )
    if regressor._categories.known:
        raise TypeError("export takes regressors whose features are numbers, each of them one input of the networks")
    from pytagi_ddp.estimators.members import known_values  # here: scikit-learn is loaded by then

    if any(map(known_values, regressor.networks_)):
        raise TypeError(
            "export takes no regressor with inputs for values that occur often, because it predicts other values by "
            "draws: give a number of bins, as n_bins=24, and fit again"
        )
    if regressor.known_rows and any(noise.intercept is not None for noise in regressor._noises):
        warn(
            "the table has equal inputs with something in common (noise_.intercept), which the graph leaves out: it "
            "predicts an input that was learnt as a new one, as with known_rows=False"
        )
    from pytagi_ddp.estimators.regressor import probabilities_of
    from pytagi_ddp.estimators.student_t import quantile

    op, networks, targets = graph.op, regressor.networks_, _sizes(regressor.networks_[0])[1]
    features = regressor.n_features_in_
    scaled = op("Div", op("Sub", "X", regressor._x_mean), regressor._x_std)
    known = np.ones(features, bool)
    known[regressor._empty] = False
    x = op("Where", known, op("Cast", scaled, to=SINGLE), 0.0)
    each = [[op("Cast", part, to=DOUBLE) for part in _moments(graph, net, x)] for net in networks]
    count = np.float64(len(networks))
    mu, var = (op("Div", op("Sum", *parts), count) for parts in zip(*each, strict=True))
    errors = [op("Sub", mean, mu) for mean, _ in each]
    spread = op("Div", op("Sum", *[op("Mul", error, error) for error in errors]), np.float64(max(len(networks) - 1, 1)))
    outside = _outside(graph, regressor._beyond, x, targets)
    scales, stds = [], []
    for k, noise in enumerate(regressor._noises):
        parts = [op("Gather", part, np.array([k]), axis=1) for part in (mu, var, spread, outside)]
        log_scale2 = _log_scale2(graph, noise, x, *parts)
        scale = op(
            "Mul", op("Exp", op("Mul", log_scale2, np.float64(0.5))), np.float64(np.atleast_1d(regressor._y_std)[k])
        )
        v = noise.degrees
        ratio = 1.0 if math.isinf(v) else v / (v - 2)
        scales.append(scale)
        stds.append(op("Mul", scale, np.float64(math.sqrt(ratio))))
    mean = op("Add", op("Mul", mu, np.atleast_1d(regressor._y_std)), np.atleast_1d(regressor._y_mean))
    shape = ["n", targets] if regressor._several else ["n"]
    outputs = [("mean", DOUBLE, shape), ("std", DOUBLE, shape)]
    _named(graph, mean, "mean", regressor._several)
    _named(graph, op("Concat", *stds, axis=1), "std", regressor._several)
    if quantiles is not None:
        asked = probabilities_of(quantiles)
        found = []
        for k, noise in enumerate(regressor._noises):
            middle = op("Gather", mean, np.array([k]), axis=1)
            found.append(op("Add", middle, op("Mul", scales[k], quantile(asked, noise.degrees)[None])))
        if regressor._several:
            op("Concat", *[op("Unsqueeze", part, np.array([1])) for part in found], name="quantiles", axis=1)
        else:
            op("Identity", found[0], name="quantiles")
        outputs.append(("quantiles", DOUBLE, [*shape, len(asked)]))
    return [("X", DOUBLE, ["n", features])], outputs


def _named(graph: _Graph, values: str, name: str, several: bool) -> None:
    if several:
        graph.op("Identity", values, name=name)
    else:
        graph.op("Squeeze", values, np.array([1]), name=name)


def _outside(graph: _Graph, beyond: Any, x: str, targets: int) -> str | np.ndarray:
    """Variances of the means beyond the samples, (n, targets), as `Extrapolation.variances`."""
    if beyond is None:
        return np.zeros((1, targets))
    op = graph.op
    distance = op("Max", op("Sub", x, beyond.high), op("Sub", beyond.low, x), 0.0)
    distance = op("Cast", distance, to=DOUBLE)
    return op("MatMul", op("Mul", distance, distance), beyond.slopes)


def _log_scale2(graph: _Graph, noise: Any, x: str, mu: str, var: str, spread: str, outside: str) -> str:
    """ln s^2 of one target, as `GivenNoise.log_scale2` and `LearntNoise.log_scale2` where no input is missing."""
    from pytagi_ddp.estimators.noise import LEAST, GivenNoise  # here, as in `_regressor`

    op, f = graph.op, np.float64
    if isinstance(noise, GivenNoise):
        return op("Log", op("Sum", op("Mul", var, f(noise.factor)), spread, outside, f(noise.variance)))
    features, scale = noise.features, noise.scale
    log_var = op("Log", op("Add", var, f(LEAST)))
    if not noise.networks:
        return _wider(graph, noise, log_var, spread, outside, f(scale.offset + noise.shrink))
    z = op("Clip", op("Div", op("Sub", log_var, f(features.mean)), f(features.std)), f(-3), f(3))
    inputs = op("Concat", op("Cast", z, to=SINGLE), op("Cast", mu, to=SINGLE), x, axis=1)
    hs = [op("Cast", _moments(graph, net, inputs)[0], to=DOUBLE) for net in noise.networks]
    low, high = noise.limits
    h = op("Clip", op("Div", op("Sum", *hs), f(len(hs))), f(low), f(high))
    within = op("Add", op("Mul", h, f(scale.slope)), f(scale.offset + noise.shrink))
    return _wider(graph, noise, log_var, spread, outside, within)


def _wider(graph: _Graph, noise: Any, log_var: str, spread: str, outside: str, within: Any) -> str:
    """`within` and what `Features.beyond` adds to it."""
    op, f = graph.op, np.float64
    most = noise.features.most
    limits = (op("Exp", log_var), math.exp(most)), (spread, noise.features.most_spread)
    more = op("Sum", *[op("Max", op("Sub", value, f(limit)), f(0)) for value, limit in limits], outside)
    factor = op("Log", op("Add", op("Mul", more, op("Exp", op("Neg", within))), f(1)))
    return op("Add", within, op("Max", op("Sub", log_var, f(most)), factor))

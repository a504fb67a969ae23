"""Means and variances of the outputs of a network, as parts of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.kernels.formulas.activation import FLOOR, SD_MIN, X_MAX
from pytagi_ddp.kernels.formulas.encoding import ROUNDING
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.likelihoods.classes import LEAST, MOST_GROWTH, SMALL, TURNS
from pytagi_ddp.nn import (
    ELU,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    ConvTranspose2d,
    LayerBlock,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool2d,
    MixtureReLU,
    Parallel,
    PiecewiseLinearEncoding,
    Pixels,
    ReLU,
    ResNetBlock,
    RMSNorm,
    Sequential,
    Shape,
    Sigmoid,
    Softplus,
    Tanh,
)
from pytagi_ddp.nn.base_layer import BaseLayer
from pytagi_ddp.onnx.graph import BOOL, DOUBLE, SINGLE, Graph, Made


class Units(NamedTuple):
    """Units of a batch.

    Attributes:
        mean, var: names of (n, *extents); var is None where all are known.
        extents: (channels, height, width), (time steps, features) or (units,).
    """

    mean: str
    var: str | None
    extents: tuple[int, ...]

    def moved(self, move: Callable[[str], str], extents: tuple[int, ...]) -> Units:
        """The same moments at other places."""
        return Units(move(self.mean), None if self.var is None else move(self.var), extents)


def network(graph: Graph, net: Sequential, likelihood: Categorical | None) -> Made:
    units = layers(graph, net, "x")
    var = _variances(graph, units)
    graph.op("Identity", units.mean, name="mean")
    graph.op("Identity", var, name="variance")
    outputs = [(name, SINGLE, ["n", *units.extents]) for name in ("mean", "variance")]
    if likelihood is not None:
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"export knows no graph for the likelihood {likelihood!r}: it takes Categorical")
        likelihood.check_outputs(units.extents[-1])
        graph.op("Cast", probabilities(graph, units.mean, var), name="probabilities", to=SINGLE)
        outputs.append(("probabilities", SINGLE, ["n", *units.extents]))
    inputs = [("x", SINGLE, ["n", *net.layers[0].in_shape.extents])]
    return inputs, outputs, {}


def moments(graph: Graph, net: Sequential, x: str) -> tuple[str, str]:
    """Means and variances of the outputs (n, outputs) of a network with flat units."""
    units = layers(graph, net, x)
    return units.mean, _variances(graph, units)


def layers(graph: Graph, net: Sequential, x: str) -> Units:
    """The outputs for known inputs x."""
    units = Units(x, None, net.layers[0].in_shape.extents)
    for layer in net.layers:
        units = _layer(graph, layer, units)
    return units


def _layer(graph: Graph, layer: BaseLayer, units: Units) -> Units:
    kind = type(layer)
    make = LAYERS.get(kind)
    if make is None:
        base = next((base.__name__ for base in LAYERS if issubclass(kind, base)), None)
        derived = f", which may compute something else than {base}" if base else ""
        known = ", ".join(kind.__name__ for kind in LAYERS)
        raise TypeError(f"export knows no graph for {kind.__name__}{derived}: it takes {known}")
    made = make(graph, layer, _arranged(graph, units, layer.in_shape.extents))
    return _arranged(graph, made, layer.out_shape.extents)


def _arranged(graph: Graph, units: Units, extents: tuple[int, ...]) -> Units:
    if extents == units.extents:
        return units
    shape = np.array([-1, *extents])
    return units.moved(lambda values: graph.op("Reshape", values, shape), extents)


def _by_step(graph: Graph, layer: Any, units: Units, features: int) -> Units:
    """The units as rows: one of each time step, or one."""
    return _arranged(graph, units, Shape.of_sequence(layer.steps, features).extents)


def _variances(graph: Graph, units: Units) -> str:
    return units.var or graph.op("Sub", units.mean, units.mean)


def _encoding(graph: Graph, layer: PiecewiseLinearEncoding, units: Units) -> Units:
    """The bins of known inputs, bottom + (top - bottom) u, where u is how far an input has come through a bin.

    The units of single numbers follow.
    """
    if units.var is not None:
        raise TypeError("export takes PiecewiseLinearEncoding as the first layer only, where inputs are known")
    constants = layer.constants()
    of_numbers = constants[1] == constants[2]
    number, low, high, bottom, top, least, most = constants[:, ~of_numbers]
    u = graph.op("Div", graph.op("Sub", graph.op("Gather", units.mean, number.astype(int), axis=1), low), high - low)
    u = graph.op("Min", graph.op("Max", u, least), most)
    made = graph.op("Add", bottom, graph.op("Mul", u, top - bottom))
    if layer.values is not None:
        source, value = constants[:2, of_numbers]
        away = graph.op("Abs", graph.op("Sub", graph.op("Gather", units.mean, source.astype(int), axis=1), value))
        hit = graph.op("Cast", graph.op("LessOrEqual", away, ROUNDING * np.maximum(np.abs(value), 1)), to=SINGLE)
        made = graph.op("Concat", made, graph.op("Mul", hit, np.float32(layer.height)), axis=1)
    return Units(made, None, layer.out_shape.extents)


def _linear(graph: Graph, layer: Linear, units: Units) -> Units:
    shape = layer.output_size, layer.input_size
    units = _by_step(graph, layer, units, layer.input_size)
    extents = *units.extents[:-1], layer.output_size
    return _product(
        graph, layer, units, lambda a, w: graph.op("MatMul", a, w), lambda part: part.reshape(shape).T, extents
    )


def _convolution(graph: Graph, layer: Conv2d | ConvTranspose2d, units: Units) -> Units:
    window, transposed = layer.window, isinstance(layer, ConvTranspose2d)
    channels = layer.in_channels, layer.out_channels
    shape = *(channels if transposed else channels[::-1]), window.kernel_size, window.kernel_size
    kind = "ConvTranspose" if transposed else "Conv"
    return _product(
        graph,
        layer,
        units,
        lambda a, w: graph.op(kind, a, w, **_geometry(window)),
        lambda part: part.reshape(shape),
        layer.out_shape.extents,
    )


def _product(
    graph: Graph,
    layer: Any,
    units: Units,
    multiply: Callable[[str, str], str],
    arranged: Callable[[np.ndarray], np.ndarray],
    extents: tuple[int, ...],
) -> Units:
    """m' = W m + b and s' = (W^2 + S) s + S m^2 + s_b, with weights as `multiply` takes them."""
    m, s = units.mean, units.var
    w, v = (graph.constant(arranged(np.asarray(part, np.float32))) for part in (layer.mu_w, layer.var_w))
    mean, var = multiply(m, w), multiply(graph.op("Mul", m, m), v)
    if s is not None:
        # Not a third matrix in the file: runtimes compute it once, when they load the graph.
        var = graph.op("Add", var, multiply(s, graph.op("Add", graph.op("Mul", w, w), v)))
    return _biased(graph, layer, mean, var, extents)


def _biased(graph: Graph, layer: Any, mean: str, var: str, extents: tuple[int, ...]) -> Units:
    if layer.bias:
        mean = graph.op("Add", mean, _of_features(layer.mu_b, extents))
        var = graph.op("Add", var, _of_features(layer.var_b, extents))
    return Units(mean, var, extents)


def _of_features(values: Any, extents: tuple[int, ...]) -> np.ndarray:
    """One value for each channel of an image, or each unit of a row."""
    return np.asarray(values, np.float32).reshape((-1, 1, 1) if len(extents) == 3 else -1)


def _geometry(window: Any) -> dict[str, Any]:
    before, after = window.before, window.total - window.before
    side = window.kernel_size, window.stride
    return {"kernel_shape": [side[0]] * 2, "strides": [side[1]] * 2, "pads": [before] * 2 + [after] * 2}


def _average(graph: Graph, layer: AvgPool2d, units: Units) -> Units:
    window = layer.window
    means = units.moved(
        lambda values: graph.op("AveragePool", values, count_include_pad=1, **_geometry(window)),
        layer.out_shape.extents,
    )
    return means._replace(var=means.var and graph.op("Mul", means.var, 1 / window.kernel_size**2))


def _maximum(graph: Graph, layer: MaxPool2d, units: Units) -> Units:
    mean, winner = graph.ops("MaxPool", 2, units.mean, **_geometry(layer.window))
    flat = units.var and graph.op("Reshape", units.var, np.array([-1]))
    return Units(mean, flat and graph.op("Gather", flat, winner), layer.out_shape.extents)


def _batch_norm(graph: Graph, layer: BatchNorm2d, units: Units) -> Units:
    """With the running statistics, as in evaluation."""
    units, to_host = _normalised(graph, layer, units), layer.kernels.array.to_host
    mean, var = (_of_features(to_host(part), units.extents) for part in (layer.running_mean, layer.running_var))
    r = 1 / np.sqrt(var + np.float32(layer.eps))
    t = graph.op("Mul", graph.op("Sub", units.mean, mean), r)
    return _affine(graph, layer, units, t, r * r)


def _row_norm(graph: Graph, layer: LayerNorm | RMSNorm, units: Units) -> Units:
    """Statistics of a row are those of all its units, with the variances of these."""
    units = _normalised(graph, layer, units)
    m, s, op = units.mean, units.var, graph.op
    axes = [1, 2, 3] if len(units.extents) == 3 else [-1]
    n = math.prod(layer.normalized_shape)
    if isinstance(layer, LayerNorm):
        m, n = op("Sub", m, op("ReduceMean", m, axes=axes)), n - 1
    square = op("Mul", m, m) if s is None else op("Add", op("Mul", m, m), s)
    total = op("ReduceSum", square, np.array(axes))
    r2 = op("Reciprocal", op("Add", op("Div", total, float(n)), float(layer.eps)))
    return _affine(graph, layer, units, op("Mul", m, op("Sqrt", r2)), r2)


def _normalised(graph: Graph, layer: Any, units: Units) -> Units:
    """The units as a norm takes them: an image if it has one weight for each channel, otherwise rows."""
    if layer.in_shape.channels == layer.num_features:
        return units
    return _by_step(graph, layer, units, layer.num_features)


def _affine(graph: Graph, layer: Any, units: Units, t: str, r2: str | np.ndarray) -> Units:
    """`normalized_moments` in kernels.formulas.normalize, of the normalised means t and the squared factor r2."""
    op = graph.op
    w, v = (_of_features(part, units.extents) for part in (layer.mu_w, layer.var_w))
    mean, var = op("Mul", t, w), op("Mul", op("Mul", t, t), v)
    if units.var is not None:
        var = op("Add", var, op("Mul", op("Mul", units.var, r2), w * w + v))
    return _biased(graph, layer, mean, var, units.extents)


def _block(graph: Graph, layer: LayerBlock, units: Units) -> Units:
    for inner in layer.layers:
        units = _layer(graph, inner, units)
    return units


def _parallel(graph: Graph, layer: Parallel, units: Units) -> Units:
    whole = layer.out_shape.extents
    ends = [
        part if branch is None else _layer(graph, branch, part)
        for branch, part in zip(layer.branches, _parts(graph, layer, units), strict=True)
    ]
    known = all(end.var is None for end in ends)
    if layer.merge == "sum":
        ends = [_arranged(graph, end, whole) for end in ends]
        variances = [end.var for end in ends if end.var is not None]
        mean, var = graph.op("Sum", *(end.mean for end in ends)), None if known else graph.op("Sum", *variances)
        return Units(mean, var, whole)
    axis = _axis(whole)
    others = math.prod(whole) // whole[axis]
    ends = [
        _arranged(graph, end, (*whole[:axis], math.prod(end.extents) // others, *whole[axis + 1 :])) for end in ends
    ]
    mean = graph.op("Concat", *(end.mean for end in ends), axis=axis + 1)
    var = None if known else graph.op("Concat", *(_variances(graph, end) for end in ends), axis=axis + 1)
    return Units(mean, var, whole)


def _axis(extents: tuple[int, ...]) -> int:
    """That of channels, features of time steps or units, among the extents."""
    return 1 if len(extents) == 2 else 0


def _parts(graph: Graph, layer: Parallel, units: Units) -> list[Units]:
    """What each branch takes."""
    if layer.split is None:
        return [units] * len(layer.branches)
    if sum(layer.split) != units.extents[_axis(units.extents)]:
        units = _arranged(graph, units, (math.prod(units.extents),))
    axis, sizes = _axis(units.extents), layer.split

    def split(values: str) -> list[str]:
        return graph.ops("Split", len(sizes), values, np.array(sizes), axis=axis + 1)

    variances = [None] * len(sizes) if units.var is None else split(units.var)
    extents = [(*units.extents[:axis], size, *units.extents[axis + 1 :]) for size in sizes]
    return list(map(Units, split(units.mean), variances, extents))


def _pixels(graph: Graph, layer: Pixels, units: Units) -> Units:
    channels, height, width = units.extents
    last = units.moved(lambda values: graph.op("Transpose", values, perm=[0, 2, 3, 1]), (height, width, channels))
    return _arranged(graph, last, layer.out_shape.extents)


def _activation(moments: Callable[[Graph, Any, str, str], tuple[str, str]]) -> Callable[[Graph, Any, Units], Units]:
    def make(graph: Graph, layer: Any, units: Units) -> Units:
        return Units(*moments(graph, layer, units.mean, _variances(graph, units)), units.extents)

    return make


@_activation
def _relu(graph: Graph, layer: ReLU, m: str, s: str) -> tuple[str, str]:
    j = graph.op("Cast", graph.op("Greater", m, 0.0), to=SINGLE)
    return graph.op("Relu", m), graph.op("Mul", j, s)  # onnxruntime takes longer to choose by Where


@_activation
def _leaky_relu(graph: Graph, layer: LeakyReLU, m: str, s: str) -> tuple[str, str]:
    j = graph.op("Where", graph.op("Greater", m, 0.0), 1.0, float(layer.negative_slope))
    return graph.op("Mul", j, m), _scaled(graph, j, s)


@_activation
def _elu(graph: Graph, layer: ELU, m: str, s: str) -> tuple[str, str]:
    above = graph.op("Greater", m, 0.0)
    j = graph.op("Where", above, 1.0, graph.op("Mul", graph.op("Exp", graph.op("Min", m, 0.0)), float(layer.alpha)))
    return graph.op("Elu", m, alpha=float(layer.alpha)), _scaled(graph, j, s)


@_activation
def _sigmoid(graph: Graph, layer: Sigmoid, m: str, s: str) -> tuple[str, str]:
    p = graph.op("Sigmoid", m)
    return p, _scaled(graph, graph.op("Mul", p, graph.op("Sub", 1.0, p)), s)


@_activation
def _tanh(graph: Graph, layer: Tanh, m: str, s: str) -> tuple[str, str]:
    p = graph.op("Tanh", m)
    return p, _scaled(graph, graph.op("Sub", 1.0, graph.op("Mul", p, p)), s)


@_activation
def _softplus(graph: Graph, layer: Softplus, m: str, s: str) -> tuple[str, str]:
    return graph.op("Softplus", m), _scaled(graph, graph.op("Sigmoid", m), s)


@_activation
def _mixture_relu(graph: Graph, layer: MixtureReLU, m: str, s: str) -> tuple[str, str]:
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


def _scaled(graph: Graph, j: str, s: str) -> str:
    return graph.op("Mul", graph.op("Mul", j, j), s)


LAYERS: dict[type, Callable[[Graph, Any, Units], Units]] = {
    Linear: _linear,
    Conv2d: _convolution,
    ConvTranspose2d: _convolution,
    AvgPool2d: _average,
    MaxPool2d: _maximum,
    BatchNorm2d: _batch_norm,
    LayerNorm: _row_norm,
    RMSNorm: _row_norm,
    LayerBlock: _block,
    ResNetBlock: _parallel,
    Parallel: _parallel,
    Pixels: _pixels,
    PiecewiseLinearEncoding: _encoding,
    ReLU: _relu,
    LeakyReLU: _leaky_relu,
    ELU: _elu,
    Sigmoid: _sigmoid,
    Tanh: _tanh,
    Softplus: _softplus,
    MixtureReLU: _mixture_relu,
}


def probabilities(graph: Graph, mean: str, var: str) -> str:
    """`expected_softmax` of likelihoods.classes over the last axis, in float64: Newton's method in a loop."""
    m, s = (graph.op("Cast", part, to=DOUBLE) for part in (mean, var))
    f, op = np.float64, graph.op
    m = op("Sub", m, op("ReduceMax", m, axes=[-1]))
    start = op("Softmax", op("Div", m, op("Add", op("Mul", s, f(0.25)), f(1))), axis=-1)
    start = op("Max", start, f(LEAST))
    body = Graph(graph.helper, "turn_")
    op = body.op

    def total(a: str) -> str:
        return op("ReduceSum", a, np.array([-1]))

    v = op("Reciprocal", op("Add", op("Mul", s, "old"), f(1)))
    r = op("Sub", op("Add", m, op("Mul", s, op("Sub", f(0.5), "old"))), op("Log", "old"))
    weight = op("Mul", "old", v)
    d = op("Mul", v, op("Sub", r, op("Div", total(op("Mul", weight, r)), total(weight))))
    new = op("Min", op("Mul", "old", op("Exp", op("Min", d, f(MOST_GROWTH)))), f(1))
    new = op("Max", op("Div", new, total(new)), f(LEAST), name="new")
    moves = op("Or", op("Greater", op("Abs", op("Sub", new, "old")), f(SMALL)), op("Greater", d, f(1)))
    some = op("ReduceSum", op("Cast", moves, to=SINGLE), keepdims=0)  # not of numbers: a sample may have NaN
    op("Greater", some, 0.0, name="go_on")
    turn = body.part(
        "turn",
        [("turn_number", 7, []), ("going", BOOL, []), ("old", DOUBLE, None)],
        [("go_on", BOOL, []), ("new", DOUBLE, None)],
    )
    return graph.op("Loop", np.array(TURNS), np.array(True), start, body=turn)

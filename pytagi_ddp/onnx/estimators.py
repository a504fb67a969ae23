"""The predictions of regressors and classifiers, as parts of a graph."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytagi_ddp.estimators.classifier import LEAST as LEAST_PROBABILITY
from pytagi_ddp.estimators.members import known_values
from pytagi_ddp.estimators.noise import LEAST, GivenNoise
from pytagi_ddp.estimators.regressor import probabilities_of
from pytagi_ddp.estimators.student_t import quantile
from pytagi_ddp.onnx.graph import DOUBLE, SINGLE, Graph, Made
from pytagi_ddp.onnx.networks import moments, probabilities
from pytagi_ddp.warn import warn


def regressor(graph: Graph, regressor: Any, quantiles: Sequence[float] | None) -> Made:
    each, x = _networks(graph, regressor)
    if regressor.likelihood is not None:
        raise TypeError(
            f"export knows no graph for likelihood={regressor.likelihood!r}: export its networks_ one by one"
        )
    if regressor.known_rows and any(noise.intercept is not None for noise in regressor._noises):
        _warn_of_known_rows("noise_.intercept")
    op, networks, targets = graph.op, regressor.networks_, len(regressor._noises)
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
    degrees = [None if math.isinf(noise.degrees) else noise.degrees for noise in regressor._noises]
    notes = {"degrees_of_freedom": json.dumps(degrees if regressor._several else degrees[0])}
    return [("X", DOUBLE, ["n", regressor.n_features_in_])], outputs, notes


def classifier(graph: Graph, classifier: Any) -> Made:
    each, _ = _networks(graph, classifier)
    if classifier._tree:
        raise TypeError("export knows no graph for sigma_v: export the networks_ one by one")
    if classifier.known_rows and classifier._shared is not None:
        _warn_of_known_rows("their classes")
    op, f = graph.op, np.float64
    mean, var = (
        op("Concat", *(op("Unsqueeze", part, np.array([0])) for part in parts), axis=0)
        for parts in zip(*each, strict=True)
    )
    p = op("ReduceMean", probabilities(graph, mean, var), axes=[0], keepdims=0)
    logs = op("Div", op("Log", op("Max", p, f(LEAST_PROBABILITY))), f(classifier.temperature_))
    op("Softmax", logs, name="probabilities", axis=-1)
    outputs = [("probabilities", DOUBLE, ["n", len(classifier.classes_)])]
    notes = {"classes": json.dumps(classifier.classes_.tolist())}
    return [("X", DOUBLE, ["n", classifier.n_features_in_])], outputs, notes


def _networks(graph: Graph, estimator: Any) -> tuple[list[list[str]], str]:
    """Means and variances of the outputs of each network, in float64, and the standardised inputs."""
    name = type(estimator).__name__
    if not hasattr(estimator, "networks_"):
        raise RuntimeError(f"export takes a {name} that is fitted: call fit first")
    if estimator._categories.known:
        raise TypeError("export takes estimators whose features are numbers, each of them one input of the networks")
    if any(map(known_values, estimator.networks_)):
        raise TypeError(
            "export takes no estimator with inputs for values that occur often, because it predicts other values by "
            "draws: give a number of bins, as n_bins=24, and fit again"
        )
    op = graph.op
    scaled = op("Div", op("Sub", "X", estimator._x_mean), estimator._x_std)
    known = np.ones(estimator.n_features_in_, bool)
    known[estimator._empty] = False
    x = op("Where", known, op("Cast", scaled, to=SINGLE), 0.0)
    each = [[op("Cast", part, to=DOUBLE) for part in moments(graph, net, x)] for net in estimator.networks_]
    return each, x


def _warn_of_known_rows(what: str) -> None:
    warn(
        f"the table has equal inputs with something in common ({what}), which the graph leaves out: it predicts an "
        "input that was learnt as a new one, as with known_rows=False"
    )


def _named(graph: Graph, values: str, name: str, several: bool) -> None:
    if several:
        graph.op("Identity", values, name=name)
    else:
        graph.op("Squeeze", values, np.array([1]), name=name)


def _outside(graph: Graph, beyond: Any, x: str, targets: int) -> str | np.ndarray:
    """Variances of the means beyond the samples, (n, targets), as `Extrapolation.variances`."""
    if beyond is None:
        return np.zeros((1, targets))
    op = graph.op
    distance = op("Max", op("Sub", x, beyond.high), op("Sub", beyond.low, x), 0.0)
    distance = op("Cast", distance, to=DOUBLE)
    return op("MatMul", op("Mul", distance, distance), beyond.slopes)


def _log_scale2(graph: Graph, noise: Any, x: str, mu: str, var: str, spread: str, outside: str) -> str:
    """ln s^2 of one target, as `GivenNoise.log_scale2` and `LearntNoise.log_scale2` where no input is missing."""
    op, f = graph.op, np.float64
    if isinstance(noise, GivenNoise):
        return op("Log", op("Sum", op("Mul", var, f(noise.factor)), spread, outside, f(noise.variance)))
    features, scale = noise.features, noise.scale
    log_var = op("Log", op("Add", var, f(LEAST)))
    if not noise.networks:
        return _wider(graph, noise, log_var, spread, outside, f(scale.offset + noise.shrink))
    z = op("Clip", op("Div", op("Sub", log_var, f(features.mean)), f(features.std)), f(-3), f(3))
    inputs = op("Concat", op("Cast", z, to=SINGLE), op("Cast", mu, to=SINGLE), x, axis=1)
    hs = [op("Cast", moments(graph, net, inputs)[0], to=DOUBLE) for net in noise.networks]
    low, high = noise.limits
    h = op("Clip", op("Div", op("Sum", *hs), f(len(hs))), f(low), f(high))
    within = op("Add", op("Mul", h, f(scale.slope)), f(scale.offset + noise.shrink))
    return _wider(graph, noise, log_var, spread, outside, within)


def _wider(graph: Graph, noise: Any, log_var: str, spread: str, outside: str, within: Any) -> str:
    """`within` and what `Features.beyond` adds to it."""
    op, f = graph.op, np.float64
    most = noise.features.most
    limits = (op("Exp", log_var), math.exp(most)), (spread, noise.features.most_spread)
    more = op("Sum", *[op("Max", op("Sub", value, f(limit)), f(0)) for value, limit in limits], outside)
    factor = op("Log", op("Add", op("Mul", more, op("Exp", op("Neg", within))), f(1)))
    return op("Add", within, op("Max", op("Sub", log_var, f(most)), factor))

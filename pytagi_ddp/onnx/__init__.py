"""Networks and estimators as ONNX graphs, which predict means and variances without this library.

    pytagi_ddp.onnx.export(regressor, "regressor.onnx", quantiles=[0.05, 0.95])

    session = onnxruntime.InferenceSession("regressor.onnx")
    mean, std, quantiles = session.run(None, {"X": X})

It needs the package `onnx` (`pip install 'pytagi-ddp[onnx]'`), which `export` loads. A program that only predicts
needs `onnxruntime`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pytagi_ddp.files import AnyPath, atomic_write
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import Sequential
from pytagi_ddp.onnx.graph import Graph
from pytagi_ddp.onnx.networks import network

__all__ = ["export"]


def export(
    model: Any, path: AnyPath, quantiles: Sequence[float] | None = None, likelihood: Categorical | None = None
) -> None:
    """Writes a network, or a fitted `TAGIRegressor` or `TAGIClassifier`, as an ONNX graph.

    Of a network, the input "x" is float32, and without variances: (n, inputs), or (n, channels, height, width) where
    the first layer takes images. Outputs are "mean" and "variance", float32, as `Sequential.predict` gives them in
    evaluation (`net.eval()`), without noise of observations: (n, outputs), or in the shape of an image or sequence.
    With `likelihood`, there are also "probabilities" (n, classes), as its `predict` gives them.

    Of an estimator, the input "X" is float64 (n, features), not scaled. Outputs are float64: of a regressor "mean" and
    "std" (and "quantiles"), as `TAGIRegressor.predict` gives them, noise included; of a classifier "probabilities", as
    `predict_proba`. The graph has no corrections at inputs that were learnt (random intercepts). The metadata of the
    model have `degrees_of_freedom` of a regressor (null: a normal distribution), and `classes` of a classifier, as
    JSON: `session.get_modelmeta().custom_metadata_map["classes"]` in onnxruntime.

    A sample with NaN has the results NaN, also where the network or estimator takes missing inputs. The graph computes
    in float32, as the library does. Sums are in another order, so results differ in the last digits. Variances of a
    `MaxPool2d` need the indices that MaxPool gives in ONNX: `onnx.reference` (1.23) computes them wrongly if the stride
    is 1.

    Args:
        model: a `Sequential` of dense layers, convolutions, poolings, norms, blocks and activations, except those that
            end a network with probabilities (`Softmax`, `Remax`); a `TAGIRegressor` without `likelihood`; or a
            `TAGIClassifier` without `sigma_v`.
        path: the file, which is replaced as a whole.
        quantiles: of a regressor: probabilities, for one more output (n, number of them), or (n, targets, number).
        likelihood: of a network: a `Categorical`, for one more output.

    Raises:
        ImportError: `onnx` is not installed. TypeError: another model, likelihood, or a layer that has no graph; says
            which. ValueError: quantiles of another model, or such as `TAGIRegressor.predict` refuses; a likelihood of
            an estimator, or with another number of classes. RuntimeError: the estimator is not fitted.

    Warns:
        UserWarning: the estimator corrects predictions at inputs that were learnt, which the graph does not.
    """
    try:
        import onnx  # here, as an option
    except ImportError:
        raise ImportError("export needs the package onnx: pip install 'pytagi-ddp[onnx]'") from None
    graph = Graph(onnx.helper)
    kind = _estimator(model)
    if quantiles is not None and kind != "TAGIRegressor":
        raise ValueError("quantiles are of a regressor: those of a network's output depend on the noise")
    if likelihood is not None and kind is not None:
        raise ValueError("likelihood is of a network: the graph of an estimator has its predictions already")
    if isinstance(model, Sequential):
        inputs, outputs, notes = network(graph, model, likelihood)
    elif kind is not None:
        from pytagi_ddp.onnx import estimators  # here: scikit-learn is loaded by then

        regressor = kind == "TAGIRegressor"
        made = estimators.regressor(graph, model, quantiles) if regressor else estimators.classifier(graph, model)
        inputs, outputs, notes = made
    else:
        raise TypeError(
            f"export takes a Sequential, a TAGIRegressor or a TAGIClassifier, got {type(model).__name__}; of a "
            "Pipeline export the last step, of a DDPSequential its model"
        )
    whole = graph.model(inputs, outputs)
    whole.producer_name = "pytagi_ddp"
    onnx.helper.set_model_props(whole, notes)
    onnx.checker.check_model(whole)
    atomic_write(path, whole.SerializeToString())


def _estimator(model: Any) -> str | None:
    """The name of the class of a regressor or classifier, or None."""
    loaded = sys.modules.get("pytagi_ddp.estimators")  # which one cannot have without having loaded it
    names = ("TAGIRegressor", "TAGIClassifier") if loaded else ()
    return next((name for name in names if isinstance(model, getattr(loaded, name))), None)

"""Graphs of ONNX, run by onnxruntime beside the networks and regressors that they were made of."""

import json
import sys

import numpy as np
import pytest

from pytagi_ddp import manual_seed, onnx
from pytagi_ddp.likelihoods import Categorical, Poisson
from pytagi_ddp.models import resnet8_cifar10
from pytagi_ddp.nn import (
    ELU,
    LSTM,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    ConvTranspose2d,
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
    Sigmoid,
    Softplus,
    Tanh,
)
from tests.learning import learn


def run(path, x):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {given.name: x}), strict=True))


@pytest.fixture
def _onnx():
    pytest.importorskip("onnx", reason="onnx is not installed")


def trained(*activations):
    manual_seed(0)
    layers, inputs = [], 4
    if activations and isinstance(activations[0], PiecewiseLinearEncoding):
        layers, activations = [activations[0]], activations[1:]
        inputs = layers[0].out_shape.size
    sizes = [inputs, *range(9, 9 + len(activations)), 2]
    layers.append(Linear(*sizes[:2]))
    for k, activation in enumerate(activations):
        layers += [activation, Linear(sizes[k + 1], sizes[k + 2], bias=k > 0)]
    net = Sequential(*layers)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=(16, 4)).astype(np.float32)
        learn(net, x, np.sin(x[:, :2]), 0.05)
    return net


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize(
    "activations",
    [
        (),
        (ReLU(), ReLU()),
        (LeakyReLU(0.2), ReLU()),
        (ELU(0.7), ELU(1.0)),
        (Sigmoid(), Tanh()),
        (Softplus(), Softplus()),
        (MixtureReLU(), MixtureReLU()),
        (PiecewiseLinearEncoding([[-1, 0, 2], None, [0, 1], [-2, -1, 0, 1]]), ReLU()),
        (PiecewiseLinearEncoding([None, None, [0, 1, 3], None], [None, [(2, -1)], [(0, 2), (1, 5)], None]), ReLU()),
        (PiecewiseLinearEncoding([None] * 4, values=[[0, 1], None, [0], None], height=2), ReLU()),
    ],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers) or "linear",
)
def test_a_graph_predicts_what_the_network_does(activations, tmp_path):
    net = trained(*activations)
    onnx.export(net, tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32) * np.geomspace(0.01, 30, 50)[:, None]
    x = np.concatenate([x, np.zeros((1, 4)), np.ones((1, 4))]).astype(np.float32)
    found = run(tmp_path / "net.onnx", x)
    mean, var = net.predict(x)
    assert found["mean"].dtype == np.float32 and found["mean"].shape == (52, 2)
    np.testing.assert_allclose(found["variance"], var, rtol=2e-5)
    assert np.all(np.abs(found["mean"] - mean) < 1e-4 * np.sqrt(var) + 1e-5 * np.abs(mean))
    np.testing.assert_array_equal(run(tmp_path / "net.onnx", x[:1])["mean"].shape, (1, 2))


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize("layers", [[], [MixtureReLU()], [ELU(), Linear(6, 2)]])
def test_an_encoding_has_no_variances(layers, tmp_path):
    manual_seed(0)
    net = Sequential(PiecewiseLinearEncoding([[-1, 0, 2], None, [0, 1, 2, 3]]), *layers)
    onnx.export(net, tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    for found, expected in zip(run(tmp_path / "net.onnx", x).values(), net.predict(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize(("activation", "name"), [(LeakyReLU(), "negative_slope"), (ELU(), "alpha")])
def test_settings_may_be_numbers_of_numpy(activation, name, tmp_path):
    net = trained(activation)
    setattr(activation, name, np.float64(0.3))
    onnx.export(net, tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_allclose(run(tmp_path / "net.onnx", x)["mean"], net.predict(x)[0], rtol=1e-4, atol=1e-5)


NETWORKS = {
    "poolings": lambda: [
        *(Conv2d(1, 16, 5, in_width=12, in_height=12), ReLU(), AvgPool2d(2)),
        *(Conv2d(16, 8, 3, padding=1), MixtureReLU(), MaxPool2d(2, 2), Linear(32, 3)),
    ],
    "cut off": lambda: [
        Conv2d(2, 4, 4, bias=False, stride=2, padding=2, padding_type=3, in_width=9, in_height=11),
        *(BatchNorm2d(4), ReLU(), MaxPool2d(3, 1, 1, 1), Linear(120, 3)),
    ],
    "padding at one side": lambda: [
        Conv2d(2, 4, 3, stride=2, padding=1, padding_type=2, in_width=8, in_height=8),
        *(LayerNorm((4, 4, 4)), ReLU(), AvgPool2d(2, 1, 1, 2), Linear(64, 3)),
    ],
    "larger images": lambda: [
        *(Linear(5, 32), ReLU()),
        ConvTranspose2d(2, 4, 3, stride=2, padding=1, padding_type=2, in_width=4, in_height=4),
        *(ReLU(), ConvTranspose2d(4, 3, 3, padding=1), Pixels()),
    ],
    "norms of units": lambda: [
        *(Linear(5, 32), LayerNorm((32,), bias=False), MixtureReLU(), BatchNorm2d(32)),
        *(Linear(32, 16), RMSNorm((16,)), ReLU(), Linear(16, 3)),
    ],
    "norms of flat units of images": lambda: [
        *(Conv2d(1, 4, 3, padding=1, in_width=4, in_height=4), LayerNorm((64,)), ReLU(), BatchNorm2d(64)),
        *(Parallel(Conv2d(4, 4, 3, padding=1), Linear(64, 64)), AvgPool2d(4), RMSNorm((4,)), Linear(4, 3)),
    ],
    "norms of whole sequences": lambda: [
        *(Conv2d(1, 6, 2, stride=2, in_width=6, in_height=4), Pixels(), LayerNorm((36,)), Tanh()),
        *(BatchNorm2d(36), Linear(6, 3)),
    ],
    "norms of inputs": lambda: [LayerNorm((5,)), Parallel(RMSNorm((5,)), None), Linear(5, 3)],
    "branches": lambda: [
        Conv2d(2, 3, 3, padding=1, in_width=8, in_height=8),
        Parallel(Conv2d(3, 4, 3, padding=1), None, [Conv2d(3, 2, 1), ReLU()], merge="concat"),
        *(ReLU(), Parallel(Conv2d(4, 3, 1), None, split=[4, 5], merge="concat"), Linear(512, 3)),
    ],
    "parts of the input": lambda: [
        Parallel(Linear(3, 8), None, split=[3, 5], merge="concat"),
        *(Tanh(), Parallel(Linear(13, 4), Linear(13, 4)), Linear(4, 3)),
    ],
    "known branches": lambda: [
        Parallel(PiecewiseLinearEncoding([[-1, 0, 1], None]), None, split=[2, 4], merge="concat"),
        *(Tanh(), Linear(7, 3)),
    ],
    "time steps": lambda: [
        *(Conv2d(1, 6, 2, stride=2, in_width=6, in_height=4), Pixels(), RMSNorm((6,))),
        *(Linear(6, 4), ReLU(), LayerNorm((4,)), Parallel(Linear(4, 2), None, merge="concat"), Linear(6, 3)),
    ],
    "blocks": lambda: [
        *(Conv2d(1, 4, 3, padding=1, in_width=6, in_height=6), ReLU()),
        ResNetBlock([Conv2d(4, 4, 3, padding=1), BatchNorm2d(4), ReLU()]),
        ResNetBlock([Conv2d(4, 8, 2, stride=2), MixtureReLU()], Conv2d(4, 8, 2, stride=2)),
        *(AvgPool2d(3), Linear(8, 3)),
    ],
}


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_graph_predicts_what_a_network_of_any_layers_does(kind, tmp_path):
    manual_seed(0)
    net, rng = Sequential(*NETWORKS[kind]()), np.random.default_rng(0)
    size = net.layers[0].in_shape.size
    for _ in range(3):
        x = rng.normal(size=(8, size)).astype(np.float32)
        net(x)
        learn(net, x, rng.normal(size=(8, net.layers[-1].out_shape.size)), 1.0)
    net.eval()
    likelihood = Categorical(3)
    onnx.export(net, tmp_path / "net.onnx", likelihood=likelihood)
    x = rng.normal(size=(7, *net.layers[0].in_shape.extents)).astype(np.float32)
    found = run(tmp_path / "net.onnx", x)
    mean, var = net.predict(x)
    assert np.abs(found["mean"].reshape(mean.shape) - mean).max() < 2e-6 * np.abs(mean).max()
    np.testing.assert_allclose(found["variance"].reshape(var.shape), var, rtol=1e-5)
    p = likelihood.predict(net, x).probabilities
    np.testing.assert_allclose(found["probabilities"].reshape(p.shape), p, atol=1e-6)


@pytest.mark.usefixtures("_onnx")
def test_a_network_of_the_models(tmp_path):
    manual_seed(0)
    net = resnet8_cifar10().eval()
    onnx.export(net, tmp_path / "net.onnx")
    x = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    found = run(tmp_path / "net.onnx", x)
    mean, var = net.predict(x)
    assert np.abs(found["mean"] - mean).max() < 1e-5 * np.abs(mean).max()
    np.testing.assert_allclose(found["variance"], var, rtol=1e-5)


@pytest.mark.usefixtures("_onnx")
def test_nodes_have_names_and_files_no_third_matrix(tmp_path):
    """onnxruntime 1.19 and tools that quantise need names; equal constants are one."""
    import onnx as package

    net = Sequential(Linear(4, 300), ReLU(), Linear(300, 300), ReLU(), Linear(300, 2))
    onnx.export(net, tmp_path / "net.onnx", likelihood=Categorical(2))
    graph = package.load(tmp_path / "net.onnx").graph
    (loop,) = [node for node in graph.node if node.op_type == "Loop"]
    names = [node.name for node in (*graph.node, *loop.attribute[0].g.node)]
    assert all(names) and len(set(names)) == len(names)
    contents = [(part.data_type, tuple(part.dims), part.raw_data) for part in graph.initializer]
    assert len(set(contents)) == len(contents)
    assert (tmp_path / "net.onnx").stat().st_size < 1.1 * 2 * 4 * 300 * 306


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_probabilities_of_uncertain_outputs(scale, tmp_path):
    """Newton's method in the graph ends for each sample, also beside one that has NaN."""
    manual_seed(0)
    net, likelihood = Sequential(Linear(4, 30, gain_weight=scale)), Categorical(30)
    onnx.export(net, tmp_path / "net.onnx", likelihood=likelihood)
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    expected = likelihood.predict(net, x).probabilities
    np.testing.assert_allclose(run(tmp_path / "net.onnx", x)["probabilities"], expected, atol=1e-6)
    x[3] = np.nan
    found = run(tmp_path / "net.onnx", x)["probabilities"]
    assert np.isnan(found[3]).all()
    np.testing.assert_allclose(np.delete(found, 3, 0), np.delete(expected, 3, 0), atol=1e-6)


def regression(n=120, targets=1, seed=0):
    rng = np.random.default_rng(seed)
    x = np.c_[rng.normal(size=(n, 2)), 1e6 + rng.normal(size=n), np.full(n, 7.0)]
    y = np.sin(x[:, :targets]) * 100 + 500 + (5 + 20 * np.abs(x[:, :1])) * rng.normal(size=(n, targets))
    return x, y[:, 0] if targets == 1 else y


@pytest.mark.usefixtures("_onnx")
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"heteroscedastic": False, "student_t": False}, {"sigma_v": 3.0}, {"n_folds": 1, "n_seeds": 1}]
)
def test_a_graph_predicts_what_the_regressor_does(targets, options, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import onnx as package

    from pytagi_ddp.estimators import TAGIRegressor

    settings = {"hidden_layer_sizes": (8, 6), "n_folds": 2, "n_seeds": 2, "epochs": 5, "random_state": 0}
    model = TAGIRegressor(**settings | options).fit(*regression(targets=targets))
    onnx.export(model, tmp_path / "model.onnx", quantiles=[0.05, 0.5, 0.95])
    x = regression(60, seed=1)[0]
    x[-10:, 0] *= 20  # far from all samples
    x[:, 3] = np.linspace(-50, 50, 60)  # constant in training, so that it has no effect
    found = run(tmp_path / "model.onnx", x)
    mean, std, quantiles = model.predict(x, True, [0.05, 0.5, 0.95])
    for name, expected in (("mean", mean), ("std", std), ("quantiles", quantiles)):
        assert found[name].shape == expected.shape and found[name].dtype == np.float64
    assert np.abs((found["mean"] - mean) / std).max() < 1e-4
    np.testing.assert_allclose(found["std"], std, rtol=1e-4)
    assert np.abs((found["quantiles"] - quantiles) / std[..., None]).max() < 1e-3
    (notes,) = package.load(tmp_path / "model.onnx").metadata_props
    degrees = np.array(json.loads(notes.value, parse_constant=pytest.fail), float)  # null if infinite
    np.testing.assert_array_equal(np.where(np.isnan(degrees), np.inf, degrees), model.degrees_of_freedom_)
    x[0, 0] = np.nan
    assert np.isnan(run(tmp_path / "model.onnx", x)["mean"][0]).all()
    model._beyond = None  # as of `partial_fit` without `fit`, and of earlier versions
    onnx.export(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x)["std"][1:], model.predict(x, True)[1][1:], rtol=1e-4)


@pytest.mark.usefixtures("_onnx")
def test_a_graph_predicts_what_the_classifier_does(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import onnx as package

    from pytagi_ddp.estimators import TAGIClassifier

    x, values = regression()
    labels = np.array(["low", "middle", "high"])[np.searchsorted([450, 550], values)]
    model = TAGIClassifier((8,), n_folds=2, n_seeds=2, epochs=5, random_state=0).fit(x, labels)
    onnx.export(model, tmp_path / "model.onnx")
    x = regression(60, seed=1)[0]
    p = run(tmp_path / "model.onnx", x)["probabilities"]
    assert model.temperature_ != 1 and p.dtype == np.float64
    np.testing.assert_allclose(p, model.predict_proba(x), atol=1e-6)
    (notes,) = package.load(tmp_path / "model.onnx").metadata_props
    assert (notes.key, notes.value) == ("classes", '["high", "low", "middle"]')
    twice = np.concatenate([x, x]), np.concatenate([x[:, 0] > 0, x[:, 0] > 0.5])
    model = TAGIClassifier((8,), n_folds=2, n_seeds=1, epochs=2, n_bins=0, random_state=0).fit(*twice)
    model._shared = object()
    with pytest.warns(UserWarning, match="predicts an input that was learnt as a new one"):
        onnx.export(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(
        run(tmp_path / "model.onnx", x)["probabilities"],
        model.set_params(known_rows=False).predict_proba(x),
        atol=1e-6,
    )


@pytest.mark.usefixtures("_onnx")
def test_random_intercepts_are_left_out_with_a_warning(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from pytagi_ddp.estimators import TAGIRegressor

    x, y = regression(60)
    twice = {"X": np.concatenate([x, x]), "y": np.concatenate([y, y])}
    model = TAGIRegressor((8,), n_folds=2, n_seeds=1, epochs=3, n_bins=0, random_state=0).fit(**twice)
    with pytest.warns(UserWarning, match="predicts an input that was learnt as a new one"):
        onnx.export(model, tmp_path / "model.onnx")
    model.noise_.intercept = None
    mean, std = model.predict(x, return_std=True)
    found = run(tmp_path / "model.onnx", x)
    assert np.abs((found["mean"] - mean) / std).max() < 1e-4
    np.testing.assert_allclose(found["std"], std, rtol=1e-4)


@pytest.mark.usefixtures("_onnx")
def test_what_cannot_be_exported_is_named(tmp_path):
    path = tmp_path / "net.onnx"

    class Own(ReLU):
        pass

    with pytest.raises(TypeError, match=r"no graph for LSTM: it takes Linear, Conv2d, "):
        onnx.export(Sequential(LSTM(3, 4, 2), Linear(8, 1)), path)
    with pytest.raises(TypeError, match="no graph for Own, which may compute something else than ReLU: it takes"):
        onnx.export(Sequential(Linear(3, 4), Own(), Linear(4, 1)), path)
    with pytest.raises(TypeError, match="PiecewiseLinearEncoding as the first layer only"):
        onnx.export(Sequential(Linear(3, 2), PiecewiseLinearEncoding([[0, 1], None])), path)
    with pytest.raises(TypeError, match="no graph for the likelihood Poisson"):
        onnx.export(Sequential(Linear(4, 1)), path, likelihood=Poisson())
    with pytest.raises(ValueError, match="Categorical needs 3 outputs, the network has 1"):
        onnx.export(Sequential(Linear(4, 1)), path, likelihood=Categorical(3))
    with pytest.raises(ValueError, match="quantiles are of a regressor"):
        onnx.export(Sequential(Linear(4, 1)), path, quantiles=[0.5])
    with pytest.raises(TypeError, match="takes a Sequential, a TAGIRegressor or a TAGIClassifier, got list"):
        onnx.export([], path)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor

    places = np.array([["a", 1.0], ["b", 2.0]] * 10, object)
    categories = TAGIRegressor((4,), n_folds=1, n_seeds=1, epochs=1, categorical_features=[0]).fit(places, range(20))
    with pytest.raises(TypeError, match="whose features are numbers"):
        onnx.export(categories, path)
    with pytest.raises(RuntimeError, match="call fit first"):
        onnx.export(TAGIRegressor(), path)
    with pytest.raises(ValueError, match="likelihood is of a network"):
        onnx.export(TAGIRegressor(), path, likelihood=Categorical(3))
    tree = TAGIClassifier((4,), n_folds=1, n_seeds=1, epochs=1, sigma_v=1.0).fit(
        [[0.0], [1.0], [2.0]] * 4, [0, 1, 2] * 4
    )
    with pytest.raises(TypeError, match="no graph for sigma_v"):
        onnx.export(tree, path)
    x, y = regression(20)
    counts = TAGIRegressor((4,), n_folds=1, n_seeds=1, epochs=1, likelihood="poisson").fit(x, np.round(np.abs(y)))
    with pytest.raises(TypeError, match="no graph for likelihood='poisson'"):
        onnx.export(counts, path)
    assert not path.exists()


def test_without_onnx_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'pytagi-ddp\[onnx\]'"):
        onnx.export(Sequential(Linear(4, 1)), tmp_path / "net.onnx")

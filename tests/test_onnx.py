"""Graphs of ONNX, run by onnxruntime beside the networks and regressors that they were made of."""

import sys

import numpy as np
import pytest

from pytagi_ddp import manual_seed, onnx
from pytagi_ddp.nn import (
    ELU,
    LayerNorm,
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
    x[0, 0] = np.nan
    assert np.isnan(run(tmp_path / "model.onnx", x)["mean"][0]).all()
    model._beyond = None  # as of `partial_fit` without `fit`, and of earlier versions
    onnx.export(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x)["std"][1:], model.predict(x, True)[1][1:], rtol=1e-4)


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
    with pytest.raises(TypeError, match=r"no graph for LayerNorm\(\): it takes Linear, ReLU, "):
        onnx.export(Sequential(Linear(3, 4), LayerNorm((4,)), Linear(4, 1)), path)
    with pytest.raises(TypeError, match="networks that begin with Linear or PiecewiseLinearEncoding, got ReLU"):
        onnx.export(Sequential(ReLU(), Linear(4, 1)), path)
    with pytest.raises(ValueError, match="quantiles are of a regressor"):
        onnx.export(Sequential(Linear(4, 1)), path, quantiles=[0.5])
    with pytest.raises(TypeError, match="takes a Sequential or a TAGIRegressor, got list"):
        onnx.export([], path)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from pytagi_ddp.estimators import TAGIRegressor

    places = np.array([["a", 1.0], ["b", 2.0]] * 10, object)
    categories = TAGIRegressor((4,), n_folds=1, n_seeds=1, epochs=1, categorical_features=[0]).fit(places, range(20))
    with pytest.raises(TypeError, match="whose features are numbers"):
        onnx.export(categories, path)
    with pytest.raises(RuntimeError, match="call fit first"):
        onnx.export(TAGIRegressor(), path)
    x, y = regression(20)
    counts = TAGIRegressor((4,), n_folds=1, n_seeds=1, epochs=1, likelihood="poisson").fit(x, np.round(np.abs(y)))
    with pytest.raises(TypeError, match="no graph for likelihood='poisson'"):
        onnx.export(counts, path)
    assert not path.exists()


def test_without_onnx_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'pytagi-ddp\[onnx\]'"):
        onnx.export(Sequential(Linear(4, 1)), tmp_path / "net.onnx")

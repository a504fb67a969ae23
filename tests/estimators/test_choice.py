"""The choice of layers, bins, scales and networks by samples that were not learnt."""

from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from pytagi_ddp import onnx
from pytagi_ddp.estimators import TAGIRegressor, choice, ensemble, members
from pytagi_ddp.estimators import encoding as encoding_module
from pytagi_ddp.nn import Linear, Sequential
from tests.estimators.test_regressor import data


@pytest.mark.parametrize("candidates", [[(1,), (30,)], [(30,), (1,)]])
def test_the_better_network_is_chosen_on_samples_that_were_not_learnt(candidates, monkeypatch):
    monkeypatch.setattr(ensemble, "CANDIDATES", [(hidden, 40) for hidden in candidates])
    few = {"n_folds": 2, "epochs": 10, "random_state": 0, "heteroscedastic": False, "n_bins": 0}
    chosen = TAGIRegressor(n_seeds=2, **few).fit(*data(200))
    assert [net.layers[0].output_size for net in chosen.networks_] == [30] * 4
    given = TAGIRegressor((7,), n_seeds=1, **few).fit(*data(200))
    assert [net.layers[0].output_size for net in given.networks_] == [7] * 2


@pytest.mark.parametrize("likelihood", [None, "poisson"])
def test_a_linear_function_is_learnt_without_a_hidden_layer(likelihood):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(600, 6)), np.array([0.5, -0.3, 0.2, 0, 0.1, -0.2])
    y = rng.poisson(np.exp(x @ w)) if likelihood else x @ w + 0.3 * rng.normal(size=600)
    options = {"n_folds": 3, "n_seeds": 1, "n_bins": 0, "random_state": 0, "likelihood": likelihood}
    model = TAGIRegressor(**options).fit(x[:300], y[:300])
    assert [len(net.layers) for net in model.networks_] == [1] * 3
    given = TAGIRegressor((), **options | {"n_bins": None}).fit(x[:300], y[:300])
    assert {net.layers[-1].output_size for net in given.networks_} == {1}
    if not likelihood:
        least_squares = np.linalg.lstsq(np.c_[x[:300], np.ones(300)], y[:300], rcond=None)[0]
        np.testing.assert_allclose(model.predict(x[300:]), np.c_[x[300:], np.ones(300)] @ least_squares, atol=0.03)


@pytest.mark.parametrize(("noise", "expected"), [(0, 7), (3, 6)])
def test_few_epochs_where_many_epochs_learn_the_noise(noise, expected, monkeypatch):
    monkeypatch.setattr(ensemble, "CANDIDATES", [((7,), 100), ((8, 8), 100)])
    monkeypatch.setattr(ensemble, "FEW", ((6, 6), 3))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 8))
    y = 5 * np.abs(x[:, 0]) + 3 * np.abs(x[:, 1]) + noise * rng.normal(size=120)
    chosen = TAGIRegressor(n_folds=3, n_seeds=1, random_state=0, heteroscedastic=False, n_bins=0).fit(x, y)
    assert [net.layers[0].output_size for net in chosen.networks_] == [expected] * 3


def steps(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    return x, np.floor(4 * x[:, 0]) % 2 + 0.5 * x[:, 1] + 0.05 * rng.normal(size=n)


def test_bins_are_chosen_where_they_help():
    """A target with steps needs bins; a line does not, but scales by relevance; a number that is given is taken."""
    options = {"hidden_layer_sizes": (20,), "epochs": 20, "n_folds": 2, "n_seeds": 1, "random_state": 0}
    (x, y), (unseen, truth) = steps(400), steps(400, 1)
    chosen, plain = TAGIRegressor(**options).fit(x, y), TAGIRegressor(**options, n_bins=0).fit(x, y)
    assert chosen.networks_[0].layers[0].name == "PiecewiseLinearEncoding"
    assert plain.networks_[0].layers[0].name == "Linear"
    assert np.mean((chosen.predict(unseen) - truth) ** 2) < 0.6 * np.mean((plain.predict(unseen) - truth) ** 2)
    given = TAGIRegressor(**options, n_bins=5).fit(x, y)
    assert [net.layers[0].output_size for net in given.networks_] == [10] * 2
    line = TAGIRegressor(**options | {"epochs": 40}).fit(x, x[:, 0])
    assert line.networks_[0].layers[0].edges == [[0.0, 1.0]] * 2
    online = TAGIRegressor(**options, n_bins=5).partial_fit(x[:200], y[:200])
    edges = online.networks_[0].layers[0].edges
    assert online.partial_fit(x[200:], y[200:]).networks_[0].layers[0].edges is edges


def test_missing_inputs_go_through_the_bins():
    x, y = steps(400)
    x[::5, 0] = np.nan
    model = TAGIRegressor((20,), epochs=20, n_folds=2, n_seeds=1, n_bins=8, random_state=0).fit(x, y)
    _, std = model.predict([[np.nan, 0], [-1.9, 0]], return_std=True)
    assert 0.3 < std[0] < 1
    low, high = model.predict_interval(x, 0.9)
    missing = np.isnan(x[:, 0])
    assert np.mean((low <= y) & (y <= high)) > 0.8 and np.mean(((low <= y) & (y <= high))[missing]) > 0.8


def test_max_time_bounds_the_choice_and_lets_layers_grow(monkeypatch):
    x, y = steps(200)
    tried = []
    consider = choice.Choice.consider

    def noting(self, training):
        consider(self, training)
        tried[:] = [(one.hidden, one.epochs) for one in self.losses]

    monkeypatch.setattr(choice.Choice, "consider", noting)
    options = {"epochs": 3, "n_folds": 2, "n_seeds": 1, "random_state": 0, "heteroscedastic": False}
    for seconds, expected in ((1e-9, [(50,)]), (None, [(50,), (50, 50)])):
        message = r"takes about (0\.[1-9]|[1-9]\d*\.\d) s: give more"
        scarce = pytest.warns(UserWarning, match=message) if seconds else nullcontext()
        with scarce:
            TAGIRegressor(**options, max_time=seconds).fit(x, y)
        assert list(dict.fromkeys(hidden for hidden, _ in tried if hidden)) == expected
    TAGIRegressor(**options, max_time=60.0).fit(x, y)
    assert {((100,), 3), ((100, 100), 3)} & set(tried)
    assert {epochs for _, epochs in tried} == {3}  # as given
    TAGIRegressor((8,), **options | {"epochs": None, "n_bins": 0}, max_time=60.0).fit(x, y)
    assert tried[:2] == [((8,), 100), ((8,), 200)]
    assert {hidden for hidden, _ in tried} == {(8,)}


def test_wide_tables_have_few_bins():
    """24 bins of each of 60 columns would be more inputs than the choice goes to."""
    x = np.random.default_rng(0).normal(size=(60, 60))
    made = []

    def train(places):
        made.extend(training.encoding.outputs for training, _ in places if training.encoding)
        return [None] * len(places)

    search = choice.Choice(train, x, np.arange(60) % 2, lambda networks: np.full(60, 1.0 + len(made)), 1, None)
    search.consider(members.Training((4,), 1))
    search.encode(members.Training((4,), 1))
    assert set(made) == {480}


def test_columns_that_tell_nothing_have_little_effect():
    """Of 20 columns two have an effect."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1300, 20))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=1300)
    learnt, new = slice(300), slice(300, None)
    options = {"hidden_layer_sizes": (20,), "n_folds": 2, "n_seeds": 1, "epochs": 30, "random_state": 0}
    errors = {}
    for bins in (None, 0):
        model = TAGIRegressor(n_bins=bins, **options).fit(x[learnt], y[learnt])
        errors[bins] = np.mean((model.predict(x[new]) - y[new]) ** 2)
        if bins is None:
            tops = [np.abs(np.concatenate(net.layers[0].ends)[:, 1]) for net in model.networks_]
            assert all(some[2:].max() < 0.1 * some[0] for some in tops)
    assert errors[None] < 0.25 * errors[0]


def test_relevance_is_the_change_of_predictions():
    """Of y = 2 x0 - x1 + 0 x2, with the deviations 1, 3 and 1 of the inputs: 2 : 3 : 0, but at least 0.09."""
    net = Sequential(Linear(3, 1, bias=False))
    net[0].mu_w = np.array([2, -1, 0], np.float32)
    x = (np.random.default_rng(0).normal(size=(5000, 3)) * [1, 3, 1]).astype(np.float32)
    found = members.relevance(net, x)
    np.testing.assert_allclose(found / found.max() * 3, [2, 3, 0.09], rtol=0.2)
    np.testing.assert_allclose(np.mean(found**2), 1)
    np.testing.assert_array_equal(members.relevance(Sequential(Linear(3, 1)), np.zeros((9, 3), np.float32)), np.ones(3))


def test_scales_of_a_fold_come_from_a_network_without_it(monkeypatch):
    """Otherwise its samples would have chosen the columns by which they are predicted."""
    x, fold = np.arange(12.0).reshape(6, 2), np.array([0, 0, 1, 1, 2, 2])
    first, trained = members.Training((4,), 1), []

    def train(places):
        trained.extend(places)
        return [k for _, k in places]

    def relevance(net, rows):
        np.testing.assert_array_equal(rows, x[fold != net])
        return np.array([1.0, 10 + net])

    monkeypatch.setattr(choice, "relevance", relevance)
    search = choice.Choice(train, x, fold, lambda networks: np.full(6, -float(len(trained))), 1, 1e9)
    search.consider(first)
    search.consider(scaled := members.Training((4,), 1, scaled_by=first))
    assert [k for _, k in trained] == [0, 1, 2] * 2
    ends = [training.encoding.ends for training, _ in trained[3:]]
    assert ends == [(((0.0, 1.0),), ((0.0, 10.0 + k),)) for k in range(3)]
    with_the_first = 2 * search._seconds_of(first)
    assert search._seconds_of(scaled) == pytest.approx(with_the_first)


@pytest.mark.parametrize(
    ("means", "least"),
    [
        ([1.0, 0.4, 0.2, 0.3], 0.2),  # clearly better, then while the loss decreases
        ([1.0, 0.9, 0.4, 0.5], 0.4),  # clearly better after the second time
        ([1.0, 0.9, 0.85, 0.2], 1.0),  # not clearly
        ([1.0, 1.1, 0.2], 1.0),  # worse
    ],
)
def test_scales_are_used_where_they_are_clearly_better(monkeypatch, means, least):
    """means: of losses, by how often inputs are scaled. Differences from the first have a standard error of 0.1."""

    def train(places):
        return [0 if training.encoding is None else training.encoding.ends[0][0][1] for training, _ in places]

    def loss(networks):
        (k,) = {int(net) for (net,) in networks}
        return means[k] + (k > 0) * np.repeat([-0.4, 0.4], 8)

    monkeypatch.setattr(choice, "relevance", lambda net, rows: np.array([net + 1.0]))
    search = choice.Choice(train, np.zeros((16, 1)), np.arange(16) % 2, loss, 1, None)
    search.consider(members.Training((4,), 1))
    search.scale()
    assert search.losses[search.best()] == pytest.approx(least)


def test_scaled_encodings_have_bins_where_inputs_are_relevant():
    edges = ((0.0, 0.5, 1.0), None, (0.0, 0.1, 2.0), (1.0, 2.0, 3.0))
    values = ((0.25,), None, (0.3,), None)
    found = encoding_module.scaled_encoding(
        encoding_module.Encoding(edges, None, values), np.array([2.0, 0.5, 0.1, 1.0])
    )
    assert found.edges == (edges[0], (0.0, 1.0), (0.0, 1.0), edges[3])
    assert found.ends == (((0.0, 2.0),) * 2, ((0.0, 0.5),), ((0.0, 0.1),), ((0.0, 1.0),) * 2)
    assert found.values == (values[0], None, None, None)
    given = encoding_module.Encoding(edges[:1], (((-1.0, 1.0), (0.0, 2.0)),))
    assert encoding_module.scaled_encoding(given, np.array([3.0])).ends == (((-3.0, 3.0), (0.0, 6.0)),)
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    net = Sequential(encoding_module.scaled_encoding(None, np.array([2.0, 0.5])).layer())
    np.testing.assert_allclose(net.predict(x)[0].reshape(5, 2), x * [2, 0.5], rtol=1e-6)


def test_values_that_occur_often_have_units():
    """Each of 100 values, in no order, has an effect of its own, as that of a patient or a machine."""
    rng = np.random.default_rng(0)
    number = rng.integers(0, 100, 2600)
    x = np.c_[number, rng.normal(size=2600)] * [0.37, 1]
    y = rng.normal(size=100)[number] + np.sin(x[:, 1]) + 0.1 * rng.normal(size=2600)
    learnt, new = slice(2200), slice(2200, None)
    options = {"hidden_layer_sizes": (20,), "n_folds": 2, "n_seeds": 1, "epochs": 20, "random_state": 0}
    errors = {}
    for bins in (None, 24):
        model = TAGIRegressor(n_bins=bins, **options).fit(x[learnt], y[learnt])
        errors[bins] = np.sqrt(np.mean((model.predict(x[new]) - y[new]) ** 2))
        encoding = model.networks_[0].layers[0]
        assert (encoding.values is None) == (bins == 24)
        if bins is None:
            with pytest.raises(TypeError, match="no estimator with inputs for values that occur often"):
                onnx.export(model, "not written.onnx")
    assert errors[None] < 0.5 * errors[24]
    assert encoding_module.with_values(None, x[:300], 24) is None  # three samples of each value


@pytest.mark.parametrize(
    "errors, count, chosen",
    [
        ([1.0, -1.0, 9.0], 2, [1.0, -1.0]),
        ([1.0, 3.0, 9.0], 2, [1.0, 1.0]),
        ([1.0, -1.5, -2.5, 9.0], 4, [1.0, 1.0, 1.0, -2.5]),
        ([1.0, -1.0, -1.25, 9.0], 4, [1.0, 1.0, -1.25, -1.0]),
        ([1.0, -1.0, -1.25], 1, [1.0]),
    ],
)
def test_networks_of_several_kinds_share_an_ensemble_while_that_is_better(errors, count, chosen):
    """Networks stand for what they predict here: errors of +1 and -1 are smaller together. Two samples in each fold."""
    kinds = {members.Training((1 + k,), 1): error for k, error in enumerate(errors)}

    def loss(networks):
        means = [np.mean(some) for some in networks]
        return np.concatenate([[mean**2 - 10 * mean, mean**2 + 10 * mean] for mean in means])

    def train(places):
        return [kinds[training] for training, _ in places]

    search = choice.Choice(train, np.zeros((4, 1)), np.arange(4) // 2, loss, count, None)
    for training in kinds:
        search.consider(training)
    assert search.mixed(search.best()) == ([chosen] * 2, [[1.0] * count] * 2)


@pytest.mark.parametrize(
    ("v", "folds", "count"),
    [(0, 5, 2), (0.17, 5, 2), (0.18, 5, 3), (0.6, 5, 3), (0.7, 5, 4), (0.1, 2, 3), (0.22, 2, 4)],
)
def test_there_are_as_many_networks_as_reduce_the_loss(v, folds, count):
    made = []

    def train(places):
        made.extend(places)
        return places

    def loss(networks):
        return np.array([1 + v / len(networks[0])])

    search = choice.Choice(train, np.zeros((2 * folds, 1)), np.arange(2 * folds) % folds, loss, None, None)
    search.consider(members.Training((4,), 1))
    assert [len(some) for some in search.mixed(search.best()).networks] == [count] * folds
    assert len(made) == folds * count


@pytest.mark.parametrize(
    ("seconds", "given", "count", "warned"),
    [(10.5, None, 4, False), (9.5, None, 2, False), (5.5, None, 2, "about 4.0 s"), (9.5, 4, 4, "about 8.0 s")],
)
def test_there_are_as_many_networks_as_there_is_time_for(seconds, given, count, warned, monkeypatch):
    """Each takes a second, and one network for each of two folds comes first; four would be better than two."""
    clock = [0.0]
    monkeypatch.setattr(choice, "perf_counter", lambda: clock[0])

    def train(places):
        clock[0] += len(places)
        return places

    def loss(networks):
        return np.array([1 + 1 / len(networks[0])])

    search = choice.Choice(train, np.zeros((4, 1)), np.arange(4) % 2, loss, given, seconds)
    with pytest.warns(UserWarning, match=warned) if warned else nullcontext():
        search.consider(members.Training((4,), 1))
    assert [len(some) for some in search.mixed(search.best()).networks] == [count] * 2
    assert clock == [2.0 * count]


@pytest.mark.parametrize(
    ("error", "count", "linear", "trained"),
    [(1.2, 2, True, 6), (1.3, 2, False, 6), (2.1, 2, False, 3), (1.9, 1, True, 4), (1.1, None, True, 6)],
)
def test_linear_functions_are_compared_with_the_mean_of_all_networks(error, count, linear, trained):
    """Which has the loss 1 + 1/n: 1.25 for all of them if each fold has two. One network of each fold has 2."""
    made, kinds = [], [members.Training((4,), 1), members.Training((), 1)]

    def train(places):
        made.extend(places)
        return [training for training, _ in places]

    def loss(networks):
        return np.array([error if networks[0][0] == kinds[1] else 1 + 1 / len(networks[0])])

    search = choice.Choice(train, np.zeros((4, 1)), np.arange(4) // 2, loss, count, None)
    search.consider(kinds[0])
    assert search.simplest(kinds[1:]) == kinds[linear]
    assert [*search.losses] == [kinds[linear]] and len(made) == trained

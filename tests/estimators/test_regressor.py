"""Regression: what is learnt of the function, and of the noise."""

import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.exceptions import NotFittedError

from pytagi_ddp import onnx
from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor, choice, ensemble, members, regressor
from pytagi_ddp.estimators import encoding as encoding_module
from pytagi_ddp.estimators.noise import Moments, learn_noise
from pytagi_ddp.nn import Linear, Sequential
from pytagi_ddp.nn.core.init import get_state


def noise(x):
    return 0.1 + 0.4 * np.abs(x)


def data(n, seed=0):
    """y in units of its own: ten times a sine, with noise that depends on x, and 100 above 0."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    return x, 100 + 10 * (np.sin(2 * x[:, 0]) + noise(x[:, 0]) * rng.normal(size=n))


@pytest.fixture(scope="module")
def fitted():
    return TAGIRegressor(n_folds=3, n_seeds=1, epochs=40, random_state=0).fit(*data(500))


def test_function_and_noise_are_learnt(fitted):
    places = np.array([[0.0], [1.5]])
    mean, std = fitted.predict(places, return_std=True)
    np.testing.assert_allclose(mean, 100 + 10 * np.sin(2 * places[:, 0]), atol=1.5)
    assert 10 * noise(0) < std[0] < 0.6 * std[1]
    assert std[1] == pytest.approx(10 * noise(1.5), rel=0.2)
    assert fitted.score(*data(500, 1)) > 0.4  # of 0.5 that the noise leaves


def test_intervals_hold_what_they_should(fitted):
    x, y = data(2000, 1)
    for coverage in (0.5, 0.9):
        low, high = fitted.predict_interval(x, coverage)
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(coverage, abs=0.05)


def test_log_likelihood_is_that_of_the_intervals(fitted):
    x, y = data(2000, 1)
    truth = (
        -0.5 * np.log(2 * np.pi * (10 * noise(x[:, 0])) ** 2)
        - 0.5 * ((y - 100 - 10 * np.sin(2 * x[:, 0])) / (10 * noise(x[:, 0]))) ** 2
    )
    assert truth.mean() - 0.1 < fitted.log_likelihood(x, y).mean() < truth.mean()
    grid = np.linspace(-100, 300, 4001)
    density = np.exp(fitted.log_likelihood(np.zeros((4001, 1)), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="2000 samples, but y has 3 observations"):
        fitted.log_likelihood(x, y[:3])
    for wrong in (90, [0.5, 0.9]):
        with pytest.raises(ValueError, match=f"between 0 and 1, got {re.escape(repr(wrong))}"):
            fitted.predict_interval(x, wrong)


def test_what_predict_returns(fitted):
    x, y = data(300, 1)
    mean, std = fitted.predict(x, return_std=True)
    asked = [0.95, 0.5, 0.05]
    plain, quantiles = fitted.predict(x, quantiles=asked)
    same, again, both = fitted.predict(x, True, np.array(asked))
    for one, other in ((plain, mean), (same, mean), (again, std), (both, quantiles), (fitted.predict(x), mean)):
        np.testing.assert_array_equal(one, other)
    assert quantiles.shape == (300, 3)
    np.testing.assert_allclose(quantiles[:, 1], mean)
    np.testing.assert_allclose(quantiles[:, 2::-2].T, fitted.predict_interval(x, 0.9))
    assert np.mean(y <= quantiles[:, 0]) == pytest.approx(0.95, abs=0.05)
    for wrong in (0.5, [], [0.5, 1], [[0.5]], [np.nan], "median"):
        with pytest.raises(ValueError, match="quantiles is a list of probabilities between 0 and 1"):
            fitted.predict(x, quantiles=wrong)


def test_the_ranked_score_is_that_of_the_quantiles(fitted):
    x, y = data(50, 1)
    levels = (np.arange(4000) + 0.5) / 4000
    errors = y[:, None] - fitted.predict(x, quantiles=levels)[1]
    pinball = np.where(errors > 0, levels * errors, (levels - 1) * errors)
    np.testing.assert_allclose(fitted.crps(x, y), 2 * pinball.mean(1), rtol=2e-3)
    assert (fitted.crps(x, y) < np.abs(fitted.predict(x) - y)).mean() > 0.5
    with pytest.raises(ValueError, match="50 samples, but y has 3 observations"):
        fitted.crps(x, y[:3])


def test_forgetting_evidence_keeps_learning_going():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (300, 2))
    y = np.sin(3 * x[:, 0]) * x[:, 1]
    errors = []
    for forget in (1, 4):
        model = TAGIRegressor((50,), n_folds=2, n_seeds=1, epochs=40, forget=forget, heteroscedastic=False, n_bins=0)
        unseen = rng.uniform(-2, 2, (500, 2))
        model.set_params(random_state=0).fit(x, y)
        errors.append(np.mean((model.predict(unseen) - np.sin(3 * unseen[:, 0]) * unseen[:, 1]) ** 2))
    assert errors[1] < 0.5 * errors[0]


def test_options_of_the_noise():
    x, y = data(200)
    few = {"n_folds": 2, "n_seeds": 1, "epochs": 10, "random_state": 0}
    given = TAGIRegressor(sigma_v=5.0, **few).fit(x, y)
    _, std = given.predict(x, return_std=True)
    assert given.degrees_of_freedom_ == np.inf and std.min() > 5
    constant = TAGIRegressor(heteroscedastic=False, student_t=False, **few).fit(x, y)
    assert constant.degrees_of_freedom_ == np.inf
    assert np.ptp(constant.predict(x, return_std=True)[1]) < 1e-9
    assert len(TAGIRegressor(**few | {"n_folds": 1}).fit(x, y).networks_) == 1


def test_partial_fit_takes_samples_as_they_come():
    x, y = data(3000)
    model = TAGIRegressor(n_folds=1, n_seeds=2, random_state=0)
    for rows in np.array_split(np.arange(3000), 30):
        model.partial_fit(x[rows], y[rows])
    assert model.score(*data(500, 1)) > 0.4
    _, std = model.predict(np.zeros((1, 1)), return_std=True)
    assert 10 * np.sqrt(np.mean(noise(x) ** 2)) == pytest.approx(std[0], rel=0.25)  # of all places together


def test_one_wild_observation_does_not_end_learning():
    x, y = data(400)
    calm, hit = (TAGIRegressor((20,), n_folds=1, n_seeds=2, random_state=0) for _ in range(2))
    for start in range(0, 400, 20):
        rows = slice(start, start + 20)
        calm.partial_fit(x[rows], y[rows])
        hit.partial_fit(x[rows], np.r_[1e6, y[rows][1:]] if start == 200 else y[rows])
    (mean, std), (expected, expected_std) = (net.predict(x, return_std=True) for net in (hit, calm))
    assert np.abs(mean - expected).max() < 0.5 * y.std()
    assert np.all(std < 1.5 * expected_std)


@pytest.mark.parametrize("likelihood", [None, "laplace"])
def test_extremes_that_make_all_other_targets_equal_are_named(likelihood):
    x, y = data(60)
    y = y / y.std()
    model, other = (TAGIRegressor((4,), n_folds=1, n_seeds=1, epochs=1, likelihood=likelihood) for _ in range(2))
    some, both = np.r_[0, np.ones(59)], np.c_[y, np.where(np.arange(60) == 7, -99999, y)]
    for call in (lambda: model.fit(x, both, sample_weight=some), lambda: other.partial_fit(x, both)):
        with pytest.warns(UserWarning, match="row 7, target 1: y has -99999, and four of five .*Correct.*arcsinh"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, y**3)
        model.fit(x, np.where(np.arange(60) < 55, 0, 1e6 * y))  # rare events
        model.set_params(likelihood="poisson").fit(x, np.r_[np.arange(59) % 5, 10_000])


@pytest.mark.parametrize("estimator", [TAGIRegressor, TAGIClassifier])
def test_columns_that_were_constant_have_no_effect(estimator):
    x, y = data(60)
    y = y if estimator is TAGIRegressor else y > 90
    model = estimator((8,), n_folds=2, n_seeds=1, epochs=2, random_state=0)
    with pytest.warns(UserWarning, match=r"columns \[[0-9]\] of X hold one number and NaN, and are left out"):
        model.fit(np.c_[x, np.full(60, 2023.0), np.where(np.arange(60) % 2, 0.1, np.nan)], y)
    predict = model.predict if estimator is TAGIRegressor else model.predict_proba
    expected = predict(np.c_[x, np.full(60, 2023.0), np.full(60, 0.1)])
    np.testing.assert_array_equal(predict(np.c_[x, np.full(60, 3000.0), np.full(60, np.nan)]), expected)


def test_columns_far_from_zero_are_not_constant():
    x, y = data(200)
    options = {"hidden_layer_sizes": (8,), "n_folds": 2, "n_seeds": 1, "epochs": 3, "n_bins": 0, "random_state": 0}
    inputs = 2.0**20 * x
    near, far = (TAGIRegressor(**options).fit(some, y).predict(some) for some in (inputs, inputs + 2.0**52))
    np.testing.assert_allclose(near, far, atol=0.05 * y.std())


def test_masked_observations_are_missing(fitted):
    x, y = data(3)
    hidden = np.ma.masked_array(y, [False, True, False])
    assert np.isnan(fitted.log_likelihood(x, hidden)).tolist() == [False, True, False]


def test_noise_of_partial_fit_is_that_of_late_predictions():
    """The first batches are predicted badly; a mean over all of them would be about 0.04 here."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 3))
    y = 2 * np.tanh(x @ [1, 0.5, 0.3]) + 0.1 * rng.normal(size=600)
    model = TAGIRegressor(20, n_folds=1, n_seeds=1, random_state=0)
    for rows in np.split(np.arange(600), 6):
        model.partial_fit(x[rows], y[rows])
    assert model.noise_.variance < 0.02


@pytest.mark.parametrize("likelihood", [None, "gaussian"])
def test_noise_of_partial_fit_is_that_of_complete_samples_near_others(likelihood):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 2))
    y = 2 * x[:, 0] + x[:, 1] + 0.2 * rng.normal(size=1500)
    new = rng.normal(size=(200, 2))
    gaps = np.where(rng.random(1500) < 0.2, np.nan, x[:, 0])
    mistaken = np.where(np.arange(1500) == 1400, 1e4, x[:, 0])
    for first in (gaps, mistaken) if likelihood is None else (gaps,):
        online = TAGIRegressor(n_seeds=1, n_folds=2, likelihood=likelihood, random_state=0)
        for rows in np.array_split(np.arange(1500), 15):
            online.partial_fit(np.column_stack([first, x[:, 1]])[rows], y[rows])
        assert online.predict(new, return_std=True)[1].mean() < 0.7


def test_partial_fit_goes_on_after_fit():
    x, y = data(2000, 2)
    model = TAGIRegressor(n_folds=2, n_seeds=1, epochs=10, n_bins=0, random_state=0).fit(x[:40], y[:40])
    before = model.log_likelihood(*data(500, 1)).mean()
    assert model.partial_fit(x[40:], y[40:]).log_likelihood(*data(500, 1)).mean() > before + 0.1
    assert model.noise_.degrees == model.degrees_of_freedom_


def test_far_from_all_samples_error_bars_hold_the_variance_between_networks():
    rng = np.random.default_rng(0)
    x = rng.standard_cauchy((400, 2))
    y = np.tanh(x[:, 0]) + 0.1 * rng.normal(size=400)
    model = TAGIRegressor((), n_bins=24, n_folds=3, n_seeds=1, epochs=20, random_state=0).fit(x, y)
    std = model.predict(far := np.array([[0.0, 1e5]]), return_std=True)[1][0]
    means = [net.predict(model._standardised(far))[0].item() for net in model.networks_]
    assert std > 0.9 * np.std(means, ddof=1) * y.std()


def test_far_from_all_samples_error_bars_hold_the_variance_of_the_networks():
    rng = np.random.default_rng(3)
    x = np.r_[rng.uniform(-3, -1, 100), rng.uniform(1, 3, 100)][:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=200)
    model = TAGIRegressor(n_bins=0, n_folds=3, epochs=40, random_state=0).fit(x, y)
    far = np.array([[6.0], [10.0]])
    found = model.predict_distribution(far)
    inputs = ((far - x.mean()) / x.std()).astype(np.float32)
    var = np.mean([net.predict(inputs)[1][:, 0] for net in model.networks_], 0)
    assert (found.std > 0.8 * np.sqrt(var) * y.std()).all()


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


@pytest.mark.slow
@pytest.mark.parametrize("heteroscedastic", [False, True])
@pytest.mark.parametrize("missing_before", [0, 0.2])
def test_intervals_hold_what_they_should_where_inputs_are_missing(heteroscedastic, missing_before):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3))
    y = x[:, 0] + np.sin(x[:, 1]) + 0.1 * rng.normal(size=800)
    x[:300][rng.uniform(size=(300, 3)) < missing_before] = np.nan
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 40, "random_state": 0, "heteroscedastic": heteroscedastic}
    model = TAGIRegressor((50,), **options).fit(x[:300], y[:300])
    for columns, least in (([], 0.85), ([0], 0.8), ([0, 1, 2], 0.8)):
        seen = x[300:].copy()
        seen[:, columns] = np.nan
        low, high = model.predict_interval(seen, 0.9)
        assert least < np.mean((low <= y[300:]) & (y[300:] <= high)) < 0.99


def test_the_first_samples_that_come_have_a_scale():
    x, y = data(40)
    with pytest.raises(ValueError, match=r"first partial_fit determines .* has 1 sample: give it at least 2"):
        TAGIRegressor().partial_fit(x[:1], y[:1])
    with pytest.raises(ValueError, match="all y are equal"):
        TAGIRegressor().partial_fit(x, np.ones(40))
    with pytest.warns(UserWarning, match=r"columns \[1\] of X are constant"):
        TAGIRegressor((4,), n_folds=1).partial_fit(np.c_[x, np.ones(40)], y)


def test_far_from_all_samples_error_bars_are_wide(fitted):
    same = TAGIRegressor((50,), n_folds=3, n_seeds=1, epochs=40, random_state=0, heteroscedastic=False).fit(*data(500))
    for distance in (10, 100, 1e6):
        for model in (fitted, same):
            mean, std = model.predict([[-distance], [distance]], return_std=True)
            assert np.all((0.03 * np.abs(mean - 100) < std) & (std < 100 * distance))


def test_units_of_y_do_not_matter():
    x, y = data(60)
    few = {"hidden_layer_sizes": (8,), "n_folds": 2, "n_seeds": 1, "epochs": 3, "random_state": 0}
    one, other = (
        TAGIRegressor(**few).fit(x, z).predict(x, return_std=True) for z in (y - 100, 2.0**100 * (y - 100) + 2.0**110)
    )
    np.testing.assert_allclose((other[0] - 2.0**110) / 2.0**100, one[0], atol=1e-4)
    np.testing.assert_allclose(other[1] / 2.0**100, one[1], rtol=1e-4)
    tiny, z = 2.0**-700, y - 100
    plain, model = TAGIRegressor(**few).fit(x, z), TAGIRegressor(**few).fit(tiny * x, tiny * z)
    np.testing.assert_allclose(np.array(model.predict(tiny * x, return_std=True)) / tiny, one, atol=1e-4)
    expected = plain.log_likelihood(x, z) - np.log(tiny)
    np.testing.assert_allclose(model.log_likelihood(tiny * x, tiny * z), expected, atol=1e-3)
    with pytest.raises(ValueError, match=r"y has numbers of a size of 1e\+200, whose squares overflow"):
        TAGIRegressor(**few).fit(x, np.linspace(0, 1e200, 60))
    with pytest.raises(ValueError, match="X has numbers"):
        TAGIRegressor(**few).fit(1e200 * x, y)


@pytest.mark.parametrize(
    ("change", "samples", "message"),
    [
        ({"epochs": 0}, lambda x, y: (100 * x, y), "epochs"),
        ({"sigma_v": -1}, lambda x, y: (np.c_[x, x], y), "sigma_v"),
        ({}, lambda x, y: (np.c_[x, x], y[:, None, None]), "dim 3"),
        ({"sigma_v": [1.0, 2.0, 3.0]}, lambda x, y: (x, np.c_[y, y]), "one for each of 2 targets"),
        ({}, lambda x, y: (x[:1], y[:1]), "at least 2 samples, got 1 sample"),
    ],
)
def test_a_fit_that_is_refused_changes_nothing(change, samples, message):
    x, y = data(20)
    model = TAGIRegressor((4,), n_folds=2, n_seeds=1, epochs=1).fit(x, y)
    expected = model.predict(x, return_std=True)
    with pytest.raises(ValueError, match=message):
        model.set_params(**change).fit(*samples(x, y))
    np.testing.assert_array_equal(model.predict(x, return_std=True), expected)


def test_the_library_s_random_stream_stays_where_it_is():
    before = get_state()["state"]["key"].copy()
    TAGIRegressor(n_folds=1, n_seeds=1, epochs=1).fit(*data(20))
    np.testing.assert_array_equal(get_state()["state"]["key"], before)


def test_a_fit_that_is_interrupted_leaves_no_half(monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    model = TAGIRegressor((4,), epochs=2, n_folds=2, n_seeds=1, random_state=0).fit(*data(40))
    monkeypatch.setattr(regressor, "learn_noise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data(50))
    with pytest.raises(NotFittedError):
        model.predict([[0.0]])


@pytest.mark.parametrize("size", [1e-6, -1e-9, 1e-140, 0.0, 1e6])
def test_a_constant_target_is_predicted_in_its_own_unit(size):
    model = TAGIRegressor((8,), epochs=10, n_folds=2, n_seeds=1, n_bins=0, random_state=0)
    for noise in (None, 1.0):
        fitted = model.set_params(sigma_v=noise).fit(data(40)[0], np.full(40, size))
        mean, std = fitted.predict([[0.5], [1.0]], return_std=True)
        if noise is None:
            np.testing.assert_allclose(mean, size, rtol=0, atol=0.1 * min(abs(size) or 1, 1))
        assert (np.isfinite(mean) & np.isfinite(std) & (noise is None or std >= 1)).all()


def test_what_partial_fit_refuses_changes_nothing():
    x, y = data(60)
    model = TAGIRegressor((4,), n_folds=1, n_seeds=1, random_state=0).partial_fit(x, y)
    before = [moments.tobytes() for moments in model.predict(x, return_std=True)]
    with pytest.raises(ValueError, match=r"y has numbers that are more than 1e\+15 standard deviations away"):
        model.partial_fit(x[:1], [1e30])
    assert [moments.tobytes() for moments in model.predict(x, return_std=True)] == before


def test_the_noise_may_be_given_later():
    x, y = data(60)
    model = TAGIRegressor((4,), n_folds=1, n_seeds=1, random_state=0).partial_fit(x, y)
    model.set_params(sigma_v=5.0).partial_fit(x[:5], y[:5])
    assert model.noise_.variance == pytest.approx((5 / y.std()) ** 2)


SHORT = {"n_folds": 2, "n_seeds": 1, "epochs": 30, "random_state": 0}


def test_a_weight_is_so_many_samples():
    """Half of the samples have much noise; what they count decides about function and noise."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (300, 1))
    poor = np.arange(300) % 2 == 0
    y = np.sin(2 * x[:, 0]) + np.where(poor, 3.0, 0.3) * rng.normal(size=300)
    places = np.linspace(-2, 2, 101)[:, None]
    count = np.where(poor, 1, 8)
    few, weighted, repeated, good = (
        TAGIRegressor((50,), **SHORT, heteroscedastic=False).fit(*samples).predict_distribution(places)
        for samples in (
            (x, y),
            (x, y, count),
            (x.repeat(count, 0), y.repeat(count)),
            (x, y, np.where(poor, 1e-9, 1)),
        )
    )
    errors = [np.sqrt(np.mean((d.mean - np.sin(2 * places[:, 0])) ** 2)) for d in (few, weighted, repeated, good)]
    assert errors[3] < errors[1] < 0.6 * errors[0] and errors[2] < 0.8 * errors[0]
    assert good.std.mean() == pytest.approx(0.3, rel=0.3)
    assert weighted.std.mean() == pytest.approx(repeated.std.mean(), rel=0.3)
    assert good.std.mean() < weighted.std.mean() < few.std.mean()


def test_weights_make_batches_count_more():
    x, y = data(400)
    weak, strong = (TAGIRegressor((20,), n_folds=1, n_seeds=1, random_state=0, sigma_v=5.0) for _ in range(2))
    for start in range(0, 400, 20):
        rows = slice(start, start + 20)
        weak.partial_fit(x[rows], y[rows], np.full(20, 0.01))
        strong.partial_fit(x[rows], y[rows], np.full(20, 2.0))
    assert strong.predict_distribution(x).epistemic.mean() < 0.3 * weak.predict_distribution(x).epistemic.mean()
    assert strong.score(x, y) > weak.score(x, y) + 0.05


def several(n, seed=0):
    """Two targets: that of `data`, and a parabola in another unit with little noise."""
    x, y = data(n, seed)
    return x, np.c_[y, 1e-3 * (x[:, 0] ** 2 + 0.1 * np.random.default_rng(seed + 50).normal(size=n))]


@pytest.mark.slow
def test_one_network_predicts_several_targets():
    x, y = several(500)
    model = TAGIRegressor((50,), n_folds=3, n_seeds=1, epochs=40, random_state=0).fit(x, y)
    assert [net.layers[-1].output_size for net in model.networks_] == [2, 2, 2]
    assert len(model.noise_) == 2 and model.degrees_of_freedom_.shape == (2,)
    x, y = several(1000, 1)
    mean, std, quantiles = model.predict(x, True, [0.05, 0.5, 0.95])
    assert mean.shape == std.shape == (1000, 2) and quantiles.shape == (1000, 2, 3)
    low, high = model.predict_interval(x, 0.9)
    np.testing.assert_allclose([low, high], [quantiles[..., 0], quantiles[..., 2]])
    np.testing.assert_allclose(((low <= y) & (y <= high)).mean(0), 0.9, atol=0.05)
    slope = [np.polyfit(noise(x[:, 0]), std[:, k], 1)[0] / std[:, k].mean() for k in range(2)]
    assert slope[0] > 1 and abs(slope[1]) < 0.3  # each target has a noise of its own
    assert model.score(x, y) > 0.65 and model.score(x, y, np.ones(1000)) == pytest.approx(model.score(x, y))
    alone = TAGIRegressor((50,), n_folds=3, n_seeds=1, epochs=40, random_state=0)
    for k in range(2):
        one = alone.fit(several(500)[0], several(500)[1][:, k])
        assert model.log_likelihood(x, y)[:, k].mean() > one.log_likelihood(x, y[:, k]).mean() - 0.1
        assert model.crps(x, y)[:, k].mean() < 1.1 * one.crps(x, y[:, k]).mean()
    for wrong, message in ((y[:, 0], r"shape \(1000,\), and predictions have \(1000, 2\)"), (y[:3], "has 3 obs")):
        with pytest.raises(ValueError, match=message):
            model.log_likelihood(x, wrong)


def test_several_targets_come_as_they_are():
    x, y = several(600)
    model = TAGIRegressor(n_folds=1, n_seeds=2, random_state=0)
    for rows in np.array_split(np.arange(600), 10):
        model.partial_fit(x[rows], y[rows])
    assert model.score(*several(300, 1)) > 0.5
    with pytest.raises(ValueError, match="y has 1 targets, and had 2 in the first call"):
        model.partial_fit(x, y[:, 0])
    given = TAGIRegressor(sigma_v=[5.0, 1e-4], **SHORT).fit(x[:100], y[:100])
    assert np.all(given.predict(x, True)[1].min(0) > [5.0, 1e-4])
    np.testing.assert_allclose(given.predict_distribution(x).aleatoric, [[25, 1e-8]] * 600)


def test_a_target_that_is_a_column_is_one_target():
    from sklearn.exceptions import DataConversionWarning

    x, y = data(60)
    with pytest.warns(DataConversionWarning):
        model = TAGIRegressor((4,), **SHORT).fit(x, y[:, None])
    np.testing.assert_array_equal(model.predict(x), TAGIRegressor((4,), **SHORT).fit(x, y).predict(x))


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
        scarce = pytest.warns(UserWarning, match="max_time is not sufficient") if seconds else nullcontext()
        with scarce:
            TAGIRegressor(**options, max_time=seconds).fit(x, y)
        assert list(dict.fromkeys(hidden for hidden, _ in tried if hidden)) == expected
    TAGIRegressor(**options, max_time=60.0).fit(x, y)
    assert {((100,), 3), ((100, 100), 3)} & set(tried)
    assert {epochs for _, epochs in tried} == {3}  # as given
    TAGIRegressor((8,), **options | {"epochs": None, "n_bins": 0}, max_time=60.0).fit(x, y)
    assert tried[:2] == [((8,), 100), ((8,), 200)]
    assert {hidden for hidden, _ in tried} == {(8,)}


def test_a_column_that_is_constant_but_for_rounding_has_no_effect():
    """Its mean, and so its deviation, has errors of rounding: networks would learn it, and not see it again."""
    x, y = data(3000)
    column = np.full(3000, 0.998)
    assert np.c_[x, column].std(0)[1] > 1e-14
    model = TAGIRegressor((8,), n_folds=2, n_seeds=1, epochs=2, n_bins=0, random_state=0)
    plain = model.fit(np.c_[x, np.zeros(3000)], y).predict(np.c_[x, np.zeros(3000)])
    np.testing.assert_array_equal(model.fit(np.c_[x, column], y).predict(np.c_[x, column]), plain)


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
            with pytest.raises(TypeError, match="no regressor with inputs for values that occur often"):
                onnx.export(model, "not written.onnx")
    assert errors[None] < 0.5 * errors[24]
    assert encoding_module.with_values(None, x[:300], 24) is None  # three samples of each value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* are no category that was learnt")
def test_error_bars_of_unknown_groups_hold_the_variance_between_groups():
    """Each of 60 machines has an effect from N(0, 1); the noise has the standard deviation 0.3."""
    rng = np.random.default_rng(0)
    machines, g = rng.permutation(3000), rng.integers(0, 60, 2400)
    effects = rng.normal(size=60)
    x = np.c_[machines[g], rng.normal(size=2400)]
    y = effects[g] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=2400)
    other = np.c_[machines[60:560], rng.normal(size=500)]
    truth = rng.normal(size=500) + 0.5 * other[:, 1] + 0.3 * rng.normal(size=500)
    missing = np.where([True, False], np.nan, other)
    options = {"hidden_layer_sizes": (30,), "epochs": 30, "n_folds": 2, "n_seeds": 1, "random_state": 0}
    for settings in ({}, {"categorical_features": [0], "n_bins": 0}):
        model = TAGIRegressor(**options, **settings).fit(x, y)
        for unknown in (other, missing):
            found, alone = (model.predict_distribution(some) for some in (unknown, unknown[:1]))
            assert 0.75 < found.coverage(truth, 0.9) < 0.97
            assert found.std.mean() > 2 * model.predict_distribution(x).std.mean()
            np.testing.assert_allclose(alone.std, found.std[:1], rtol=1e-5)  # the same draws for all samples
        assert model.predict_distribution(x).std.mean() < 0.5


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


def test_what_two_kinds_of_networks_differ_by_does_not_make_the_noise_smaller(monkeypatch):
    x, y = data(300)
    shrink = {}
    for differ in (True, False):

        def mixed(self, best, differ=differ):
            networks = self.chosen(best).networks
            return choice.Chosen(networks, networks if differ else [[some[0], some[0]] for some in networks])

        monkeypatch.setattr(choice.Choice, "mixed", mixed)
        model = TAGIRegressor((20,), n_folds=2, n_seeds=2, epochs=5, n_bins=0, random_state=0).fit(x, y)
        shrink[differ] = model.noise_.shrink
    assert shrink[True] < shrink[False] == 0


@pytest.mark.parametrize("large, missing", [(30.0, 0.0), (1.0, 15.0)])
def test_the_scale_is_that_of_the_mean_of_all_networks(large, missing):
    """A few samples have large errors, or half of them have missing inputs, which add variance.

    No mean over networks reduces either; the scale is that of the other samples.
    """
    rng = np.random.default_rng(0)
    x, fold, many = rng.normal(size=(4000, 1)).astype(np.float32), np.arange(4000) % 2, 20
    bias = np.where(np.arange(4000) % 20, 1.0, large) * rng.standard_t(5, 4000)
    added = np.where(np.arange(4000) % 4 < 2, missing, 0.0)
    mus = bias + added**0.5 * rng.normal(size=4000) + 2 * rng.normal(size=(many, 4000))
    moments = Moments(mus[:4], np.ones((4, 4000)), np.stack([added] * 4))
    gain = np.where(fold, moments.spread * (1 / 4 - 1 / many), np.nan)  # as if known for one fold
    options = {"heteroscedastic": False, "student_t": True, "seeds": [0, 1], "run": None}
    found = learn_noise(x, np.zeros(4000), np.ones(4000), moments, fold, gain, **options)
    inside = np.abs(mus.mean(0)) < stats.t(found.degrees).ppf(0.95) * np.exp(found.log_scale2(x, moments) / 2)
    assert 0.88 < inside.mean() < 0.93
    unchanged = learn_noise(x, np.zeros(4000), np.ones(4000), moments, fold, 0 * gain, **options)
    assert unchanged.shrink == 0 > found.shrink

"""Regression: what is learnt of the function, and of the noise."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor, choice, extrapolation, regressor
from pytagi_ddp.estimators.ensemble import moments_of
from pytagi_ddp.estimators.extrapolation import Extrapolation
from pytagi_ddp.estimators.members import PREDICTED, Training, moments
from pytagi_ddp.estimators.noise import GivenNoise, Moments, learn_noise
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
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 90"):
        fitted.predict_interval(x, 90)
    with pytest.raises(TypeError, match=r"coverage must be a number, got \[0.5, 0.9\]"):
        fitted.predict_interval(x, [0.5, 0.9])


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
    assert np.abs(mean - expected).max() < 0.06 * y.std()
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
def test_codes_of_missing_numbers_are_named(estimator):
    x, y = data(100)
    some, classes = np.arange(100) % 50 == 7, np.arange(100) % 2
    options = {"n_folds": 1, "n_seeds": 1, "epochs": 1}
    right = classes if estimator is TAGIClassifier else y
    with pytest.warns(UserWarning, match="column 1 of X has -9999 more than once.*NaN") as found:
        estimator((4,), **options).fit(np.c_[x, np.where(some, -9999, x[:, 0] / x[:, 0].std())], right)
    assert len(found) == 1
    if estimator is TAGIRegressor:
        code = y.mean() - 7 * np.ptp(y)
        with pytest.warns(UserWarning, match="row 7: y has .* in 2 rows.*missing values.*leave out") as found:
            estimator((4,), **options).fit(x, np.where(some, code, y))
        assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doses = np.where(np.arange(100) < 95, np.arange(100) % 4, 20)
        estimator((4,), **options).fit(np.c_[x, doses, np.arange(100) < 3], right)


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
        ({"sigma_v": np.ones(20)}, lambda x, y: (x, y), r"one for each of 1 targets, got 20. .*weights: sigma_v=d"),
        ({}, lambda x, y: (x[:1], y[:1]), r"at least 2 samples \(with a weight above 0\), got 1 sample"),
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


def test_a_fit_that_is_interrupted_changes_nothing(monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    new = TAGIRegressor((4,), epochs=2, n_folds=2, n_seeds=1, random_state=0)
    fitted = clone(new).fit(*data(40))
    expected = fitted.predict([[0.0]], return_std=True)
    monkeypatch.setattr(regressor, "learn_noise", interrupted)
    for model in (new, fitted):
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data(50))
    np.testing.assert_array_equal(fitted.predict([[0.0]], return_std=True), expected)
    with pytest.raises(NotFittedError):
        new.predict([[0.0]])


SMALL = {"hidden_layer_sizes": (50,), "n_bins": 0, "n_folds": 3, "n_seeds": 1}


@pytest.mark.parametrize(("samples", "options"), [(50, {}), (200, SMALL)])
def test_the_variances_of_networks_fit_their_errors_if_the_noise_is_given(samples, options):
    """Small networks are certain of wrong values, and large ones that have learnt little are less certain."""
    rng, noise = np.random.default_rng(0), 0.05
    x, x_test = rng.uniform(-2, 2, (samples, 1)), rng.uniform(-2, 2, (500, 1))
    y, y_test = (np.sin(3 * a[:, 0]) + a[:, 0] ** 2 / 2 + noise * rng.normal(size=len(a)) for a in (x, x_test))
    model = TAGIRegressor(sigma_v=noise, random_state=0, **options).fit(x, y)
    found = model.predict_distribution(x_test)
    error = np.sqrt(np.mean((found.mean - y_test) ** 2))
    assert 0.6 * error < found.std.mean() < 2.5 * error
    assert (found.std > noise).all()
    fitted = model.noise_
    model.noise_ = replace(fitted, factor=1.0)
    as_they_are = model.predict_distribution(x_test)
    assert found.log_prob(y_test).mean() > as_they_are.log_prob(y_test).mean() + 0.3
    model.noise_ = fitted
    model.partial_fit(x[:16], y[:16])
    assert model.noise_.factor == fitted.factor


def test_one_sample_hardly_changes_the_variances_of_networks():
    none, one = np.zeros((1, 1)), np.ones((1, 1))
    assert GivenNoise(0.01).fitted(Moments(none, one, none), np.zeros(1), np.ones(1)).factor > 0.5


def test_a_category_like_the_others_has_their_noise():
    rng, none = np.random.default_rng(0), np.zeros((1, 4000))
    x, y, moments = rng.normal(size=(4000, 1)), rng.standard_t(4, 4000), Moments(none, none + 1e-6, none)
    options = {"fold": np.arange(4000) % 2, "gain": none[0], "heteroscedastic": False, "seeds": [0, 1], "run": None}
    found = learn_noise(x, y, np.ones(4000), moments, student_t=True, others=[0], **options)
    assert found.of_others[0][1] == pytest.approx(0, abs=0.2)


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


def test_weighted_scales_are_those_of_copies():
    rng = np.random.default_rng(0)
    values, counts = rng.normal(5, 2, (50, 2)), rng.integers(0, 4, 50)
    values[::7, 1] = np.nan
    expected = moments_of("X", values.repeat(counts, 0))
    np.testing.assert_allclose(moments_of("X", values, counts.astype(float)), expected, rtol=1e-6)


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


def test_a_column_that_is_constant_but_for_rounding_has_no_effect():
    """Its mean, and so its deviation, has errors of rounding: networks would learn it, and not see it again."""
    x, y = data(3000)
    column = np.full(3000, 0.998)
    assert np.c_[x, column].std(0)[1] > 1e-14
    model = TAGIRegressor((8,), n_folds=2, n_seeds=1, epochs=2, n_bins=0, random_state=0)
    plain = model.fit(np.c_[x, np.zeros(3000)], y).predict(np.c_[x, np.zeros(3000)])
    np.testing.assert_array_equal(model.fit(np.c_[x, column], y).predict(np.c_[x, column]), plain)


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


def test_what_two_kinds_of_networks_differ_by_does_not_make_the_noise_smaller(monkeypatch):
    x, y = data(300)
    shrink, gains = {}, []
    monkeypatch.setattr(
        regressor, "learn_noise", lambda *a, **o: gains.append((o["gain"], a[3])) or learn_noise(*a, **o)
    )
    for differ in (True, False):

        def mixed(self, best, differ=differ):
            networks = self.chosen(best).networks
            return choice.Chosen(networks, networks if differ else [[some[0], some[0]] for some in networks])

        monkeypatch.setattr(choice.Choice, "mixed", mixed)
        model = TAGIRegressor((20,), n_folds=2, n_seeds=2, epochs=5, n_bins=0, random_state=0).fit(x, y)
        shrink[differ] = model.noise_.shrink
    assert shrink[True] < shrink[False] == 0
    gain, moments = gains[0]  # of four networks, compared with the two of a fold
    np.testing.assert_allclose(gain, moments.spread * (1 / 2 - 1 / 4))


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
    assert moments.spread.mean() == pytest.approx(4, rel=0.05)
    gain = np.where(fold, moments.spread * (1 / 4 - 1 / many), np.nan)  # as if known for one fold
    options = {"heteroscedastic": False, "student_t": True, "seeds": [0, 1], "run": None}
    found = learn_noise(x, np.zeros(4000), np.ones(4000), moments, fold, gain, **options)
    inside = np.abs(mus.mean(0)) < stats.t(found.degrees).ppf(0.95) * np.exp(found.log_scale2(x, moments) / 2)
    assert 0.88 < inside.mean() < 0.93
    unchanged = learn_noise(x, np.zeros(4000), np.ones(4000), moments, fold, 0 * gain, **options)
    assert unchanged.shrink == 0 > found.shrink


@pytest.mark.parametrize("weights", [np.ones(6), np.repeat([2.0, 0.0], 6)])
def test_the_tails_are_those_of_a_scale_that_is_estimated_from_few_samples(weights):
    """Of 90 %: with degrees of freedom that are the most likely ones, 84 % are inside."""
    rng, n, inside = np.random.default_rng(0), len(weights), []
    x, moments = np.zeros((n, 1)), Moments(np.zeros((1, n)), np.full((1, n), 1e-6), np.zeros((1, n)))
    options = {"fold": np.arange(n) % 2, "gain": np.zeros(n), "heteroscedastic": False, "seeds": [0, 1], "run": None}
    for _ in range(150):
        y = rng.normal(size=n)
        found = learn_noise(x, y, weights, moments, student_t=True, **options)
        low, high = found.distribution(x, moments, 0.0, 1.0).interval(0.9)
        inside.append(stats.norm.cdf(high[0]) - stats.norm.cdf(low[0]))
    assert found.degrees <= 5 and np.mean(inside) > 0.87
    assert learn_noise(x, y, weights, moments, student_t=False, **options).degrees == np.inf


@pytest.mark.parametrize("options", [{}, {"sigma_v": 0.1}, {"likelihood": "gaussian"}])
def test_intervals_beyond_the_samples_allow_for_other_slopes(options):
    """Where a function bends, straight lines of networks leave it, and their own variances do not tell."""
    rng, small = np.random.default_rng(0), {"n_folds": 3, "n_seeds": 2, "epochs": 40, "hidden_layer_sizes": (50,)}
    x, beyond = rng.uniform(-1, 1, (300, 2)), rng.uniform(1.1, 2, (500, 2)) * [1, 0.5]
    for function, bends in ((lambda x: x @ [1, -2], False), (lambda x: x[:, 0] ** 2 + x[:, 1], True)):
        y, truth = function(x) + 0.1 * rng.normal(size=300), function(beyond) + 0.1 * rng.normal(size=500)
        model = TAGIRegressor(**small, n_bins=0, random_state=0, **options).fit(x, y)
        low, high = model.predict_interval(beyond)
        assert np.mean((low <= truth) & (truth <= high)) > 0.8
        inside, outside = (model.predict_distribution(some) for some in (x, beyond))
        slopes, model._beyond = model._beyond.slopes[:, 0], None
        before_inside, before = (model.predict_distribution(some) for some in (x, beyond))
        np.testing.assert_array_equal(inside.variance, before_inside.variance)
        np.testing.assert_array_equal(outside.mean, before.mean)
        assert (outside.variance >= before.variance).all() and (outside.epistemic >= before.epistemic).all()
        assert (outside.variance / before.variance).mean() > (1.5 if bends else 1)
        assert slopes[0] > 0.3 if bends else slopes[0] < 0.05
        assert slopes[1] < 0.05


def test_the_variance_of_an_extrapolation():
    """d^2 times the variance of slopes, summed over inputs; a missing input is not beyond the samples."""
    found = Extrapolation(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), np.array([[0.5, 0.0], [0.1, 2.0]]))
    x = np.array([[0.0, 2.0], [3.0, 1.0], [-2.0, 5.0], [np.nan, -1.0]], np.float32)
    expected = [[0, 0], [4 * 0.5, 0], [0.5 + 9 * 0.1, 9 * 2], [0.1, 2]]
    np.testing.assert_allclose(found.variances(x), expected, rtol=1e-6)
    np.testing.assert_array_equal(found.with_range_of(x).variances(x), 0)
    missing = found.with_range_of(np.full((3, 2), np.nan, np.float32))  # without a warning
    np.testing.assert_array_equal(missing.variances(x), found.variances(x))


def test_slopes_are_those_of_the_mean_of_all_networks(monkeypatch):
    """Of many inputs in few predictions: as by hand, input by input."""
    rng = np.random.default_rng(0)
    x = np.float32(rng.normal(size=(20, 70)))
    x[::3, 1] = np.nan
    nets = [Training((8,), 1).network(70, seed) for seed in (0, 1)]
    predicted = []
    monkeypatch.setattr(extrapolation, "moments", lambda net, x: predicted.append(len(x)) or moments(net, x))
    found = Extrapolation.of(nets, x, 69)
    assert len(predicted) == 12 and max(predicted) <= PREDICTED
    np.testing.assert_array_equal(found.slopes[69], 0)
    for k in (0, 1, 64, 68):
        ends = [x.copy(), x.copy()]
        for end, step in zip(ends, (-0.5, 0.5), strict=True):
            end[:, k] = np.clip(end[:, k] + step, np.nanmin(x[:, k]), np.nanmax(x[:, k]))
        before, after = (np.mean([net.predict(end)[0] for net in nets], 0)[:, 0] for end in ends)
        slopes = (after - before) / (ends[1][:, k] - ends[0][:, k])
        np.testing.assert_allclose(found.slopes[k], np.nanvar(slopes), rtol=1e-4)


def test_new_networks_are_never_seen_with_the_extrapolation_of_the_last_fit(monkeypatch):
    """As another thread would see them, which predicts while `fit` learns other columns."""
    options = {"hidden_layer_sizes": (), "n_folds": 2, "n_seeds": 1, "epochs": 1, "n_bins": 0, "random_state": 0}
    x, y = data(20)
    model = TAGIRegressor(**options).fit(np.c_[x, x**2], y)
    of = Extrapolation.of

    def predicting(*arguments):
        with pytest.raises(NotFittedError):
            model.predict_distribution(x)
        return of(*arguments)

    monkeypatch.setattr(Extrapolation, "of", predicting)
    assert len(model.fit(x, y).predict(x)) == 20


def test_samples_that_come_later_extend_what_was_learnt():
    x, y = data(200)
    model = TAGIRegressor(hidden_layer_sizes=(50,), n_folds=2, n_seeds=1, epochs=40, n_bins=0, random_state=0).fit(x, y)
    far = np.array([[4.0]])
    assert model._beyond.variances(model._standardised(far)) > 0
    model.partial_fit(far, [100.0])
    assert model._beyond.variances(model._standardised(far)) == 0


def test_parameters_may_be_arrays_without_dimensions():
    x, y = data(30)
    given = {"n_folds": 2, "n_seeds": 1, "epochs": 2, "batch_size": 8, "forget": 2.0, "forget_until": 0.5}
    models = (
        TAGIRegressor((4,), n_bins=0, random_state=0, **some).fit(x, y)
        for some in (given, {name: np.array(value) for name, value in given.items()})
    )
    np.testing.assert_array_equal(*[model.predict(x) for model in models])

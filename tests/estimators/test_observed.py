"""Regressors that observe their targets by a likelihood: counts, positive numbers, outliers."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from sklearn.base import clone

from pytagi_ddp import likelihoods as lk
from pytagi_ddp.estimators import TAGIRegressor, coverage_scorer, log_likelihood_scorer
from pytagi_ddp.estimators.noise import Moments
from pytagi_ddp.estimators.observed import NAMES, LikelihoodNoise

OPTIONS = {"hidden_layer_sizes": (30,), "n_bins": 8, "n_folds": 2, "n_seeds": 1, "epochs": 20, "random_state": 0}


def data(name, n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    z = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1]
    draw = {
        "gaussian": lambda: 50 + 20 * (z + 0.3 * rng.normal(size=n)),
        "student_t": lambda: 50 + 20 * (z + 0.2 * rng.standard_t(3, n)),
        "laplace": lambda: 50 + 20 * (z + rng.laplace(0, 0.25, n)),
        "gamma": lambda: 1e4 * np.exp(z) * rng.gamma(4, 1 / 4, n),
        "lognormal": lambda: 1e4 * np.exp(z + 0.3 * rng.normal(size=n)),
        "poisson": lambda: rng.poisson(np.exp(3 + z)),
        "negative_binomial": lambda: rng.poisson(rng.gamma(4, np.exp(3 + z) / 4)),
    }
    return x, draw[name]()


PARAMETERS = {
    "gaussian": {"sigma": 0.3 / 0.94},  # standardised: the standard deviation of z and its noise is 0.94
    "student_t": {"df": 3, "scale": 0.2 / 0.97},
    "laplace": {"scale": 0.25 / 0.97},
    "gamma": {"shape": 4},
    "lognormal": {"sigma": 0.3},
    "poisson": {"exposure": 1},
    "negative_binomial": {"size": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_function_and_noise_are_learnt(name):
    model = TAGIRegressor(**OPTIONS, likelihood=name).fit(*data(name))
    for parameter, true in PARAMETERS[name].items():
        found = getattr(model.noise_.likelihood, parameter)
        assert true * 0.6 < found < true * 1.7 if parameter != "df" else 1.5 < found < 10
    x, y = data(name, 200, 1)
    discrete = name in ("poisson", "negative_binomial")
    assert 0.82 < coverage_scorer(model, x, y) < (0.99 if discrete else 0.97)
    found = model.predict_distribution(x)
    few = model.predict_distribution(x[:5])
    np.testing.assert_array_equal(model.predict_interval(x[:5], 0.5), [few.quantile(0.25), few.quantile(0.75)])
    np.testing.assert_array_equal(model.predict(x), found.mean)
    constant = np.log(np.mean(found.pdf(np.roll(y, 1))))
    assert log_likelihood_scorer(model, x, y) > constant
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), found.mean)
    assert clone(model).likelihood == name and not hasattr(model, "degrees_of_freedom_")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gamma", "poisson", "lognormal"])
def test_what_y_is_makes_predictions_better(name):
    x, y = data(name, 200)
    unseen = data(name, 300, 1)
    options = OPTIONS | {"n_bins": None}  # chosen by the likelihood
    plain, model = (TAGIRegressor(**options, likelihood=kind).fit(x, y) for kind in (None, name))
    assert log_likelihood_scorer(model, *unseen) > log_likelihood_scorer(plain, *unseen) + 0.05
    assert model.predict_distribution(unseen[0]).quantile(0.001).min() >= 0


@pytest.mark.parametrize("name", ["poisson", "lognormal"])
def test_outputs_that_follow_the_noise_are_shrunk(name):
    """The mean e^(m + s/2) of an overfitted network is several times the true one at some samples."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3))
    mean = np.exp(0.5 * x[:, 0])
    y = rng.poisson(mean) if name == "poisson" else mean * np.exp(rng.normal(size=400) - 0.5)
    model = TAGIRegressor(**OPTIONS | {"epochs": 60, "n_bins": 0}, likelihood=name).fit(x[:200], y[:200])
    assert model.noise_.slope < 0.8
    assert np.sqrt(np.mean((model.predict(x[200:]) - mean[200:]) ** 2)) < mean.std()
    assert TAGIRegressor(**OPTIONS | {"n_bins": 0}, likelihood=name).fit(*data(name, 200)).noise_.slope > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_samples_that_come_in_time_are_observed(name):
    x, y = data(name, 600)
    model = TAGIRegressor(n_folds=1, n_seeds=1, random_state=0, likelihood=name)
    scores = []
    unseen = data(name, 300, 1)
    for start in range(0, 600, 100):
        rows = slice(start, start + 100)
        model.partial_fit(x[rows], y[rows])
        scores.append(log_likelihood_scorer(model, *unseen))
    assert scores[-1] > scores[0] and coverage_scorer(model, *unseen) > 0.85
    noise = model.noise_.likelihood
    fitted = TAGIRegressor(**OPTIONS, likelihood=name).fit(x[:100], y[:100])
    before = repr(fitted.noise_.likelihood)
    assert repr(fitted.partial_fit(x[100:], y[100:]).noise_.likelihood) == before
    assert type(noise) is type(fitted.noise_.likelihood)


def test_noise_is_what_outputs_leave_of_squared_errors():
    z, none = np.random.default_rng(0).normal(size=400), np.zeros((1, 400))
    moments = Moments(none, none + 2.0, none)
    start = LikelihoodNoise(lk.LogNormal(0.1), slope=0.5)
    whole, half = (start.fitted(moments, np.exp(z), np.ones(400), share).likelihood.sigma for share in (1.0, 0.5))
    assert whole**2 + 0.5**2 * 2.0 == pytest.approx(np.mean(z**2), rel=1e-3)
    assert half**2 == pytest.approx(0.1 * whole)


def test_several_targets_have_noise_of_their_own():
    x, one = data("lognormal")
    other = data("gamma", seed=3)[1] * 1e-8 + 1e-9 * x[:, 0] ** 2
    model = TAGIRegressor(**OPTIONS, likelihood="lognormal").fit(x, np.c_[one, other])
    sigmas = [noise.likelihood.sigma for noise in model.noise_]
    assert sigmas[0] == pytest.approx(0.3, rel=0.5) and sigmas[1] > 1.2 * sigmas[0]
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (400, 2)
    np.testing.assert_allclose(mean.mean(0), [one.mean(), other.mean()], rtol=0.3)
    online = TAGIRegressor(n_folds=1, n_seeds=1, likelihood="lognormal").partial_fit(x, np.c_[one, other])
    assert len(online.noise_) == 2


@pytest.mark.slow
def test_weights_count_with_likelihoods():
    x, y = data("poisson", 300)
    poor = np.arange(300) % 2 == 0
    y = np.where(poor, np.random.default_rng(5).permutation(y), y)
    unseen = data("poisson", 500, 1)
    same, better, much = (
        log_likelihood_scorer(TAGIRegressor(**OPTIONS, likelihood="poisson").fit(x, y, weights), *unseen)
        for weights in (None, np.where(poor, 0.05, 1.0), np.where(poor, 0.05, 8.0))
    )
    assert better > same + 0.3 and much > same + 0.3


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("gamma", [1.0, -1.0, 2.0], "likelihood='gamma' is for numbers above 0, and y has -1.0 in row 1"),
        ("lognormal", [1.0, 2.0, 0.0], "numbers above 0, and y has 0.0 in row 2"),
        (
            "poisson",
            [1.0, 2.5, 0.0],
            r"whole numbers from 0 on, and y has 2.5 in row 1\. .*likelihoods\.Poisson\(exposure=",
        ),
        ("negative_binomial", [-1.0, 2, 0], "whole numbers from 0 on, and y has -1.0 in row 0"),
        ("normal", [1.0, 2.0, 3.0], "likelihood must be None or one of 'gaussian', .*; got 'normal'"),
        (lk.Poisson(), [1.0, 2.0, 3.0], "likelihood must be None or one of"),
    ],
)
def test_targets_that_a_likelihood_cannot_have_are_refused(name, y, message):
    model = TAGIRegressor(**OPTIONS, likelihood=name)
    for train in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=message):
            getattr(model, train)(np.arange(3.0)[:, None], y)
    assert not hasattr(model, "networks_")


def test_the_likelihood_stays_the_same_between_batches():
    x, y = data("poisson", 50)
    model = TAGIRegressor(n_folds=1, n_seeds=1, likelihood="poisson").partial_fit(x, y)
    for other in (None, "negative_binomial", "gaussian"):
        with pytest.raises(ValueError, match=f"likelihood has changed since the first call, to {other!r}: fit anew"):
            model.set_params(likelihood=other).partial_fit(x, y)
    with pytest.raises(ValueError, match=r"likelihood='poisson' is for counts, .* y has -1.0 in row 0"):
        model.set_params(likelihood="poisson").partial_fit(x[:1], [-1.0])
    with pytest.raises(ValueError, match="sigma_v is for likelihood=None"):
        TAGIRegressor(likelihood="gaussian", sigma_v=1.0).fit(x, y)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "lognormal"])
def test_targets_without_noise_are_learnt(name):
    x = np.random.default_rng(0).uniform(-1, 1, (200, 1))
    y = np.exp(x[:, 0])
    model = TAGIRegressor(**OPTIONS, likelihood=name).fit(x, y)
    assert model.score(x, y) > 0.97 and np.isfinite(model.log_likelihood(x, y)).all()
    assert (
        0.003
        < next(
            iter(
                getattr(model.noise_.likelihood, key)
                for key in ("sigma", "scale")
                if hasattr(model.noise_.likelihood, key)
            )
        )
        < 0.3
    )


@pytest.mark.parametrize("seed", range(3))
def test_rare_counts_have_the_mean_of_the_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1000, 3))
    y = rng.poisson(0.02 * np.exp(0.5 * x[:, 0]))
    options = {"n_folds": 3, "n_seeds": 1, "epochs": 15, "n_bins": 0, "hidden_layer_sizes": 30}
    model = TAGIRegressor(likelihood="poisson", random_state=seed, **options).fit(x, y)
    assert model.noise_.slope < 1
    ratio = model.predict(rng.normal(size=(20_000, 3))).mean() / y.mean()
    assert 0.85 < ratio < 1.15, "0.79 to 0.85 without the shift of the centre"


@pytest.mark.parametrize("name", ["gamma", "poisson"])
def test_rare_categories_have_the_mean_of_their_samples(name):
    """Networks are very uncertain of a category with few samples: their means e^(m + s/2) were far too large."""
    rng = np.random.default_rng(0)
    region = rng.choice(5, 2000, p=[0.45, 0.3, 0.2, 0.044, 0.006])
    x = np.column_stack([rng.normal(size=2000), region])
    mean = np.exp(0.2 + np.array([0, 0.3, -0.3, 0.8, 1.6])[region] + 0.3 * x[:, 0])
    y = rng.poisson(mean) if name == "poisson" else rng.gamma(2, mean / 2)
    options = OPTIONS | {"n_bins": 0, "categorical_features": [1]}
    predicted = TAGIRegressor(**options, likelihood=name).fit(x, y).predict(x)
    rare = region == 4
    assert 0.9 < predicted.sum() / y.sum() < 1.1
    assert 0.4 < predicted[rare].sum() / y[rare].sum() < 2, "hundreds without the limit of variances"


def test_few_samples_without_rare_categories_keep_their_variances():
    """A limit for all samples, chosen by a few of them, made the error bars of others far too small."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1100, 2))
    y = np.exp(np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.02 * rng.normal(size=1100))
    options = OPTIONS | {"hidden_layer_sizes": (50,), "n_folds": 3, "n_bins": 0}
    distribution = TAGIRegressor(**options, likelihood="lognormal").fit(x[:100], y[:100]).predict_distribution(x[100:])
    assert distribution.log_prob(y[100:]).min() > -15, "-39 with one limit for all"


def test_small_relative_noise_of_positive_numbers():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1000, 2))
    y = rng.gamma(2500, np.exp(x[:, 0]) / 2500)
    options = {"n_folds": 2, "n_seeds": 1, "epochs": 40, "n_bins": 0, "hidden_layer_sizes": 30}
    model = TAGIRegressor(likelihood="gamma", random_state=0, **options).fit(x[:500], y[:500])
    low, high = model.predict_interval(x[500:], 0.5)
    assert model.noise_.likelihood.shape > 300
    assert 0.4 < np.mean((low <= y[500:]) & (y[500:] <= high)) < 0.85  # of 0.5

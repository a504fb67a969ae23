"""Predicted distributions: their parts, and what the regressor returns of them."""

import pickle
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp import likelihoods as lk
from pytagi_ddp.estimators import EnsemblePrediction, TAGIRegressor, distributions
from pytagi_ddp.estimators.distributions import MixturePrediction, StudentTPrediction, TargetsPrediction


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    return x, 5 + np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=n)


@pytest.fixture(scope="module")
def fitted():
    return TAGIRegressor((50,), n_folds=2, n_seeds=2, epochs=30, random_state=0).fit(*data(300))


def test_all_that_is_predicted_is_of_one_distribution(fitted):
    x, y = data(100, 1)
    found = fitted.predict_distribution(x)
    assert isinstance(found, EnsemblePrediction) and isinstance(found, lk.Prediction)
    np.testing.assert_array_equal(fitted.predict(x, True, [0.2])[0], found.mean)
    np.testing.assert_array_equal(fitted.predict(x, True, [0.2])[1], found.std)
    np.testing.assert_array_equal(fitted.predict(x, True, [0.2])[2][:, 0], found.quantile(0.2))
    np.testing.assert_array_equal(fitted.predict_interval(x, 0.8), found.interval(0.8))
    np.testing.assert_array_equal(fitted.log_likelihood(x, y), found.log_prob(y))
    np.testing.assert_array_equal(fitted.crps(x, y), found.crps(y))
    np.testing.assert_allclose(np.log(found.pdf(y)), found.log_prob(y))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).log_prob(y), found.log_prob(y))


def test_what_is_not_known_and_noise_add_up(fitted):
    near, far = (fitted.predict_distribution([[place]]) for place in (0.5, 30.0))
    for found in (near, far):
        np.testing.assert_allclose(found.epistemic + found.aleatoric, found.variance)
        np.testing.assert_allclose(found.std**2, found.variance)
        assert 0 < found.spread < found.epistemic <= found.variance and found.aleatoric >= 0
    assert near.epistemic < 0.5 * near.variance < far.epistemic
    assert np.sqrt(near.aleatoric) == pytest.approx(0.3, rel=0.3)
    missing = fitted.predict_distribution([[np.nan]])
    assert missing.epistemic > 5 * near.epistemic
    more = TAGIRegressor((50,), n_folds=2, n_seeds=2, epochs=30, random_state=0).fit(*data(3000))
    places = np.linspace(-2, 2, 50)[:, None]
    unknown = [model.predict_distribution(places).epistemic.mean() for model in (fitted, more)]
    assert unknown[1] < 0.5 * unknown[0]


def mixture(likelihood=None, loc=1.0, scale=2.0):
    rng = np.random.default_rng(0)
    mu, var = rng.normal(size=(3, 4)), rng.uniform(0.05, 0.5, (3, 4))
    return MixturePrediction(likelihood or lk.Gaussian(0.5), mu, var, loc, scale), mu, var


M, S = np.array([0.3, -1.0, 2.0]), np.array([-0.5, 0.0, 1.0])
KINDS = {
    "Gaussian": StudentTPrediction(M, S, np.inf, np.array([0.2, 0.2, 4.0]), np.array([0.1, 0.1, 2.0])),
    "t": StudentTPrediction(M, S, 5.0, np.full(3, 0.2), np.full(3, 0.1)),
    "mixture": mixture()[0],
    "positive": mixture(lk.Gamma(4.0), 0.0, 3.0)[0],
    "logarithms": mixture(lk.LogNormal(0.3), 0.0, 3.0)[0],
    "tails": mixture(lk.Laplace(0.3))[0],
    "counts": mixture(lk.Poisson(3.0), 0.0, 1.0)[0],
    "large counts": mixture(lk.NegativeBinomial(3.0), 0.0, 1.0)[0],
    "targets": TargetsPrediction([mixture()[0], mixture(lk.StudentT(6.0, 0.5))[0]]),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_distribution_is_that_of_its_samples(name):
    found = KINDS[name]
    drawn = found.sample(100_000, seed=0)
    np.testing.assert_array_equal(drawn[:10], found.sample(100_000, seed=0)[:10])
    assert drawn.shape == (100_000, *found.mean.shape)
    np.testing.assert_allclose(drawn.mean(0), found.mean, atol=0.03 * found.std.max())
    np.testing.assert_allclose(drawn.std(0), found.std, rtol=0.06)
    for q in (0.1, 0.5, 0.95):
        place = found.quantile(q)
        assert np.all((drawn <= place + 1e-9).mean(0) >= q - 0.01)
        assert np.all((drawn < place - 1e-9).mean(0) <= q + 0.01)
        np.testing.assert_allclose(found.cdf(place), (drawn <= place + 1e-9).mean(0), atol=0.01)
    assert np.all((found.epistemic >= 0) & (found.spread <= found.epistemic * (1 + 1e-9)) & (found.aleatoric >= 0))
    np.testing.assert_allclose(found.epistemic + found.aleatoric, found.variance)


@pytest.mark.parametrize("name", KINDS)
def test_the_ranked_score_is_that_of_the_samples(name):
    """E|Y - y| - 1/2 E|Y - Y'|."""
    found = KINDS[name]
    first, second = found.sample(50_000, seed=1), found.sample(50_000, seed=2)
    for y in (found.quantile(0.2), found.quantile(0.999) + 3):
        expected = np.abs(first - y).mean(0) - 0.5 * np.abs(first - second).mean(0)
        np.testing.assert_allclose(found.crps(y) / found.std, expected / found.std, atol=0.09)


@pytest.mark.parametrize("name", [name for name in KINDS if "counts" not in name])
def test_densities_are_derivatives(name):
    found = KINDS[name]
    y = found.quantile(0.7)
    slope = (found.cdf(y + 1e-3) - found.cdf(y - 1e-3)) / 2e-3
    np.testing.assert_allclose(found.pdf(y), slope, rtol=2e-3)


def test_observations_of_several_targets_have_their_shape():
    found = KINDS["targets"]
    samples = len(found.mean)
    for y in (np.ones(samples), np.ones((samples, 3)), np.ones((2, samples))):
        with pytest.raises(ValueError, match=rf"predictions have \({samples}, 2\): (give one|is it transposed)"):
            found.log_prob(y)
    assert found.log_prob(1.0).shape == found.cdf(np.ones((samples, 2))).shape == (samples, 2)


def test_several_targets_are_drawn_independently():
    drawn = TargetsPrediction([KINDS["t"], KINDS["t"]]).sample(1000, seed=0)
    assert abs(np.corrcoef(drawn[:, 0].T)[0, 1]) < 0.1


def test_a_mixture_is_the_mean_over_networks():
    found, mu, var = mixture()
    y = found.mean + 0.7
    density = np.exp(-0.5 * ((y - 1) / 2 - mu) ** 2 / (var + 0.25)) / np.sqrt(2 * np.pi * (var + 0.25)) / 2
    np.testing.assert_allclose(found.pdf(y), density.mean(0))
    np.testing.assert_allclose(found.epistemic, 4 * (var.mean(0) + mu.var(0)))
    np.testing.assert_allclose(found.aleatoric, 4 * 0.25)
    counts, mu, var = mixture(lk.Poisson(3.0), 0.0, 1.0)
    np.testing.assert_allclose(counts.aleatoric, 3 * np.exp(mu + var / 2).mean(0))  # the mean rate
    heavy = mixture(lk.StudentT(2.0, 0.5))[0]
    assert np.isinf(heavy.variance).all() and np.isfinite(heavy.epistemic).all() and np.isinf(heavy.aleatoric).all()


@pytest.mark.parametrize("name", ["mixture", "tails", "counts"])
def test_samples_in_blocks_are_those_together(name, monkeypatch):
    found, y = KINDS[name], KINDS[name].quantile(0.6)
    calls = [lambda: found.log_prob(y), lambda: found.cdf(y), lambda: found.quantile(0.3), lambda: found.cdf(1.0)]
    together = [call() for call in calls]
    monkeypatch.setattr(distributions, "BLOCK", 7)  # two samples of three networks
    for one, other in zip(
        (found.log_prob(y), found.cdf(y), found.quantile(0.3), found.cdf(1.0)), together, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_many_samples_take_little_memory():
    mu = np.zeros((5, 40_000))
    found = MixturePrediction(lk.Laplace(0.3), mu, mu + 1)
    tracemalloc.start()
    found.log_prob(1.0)
    assert np.all(found.std > 1) and np.all(found.epistemic > 0.9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6  # 200 nodes of all samples and networks are 320 MB, several times


def test_draws_are_made_for_one_network_each():
    mu = np.zeros((20, 5000))
    found = MixturePrediction(lk.Laplace(0.3), mu, mu + 1)
    tracemalloc.start()
    assert found.sample(100, seed=0).shape == (100, 5000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6  # draws of all networks are 80 MB, twice


def test_counts_have_probabilities():
    found = KINDS["counts"]
    total = sum(found.pdf(float(k)) for k in range(200))
    np.testing.assert_allclose(total, 1, atol=1e-4)
    assert found.discrete and not KINDS["positive"].discrete
    assert np.isneginf(found.log_prob(-1.0)).all()


def test_the_epistemic_part_after_few_epochs():
    """Networks are less certain than their means differ. With their own variances it is 7 times the squared error."""
    rng = np.random.default_rng(0)
    x = rng.integers(2, size=(1500, 8)).astype(float)
    f = x[:, 0] * x[:, 1] + x[:, 2]
    options = {"n_folds": 2, "epochs": 5, "n_bins": 0, "random_state": 0}
    model = TAGIRegressor((50, 50), n_seeds=2, **options).fit(x[:500], (f + rng.normal(size=1500))[:500])
    found = model.predict_distribution(x[500:])
    assert model.noise_.within < 0.5
    assert 1 / 4 < found.epistemic.mean() / ((found.mean - f[500:]) ** 2).mean() < 4
    far = model.predict_distribution(20 * x[500:] - 10)
    assert (far.epistemic / far.variance).mean() > 0.8
    linear, alone = (
        TAGIRegressor((), **options | more).fit(x[:50], f[:50]) for more in ({}, {"n_folds": 1, "n_seeds": 1})
    )
    assert linear.noise_.within > 0.5  # seeds make no difference, folds do
    assert alone.noise_.within == 1

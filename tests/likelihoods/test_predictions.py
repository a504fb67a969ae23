"""Predictive distributions: against samples of themselves, and calibrated on data of the model they are of."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from pytagi_ddp import likelihoods as lk
from pytagi_ddp import manual_seed
from pytagi_ddp.likelihoods import Prediction
from pytagi_ddp.nn import Linear, ReLU, Sequential
from pytagi_ddp.training.metrics import is_wrong
from tests.likelihoods.examples import EXAMPLES

M, S = np.array([[0.3], [-1.0], [1.5]]), np.array([[0.4], [0.05], [1.0]])
KINDS = {name: likelihood for name, (likelihood, _) in EXAMPLES.items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_prediction_is_that_of_its_samples(name):
    prediction = KINDS[name].prediction(M, S)
    drawn = prediction.sample(200_000, seed=0)
    assert drawn.shape == (200_000, *prediction.mean.shape)
    spread = np.sqrt(prediction.variance)
    np.testing.assert_allclose(drawn.mean(0), prediction.mean, atol=0.02 * spread.max())
    np.testing.assert_allclose(drawn.var(0), prediction.variance, rtol=0.15, atol=1e-3)
    for q in (0.1, 0.5, 0.95):
        found = prediction.quantile(q)
        assert np.all((drawn <= found + 1e-9).mean(0) >= q - 0.005)
        assert np.all((drawn < found - 1e-9).mean(0) <= q + 0.005)
        np.testing.assert_allclose(prediction.cdf(found), (drawn <= found + 1e-9).mean(0), atol=0.006)
    low, high = prediction.interval(0.8)
    np.testing.assert_allclose([low, high], [prediction.quantile(0.1), prediction.quantile(0.9)], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["StudentT", "Laplace", "Gamma"])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.3, 0.5, 0.999999])
def test_quantiles_are_found_to_nine_digits(name, q):
    for m, s in ((M, S), (1e3 * M, S), (M, 1e-12 * S), (M, 30 * S)):
        if name == "Gamma" and m is not M:
            continue
        prediction = KINDS[name].prediction(m, s)
        np.testing.assert_allclose(prediction.cdf(prediction.quantile(q)), q, rtol=3e-9, atol=1e-11)


@pytest.mark.parametrize("likelihood", [lk.Poisson(), lk.NegativeBinomial(1e9)])
def test_quantiles_of_large_counts_are_those_of_their_rate(likelihood):
    """Of a rate above 2^53, whole numbers are more than 1 apart."""
    m, sd = np.array([[20.0], [36.0], [60.0], [300.0]]), 0.1
    prediction = likelihood.prediction(m, np.full(m.shape, sd**2))
    for q, u in ((0.05, -1.6448536), (0.95, 1.6448536)):
        np.testing.assert_allclose(np.log(prediction.quantile(q)), m + sd * u, atol=1e-3)
    with np.errstate(over="ignore"):
        wide = likelihood.prediction(m, np.full(m.shape, 400.0))
        farthest = likelihood.prediction(np.full((2, 1), 9999.0), np.ones((2, 1)))
    np.testing.assert_allclose(np.log(wide.quantile(0.95)), m + 20 * 1.6448536, atol=0.1)
    assert np.all(farthest.quantile(0.5) == np.inf)


def test_no_samples_have_no_quantiles():
    for likelihood in (lk.Poisson(), lk.Gamma(2.0), lk.StudentT(), lk.Laplace()):
        assert likelihood.prediction(np.zeros((0, 1)), np.ones((0, 1))).quantile(0.5).shape == (0, 1)


def test_a_variance_that_overflows_is_infinite():
    for likelihood in (lk.Poisson(), lk.NegativeBinomial(3.0), lk.Gamma(2.0)):
        with np.errstate(over="ignore"):
            assert likelihood.prediction(np.full((1, 1), 400.0), np.ones((1, 1))).variance == np.inf


@pytest.mark.parametrize("name", KINDS)
def test_the_ranked_score_is_that_of_its_samples(name):
    """E|Y - y| - 1/2 E|Y - Y'|."""
    prediction = KINDS[name].prediction(M, S)
    first, second = (prediction.sample(200_000, seed).astype(float) for seed in (0, 1))
    for y in (prediction.quantile(0.3), prediction.quantile(0.99)):
        expected = np.abs(first - y).mean(0) - 0.5 * np.abs(first - second).mean(0)
        np.testing.assert_allclose(prediction.crps(y) / prediction.std, expected / prediction.std, atol=0.09)
    np.testing.assert_array_equal(prediction.std, np.sqrt(prediction.variance))


def test_the_ranked_score_of_draws_is_not_biased():
    prediction = lk.Gaussian().prediction(np.full((1000, 1), 20.0), np.zeros((1000, 1)))
    y = np.linspace(18, 22, 1000)
    assert np.mean(Prediction.crps(prediction, y) - prediction.crps(y)) == pytest.approx(0, abs=3e-3)


def test_ranked_scores_of_few_counts_are_exact():
    for likelihood in (lk.Poisson(0.1), lk.NegativeBinomial(2.0, 0.2)):
        prediction = likelihood.prediction(np.array([[0.0], [0.5]]), np.array([[1.0], [0.1]]))
        u = (np.arange(-800, 8000) + 0.5)[:, None, None] / 100
        below = prediction.cdf(np.arange(-8, 80)[:, None, None]).repeat(100, 0)
        for y in (-2.5, 0, 1, 3.25, 20):
            expected = ((below - (y <= u)) ** 2).sum(0) / 100
            np.testing.assert_allclose(prediction.crps(np.full((2, 1), y)), expected, rtol=1e-3)
        far = likelihood.prediction(np.array([[0.0], [9.0]]), np.array([[1.0], [0.1]]))  # the second one is drawn
        np.testing.assert_array_equal(far.crps([[2], [2]])[0], prediction.crps([[2], [2]])[0])
        np.testing.assert_array_equal(prediction.crps([[np.nan], [np.inf]]), [[np.nan], [np.inf]])


@pytest.mark.parametrize("likelihood", [lk.StudentT(1.0, 0.3), lk.StudentT(5.0, 2.0), lk.Laplace(0.7)])
def test_ranked_scores_of_heavy_tails_are_exact(likelihood):
    prediction = likelihood.prediction(np.zeros((4, 1)), np.array([[0.0], [0.01], [1.0], [30.0]]))
    u = np.unique(np.concatenate([np.sinh(np.linspace(-16, 16, 4001)), np.linspace(-9, 9, 2001), [-0.9]]))
    below = prediction.cdf(u[:, None, None])[..., 0]
    for y in (0.0, -0.9, 9.0):
        squares = (below - (y <= u + np.array([[-1e-12], [1e-12]]))[..., None]) ** 2  # to the left and right of u
        expected = (np.diff(u)[:, None] * (squares[1, :-1] + squares[0, 1:]) / 2).sum(0)
        np.testing.assert_allclose(prediction.crps(np.full((4, 1), y))[:, 0], expected, rtol=1e-3)
    assert np.isnan(prediction.crps(np.nan)).all() and np.isposinf(prediction.crps(np.inf)).all()


@pytest.mark.parametrize("name", ["Gaussian", "LogNormal", "StudentT", "Laplace", "Gamma"])
def test_densities_are_derivatives_of_the_cdf(name):
    prediction = KINDS[name].prediction(M, S)
    y = np.array([[0.7], [0.2], [3.0]])
    slope = (prediction.cdf(y + 1e-3) - prediction.cdf(y - 1e-3)) / 2e-3
    np.testing.assert_allclose(prediction.pdf(y), slope, rtol=2e-3)
    assert np.isnan(prediction.log_prob(np.full((3, 1), np.nan))).all()


def log_mean(log_f, d, s):
    """log E[f(d - x)], x ~ N(0, s), by Gauss-Legendre quadrature between points that are dense around 0 and d."""
    near, far = np.linspace(-40, 40, 801), np.sinh(np.linspace(-17, 17, 2001))
    edges = np.unique(np.concatenate([np.sqrt(s) * near, d + far, np.linspace(0, d, 801)]))
    nodes, weights = np.polynomial.legendre.leggauss(6)
    half = 0.5 * np.diff(edges)[:, None]
    x = edges[:-1, None] + half * (1 + nodes)
    logs = log_f(d - x) - 0.5 * (x * x / s + np.log(2 * np.pi * s)) + np.log(half * weights)
    return logs.max() + np.log(np.exp(logs - logs.max()).sum())


HEAVY = [(lk.StudentT(df), stats.t(df)) for df in (1.0, 2.5, 4.0, 16.0, 100.0, 1000.0)]
HEAVY.append((lk.Laplace(), stats.laplace()))


def log_density(noise, x):
    """SciPy's is the logarithm of 0 for Laplace far out."""
    return -np.abs(x) - np.log(2) if noise.dist.name == "laplace" else noise.logpdf(x)


@pytest.mark.parametrize(("likelihood", "noise"), HEAVY)
@pytest.mark.parametrize("s", [1e-6, 0.01, 1.0, 30.0, 1e4])
def test_heavy_tails_are_exact_at_any_distance(likelihood, noise, s):
    d = np.array([0, 0.7, 3, 10, 40, 300, 1e4, 1e6])
    scale = 0.01
    narrow = likelihood._with(scale=scale).prediction(np.full((8, 1), 5.0), np.full((8, 1), s * scale**2))
    densities = [log_mean(lambda x: log_density(noise, x), distance, s) for distance in d]
    np.testing.assert_allclose(narrow.log_prob(5 + scale * d) + np.log(scale), np.reshape(densities, (8, 1)), atol=1e-6)
    beyond = np.exp([log_mean(noise.logsf, distance, s) for distance in d])
    found = likelihood.prediction(np.zeros((8, 1)), np.full((8, 1), s))
    np.testing.assert_allclose(found.cdf(-d)[:, 0], beyond, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose(found.cdf(d)[:, 0], 1 - beyond, rtol=1e-9)
    for distance, q in zip(d[1:4], beyond[1:4], strict=True):
        if q > 1e-12:
            np.testing.assert_allclose(found.quantile(q), np.full((8, 1), -distance), rtol=1e-6)
            np.testing.assert_allclose(found.interval(1 - 2 * q)[1], np.full((8, 1), distance), rtol=1e-6)


@pytest.mark.parametrize(("likelihood", "noise"), HEAVY)
def test_heavy_tails_of_a_known_output_are_those_of_the_noise(likelihood, noise):
    d = np.array([0, 0.7, 40, 1e6])
    known = likelihood.prediction(np.zeros((4, 1)), np.zeros((4, 1)))
    np.testing.assert_allclose(known.log_prob(d)[:, 0], log_density(noise, d), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(known.cdf(-d)[:, 0], noise.cdf(-d), rtol=1e-9)
    np.testing.assert_allclose(known.quantile(1e-9), np.full((4, 1), noise.ppf(1e-9)), rtol=1e-8)
    assert (known.log_prob(np.inf) == -np.inf).all() and (known.cdf([[-np.inf]] * 4) == 0).all()
    assert np.isnan(likelihood.prediction([[0.0]], [[np.nan]]).log_prob(1.0)).all()


@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial"])
def test_probabilities_of_counts_are_steps_of_the_cdf(name):
    prediction = KINDS[name].prediction(M, S)
    total = np.zeros((3, 1))
    for y in range(12):
        total += np.exp(prediction.log_prob(float(y)))
        np.testing.assert_allclose(prediction.cdf(y), total, atol=1e-4)
        np.testing.assert_array_equal(prediction.cdf(y + 0.9), prediction.cdf(y))
    assert (prediction.log_prob(-1.0) == -np.inf).all() and not prediction.cdf(-1.0).any()


def test_wide_and_narrow_outputs_keep_their_probabilities():
    """log_prob is exact where the likelihood is far sharper than the output, or far wider."""
    sharp = lk.Poisson().prediction([[6.0]], [[4.0]]).log_prob([[1000.0]])  # about N(z = log 1000; 6, 4)/1000
    assert sharp[0, 0] == pytest.approx(
        -0.5 * np.log(2 * np.pi * 4) - (np.log(1000) - 6) ** 2 / 8 - np.log(1000), abs=1e-2
    )
    exact = lk.Poisson().prediction([[1.0]], [[1e-8]]).log_prob([[2.0]])
    assert exact[0, 0] == pytest.approx(2 - np.e - np.log(2), abs=1e-6)
    rare = lk.Bernoulli().prediction([[-40.0]], [[1e-6]])
    assert rare.log_prob([[1.0]])[0, 0] == pytest.approx(-40, abs=1e-4)


def log_mean_between(log_likelihood, m, sd, low, high):
    """log E[f(z)] by a sum over z from low to high, between which all of the integrand is."""
    z = np.linspace(low, high, 200_001)
    logs = log_likelihood(z) - 0.5 * ((z - m) / sd) ** 2
    return logs.max() + np.log(np.exp(logs - logs.max()).sum() * (z[1] - z[0]) / np.sqrt(2 * np.pi) / sd)


@pytest.mark.parametrize("s", [0.9, 3.9, 15.9, 16.1, 1e4])
def test_probabilities_of_a_yes_are_exact(s):
    m = np.array([-1.5, -0.9, -0.5, -0.4, -0.01, 0, 0.3, 1.2]) * max(s, 30)
    found = lk.Bernoulli().prediction(m[:, None], np.full((8, 1), s))
    sd = np.sqrt(s)
    ends = min(0, *m, *(m - s)) - 9 * sd, max(0, *m, *(m + s)) + 9 * sd
    for y, log_p in ((1, lambda z: -np.logaddexp(0, -z)), (0, lambda z: -np.logaddexp(0, z))):
        expected = [log_mean_between(log_p, one, sd, *ends) for one in m]
        np.testing.assert_allclose(found.log_prob(np.full((8, 1), y))[:, 0], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("likelihood", [lk.Bernoulli(), lk.HierarchicalCategorical(500)])
def test_predictions_of_many_labels_take_little_memory(likelihood):
    m = np.zeros((200, 500 if isinstance(likelihood, lk.Bernoulli) else likelihood.outputs))
    likelihood.prediction(m[:1], m[:1] + 1)
    tracemalloc.start()
    try:
        likelihood.prediction(m, m + 1)
        assert tracemalloc.get_traced_memory()[1] < 12 * m.nbytes
    finally:
        tracemalloc.stop()


def test_surprising_observations_keep_their_probabilities():
    """The integrand has its maximum 13 to 33,000 standard deviations from the mean of the output."""
    for m, sd, y, low, high in (
        (4, 0.1, 400, 4.5, 6.5),
        (10, 0.1, 0, 5.5, 6.5),
        (50, 1, 0, 2, 6),
        (50, 1e-3, 0, 17, 17.6),
    ):
        found = lk.Poisson().prediction([[m]], [[sd**2]]).log_prob([[float(y)]])
        factorial = np.log(np.arange(1, y + 1)).sum()
        expected = log_mean_between(lambda z, y=y: y * z - np.exp(z), m, sd, low, high) - factorial
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    far = lk.Gamma(1).prediction([[0.0]], [[0.01]]).log_prob([[1000.0]])
    np.testing.assert_allclose(far, log_mean_between(lambda z: -z - 1000 * np.exp(-z), 0, 0.1, 1, 2.5), rtol=1e-9)
    certain = lk.Bernoulli().prediction([[200.0]], [[100.0]])  # E[e^-z]
    np.testing.assert_allclose(certain.log_prob([[0.0]]), -150, atol=1e-6)


def test_coverage_is_the_share_of_known_observations_inside():
    gaussian = lk.Gaussian(0.5).prediction(M, S)
    low, high = gaussian.interval(0.6)
    y = np.array([low[0, 0] + 1e-9, np.nan, high[2, 0] + 1e-9])
    assert gaussian.coverage(y, 0.6) == 0.5
    assert gaussian.coverage(y, 0.61) == 1
    assert lk.Ordinal(4).prediction(M, S).coverage([-1, 3, 0], 0.1) == 0  # the medians are 2, 1 and 3
    assert lk.Poisson(4).prediction(M, S).coverage(np.full((3, 1), 10**6)) == 0
    with pytest.raises(ValueError, match="all of y are missing"):
        gaussian.coverage(np.full(3, np.nan))
    with pytest.raises(ValueError, match="give one for each"):
        gaussian.coverage(np.zeros(2))


def test_scores_of_observations_with_a_noise_of_their_own():
    y, var = np.array([[0.5], [np.nan], [2.0]]), np.array([[0.1], [1.0], [4.0]])
    prediction = lk.Gaussian(3.0).prediction(M, S)
    for k in (0, 2):
        one = lk.Gaussian(np.sqrt(var[k, 0])).prediction(M[k : k + 1], S[k : k + 1])
        for score in ("log_prob", "crps"):
            expected = getattr(one, score)(y[k : k + 1])
            np.testing.assert_allclose(getattr(prediction, score)((y, var))[k], expected[0], rtol=1e-9)
        assert prediction.coverage((np.where(np.arange(3)[:, None] == k, y, np.nan), var)) == one.coverage(y[k : k + 1])
    assert np.isnan(prediction.log_prob((y, var))[1])
    with pytest.raises(TypeError, match=r"no noise parameters that could be fitted to observations \(y, var\)"):
        lk.Gaussian().fitted_to(M, S, (y, var))
    small = lk.Gaussian(1.0).prediction([[0.0]], [[1e-18]]).log_prob(([[1e-9]], [[3e-18]]))
    np.testing.assert_allclose(small, stats.norm.logpdf(1e-9, 0, 2e-9), rtol=1e-9)  # the noise of 1 leaves no trace


def test_transposed_observations_have_no_scores():
    y = np.arange(12.0).reshape(6, 2)
    prediction = lk.Gaussian().prediction(y, y + 1)
    for score in (prediction.log_prob, prediction.cdf, prediction.crps, prediction.coverage):
        with pytest.raises(ValueError, match=r"y has the shape \(2, 6\), and predictions have \(6, 2\): is it transp"):
            score(y.T)
        np.testing.assert_array_equal(score(y.ravel()), score(y))
    steps = lk.Gaussian().prediction(y.reshape(3, 2, 2), y.reshape(3, 2, 2) + 1)
    for shape in ((12,), (6, 2), (3, 4), (3, 2, 2, 1)):
        np.testing.assert_array_equal(steps.log_prob(y.reshape(shape)), steps.log_prob(y.ravel()))


def test_classes():
    prediction = lk.Categorical(3).prediction(np.array([[2.0, 0, -1], [0, 0, 0]]), np.full((2, 3), 0.5))
    p = prediction.probabilities
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(prediction.log_prob([0, -1]), [np.log(p[0, 0]), np.nan])
    np.testing.assert_allclose((prediction.sample(100_000, 0) == 0).mean(0), p[:, 0], atol=0.01)
    np.testing.assert_allclose(prediction.cdf([1, 2]), [p[0, :2].sum(), 1])
    assert prediction.quantile(0.5).tolist() == [0, 1]
    for even in (lk.Categorical(2).prediction([[0, 0]], [[1, 1]]), lk.Bernoulli("probit").prediction([[0]], [[1]])):
        assert even.cdf(0) == 0.5 and even.quantile(0.5) == 0  # the smallest value
    below = np.cumsum(p, 1)
    expected = [((below[0] - 1) ** 2).sum(), below[1, 0] ** 2 + (below[1, 1] - 1) ** 2]
    np.testing.assert_allclose(prediction.crps([0, 1]), expected, rtol=1e-9)
    for score in (prediction.log_prob, prediction.crps):
        with pytest.raises(ValueError, match="classes from 0 to 2"):
            score([0, 3])
        with pytest.raises(ValueError, match="got fractions"):
            score([0, 0.5])
        with pytest.raises(ValueError, match=r"from 0 on .* got -2"):
            score([0, -2])
    with pytest.raises(AttributeError, match="not of classes"):
        _ = lk.Gaussian().prediction(M, S).probabilities
    assert lk.Ordinal(4).prediction(M, S).probabilities.shape == (3, 4)
    assert lk.Ordinal(4).prediction(np.zeros((2, 3)), np.ones((2, 3))).probabilities.shape == (2, 3, 4)


@pytest.mark.parametrize("n", [2, 3, 37, 300])
def test_scores_of_a_tree_need_few_of_its_probabilities(n, monkeypatch):
    tree, rng = lk.HierarchicalCategorical(n), np.random.default_rng(0)
    m, y = rng.normal(size=(4, 5, tree.outputs)), rng.integers(-1, n, (4, 5))
    s = rng.uniform(0.01, 30, m.shape)
    p = tree.prediction(m, s).probabilities
    expected = np.where(y < 0, np.nan, np.log(np.take_along_axis(p, np.maximum(y, 0)[..., None], -1)[..., 0]))
    prediction = tree.prediction(m, s)
    monkeypatch.setattr(type(prediction), "probabilities", None)
    np.testing.assert_allclose(prediction.log_prob(y), expected, rtol=1e-9)
    np.testing.assert_array_equal(prediction.most_probable, p.argmax(-1))
    np.testing.assert_array_equal(is_wrong(prediction, y), np.where(y < 0, np.nan, p.argmax(-1) != y))


CLASSES = {
    "Bernoulli": lk.Bernoulli().prediction(M, S),
    "Ordinal": lk.Ordinal(3).prediction(M, S),
    "Categorical": lk.Categorical(3).prediction(np.eye(3), np.ones((3, 3))),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_missing_class_has_no_score(name):
    for score in ("log_prob", "pdf", "cdf", "crps"):
        found = getattr(CLASSES[name], score)([np.nan if name == "Bernoulli" else -1, np.nan, 1])
        assert np.isnan(found.ravel()).tolist() == [True, True, False], score


@pytest.mark.parametrize("name", [*KINDS, "Categorical"])
def test_several_observations_of_each_prediction_have_their_scores(name):
    """As curves of a distribution need them: 33 and 50 of each sample, and four of a single one."""
    likelihood = lk.Categorical(2) if name == "Categorical" else KINDS[name]
    m, s = (np.tile(part, (1, likelihood.outputs or 1)) for part in (M, S))
    prediction = likelihood.prediction(m, s)
    y = np.linspace(0.01, 3, 50).reshape(-1, *[1] * prediction.mean.ndim)
    y = np.floor(y / 2) if prediction.discrete else y
    for score in (prediction.log_prob, prediction.cdf, prediction.crps):
        each = np.array([score(np.full(prediction.mean.shape, one)) for one in y.ravel()[::7]])
        np.testing.assert_allclose(score(y)[::7], each, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(score(y[:33])[::7], each[:5], rtol=1e-6, atol=1e-9)
    alone = likelihood.prediction(m[:1], s[:1])
    for score in ("log_prob", "cdf", "crps"):
        several = getattr(alone, score)(y[::14].ravel())
        expected = getattr(prediction, score)(y[::14])[:, 0]
        np.testing.assert_allclose(several.ravel(), expected.ravel(), rtol=1e-6, atol=0.1 if score == "crps" else 1e-9)


@pytest.mark.parametrize("name", [*KINDS, "Categorical"])
def test_a_masked_observation_has_no_score(name):
    prediction = CLASSES[name] if name in CLASSES else KINDS[name].prediction(M, S)
    y = np.ma.masked_array([1, 9999, 1], mask=[False, True, False])
    for score in ("log_prob", "pdf", "cdf", "crps"):
        found = getattr(prediction, score)(y)
        assert np.isnan(found.ravel()).tolist() == [False, True, False], score


def test_a_share_has_the_mean_score_of_its_observations():
    yes_or_no = CLASSES["Bernoulli"]
    for score in (yes_or_no.log_prob, yes_or_no.crps):
        np.testing.assert_allclose(score(0.25), 0.75 * score(0) + 0.25 * score(1))
    np.testing.assert_allclose(yes_or_no.log_prob(1), np.log(yes_or_no.probabilities))


@pytest.mark.parametrize(
    ("mu", "var"),
    [([800, 0], [1700, 0.1]), ([1478.7, 831.8], [1374.1, 0.4]), ([1e4, 0, -1e4], [0, 1e5, 1]), ([3, 1, 0], [0, 0, 50])],
)
def test_expected_probabilities_are_the_fixed_point_however_uncertain(mu, var):
    m, s = np.array([mu], float), np.array([var], float)
    p = lk.Categorical(len(mu)).prediction(m, s).probabilities
    z = m + s * (0.5 - p)
    again = np.exp(z - z.max())
    np.testing.assert_allclose(p, again / again.sum(), rtol=1e-6, atol=1e-200)


@pytest.mark.parametrize(
    ("likelihood", "density"),  # the logarithm of the one of v, where the cdf falls from 1 to 0 at z = v
    [
        (lk.Gamma(0.05), lambda v: -0.05 * (v - np.log(0.05)) - 0.05 * np.exp(-v)),
        (lk.Poisson(), lambda v: v - np.exp(v)),
        (lk.NegativeBinomial(0.05), lambda v: v - 1.05 * np.logaddexp(0, v - np.log(0.05))),
    ],
)
@pytest.mark.parametrize("s", [1800.0, 1e5])
def test_wide_steps_have_their_own_place_and_width(likelihood, density, s):
    with np.errstate(over="ignore"):
        prediction = likelihood.prediction([[0.0]], [[s]])
        v = np.linspace(-50, 700, 200_001)
        weights = np.exp(density(v) - density(v).max())
    expected = weights @ stats.norm.cdf(v / np.sqrt(s)) / weights.sum()
    y = 1.0 if isinstance(likelihood, lk.Gamma) else 0.0
    assert prediction.cdf([[y]]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("likelihood", "m", "s", "y", "expected"),
    [  # by quadrature of 60 digits
        (lk.Poisson(), 14, 1, 1e6, 0.42681),
        (lk.Poisson(), 14, 4, 1e6, 0.46325),
        (lk.Poisson(), 0, 0, np.inf, 1),
        (lk.Gamma(1e4), 3, 1, np.exp(3), 0.5),
    ],
)
def test_steep_steps_are_not_lost_between_nodes(likelihood, m, s, y, expected):
    prediction = likelihood.prediction([[m]], [[s]])
    assert prediction.cdf([[y]]) == pytest.approx(expected, abs=2e-5)
    assert prediction.cdf([[1.001 * y]]) - prediction.cdf([[y]]) > 1e-4 or y == np.inf


@pytest.mark.parametrize("likelihood", [lk.Poisson(), lk.NegativeBinomial(0.05)])
def test_samples_of_very_uncertain_counts_are_those_of_the_cdf(likelihood):
    with np.errstate(over="ignore"):
        prediction = likelihood.prediction([[0.0]], [[3000.0]])
    drawn = prediction.sample(200_000, seed=0)
    for q in (0.3, 0.6, 0.9):
        found = prediction.quantile(q)
        assert np.mean(drawn <= found) == pytest.approx(prediction.cdf(found), abs=5e-3)


def test_impossible_observations():
    for counts in (lk.Poisson(), lk.NegativeBinomial()):
        assert (counts.prediction(M, S).log_prob([1.5, np.inf, -2]) == -np.inf).all()
    for score in (CLASSES["Bernoulli"].log_prob, CLASSES["Bernoulli"].crps):
        with pytest.raises(ValueError, match=r"for labels -1 and 1 give \(y \+ 1\) / 2"):
            score([-1, 1, 1])
    for name, y in (("Bernoulli", 2), ("Ordinal", 1.5), ("Categorical", 0.5)):
        with pytest.raises(ValueError, match=r"shares|fractions"):
            CLASSES[name].log_prob([y, 0, 0])
        with pytest.raises(ValueError, match=r"y has the shape \(2,\), and predictions have \(3"):
            CLASSES[name].log_prob([0, 1])


def test_no_number_up_to_0_has_a_density():
    """Also where the density grows without bound towards 0."""
    for likelihood in (lk.Gamma(0.5), lk.Gamma(1), lk.LogNormal()):
        assert (likelihood.prediction(M, S).log_prob([[0.0], [-0.0], [-1.0]]) == -np.inf).all()


def test_probabilities_of_limits():
    censored = lk.Censored(0.5, lower=0).prediction(M, S)
    full = lk.Gaussian(0.5).prediction(M, S)
    found = censored.log_prob([[-1.0], [0.5], [np.nan]])
    np.testing.assert_allclose(found[0], np.log(full.cdf(0)[0]))
    np.testing.assert_allclose(found[1], full.log_prob(0.5)[1])
    assert np.isnan(found[2])
    between = censored.log_prob((np.full((3, 1), 0.2), np.full((3, 1), 0.9)))
    np.testing.assert_allclose(np.exp(between), full.cdf(0.9) - full.cdf(0.2))
    assert (censored.log_prob((np.full((3, 1), -np.inf), np.full((3, 1), np.inf))) == 0).all()
    tails = [lk.Censored().prediction([[0]], [[0]]).log_prob(([[low]], [[low + 1]])) for low in (50.0, -51.0)]
    np.testing.assert_allclose(np.ravel(tails), stats.norm.logsf(50), rtol=1e-9)
    with pytest.raises(ValueError, match=r"got \(1, nan\) in row 1 of 3: write inf \(or -inf\) where"):
        censored.log_prob((np.ones((3, 1)), np.array([[2], [np.nan], [1]])))
    for score in (censored.cdf, censored.crps, censored.coverage):
        with pytest.raises(TypeError, match="log_prob is the score"):
            score((np.zeros((3, 1)), np.ones((3, 1))))


def test_scores_of_limits_are_those_of_what_is_shown():
    rng = np.random.default_rng(0)
    m = rng.normal(0, 2, (20_000, 1))
    shown, likelihood = np.clip(m + rng.normal(size=m.shape), -1, 2), lk.Censored(1, -1, 2)
    prediction = likelihood.prediction(m, 0 * m)
    assert 0.9 < prediction.coverage(shown) < 0.97  # all true values are inside 90 %
    assert prediction.coverage(shown) == prediction.coverage(np.where(abs(shown - 0.5) == 1.5, 9 * shown, shown))
    assert likelihood.prediction(m + 4, 0 * m).coverage(shown) < 0.5

    prediction = lk.Censored(0.5, -1, 2).prediction(M, S)
    u = np.linspace(-1, 2, 30_001)[:-1, None, None] + 5e-5
    for y in (-7.0, -1.0, 0.3, 2.0, np.inf):
        expected = 3 * np.mean((prediction.cdf(u) - (y <= u)) ** 2, 0)
        np.testing.assert_allclose(prediction.crps(y), expected, rtol=1e-4)
    assert np.isnan(prediction.crps(np.nan)).all()


def test_a_prediction_without_outputs_for_it():
    with pytest.raises(ValueError, match="needs 3 outputs"):
        lk.Categorical(3).prediction(M, S)
    with pytest.raises(ValueError, match="one shape"):
        lk.Gaussian().prediction(M, S[:2])
    with pytest.raises(ValueError, match=r"quantile: q must be in \(0, 1\), got 1"):
        lk.Gaussian().prediction(M, S).quantile(1)
    with pytest.raises(TypeError, match=r"quantile: q must be a number, got \[0.1, 0.9\]"):
        lk.Gaussian().prediction(M, S).quantile([0.1, 0.9])
    with pytest.raises(TypeError, match=r"interval: level must be a number, got \[0.5, 0.9\]"):
        lk.Gaussian().prediction(M, S).interval([0.5, 0.9])
    with pytest.raises(ValueError, match=r"interval: level must be in \(0, 1\), got 90"):
        lk.Gaussian().prediction(M, S).interval(90)
    with pytest.raises(ValueError, match=r"y has the shape \(2,\), and predictions have \(3, 1\): give one for each"):
        lk.Gaussian().prediction(M, S).log_prob(np.zeros(2))


def trained(likelihood, x, y, outputs, epochs=4):
    manual_seed(1)
    net = Sequential(Linear(x.shape[1], 32), ReLU(), Linear(32, outputs))
    for _ in range(epochs):
        for i in range(0, len(x), 20):
            net(x[i : i + 20])
            likelihood.observe(net, y[i : i + 20])
            net.backward()
            net.step()
    return net


def data(n=800):
    rng = np.random.default_rng(3)
    x = rng.uniform(-2, 2, (n, 1))
    return x, np.sin(2 * x), rng


DRAWN = {
    "Gaussian": lambda f, rng: f + 0.5 * rng.normal(size=f.shape),
    "StudentT": lambda f, rng: f + 0.5 * rng.standard_t(6, f.shape),
    "Laplace": lambda f, rng: f + rng.laplace(0, 0.5, f.shape),
    "LogNormal": lambda f, rng: np.exp(f + 0.5 * rng.normal(size=f.shape)),
    "Gamma": lambda f, rng: rng.gamma(3, np.exp(f) / 3),
    "Poisson": lambda f, rng: rng.poisson(4 * np.exp(f)),
    "NegativeBinomial": lambda f, rng: rng.poisson(rng.gamma(5, np.exp(f) / 5)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_predictions_are_calibrated(name):
    """Nine of ten new observations lie in the intervals for 90 %, and predictions are better than a constant one."""
    x, f, rng = data()
    y = DRAWN[name](f, rng).astype(float)
    net = trained(KINDS[name], x[:600], y[:600], 1)
    prediction = KINDS[name].predict(net, x[600:])
    assert 0.84 < prediction.coverage(y[600:], 0.9) < 0.98
    assert np.corrcoef(prediction.quantile(0.5)[:, 0], f[600:, 0])[0, 1] > 0.85


@pytest.mark.parametrize("kind", [lk.Categorical, lk.HierarchicalCategorical])
def test_classes_are_learnt_with_their_probabilities(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 2))
    scores = np.stack([2 * x[:, 0], 2 * x[:, 1], -x.sum(1), x[:, 0] * x[:, 1], 0 * x[:, 0]], 1)
    truth = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    y = (rng.random((1200, 1)) > truth.cumsum(1)).sum(1)
    likelihood = kind(5)
    net = trained(likelihood, x[:1000], y[:1000], likelihood.outputs)
    prediction = likelihood.predict(net, x[1000:])
    entropy = -(truth[1000:] * np.log(truth[1000:])).sum(1).mean()
    expected = -(truth[1000:] * np.log(prediction.probabilities)).sum(1).mean()
    assert expected < entropy + 0.1 < np.log(5)
    assert np.abs(prediction.probabilities - truth[1000:]).mean() < 0.08


def test_outliers_spoil_a_gaussian_but_not_students_t():
    x, f, rng = data()
    y = f + 0.1 * rng.normal(size=f.shape)
    bad = rng.random(f.shape) < 0.1
    y[bad] += rng.choice([8.0, 12.0], bad.sum())
    errors = {}
    for name, likelihood in {"Gaussian": lk.Gaussian(0.1), "StudentT": lk.StudentT(3, 0.1)}.items():
        prediction = likelihood.predict(trained(likelihood, x, y, 1, epochs=10), x)
        errors[name] = np.sqrt(np.mean((prediction.mean - f) ** 2))
    assert errors["StudentT"] < 0.2 < 0.6 < errors["Gaussian"]


def test_limits_are_not_taken_for_values():
    x, f, rng = data()
    y = f + 0.2 * rng.normal(size=f.shape)
    shown = np.clip(y, -0.3, 0.3)
    errors = [
        np.sqrt(np.mean((likelihood.predict(trained(likelihood, x, shown, 1), x).mean - f) ** 2))
        for likelihood in (lk.Censored(0.2, -0.3, 0.3), lk.Gaussian(0.2))
    ]
    assert errors[0] < 0.6 * errors[1]

"""Noise parameters that are estimated: those of synthetic data, weights, missing observations, what is refused."""

import json

import numpy as np
import pytest

from pytagi_ddp import likelihoods as lk
from pytagi_ddp import manual_seed
from pytagi_ddp.nn import Linear, ReLU, Sequential
from tests.likelihoods.examples import kinds

NAN = np.nan
RNG = np.random.default_rng(0)
N = 1500
M, S = RNG.normal(size=(N, 1)), RNG.uniform(0.01, 0.1, (N, 1))
Z = RNG.normal(M, np.sqrt(S))
CUTS = np.array([-1, 0.2, 0.9])

# The likelihood that observations are drawn from, the one that fitting starts at, and allowed relative errors: about
# three standard errors of an estimate from so many observations.
TRUE = {
    "Gaussian": (lk.Gaussian(0.5), lk.Gaussian(), 0.06),
    "LogNormal": (lk.LogNormal(0.5), lk.LogNormal(), 0.06),
    "Censored": (lk.Censored(0.5, -0.5, 1), lk.Censored(1, -0.5, 1), 0.08),
    "Laplace": (lk.Laplace(0.5), lk.Laplace(), 0.08),
    "StudentT": (lk.StudentT(4, 0.5), lk.StudentT(20, 1), {"scale": 0.1, "df": 0.35}),
    "Gamma": (lk.Gamma(3), lk.Gamma(), 0.12),
    "NegativeBinomial": (lk.NegativeBinomial(2), lk.NegativeBinomial(), 0.25),
    "Ordinal": (lk.Ordinal(4, CUTS), lk.Ordinal(4), 0.15),
}


def drawn(likelihood):
    """One observation of each of the outputs Z."""
    y = likelihood.prediction(Z, np.full_like(Z, 1e-12)).sample(1, seed=1)[0].astype(float).reshape(Z.shape)
    return np.clip(y, likelihood.lower, likelihood.upper) if isinstance(likelihood, lk.Censored) else y


def mean_log_prob(likelihood, y, m=M, s=S):
    return np.nanmean(likelihood.prediction(m, s).log_prob(y))


def test_all_noise_parameters_are_estimated():
    missing = {name for name, kind in kinds().items() if kind.noise_parameters} - TRUE.keys()
    assert not missing, f"add {', '.join(missing)} to TRUE in tests/likelihoods/test_fitted.py"


@pytest.mark.parametrize("name", TRUE)
def test_the_true_noise_is_found(name):
    true, start, error = TRUE[name]
    y = drawn(true)
    before = repr(start)
    found = start.fitted_to(M, S, y)
    assert type(found) is type(start) and repr(start) == before
    assert mean_log_prob(found, y) > mean_log_prob(true, y)
    for parameter in start.noise_parameters:
        allowed = error[parameter] if isinstance(error, dict) else error
        scale = np.abs(getattr(true, parameter)).max()
        assert np.abs(getattr(found, parameter) - getattr(true, parameter)).max() < allowed * scale
    kept = {part: value for part, value in vars(start).items() if part[0] != "_" and part not in start.noise_parameters}
    assert kept.items() <= vars(found).items()
    assert repr(start.with_state_dict(json.loads(json.dumps(found.state_dict())))) == repr(found)


@pytest.mark.parametrize("name", ["Gaussian", "Censored", "Ordinal"])
def test_no_change_of_a_parameter_is_better(name):
    """It is the maximum: the mean log-probability falls to either side of each estimate."""
    true, start, _ = TRUE[name]
    y = drawn(true)
    found = start.fitted_to(M, S, y)
    best, _, _ = found._free()
    top = mean_log_prob(found, y)
    for k in range(best.size):
        for step in (-0.02, 0.02):
            assert mean_log_prob(found._at(best + step * (np.arange(best.size) == k)), y) < top


@pytest.mark.parametrize("start", [1e-7, 1e-3, 1e4, 1e8])
def test_a_start_far_away(start):
    """Where sigma is far below the standard deviations of outputs, or far above, slopes do not lead to the maximum."""
    y = drawn(lk.Gaussian(0.5))
    expected = lk.Gaussian(1).fitted_to(M, S, y).sigma
    assert lk.Gaussian(start).fitted_to(M, S, y).sigma == pytest.approx(expected, rel=1e-3)
    assert lk.Gaussian(start).fitted_to(1e5 * M, 1e10 * S, 1e5 * y).sigma == pytest.approx(1e5 * expected, rel=1e-3)


@pytest.mark.parametrize("name", ["Gaussian", "Laplace", "StudentT", "Censored"])
@pytest.mark.parametrize("unit", [1e-14, 1e-11, 1e11, 1e14])
def test_the_unit_of_observations_does_not_matter(name, unit):
    true, start, _ = TRUE[name]
    y, m, s = drawn(true)[:300], M[:300], S[:300]
    limits = {} if name != "Censored" else {"lower": unit * true.lower, "upper": unit * true.upper}
    expected, found = start.fitted_to(m, s, y), start._with(**limits).fitted_to(unit * m, unit**2 * s, unit * y)
    for parameter in start.noise_parameters:
        factor = 1 if parameter == "df" else unit
        assert getattr(found, parameter) == pytest.approx(factor * getattr(expected, parameter), rel=1e-2)


def test_a_few_exact_or_absurd_values_do_not_set_the_unit():
    y = np.concatenate([np.full((60, 1), 1e-15), RNG.normal(size=(40, 1))])
    nothing = np.zeros((100, 1))
    expected = np.sqrt(np.mean(y**2))
    assert lk.Gaussian().fitted_to(nothing, nothing, y).sigma == pytest.approx(expected, rel=1e-4)
    y = RNG.normal(size=(100, 1))
    y[:2] = 3e38
    assert 0.3 < lk.StudentT().fitted_to(nothing, nothing, y).scale < 1.5
    intervals = np.where(y > 0, 0, -np.inf), np.where(y > 0, np.inf, 0)
    assert lk.Censored().fitted_to(0.7 * np.sign(y), nothing, intervals).sigma < 0.1  # no interval has two bounds
    assert lk.Gaussian().fitted_to(nothing, nothing, nothing).sigma == pytest.approx(1e-9)


@pytest.mark.parametrize("unit", [1e-20, 1e19])
def test_units_whose_squares_are_beyond_float32_are_refused(unit):
    with pytest.raises(ValueError, match=r"by about .*, and float32 does not hold its square: choose another unit"):
        lk.Gaussian().fitted_to([[0.0]], [[0.0]], [[unit]])


def test_without_variances_it_is_the_mean_square():
    """The maximum in closed form: sigma^2 is the weighted mean of squares."""
    y, weight = np.array([[1.0], [2], [NAN], [4]]), np.array([1.0, 2, 5, 0])
    found = lk.Gaussian().fitted_to(np.zeros((4, 1)), np.zeros((4, 1)), y, weight)
    assert found.sigma == pytest.approx(np.sqrt((1 + 2 * 4) / 3), rel=1e-4)


@pytest.mark.parametrize("name", ["StudentT", "NegativeBinomial", "Ordinal"])
def test_weights_count_observations_and_missing_ones_count_nothing(name):
    true, start, _ = TRUE[name]
    y = drawn(true)[:100]
    counts = RNG.integers(0, 4, 100)
    twice = np.repeat(np.arange(100), counts)
    expected = start.fitted_to(M[twice], S[twice], y[twice])._free()[0]
    np.testing.assert_allclose(start.fitted_to(M[:100], S[:100], y, weight=counts)._free()[0], expected, atol=0.01)
    some = np.where(RNG.random((100, 1)) < 0.3, NAN, y)
    known = ~np.isnan(some[:, 0])
    expected = start.fitted_to(M[:100][known], S[:100][known], y[known])._free()[0]
    np.testing.assert_allclose(start.fitted_to(M[:100], S[:100], some)._free()[0], expected, atol=0.01)


def test_steps_of_sequences_and_weights_of_samples():
    m, s, y = (part[:600] for part in (M, S, drawn(lk.Laplace(0.5))))
    weight = RNG.uniform(0.5, 2, 100)
    flat = lk.Laplace().fitted_to(m, s, y, weight=np.repeat(weight, 6))
    rows = lk.Laplace().fitted_to(*(part.reshape(100, 3, 2) for part in (m, s, y)), weight=weight)
    assert rows.scale == pytest.approx(flat.scale, rel=1e-6)


def test_parts_of_joint():
    """Parts with noise and observations are fitted as by themselves; the others are kept."""
    m, s = np.repeat(M[:300], 6, 1), np.repeat(S[:300], 6, 1)
    numbers, counts = drawn(lk.Gaussian(0.5))[:300], drawn(lk.NegativeBinomial(2))[:300]
    labels, weight = RNG.integers(-1, 3, 300), RNG.uniform(0.5, 2, 300)
    joint = lk.Joint(lk.Categorical(3), (lk.Gaussian(), 2), lk.NegativeBinomial())
    twice = np.repeat(numbers, 2, 1)
    found = joint.fitted_to(m, s, [labels, twice, counts], weight)
    numbers_alone = lk.Gaussian().fitted_to(m[:, :2], s[:, :2], twice, weight)
    counts_alone = lk.NegativeBinomial().fitted_to(m[:, :1], s[:, :1], counts, weight)
    assert repr(found) == repr(lk.Joint(lk.Categorical(3), (numbers_alone, 2), counts_alone))
    assert repr(joint.fitted_to(m, s, [labels, None, counts], weight)) == repr(
        lk.Joint(lk.Categorical(3), (lk.Gaussian(), 2), counts_alone)
    )
    with pytest.raises(TypeError, match=r"no part of .* has noise parameters"):
        lk.Joint(lk.Categorical(3), lk.Poisson()).fitted_to(m[:, :4], s[:, :4], [labels, counts])
    with pytest.raises(ValueError, match="one entry for each of 3 parts"):
        joint.fitted_to(m, s, [labels, counts])


def test_estimates_end_at_their_bounds():
    """Counts without overdispersion, and noise without tails."""
    y = RNG.poisson(np.exp(Z[:500])).astype(float)
    rounded = lk.NegativeBinomial().fitted_to(M[:500], 1e-6 * S[:500], np.round(np.exp(M[:500])))
    assert rounded.size == pytest.approx(1000)
    assert lk.NegativeBinomial().fitted_to(M[:500], S[:500], y).size > 8
    assert lk.StudentT().fitted_to(M[:200], S[:200], M[:200] + RNG.uniform(-1, 1, (200, 1))).df == pytest.approx(100)


REFUSED = [
    (lk.Poisson(), [[1.0], [2]], 1, TypeError, "Poisson has no noise parameters"),
    (lk.Categorical(2), [0, 1], 1, TypeError, "Categorical has no noise parameters"),
    (lk.Gaussian(), [[NAN], [NAN]], 1, ValueError, r"no observation to fit Gaussian\(sigma=1.0\)"),
    (lk.Ordinal(3), [[-1], [NAN]], 1, ValueError, "no observation"),
    (lk.Gaussian(), [[1.0], [2]], 0, ValueError, "no observation"),
    (lk.Gaussian(), [[1.0], [2]], [1, -1], ValueError, "weight must not be negative"),
    (lk.Gaussian(), [[1.0], [2]], [1, 1, 1], ValueError, "weight must be one number"),
    (lk.Gaussian(), [[1.0], [np.inf]], 1, ValueError, "infinite observations"),
    (lk.Gaussian(), [1.0, 2, 3], 1, ValueError, "y must hold 2 values"),
    (lk.Gamma(), [[1.0], [0]], 1, ValueError, "positive numbers"),
    (lk.NegativeBinomial(), [[1.0], [0.5]], 1, ValueError, "counts"),
    (lk.Ordinal(3), [[1], [3]], 1, ValueError, "levels from 0 to 2"),
]


@pytest.mark.parametrize(("likelihood", "y", "weight", "error", "message"), REFUSED)
def test_what_is_refused(likelihood, y, weight, error, message):
    outputs = likelihood.outputs or 1
    with pytest.raises(error, match=message):
        likelihood.fitted_to(np.zeros((2, outputs)), np.ones((2, outputs)), y, weight)


def test_moments_that_are_refused():
    for mu, var in ([[NAN]], [[1.0]]), ([[0.0]], [[np.inf]]):
        with pytest.raises(ValueError, match="must be finite"):
            lk.Gaussian().fitted_to(mu, var, [[1.0]])
    with pytest.raises(ValueError, match="must not be negative"):
        lk.Gaussian().fitted_to([[0.0]], [[-1.0]], [[1.0]])
    with pytest.raises(ValueError, match="one shape"):
        lk.Gaussian().fitted_to([[0.0]], [1.0], [[1.0]])
    with pytest.raises(ValueError, match="no observation"):
        lk.Gaussian().fitted_to(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros((0, 1)))


LEARNT = {
    "Gaussian": (lk.Gaussian(), lk.Gaussian(0.5), 0.1),
    "StudentT": (lk.StudentT(30, 1), lk.StudentT(3, 0.5), 0.4),
    "Gamma": (lk.Gamma(), lk.Gamma(5), 0.25),
}


@pytest.mark.parametrize("name", LEARNT)
def test_noise_is_learnt_beside_the_network(name):
    """From a wrong noise on, fitted to held-out data after each epoch, it becomes that of the data."""
    likelihood, true, error = LEARNT[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (1600, 1))
    y = true.prediction(np.sin(2 * x), np.full_like(x, 1e-12)).sample(1, rng)[0]
    manual_seed(1)
    net = Sequential(Linear(1, 32), ReLU(), Linear(32, 1))
    for _ in range(8):
        for i in range(0, 1000, 20):
            net(x[i : i + 20])
            likelihood.observe(net, y[i : i + 20])
            net.backward()
            net.step()
        likelihood = likelihood.fitted(net, x[1000:], y[1000:])
    for parameter in likelihood.noise_parameters:
        assert getattr(likelihood, parameter) == pytest.approx(getattr(true, parameter), rel=error)


def test_data_of_the_training_make_the_noise_too_small():
    """In a linear model with the posterior variance s at the samples, sigma^2 comes out too small by 2 s."""
    rng = np.random.default_rng(0)
    n, features = 200, 40
    x, held_out = rng.normal(size=(n, features)), rng.normal(size=(4000, features))
    w = rng.normal(size=features)
    y, y_held_out = x @ w + 0.5 * rng.normal(size=n), held_out @ w + 0.5 * rng.normal(size=4000)
    precision = x.T @ x / 0.25 + 1e-6 * np.eye(features)
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    s = [np.einsum("ij,jk,ik->i", part, np.linalg.inv(precision), part) for part in (x, held_out)]
    inside = lk.Gaussian().fitted_to((x @ mean)[:, None], s[0][:, None], y).sigma
    outside = lk.Gaussian().fitted_to((held_out @ mean)[:, None], s[1][:, None], y_held_out).sigma
    assert outside == pytest.approx(0.5, rel=0.04)
    assert inside**2 == pytest.approx(0.25 - 2 * s[0].mean(), abs=0.03)
    assert inside < 0.42


def test_the_state_of_another_likelihood_is_refused():
    joint = lk.Joint((lk.Gaussian(), 2), lk.StudentT())
    for state in (lk.Laplace().state_dict(), lk.Gaussian().state_dict() | {"df": 3}, joint.state_dict(), {}):
        with pytest.raises(ValueError, match=r"this is the state of a .*, and not of a Gaussian\(sigma=1.0\)"):
            lk.Gaussian().with_state_dict(state)
    with pytest.raises(ValueError, match="this is the state of 0 parts"):
        joint.with_state_dict(lk.Gaussian().state_dict())
    with pytest.raises(ValueError, match="sigma must be in"):
        lk.Gaussian().with_state_dict({"kind": "Gaussian", "sigma": -1.0})

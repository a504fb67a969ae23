"""Deltas of each likelihood against float64 quadrature, missing observations, weights, and what is refused."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import wrightomega

from pytagi_ddp import likelihoods as lk
from pytagi_ddp import manual_seed
from pytagi_ddp.nn import Conv2d, EvenExp, Linear, OutputUpdater, Pixels, ReLU, Sequential
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from tests.likelihoods.examples import EXAMPLES, OTHERS, kinds
from tests.likelihoods.reference import log_interval, moments

NAN, INF = np.nan, np.inf


class Net:
    """Outputs N(m, s) with these Jacobians, as a network holds them."""

    def __init__(self, m, s, jcb=None, steps=1):
        m, s = np.atleast_2d(np.float32(m)), np.atleast_2d(np.float32(s))
        self.output_z_buffer = BaseHiddenStates(m.size, len(m))
        self.output_z_buffer.mu_a, self.output_z_buffer.var_a = m, s
        self.output_z_buffer.seq_len = steps
        if jcb is not None:
            self.output_z_buffer.jcb = np.float32(jcb)
        self.input_delta_z_buffer = BaseDeltaStates(m.size, len(m))
        self.shape = m.shape

    def deltas(self):
        buffer = self.input_delta_z_buffer
        return buffer.delta_mu.reshape(self.shape).copy(), buffer.delta_var.reshape(self.shape).copy()


def told(likelihood, m, s, y, weight=1.0, **more):
    net = Net(m, s, **more)
    likelihood.observe(net, y, weight)
    return net.deltas()


def check(likelihood, m, s, y, log_likelihood, centre=None, scale=1.0, within=1e-3):
    """The posterior moments are those of quadrature, to `within` of the prior's standard deviation and variance."""
    m, s = float(np.float32(m)), float(np.float32(s))
    dm, ds = (float(part[0, 0]) for part in told(likelihood, m, s, y))
    mean, spread = moments(m, s, log_likelihood, centre, scale)
    assert np.sqrt(s) * dm == pytest.approx(mean, abs=within, rel=within)
    assert s * ds == pytest.approx(spread, abs=within, rel=within)
    assert s + s * s * ds > 0 or s * ds == pytest.approx(-1, abs=1e-5)


MEANS = st.floats(-50, 50, width=32)
VARIANCES = st.floats(-6, 4).map(lambda power: 10**power)
COUNTS = st.integers(0, 1000)
few = settings(max_examples=40, deadline=None)


def powers(low, high):
    return st.floats(low, high).map(lambda power: float(np.float32(10**power)))


@few
@given(MEANS, VARIANCES, MEANS, powers(-2, 1))
def test_gaussian(m, s, y, sigma):
    v = np.float64(np.float32(sigma**2))
    check(lk.Gaussian(sigma), m, s, y, lambda z: -((y - z) ** 2) / (2 * v), y, sigma)


@few
@given(MEANS, VARIANCES, st.sampled_from([0, 1]))
@example(0, 1e4, 1)
@example(47, 8353.625, 1)
@example(50, 1e-6, 0)
def test_bernoulli(m, s, y):
    sign = 2 * y - 1
    check(lk.Bernoulli(), m, s, y, lambda z: -np.logaddexp(0, -sign * z), 0)
    check(lk.Bernoulli("probit"), m, s, y, log_interval(*((0, INF) if y else (-INF, 0)), 1), 0)


@few
@given(MEANS, VARIANCES, COUNTS)
@example(0, 1e4, 0)
@example(-50, 1e-6, 1000)
@example(50, 1e-6, 0)
def test_poisson(m, s, y):
    check(lk.Poisson(), m, s, y, lambda z: y * z - np.exp(z))
    check(lk.Poisson(3.0), m, s, y, lambda z: y * z - 3 * np.exp(z))


@few
@given(MEANS, VARIANCES, COUNTS, powers(-2, 3))
@example(-5, 1e4, 0, float(np.float32(0.1)))
def test_negative_binomial(m, s, y, size):
    log_likelihood = lambda z: y * z - (y + size) * np.logaddexp(0, z - np.log(size))  # noqa: E731
    wide = y == 0 and size < 0.5 and s > 1000
    check(lk.NegativeBinomial(size), m, s, y, log_likelihood, within=4e-3 if wide else 1e-3)


@pytest.mark.parametrize("y", [1e5, 5e6, 4e8])
@pytest.mark.parametrize("size", [0.2, 1.4, 30.0])
def test_large_counts_keep_the_size(y, size):
    """The sum of the count and the size would be the count alone in float32."""
    size = float(np.float32(size))
    log_likelihood = lambda z: y * (z - np.log(y)) - (y + size) * np.log((size + np.exp(z)) / (size + y))  # noqa: E731
    for m, s in ((np.log(y) - 2, 0.5), (np.log(y) + 1.5, 2.6), (np.log(y), 40.0)):
        check(lk.NegativeBinomial(size), m, s, y, log_likelihood)


@pytest.mark.parametrize("kind", [lk.Poisson, lambda exposure: lk.NegativeBinomial(2, exposure)])
def test_exposures_of_samples_or_counts(kind):
    manual_seed(0)
    rng = np.random.default_rng(0)
    net, y = Sequential(Linear(2, 3)), rng.poisson(2, (4, 3))
    x, exposures = rng.normal(size=(4, 2)), rng.uniform(0.1, 9, (4, 3))
    mu, var = (moments.reshape(4, 3) for moments in net(x))

    def observed(exposure):
        net(x)
        kind(exposure).observe(net, y)
        deltas = net.input_delta_z_buffer
        return np.stack([deltas.delta_mu.copy(), deltas.delta_var.copy()]).reshape(2, 4, 3)

    def predicted(exposure):
        prediction = kind(exposure).prediction(mu, var)
        return np.stack([prediction.mean, prediction.std, prediction.quantile(0.9), prediction.log_prob(y)])

    for found in (observed, predicted):
        by_sample, by_count = found(exposures[:, 0]), found(exposures)
        for row in range(4):
            np.testing.assert_array_equal(by_sample[:, row], found(exposures[row, 0])[:, row])
            for column in range(3):
                alone = found(exposures[row, column])[:, row, column]
                np.testing.assert_allclose(by_count[:, row, column], alone, rtol=1e-6)


@pytest.mark.parametrize("kind", [lk.Poisson, lambda exposure: lk.NegativeBinomial(2, exposure)])
def test_exposures_of_time_steps(kind):
    """One for each step of a sequence, in `observe` and in predictions, is one for all counts of this step."""
    rng = np.random.default_rng(0)
    m, s, y = rng.normal(size=(3, 8)), np.full((3, 8), 0.2), rng.poisson(3, (3, 4, 2))
    exposures = rng.uniform(0.5, 5, (3, 4))
    of_counts = np.repeat(exposures[..., None], 2, -1)
    expected = told(kind(of_counts), m, s, y, steps=4)
    moments_of_steps = m.reshape(3, 4, 2), s.reshape(3, 4, 2)
    mean = kind(of_counts).prediction(*moments_of_steps).mean
    for form in (exposures, exposures.ravel(), exposures[..., None]):
        np.testing.assert_array_equal(told(kind(form), m, s, y, steps=4), expected)
        np.testing.assert_array_equal(kind(form).prediction(*moments_of_steps).mean, mean)


@few
@given(MEANS, VARIANCES, powers(-3, 3), powers(-2, np.log10(3000)))
def test_gamma(m, s, y, shape):
    check(lk.Gamma(shape), m, s, y, lambda z: -shape * (z + y * np.exp(-z)))


@few
@given(MEANS, VARIANCES, powers(-3, 3))
def test_log_normal(m, s, y):
    check(lk.LogNormal(0.5), m, s, y, lambda z: -((np.log(y) - z) ** 2) / 0.5, np.log(y), 0.5)


@few
@given(MEANS, VARIANCES, MEANS, powers(-2, 1), powers(0, 2))
@example(0, 1, 50, 0.01, 1)
@example(1.0, 10**0.5, 22.0, float(np.float32(0.01)), 100.0)
def test_student_t(m, s, y, scale, df):
    log_likelihood = lambda z: -(df + 1) / 2 * np.log1p((y - z) ** 2 / (df * scale**2))  # noqa: E731
    check(lk.StudentT(df, scale), m, s, y, log_likelihood, y, scale)


@few
@given(MEANS, VARIANCES, MEANS, powers(-2, 1))
def test_laplace(m, s, y, scale):
    check(lk.Laplace(scale), m, s, y, lambda z: -np.abs(y - z) / scale, y, scale)


@pytest.mark.parametrize("u", [1e-3, 0.04, 1.5])
@pytest.mark.parametrize("ratio", [30, 1e3, 1e5, 1e7])
def test_laplace_of_a_small_scale_is_nearly_exact(ratio, u):
    """The posterior mean is y; it was m, or beyond y, where 1 - r is a rounding error in float32."""
    m, sd = 0.25, 3
    y = np.float32(m + sd * u)
    dm, ds = (float(part[0, 0]) for part in told(lk.Laplace(sd / ratio), m, sd**2, y))
    assert sd * dm == pytest.approx((y - m) / sd, rel=4 / ratio**2 + 1e-5)
    assert sd**2 * ds == pytest.approx(-1, abs=3 / ratio**2 + 1e-6)


@few
@given(MEANS, VARIANCES, MEANS, powers(-4, 2), powers(-2, 1))
def test_intervals(m, s, low, width, sigma):
    high = float(np.float32(low + width))
    for a, b in (low, high), (low, INF), (-INF, low):
        if a < b:
            check(lk.Censored(sigma), m, s, ([a], [b]), log_interval(a, b, sigma), low, sigma)


@pytest.mark.parametrize("unit", [1e-15, 1e-12, 1e-6, 1e10, 1e15])
@pytest.mark.parametrize("kind", [lk.Gaussian, lambda scale: lk.StudentT(3, scale), lk.Laplace, lk.Censored])
def test_the_unit_of_observations_does_not_matter(kind, unit):
    m, s, y = np.array([[0.3, -2.0]]), np.array([[0.5, 1e-3]]), np.array([[1.2, 0.9]])
    forms = [lambda u: y * u]
    if kind is lk.Censored:
        forms += [lambda u: (y * u, np.full(y.shape, INF)), lambda u: (y * u, 1.1 * y * u), lambda u: (y * u, y * u)]
    for form in forms:
        dm, ds = told(kind(0.4), m, s, form(1))
        of_unit = told(kind(0.4 * unit), m * unit, s * unit**2, form(unit))
        np.testing.assert_allclose(np.float64(of_unit[0]) * unit, dm, rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(np.float64(of_unit[1]) * unit**2, ds, rtol=1e-4, atol=1e-9)


def test_limits_of_an_instrument():
    """At a limit it says only that y is there or beyond; between them it is exact; (low, high) may be equal."""
    m, s, y = np.zeros((1, 4)), np.ones((1, 4)), np.array([[-3, -1, 0.5, 2.0]])
    dm, ds = told(lk.Censored(0.5, lower=-1, upper=2), m, s, y)
    exact = told(lk.Gaussian(0.5), m, s, y)
    bounded = told(lk.Censored(0.5), m, s, ([[-INF, -INF, 0.5, 2]], [[-1, -1, 0.5, INF]]))
    np.testing.assert_allclose(dm, bounded[0])
    np.testing.assert_allclose([dm[0, 2], ds[0, 2]], [exact[0][0, 2], exact[1][0, 2]], rtol=1e-6)
    assert dm[0, 0] == dm[0, 1] < 0 and ds[0, 0] > exact[1][0, 0]


def test_ordinal_levels_are_intervals():
    levels = lk.Ordinal(4, cuts=[-1, 0, 2])
    for y, (low, high) in enumerate([(-INF, -1), (-1, 0), (0, 2), (2, INF)]):
        check(levels, 0.3, 2.0, y, log_interval(low, high, 1))


def expected_softmax(m, s):
    """p with ln p + s p = m + s/2 - c, by Wright's omega function and the c at which their sum is 1."""

    def p(c):
        return wrightomega(np.log(s) + m - m.max() + s / 2 - c) / s

    span = 60 + s.max() + np.ptp(m)
    return p(brentq(lambda c: p(c).sum() - 1, -span, span, xtol=1e-13))


@few
@given(st.lists(st.tuples(MEANS, VARIANCES), min_size=2, max_size=12), st.integers(0, 11))
def test_categorical(outputs, label):
    """The update of all logits by the curvature of the softmax at its expected probabilities."""
    m, s = (np.float32(part).astype(float) for part in zip(*outputs, strict=True))
    label %= len(m)
    p = expected_softmax(m, s)
    curvature = np.diag(p) - np.outer(p, p)
    told_apart = np.linalg.inv(np.eye(len(m)) + curvature * s)
    dm, ds = told(lk.Categorical(len(m)), m, s, [label])
    deviations = np.sqrt(np.minimum(s, 1))
    np.testing.assert_allclose(deviations * dm[0], deviations * (told_apart @ (np.eye(len(m))[label] - p)), atol=5e-3)
    np.testing.assert_allclose(s * ds[0], -s * np.diag(told_apart @ curvature), atol=5e-3)
    assert abs(dm[0].sum()) < 1e-5  # what is common to all logits is not observed
    found = lk.Categorical(len(m)).prediction([m], [s]).probabilities[0]
    np.testing.assert_allclose(found, p, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("var", [0.1, 5, 20, 1000])
def test_the_largest_mean_has_the_largest_probability(classes, var):
    m = np.random.default_rng(0).normal(size=(50, classes))
    p = lk.Categorical(classes).prediction(m, np.full(m.shape, float(var))).probabilities
    np.testing.assert_array_equal(p.argmax(1), m.argmax(1))
    np.testing.assert_allclose(p.sum(1), 1)


def test_expected_probabilities_are_near_those_of_samples():
    rng = np.random.default_rng(0)
    m, s = rng.normal(size=5), rng.uniform(0.1, 2, 5)
    z = rng.normal(m, np.sqrt(s), (100_000, 5))
    e = np.exp(z)
    found = lk.Categorical(5).prediction([m], [s]).probabilities[0]
    np.testing.assert_allclose(found, (e / e.sum(1, keepdims=True)).mean(0), atol=0.02)


def test_a_tree_of_classes():
    """Nodes on the path are told 0 or 1; a node with one branch, and all others, nothing."""
    tree = lk.HierarchicalCategorical(3)
    assert tree.outputs == 3
    m, s = np.float32([[0.3, -0.5, 1.0]]), np.float32([[1, 2, 0.5]])
    of_bits = told(lk.Bernoulli(), m, s, [[1, 0, NAN]])
    np.testing.assert_allclose(told(tree, m, s, [1]), of_bits, rtol=1e-6)
    np.testing.assert_allclose(told(tree, m, s, [2])[0], told(lk.Bernoulli(), m, s, [[0, NAN, NAN]])[0], rtol=1e-6)
    p = tree.prediction(m, s).probabilities[0]
    assert p.sum() == pytest.approx(1, abs=1e-12) and p.argmax() in range(3)


def test_a_tree_of_many_classes_takes_little_memory():
    """A path of each class, and not a row of all nodes for each."""
    tree = lk.HierarchicalCategorical(5000)
    assert len(pickle.dumps(tree)) < 1e6
    m = np.zeros((3, tree.outputs))
    dm, _ = told(tree, m, m + 1, [4999, -1, 0])
    assert np.count_nonzero(dm, 1).tolist() == [7, 0, 13]  # 6 of the 13 nodes of the last class have one branch


LIKELIHOODS = EXAMPLES | {"Custom": (lk.Custom(lambda m, s, y: ((y - m) / (s + 1), -1 / (s + 1))), 0.4)}


def test_every_likelihood_has_an_example():
    missing = kinds().keys() - EXAMPLES.keys() - OTHERS
    assert not missing, f"add {', '.join(missing)} to EXAMPLES in tests/likelihoods/examples.py"


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_missing_ones_weights_and_jacobians(name):
    likelihood, value = LIKELIHOODS[name]
    m, s, jcb = np.zeros((3, 2)), np.full((3, 2), 0.5), np.full((3, 2), 0.5)
    y = np.full((3, 2), float(value))
    plain = told(likelihood, m, s, y)
    y[1, 0] = NAN
    dm, ds = told(likelihood, m, s, y, weight=[1, 2, 0.5], jcb=jcb)
    assert dm[1, 0] == ds[1, 0] == 0
    scale = np.array([[1, 1], [0, 2], [0.5, 0.5]])
    np.testing.assert_allclose(dm, 0.5 * scale * plain[0], rtol=1e-6)
    np.testing.assert_allclose(ds, 0.25 * scale * plain[1], rtol=1e-6)
    np.testing.assert_allclose(told(likelihood, m, s, y, weight=np.full((3, 2), 3.0))[0][0], 3 * plain[0][0], rtol=1e-6)


@pytest.mark.parametrize("labels", [[0, -1, 2], np.array([0, NAN, 2])])
def test_missing_classes_and_weights(labels):
    m, s = np.arange(9.0).reshape(3, 3) / 4, np.ones((3, 3))
    for likelihood in (lk.Categorical(3), lk.HierarchicalCategorical(3)):
        plain = told(likelihood, m, s, [0, 1, 2])
        dm, ds = told(likelihood, m, s, labels, weight=[1, 1, 3])
        assert not dm[1].any() and not ds[1].any()
        np.testing.assert_allclose(dm[2], 3 * plain[0][2], rtol=1e-6)


def test_time_steps_are_rows():
    m, s = np.random.default_rng(0).normal(size=(2, 6)), np.ones((2, 6))
    by_step = told(lk.Categorical(3), m, s, [[0, 1], [2, -1]], steps=2)
    flat = told(lk.Categorical(3), m.reshape(4, 3), s.reshape(4, 3), [0, 1, 2, -1])
    np.testing.assert_array_equal(by_step[0].reshape(4, 3), flat[0])


def test_gaussian_is_the_output_updater():
    net = Net(np.ones((2, 2)), np.full((2, 2), 0.3))
    y, var = np.array([[0.5, NAN], [2, 3]]), np.array([[0.1, 0.2], [0.3, 0.4]])
    OutputUpdater("cpu").update(net.output_z_buffer, y, var, net.input_delta_z_buffer)
    expected = net.deltas()
    lk.Gaussian().observe(net, y, var=var)
    np.testing.assert_array_equal(net.deltas(), expected)
    pairs = Net(np.ones((2, 2)), np.full((2, 2), 0.3))
    OutputUpdater("cpu").update_heteros(pairs.output_z_buffer, [0.5, 2], pairs.input_delta_z_buffer)
    expected = pairs.deltas()
    lk.HeteroscedasticGaussian().observe(pairs, [0.5, 2], weight=[1, 2])
    np.testing.assert_allclose(pairs.deltas(), expected * np.array([[1], [2]]), rtol=1e-6)
    negative = Net(np.array([[1, -1], [1, 2]]), np.full((2, 2), 0.3))
    with pytest.raises(ValueError, match=r"1 of 2 are negative: end the network with EvenExp\(\)"):
        lk.HeteroscedasticGaussian().observe(negative, [0.5, 2])


def test_pairs_are_not_pixels():
    """A flat y was compared with every other pixel."""
    one, two = (Sequential(Conv2d(1, 2, 1, in_width=width, in_height=1), EvenExp()) for width in (1, 2))
    one(np.ones((3, 1)))
    lk.HeteroscedasticGaussian().observe(one, np.ones(3))  # the channels of one pixel
    two(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"those of the image \(2, 1, 2\) would be pixels of a row"):
        lk.HeteroscedasticGaussian().observe(two, np.ones(6))
    with pytest.raises(ValueError, match=r"needs 2 outputs, the network has 4: for a class of each pixel see docs"):
        lk.Categorical(2).observe(two, np.zeros((3, 2)))


def test_classes_of_pixels_keep_height_and_width():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 1, 3, 5)), rng.integers(-1, 3, (4, 3, 5))
    weight = rng.uniform(0.5, 2, y.shape)
    last = Conv2d(1, 3, 1, in_width=5, in_height=3)
    net = Sequential(last, Pixels())
    likelihood = lk.Categorical(3)
    mu, var = net.predict(x)
    images = Sequential(copy.deepcopy(last)).predict(x)
    for moment, image in zip((mu, var), images, strict=True):
        np.testing.assert_array_equal(moment, image.reshape(4, 3, 15).swapaxes(1, 2))
    net(x)
    likelihood.observe(net, y, weight)
    found = net.input_delta_z_buffer.delta_mu.copy()
    expected = told(likelihood, mu.reshape(60, 3), var.reshape(60, 3), y.ravel(), weight.ravel())
    np.testing.assert_allclose(found.reshape(60, 3), expected[0], rtol=1e-5, atol=1e-6)
    for turned, other in ((y.swapaxes(1, 2), weight), (y, weight.swapaxes(1, 2))):
        net(x)
        with pytest.raises(ValueError, match=r"has the shape \(4, 5, 3\), and the outputs are \(4, 3, 5, 1\)"):
            likelihood.observe(net, turned, other)
    with pytest.raises(ValueError, match=r"each of 60 pixels, 4 x 3 x 5, got 4 in the shape \(4,\)$"):
        likelihood.observe(net, np.zeros(4, int))
    with pytest.raises(ValueError, match=r"y has the shape \(4, 5, 3\)"):
        likelihood.check_observations(y.swapaxes(1, 2), 4, net.out_shape)
    with pytest.raises(ValueError, match=r"mu_obs has the shape \(4, 5, 3, 3\)"):
        OutputUpdater("cpu").update(net.output_z_buffer, np.zeros((4, 5, 3, 3)), 1.0, net.input_delta_z_buffer)
    pairs = Sequential(Conv2d(1, 2, 1, in_width=5, in_height=3), Pixels(), EvenExp())
    pairs(x)
    lk.HeteroscedasticGaussian().observe(pairs, y)
    with pytest.raises(ValueError, match=r"y has the shape \(4, 5, 3\)"):
        lk.HeteroscedasticGaussian().observe(pairs, y.swapaxes(1, 2))
    with pytest.raises(ValueError, match="Pixels needs an image, and gets 6: put it after"):
        Sequential(Linear(4, 6), Pixels())


def test_joint_parts_take_their_columns():
    m, s = np.random.default_rng(0).normal(size=(4, 6)), np.full((4, 6), 0.5)
    joint = lk.Joint(lk.Categorical(3), (lk.Gaussian(0.1), 2), lk.Poisson())
    labels, numbers, counts = [0, 1, 2, -1], np.ones((4, 2)), [0, 3, NAN, 1]
    dm, ds = told(joint, m, s, [labels, numbers, counts], weight=[1, 1, 1, 2])
    parts = (lk.Categorical(3), labels, 0, 3), (lk.Gaussian(0.1), numbers, 3, 5), (lk.Poisson(), counts, 5, 6)
    for part, y, a, b in parts:
        expected = told(part, m[:, a:b], s[:, a:b], y, weight=[1, 1, 1, 2])
        np.testing.assert_allclose([dm[:, a:b], ds[:, a:b]], expected, rtol=1e-6)
    nothing = told(joint, m, s, [None, numbers, None])
    assert not nothing[0][:, [0, 1, 2, 5]].any() and nothing[0][:, 3:5].all()
    prediction = joint.prediction(m, s)
    logs = prediction.log_prob([labels, numbers, counts])
    expected = prediction.parts[1].log_prob(numbers).sum(1)[2] + prediction.parts[0].log_prob(labels)[2]
    assert logs[2] == pytest.approx(expected)
    impossible = prediction.log_prob([None, None, [0.5, NAN, 0, 1]])
    assert np.isneginf(impossible).tolist() == [True, False, False, False] and impossible[1] == 0
    twice = [[labels] * 2, [numbers] * 2, [np.reshape(counts, (4, 1))] * 2]
    several = prediction.log_prob([np.array(part, float) for part in twice])
    np.testing.assert_array_equal(several, [logs, logs])
    of_steps = joint.prediction(m.reshape(2, 2, 6), s.reshape(2, 2, 6)).log_prob([labels, numbers, counts])
    np.testing.assert_allclose(of_steps, logs.reshape(2, 2).sum(1))
    draws = lk.Joint(lk.Gaussian(), lk.Gaussian()).prediction(m[:1, :2], s[:1, :2]).sample(1000, seed=0)
    assert abs(np.corrcoef(*(part.ravel() for part in draws))[0, 1]) < 0.1
    with pytest.raises(ValueError, match="one entry for each of 3 parts of Joint"):
        prediction.log_prob([labels, numbers])


def test_outputs_that_are_not_finite_make_deltas_that_a_step_reports():
    for m, s in (NAN, 1), (INF, 1), (0, INF), (0, NAN):
        for likelihood, value in (lk.Gaussian(), 1), (lk.StudentT(), 1), (lk.Poisson(), 1):
            dm, ds = told(likelihood, [[m]], [[s]], [[value]])
            assert np.isnan(dm) and np.isnan(ds)
        assert np.isnan(told(lk.Categorical(2), [[0, m]], [[1, s]], [0])[0]).any()
    net = Sequential(Linear(1, 1))
    net(np.ones((1, 1)))
    with pytest.raises(TypeError, match=r"the function of Custom returns a pair \(dm, ds\), got array"):
        lk.Custom(lambda m, s, y: y - m).observe(net, [0.0])
    net(np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"gave dm of shape \(1,\): return \(2, 1\), or one number"):
        lk.Custom(lambda m, s, y: ((y - m).mean(0), -1.0)).observe(net, [0.0, 0.0])
    net(np.ones((1, 1)))
    lk.Custom(lambda m, s, y: (INF, -1.0)).observe(net, [0.0])
    net.backward()
    with pytest.raises(FloatingPointError):
        net.step()
        net.step()


def test_an_outlier_widens_what_cannot_be_decided():
    """Student's t: at some distance the variance grows; it never falls below 0, and a far outlier says nothing."""
    y = np.linspace(0, 60, 200)[:, None]
    _, ds = told(lk.StudentT(3, 0.3), np.zeros((200, 1)), np.ones((200, 1)), y)
    assert ds.min() > -1 and ds.max() > 0.05
    dm, ds = told(lk.StudentT(3, 0.3), [[0]], [[1]], [[1e4]])
    assert abs(dm[0, 0]) < 1e-3 and abs(ds[0, 0]) < 1e-3


REFUSED = [
    (lk.Categorical(3), [0, 3], "classes from 0 to 2"),
    (lk.Categorical(3), [0], r"one class for each of 2 samples, got 1 in the shape \(1,\)$"),
    (lk.Categorical(3), np.eye(3)[:2], r"got 6 in .* \(2, 3\); of rows with a 1 at the class give y.argmax\(-1\)"),
    (lk.StudentT(), (np.ones((2, 3)), np.ones((2, 3))), r"a tuple \(y, var\) is observed by Gaussian, and \(low, high"),
    (lk.Gaussian(), np.zeros((3, 2)), "shape"),
    (
        lk.Gaussian(),
        np.zeros((2, 6)),
        r"6 values \(2 samples x 3 outputs\), got 12 in the shape \(2, 6\)",
    ),
    (lk.Gaussian(), np.full(6, INF), "infinite"),
    (lk.Poisson(), np.full(6, 0.5), "counts"),
    (lk.Gamma(), np.zeros(6), "positive"),
    (lk.LogNormal(), -np.ones(6), "positive"),
    (lk.Bernoulli(), np.full(6, 2.0), "0 to 1"),
    (lk.Bernoulli(), [1, -1, NAN, 1, -1, 1], r"2 of 5 observations are not: for labels -1 and 1 give \(y \+ 1\) / 2"),
    (lk.Bernoulli("probit"), -np.ones(6), "0 or 1, .*NaN is a missing label"),
    (lk.Categorical(3), [1, 3], r"got 1 to 3; if they count from 1, give y - 1$"),
    (lk.Categorical(3), np.uint8([0, 255]), r"got 0 to 255; if 255 .* give np.where\(y == 255, -1, y.astype\(int\)\)$"),
    (lk.Categorical(3), [0, 3], "got 0 to 3$"),
    (lk.Ordinal(2), np.full(6, 2.0), r"levels from 0 to 1 \(-1: missing\), and 6 of 6 .* give y - 1$"),
    (lk.Ordinal(5), [1, 2, 3, 4, 5, NAN], "and 1 of 6 observations are not; if they count from 1, give y - 1$"),
    (lk.Ordinal(5), [1, 2, 3, 4, 255, 0], "not; if 255 is a missing label, give np.where"),
    (lk.Ordinal(5), [0, 2, 3, 4, 5, 0], "and 1 of 6 observations are not$"),
    (lk.LogNormal(), (np.ones(6), np.ones(6)), r"give \(log\(low\), log\(high\)\) to Censored"),
    (lk.Censored(), (np.ones(6), np.zeros(6)), r"got \(1, 0\) in row 0 of 6: low is above high. A known number t is"),
    (lk.Censored(), np.zeros((6, 2)), r"intervals are a tuple \(low, high\) of two arrays"),
    (lk.Censored(), (np.ones((2, 3)), [[1, 1, 1], [1, NAN, 1]]), r"got \(1, nan\) in row 1 of 2"),
    (lk.HeteroscedasticGaussian(), np.zeros(3), "pairs"),
    (lk.Categorical(4), [0, 1], "needs 4 outputs, the network has 3"),
    (lk.Joint(lk.Poisson(), lk.Poisson()), [[1, 1], [1, 1]], "needs 2 outputs"),
]


@pytest.mark.parametrize(("likelihood", "y", "message"), REFUSED)
def test_bad_observations(likelihood, y, message):
    with pytest.raises(ValueError, match=message):
        told(likelihood, np.zeros((2, 3)), np.ones((2, 3)), y)


WIDE = np.random.default_rng(0).uniform(0.1, 2, (6, 2))  # samples, outputs
COUNTS = np.floor(2 * WIDE)
TRANSPOSED = {
    "y": lambda net: lk.Gaussian().observe(net, WIDE.T),
    "var": lambda net: lk.Gaussian().observe(net, WIDE, var=WIDE.T),
    "weight": lambda net: lk.Gaussian().observe(net, WIDE, weight=WIDE.T),
    "weight of counts": lambda net: lk.Poisson().observe(net, COUNTS, weight=WIDE.T),
    "weight of samples": lambda net: lk.StudentT().observe(net, WIDE, weight=WIDE[:, :1].T),
    "exposure": lambda net: lk.Poisson(WIDE.T).observe(net, COUNTS),
    "exposure of overdispersed counts": lambda net: lk.NegativeBinomial(2, WIDE.T).observe(net, COUNTS),
    "exposure of predictions": lambda net: lk.Poisson(WIDE.T).prediction(WIDE, WIDE),
    "y of pairs": lambda net: lk.HeteroscedasticGaussian().observe(net, WIDE[:, :1].T),
    "weight of fitted noise": lambda net: lk.Gaussian().fitted_to(WIDE, WIDE, WIDE, weight=WIDE.T),
    "y of an upper bound": lambda net: lk.Censored().observe(net, (WIDE.T, WIDE.T + 1)),
    "y of a part": lambda net: lk.Joint((lk.Gaussian(), 2)).observe(net, [WIDE.T]),
    "weight of parts": lambda net: lk.Joint(lk.Gaussian(), lk.Poisson()).observe(
        net, [WIDE[:, 0], COUNTS[:, 0]], weight=WIDE[:, :1].T
    ),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_arrays_of_the_wrong_orientation_are_refused(name):
    what, shape = name.partition(" ")[0], r"\((2|1), 6\)"
    with pytest.raises(ValueError, match=rf"{what} has the shape {shape}, and the first dimension counts samples, of"):
        TRANSPOSED[name](Net(np.ones((6, 2)), np.ones((6, 2))))


def test_bounds_of_two_shapes():
    """A column and a flat array are bounds of the same observations; a transposed array is none."""
    low, m = WIDE[:, :1], np.zeros((6, 1))
    expected = told(lk.Censored(), m, m + 1, (low, low + 0.1))
    np.testing.assert_array_equal(told(lk.Censored(), m, m + 1, (low, low.ravel() + 0.1)), expected)
    np.testing.assert_array_equal(told(lk.Censored(), m, m + 1, (low.ravel(), low + 0.1)), expected)
    with pytest.raises(ValueError, match=r"low has the shape \(6, 2\), and high \(2, 6\): is one transposed"):
        told(lk.Censored(), WIDE, WIDE, (WIDE, WIDE.T + 1))


@pytest.mark.parametrize("steps", [1, 2])
def test_arrays_for_samples_rows_and_observations_may_have_several_shapes(steps):
    """Three samples with `steps` rows each of two outputs."""
    rows = 3 * steps
    m, y, exposure = np.zeros((3, 2 * steps)), np.ones((rows, 2)), np.random.default_rng(1).uniform(1, 2, (rows, 2))
    by_sample, by_row = exposure[:3, 0], exposure[:, 0]
    forms = {
        "samples": (by_sample.repeat(2 * steps), [by_sample, by_sample[:, None], list(by_sample)]),
        "rows": (by_row.repeat(2), [by_row, by_row[:, None], by_row.reshape(3, steps)]),
        "observations": (exposure.ravel(), [exposure, exposure.reshape(3, steps, 2), exposure.reshape(3, -1)]),
        "one": (np.full(exposure.size, 1.5), [1.5, [1.5], [[1.5]]]),
    }
    for flat, others in forms.values():
        weighted = told(lk.Poisson(), m, m + 1, y, weight=flat, steps=steps)
        exposed = told(lk.Poisson(flat), m, m + 1, y, steps=steps)
        for other in others:
            np.testing.assert_array_equal(told(lk.Poisson(), m, m + 1, y, weight=other, steps=steps), weighted)
            np.testing.assert_array_equal(told(lk.Poisson(other), m, m + 1, y, steps=steps), exposed)


def test_other_mistakes():
    net = Sequential(Linear(2, 3), ReLU(), Linear(3, 3))
    with pytest.raises(RuntimeError, match="call the network first"):
        lk.Categorical(3).observe(net, [0])
    net(np.zeros((2, 2)))
    net.predict(np.zeros((3, 2)))
    with pytest.raises(RuntimeError, match=r"predict was called since net\(x\), .*: call net\(x\) again"):
        lk.Categorical(3).observe(net, [0, 1])
    net(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="weight must be one number"):
        lk.Categorical(3).observe(net, [0, 1], weight=[1, 1, 1])
    with pytest.raises(ValueError, match="weight must not be negative"):
        lk.Categorical(3).observe(net, [0, 1], weight=-1)
    with pytest.raises(RuntimeError, match="was not filled"):
        net.backward()
    with pytest.raises(TypeError, match="takes a network first"):
        lk.Categorical(3).observe([0, 1], net)
    with pytest.raises(TypeError, match="predict takes a network first, got list"):
        lk.Categorical(3).predict([0, 1], net)
    with pytest.raises(TypeError, match=r"Gaussian: sigma must be a number, got '0.1'"):
        lk.Gaussian("0.1")
    with pytest.raises(TypeError, match="fractions"):
        lk.Categorical(3).observe(net, [0.5, 1])
    for wrong in (lambda: lk.Gaussian(0), lambda: lk.Categorical(1), lambda: lk.Ordinal(3, [1, 0])):
        with pytest.raises(ValueError, match=r"must be in|at least 2|increasing"):
            wrong()
    for beyond in (lambda: lk.Gaussian(1e20), lambda: lk.StudentT(4, 1e-30), lambda: lk.Gamma(1e39)):
        with pytest.raises(ValueError, match=r"(sigma|scale|shape) must be in \[1e-18, 1e\+18\], got 1e"):
            beyond()
    with pytest.raises(TypeError, match=r"NegativeBinomial needs one number as size, got an array of shape \(3,\)"):
        lk.NegativeBinomial(np.ones(3))
    with pytest.raises(TypeError, match=r"Gaussian needs one number .*; observations \(y, var\) have a variance each"):
        lk.Gaussian(np.ones(3))
    for limits in ({"lower": [0.1, 0.2]}, {"upper": np.ones(2)}):
        with pytest.raises(
            TypeError, match=r"one number as lower, .* limits that differ are observations \(low, high\)"
        ):
            lk.Censored(0.5, **limits)
    with pytest.raises(ValueError, match="exposure must be one number, or one for each of 2 samples"):
        lk.Poisson([1, 2, 3]).observe(net, np.ones((2, 3)))
    with pytest.raises(ValueError, match="3 exposures for 2 samples"):
        lk.Poisson([1, 2, 3]).prediction(np.zeros((2, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="positive exposures"):
        lk.Poisson([1, 0])
    with pytest.raises(TypeError, match="can only predict"):
        lk.Custom(lambda m, s, y: (0, 0)).prediction(np.zeros((1, 1)), np.ones((1, 1)))
    with pytest.raises(TypeError, match="the prediction of Custom returns a Prediction, got"):
        lk.Custom(lambda m, s, y: (0, 0), lambda m, s: (m, s)).prediction(np.zeros((1, 1)), np.ones((1, 1)))
    with pytest.raises(TypeError, match=r"got Gaussian\. That of another likelihood is its method prediction"):
        lk.Custom(lambda m, s, y: (0, 0), lk.Gaussian(0.1))
    with pytest.raises(TypeError, match=r"Ordinal: levels must be an integer, got 2\.5"):
        lk.Ordinal(2.5)
    with pytest.raises(TypeError, match=r"tuples \(likelihood, number of outputs\), got \(Gaussian"):
        lk.Joint((lk.Gaussian(),))
    with pytest.raises(TypeError, match="cannot be a part of a Joint: give its parts"):
        lk.Joint(lk.Joint(lk.Gaussian()))


class Doubled(lk.Gaussian):
    def __init__(self, sigma):
        super().__init__(sigma)
        self.sigma = 2 * self.sigma


SETTINGS = [
    (lk.Gaussian(), "sigma", 0.1),
    (lk.LogNormal(), "sigma", 0.1),
    (lk.Censored(), "upper", 0.5),
    (lk.StudentT(), "df", 9),
    (lk.Laplace(), "scale", 3),
    (lk.Gamma(), "shape", 9),
    (lk.Poisson(), "exposure", np.array([2.0, 3.0])),
    (lk.NegativeBinomial(), "size", 9),
    (lk.Bernoulli(), "link", "probit"),
    (lk.Ordinal(3), "cuts", [0.0, 2.0]),
    (lk.HierarchicalCategorical(3), "n", 4),
]


@pytest.mark.parametrize(("likelihood", "name", "value"), SETTINGS)
def test_a_setting_that_is_assigned_is_that_of_a_new_likelihood(likelihood, name, value):
    new = type(likelihood)(**likelihood._settings() | {name: value})
    setattr(likelihood, name, value)
    assert repr(likelihood) == repr(new)
    width = new.outputs or 1
    m, s, y = np.full((2, width), 0.3), np.ones((2, width)), np.ones((2, 1))
    np.testing.assert_array_equal(told(likelihood, m, s, y), told(new, m, s, y))
    with pytest.raises((ValueError, TypeError)):
        setattr(likelihood, name, NAN)
    np.testing.assert_array_equal(told(likelihood, m, s, y), told(new, m, s, y))


def test_exposures_of_many_samples_are_printed_in_short():
    assert len(repr(lk.NegativeBinomial(2.0, np.linspace(0.1, 1, 900)))) < 200


def test_what_can_be_assigned_to_parts_and_subclasses():
    part = lk.Gaussian()
    joint = lk.Joint(part, lk.Poisson())
    part.sigma = 0.1
    assert "0.1" in repr(joint)
    with pytest.raises(AttributeError, match="outputs of a Joint are fixed"):
        joint.outputs = 3
    assert Doubled(1).sigma == 2


class Steps:
    """Training steps of a small network, with the deltas that each of them started from."""

    def __init__(self, outputs):
        manual_seed(2)
        self.net = Sequential(Linear(4, 8), ReLU(), Linear(8, outputs))
        self.x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)

    def deltas(self, likelihood, y, weight=1.0, rows=20):
        self.net(self.x[:rows])
        likelihood.observe(self.net, y[:rows], weight)
        buffer = self.net.input_delta_z_buffer
        found = np.stack([buffer.delta_mu, buffer.delta_var])
        self.net.backward()
        self.net.step()
        return found


CLASSES = np.random.default_rng(1).integers(-1, 5, 20)
SAMPLE_WEIGHTS = np.random.default_rng(2).uniform(0, 2, 20)
FORMS = [
    (CLASSES, 1.0),
    (CLASSES.astype(np.int32), 1),
    (CLASSES, np.float64(0.3)),
    (CLASSES, np.float32(0.3)),
    (CLASSES, 0.0),
    (CLASSES, SAMPLE_WEIGHTS),
    (CLASSES.astype(np.int32), SAMPLE_WEIGHTS.astype(np.float32)),
    (np.where(CLASSES < 0, NAN, CLASSES), 0.3),
    (list(CLASSES), list(SAMPLE_WEIGHTS)),
    (CLASSES.astype(np.int8), 0.3),
    (CLASSES[:, None], 0.3),
    (np.repeat(CLASSES, 2)[::2], SAMPLE_WEIGHTS.repeat(2)[::2]),
    (CLASSES.astype(">i8"), 0.3),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_short_and_general_way_agree_for_classes(form, monkeypatch):
    """Whatever the types of classes and weights, deltas have the bits of the general way; other batches do, too."""
    y, weight = FORMS[form]
    found = []
    for general in (False, True):
        if general:
            monkeypatch.setattr(lk.Categorical, "_express", lk.Likelihood._express)
        steps, likelihood = Steps(5), lk.Categorical(5)
        plain = [likelihood, CLASSES, 1.0]
        found.append([steps.deltas(*plain) for _ in range(4)])  # from the third on, passes are replayed
        found[-1] += [steps.deltas(likelihood, y, weight) for _ in range(2)]
        found[-1] += [steps.deltas(*plain, rows=7), steps.deltas(*plain)]
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(short, long)


NUMBERS = np.where(CLASSES < 0, NAN, 10.0**CLASSES)


@pytest.mark.parametrize("weight", [1, 1.0, 0.3, np.float64(2.5), np.float32(0.3), 0.0, SAMPLE_WEIGHTS])
@pytest.mark.parametrize("y", [NUMBERS, NUMBERS.astype(np.float32)[:, None], list(NUMBERS)], ids=["64", "32", "list"])
def test_short_and_general_way_agree_for_numbers(y, weight, monkeypatch):
    found = []
    for general in (False, True):
        if general:
            monkeypatch.setattr(lk.Gaussian, "_express", lk.Likelihood._express)
        steps, likelihood = Steps(1), lk.Gaussian(0.3)
        found.append([steps.deltas(likelihood, y, weight) for _ in range(4)])
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(short, long)


def test_the_short_way_of_numbers():
    steps, likelihood = Steps(1), lk.Gaussian(0.3)
    steps.deltas(likelihood, NUMBERS)
    steps.net(steps.x)
    buffers = steps.net.output_z_buffer, steps.net.input_delta_z_buffer
    assert likelihood._express(buffers[0], NUMBERS, buffers[1], 0.3)
    refused = [(NUMBERS, -1.0), (NUMBERS, NAN), (NUMBERS, SAMPLE_WEIGHTS), (np.full(20, INF), 1.0), (NUMBERS[1:], 1.0)]
    assert not any(likelihood._express(buffers[0], y, buffers[1], weight) for y, weight in refused)


def test_the_common_case_takes_the_short_way():
    steps, likelihood = Steps(5), lk.Categorical(5)
    steps.deltas(likelihood, CLASSES)
    steps.net(steps.x)
    buffers = steps.net.output_z_buffer, steps.net.input_delta_z_buffer
    for y, weight in FORMS[:3] + FORMS[4:7]:
        assert likelihood._express(buffers[0], y, buffers[1], weight)
    assert not likelihood._express(buffers[0], CLASSES + 1, buffers[1], 1.0)


@pytest.mark.parametrize("wrong", [np.full(20, 5), np.full(20, -2), np.full(20, 2**33), np.zeros(19, int)])
def test_the_short_way_refuses_as_the_general_one(wrong):
    steps, likelihood = Steps(5), lk.Categorical(5)
    for _ in range(4):
        steps.deltas(likelihood, CLASSES)
    for y, weight, message in (wrong, 1.0, "class"), (CLASSES, -1.0, "negative"), (CLASSES, NAN, "negative, NaN"):
        steps.net(steps.x)
        with pytest.raises(ValueError, match=message):
            likelihood.observe(steps.net, y, weight)
        with pytest.raises(RuntimeError, match="was not filled"):
            steps.net.backward()
    with pytest.raises(ValueError, match="needs 4 outputs, the network has 5"):
        lk.Categorical(4).observe(steps.net, CLASSES)
    with pytest.raises(ValueError, match="needs 2 outputs"):
        lk.Categorical(2).observe(steps.net, np.zeros(50, int))


def test_one_likelihood_serves_several_networks_by_turns():
    """What is kept of the last call belongs to the buffers: networks, batches and likelihoods may alternate."""
    y = np.random.default_rng(3).normal(size=(20, 5))
    calls = [
        (lk.Gaussian(0.5), y, 20),
        (lk.Gaussian(0.5), y, 7),
        (lk.StudentT(), y, 20),
        (lk.Categorical(5), CLASSES, 7),
    ]
    one, other, alone = Steps(5), Steps(5), Steps(5)  # the last one with likelihoods that are new each time
    for _ in range(4):
        for likelihood, observed, rows in calls:
            expected = alone.deltas(copy.deepcopy(likelihood), observed, rows=rows)
            for steps in (one, other):
                np.testing.assert_array_equal(steps.deltas(likelihood, observed, rows=rows), expected)


def test_deltas_that_are_moved_copied_or_resized_are_prepared_again():
    """The views that the last call has made are used for the same memory in the same layout only."""
    likelihood, y = lk.Gaussian(0.5), np.ones((2, 3))
    net = Net(np.zeros((2, 3)), np.ones((2, 3)))
    likelihood.observe(net, y)
    expected = net.deltas()
    net.input_delta_z_buffer.set_size(4, 2)
    likelihood.observe(net, y)
    np.testing.assert_array_equal(net.deltas(), expected)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        copied.output_z_buffer.mu_a = np.full(6, 0.5)
        likelihood.observe(copied, y)
        np.testing.assert_array_equal(net.deltas(), expected)
        assert np.all(copied.deltas()[0] < expected[0])
    net.output_z_buffer.mu_a = np.full(6, 0.5)
    likelihood.observe(net, y)
    assert np.all(net.deltas()[0] < expected[0])
    lk.Categorical(3).observe(net, [0, 1])
    net.output_z_buffer.seq_len = 3
    lk.Joint(lk.Bernoulli()).observe(net, [np.ones(6)])
    assert np.all(net.deltas()[0] > 0)

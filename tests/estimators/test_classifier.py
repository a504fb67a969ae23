"""Classification: classes, probabilities and their temperature."""

import copy
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.estimators import TAGIClassifier, classifier
from pytagi_ddp.estimators.classifier import TEMPERATURES, labels, most_likely_temperature, tempered
from pytagi_ddp.likelihoods.classes import expected_softmax
from pytagi_ddp.nn import EvidenceSchedule, Linear, Sequential
from pytagi_ddp.nn.hierarchical_softmax import encode_classes

CENTRES = np.array([[0, 0], [3, 0], [0, 3]])
NAMES = np.array(["circle", "square", "triangle"])


def data(n, seed=0):
    """Three clouds that overlap: the best answer is right in 90 %."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 3, n)
    return CENTRES[numbers] + rng.normal(size=(n, 2)), NAMES[numbers]


def exact(x):
    """P(class | x), by Bayes' rule."""
    p = np.exp(-0.5 * ((x[:, None] - CENTRES) ** 2).sum(2))
    return p / p.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def fitted():
    return TAGIClassifier(n_folds=3, n_seeds=1, epochs=20, random_state=0).fit(*data(600))


def test_classes_and_probabilities_are_learnt(fitted):
    x, names = data(1000, 1)
    p = fitted.predict_proba(x)
    np.testing.assert_array_equal(fitted.predict_log_proba(x), np.log(p))
    assert fitted.classes_.tolist() == NAMES.tolist()
    np.testing.assert_allclose(p.sum(1), 1)
    assert np.mean(np.abs(p - exact(x))) < 0.05
    assert all(net.schedule is None for net in fitted.networks_), "later samples are new evidence"
    flatter = copy.copy(fitted)
    flatter.temperature_ = 2 * fitted.temperature_
    np.testing.assert_allclose(flatter.predict_proba(x), tempered(p, 2.0), rtol=1e-6)
    assert fitted.score(x, names) > np.mean(NAMES[exact(x).argmax(1)] == names) - 0.02


def test_missing_inputs_add_variance(fitted, monkeypatch):
    mu, var = np.array([[3.0, 0, 0]]), np.full((1, 3), 0.5)
    monkeypatch.setattr(classifier, "moments_apart", lambda *_: (mu, var.copy(), 4 * var))
    expected = tempered(expected_softmax(mu, 5 * var), fitted.temperature_)
    np.testing.assert_allclose(fitted.predict_proba([[0.0, np.nan]]), expected)


def test_the_temperature_is_the_most_likely_one():
    rng = np.random.default_rng(0)
    p = rng.dirichlet((1, 1, 1), 20_000)
    numbers = (rng.random((20_000, 1)) > np.cumsum(p, 1)).sum(1)
    once = np.ones(20_000)
    assert most_likely_temperature(p, numbers, once) == pytest.approx(1, rel=0.1)
    assert most_likely_temperature(tempered(p, 0.5), numbers, once) == pytest.approx(2, rel=0.1)
    np.testing.assert_allclose(tempered(p, 1.0), p, atol=1e-9)
    score = [np.log(tempered(p, t)[np.arange(len(p)), numbers]).sum() - 2 * np.log(t) ** 2 for t in TEMPERATURES]
    assert most_likely_temperature(p, numbers, once) == TEMPERATURES[np.argmax(score)]


def test_partial_fit_takes_samples_as_they_come():
    x, names = data(1500)
    model = TAGIClassifier(n_folds=1, n_seeds=1, random_state=0)
    for rows in np.array_split(np.arange(1500), 15):
        model.partial_fit(x[rows], names[rows], classes=NAMES)
    assert model.score(*data(1000, 1)) > 0.86
    with pytest.raises(ValueError, match=r"not among those of the first call: \['star'\]"):
        model.partial_fit(x[:2], ["circle", "star"])
    with pytest.raises(ValueError, match=r"not those of the first call, which were \['circle', 'square', 'triangle'\]"):
        model.partial_fit(x[:2], names[:2], classes=[*NAMES, "star"])
    with pytest.raises(ValueError, match=r"1 class: 'circle' \(give the classes of later samples to the first"):
        TAGIClassifier().partial_fit(x[:2], ["circle", "circle"])


def test_partial_fit_leaves_no_sample_out(monkeypatch):
    seen = []

    def recorded(*args):
        observe, *targets = labels(*args)
        return lambda net, updater, *some: (seen.extend(some[1].tolist()), observe(net, updater, *some)), *targets

    monkeypatch.setattr(classifier, "labels", recorded)
    weights = np.arange(1, 32)
    TAGIClassifier((4,), batch_size=16, n_folds=1, n_seeds=1).partial_fit(*data(31), sample_weight=weights)
    assert sorted(seen) == weights.tolist()


def test_samples_count_as_often_as_the_schedule_says():
    net, x = Sequential(Linear(2, 3)), np.ones((4, 2), np.float32)
    observe, *targets = labels(np.arange(4) % 3, np.arange(1.0, 5.0), 3, None)
    deltas = []
    for schedule in (None, EvidenceSchedule(net, steps_per_epoch=1, epochs=9, count=5)):
        net.schedule = schedule
        net(x)
        observe(net, None, *targets)
        deltas.append(np.array(net.input_delta_z_buffer.delta_mu))
    assert schedule.weight != 1
    np.testing.assert_allclose(deltas[1], schedule.weight * deltas[0], rtol=1e-6)


def test_sigma_v_gives_a_tree():
    x, names = data(300)
    tree = TAGIClassifier((20,), sigma_v=0.5, n_folds=2, n_seeds=1, epochs=10, random_state=0).fit(x, names)
    plain = TAGIClassifier((20,), n_folds=2, n_seeds=1, epochs=10, random_state=0).fit(x, names)
    variances = labels(np.arange(3), np.array([1.0, 2, 4]), 3, 0.5)[2]
    np.testing.assert_allclose(variances[:, 0], [1 / 4, 1 / 8, 1 / 16])
    outputs = [model.networks_[0].out_shape.size for model in (tree, plain)]
    assert outputs == [encode_classes(3)[2], 3]
    places, _ = data(500, 1)
    for model in (tree, plain):
        assert np.abs(model.predict_proba(places) - exact(places)).mean() < 0.06
    before = tree.predict_proba(places)
    np.testing.assert_array_equal(tree.set_params(sigma_v=None).predict_proba(places), before)
    assert tree.partial_fit(x, names).predict_proba(places).shape == (500, 3)


def test_a_few_samples_that_are_all_right_are_not_certain():
    p = np.tile([0.9, 0.1], (10, 1))
    assert 0.3 < most_likely_temperature(p, np.zeros(10, int), np.ones(10)) < 0.9


@pytest.mark.parametrize("sigma_v", [None, 0.5])
def test_probabilities_of_many_classes_take_the_memory_of_few_networks(sigma_v):
    x, numbers = np.random.default_rng(0).normal(size=(400, 3)), np.arange(400) % 200
    model = TAGIClassifier(4, n_folds=10, sigma_v=sigma_v, random_state=0).partial_fit(x, numbers)
    x = np.tile(x, (4, 1))
    model.predict_proba(x)
    tracemalloc.start()
    try:
        p = model.predict_proba(x)
        assert tracemalloc.get_traced_memory()[1] < 20 * p.nbytes
    finally:
        tracemalloc.stop()

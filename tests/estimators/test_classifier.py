"""Classification: classes, probabilities and their temperature."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.estimators import TAGIClassifier, classifier
from pytagi_ddp.estimators.classifier import labels, most_likely_temperature, tempered

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
    assert fitted.score(x, names) > np.mean(NAMES[exact(x).argmax(1)] == names) - 0.02


def test_the_temperature_is_the_most_likely_one():
    rng = np.random.default_rng(0)
    p = rng.dirichlet((1, 1, 1), 20_000)
    numbers = (rng.random((20_000, 1)) > np.cumsum(p, 1)).sum(1)
    once = np.ones(20_000)
    assert most_likely_temperature(p, numbers, once) == pytest.approx(1, rel=0.1)
    assert most_likely_temperature(tempered(p, 0.5), numbers, once) == pytest.approx(2, rel=0.1)
    np.testing.assert_allclose(tempered(p, 1.0), p, atol=1e-9)


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
    with pytest.raises(ValueError, match="1 class"):
        TAGIClassifier().fit(x[:2], ["circle", "circle"])


def test_partial_fit_leaves_no_sample_out(monkeypatch):
    seen = []

    def recorded(*args):
        observe = labels(*args)
        return lambda net, updater, rows: (seen.extend(rows.tolist()), observe(net, updater, rows))

    monkeypatch.setattr(classifier, "labels", recorded)
    TAGIClassifier((4,), batch_size=16, n_folds=1, n_seeds=1).partial_fit(*data(31))
    assert sorted(seen) == list(range(31))

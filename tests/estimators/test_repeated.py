"""Samples with equal inputs: folds, random intercepts, classes."""

import pickle

import numpy as np
import pytest

from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor
from pytagi_ddp.estimators.folds import assign_folds
from pytagi_ddp.estimators.repeated import (
    MOST_EQUAL,
    Totals,
    best_share,
    groups_of,
    learn_class,
    learn_intercept,
    rows_of,
)

QUICK = {"hidden_layer_sizes": (20,), "epochs": 20, "n_folds": 3, "n_seeds": 1, "n_bins": 0, "random_state": 0}


def test_folds_without_groups_are_a_random_permutation():
    order = np.random.default_rng(7).permutation(23)
    assert assign_folds(np.arange(23), 5, 7)[order].tolist() == [k % 5 for k in range(23)]


def test_groups_are_in_one_fold_and_folds_have_about_one_size():
    group = np.random.default_rng(0).integers(0, 200, 300)
    fold = assign_folds(group, 5, 0)
    assert all(len(set(fold[group == one])) == 1 for one in group)
    assert np.ptp(np.bincount(fold)) <= 1
    assert assign_folds(np.zeros(10, int), 5, 0).tolist() != [0] * 10  # fewer groups than folds


def test_equal_rows_are_groups_unless_they_are_frequent():
    x = np.array([[0.0, 1], [-0.0, 1], [np.nan, 1], [-np.nan, 1], [2, 1]] + [[3, 3]] * (MOST_EQUAL + 1), np.float32)
    group = groups_of(x)
    assert group[0] == group[1] != group[2] == group[3] != group[4]
    assert len(set(group.tolist())) == 3 + MOST_EQUAL + 1


def test_totals_leave_out_frequent_rows_and_take_further_samples():
    x = np.array([[0.0], [0], [1], *[[2]] * (MOST_EQUAL + 1)], np.float32)
    y, weights = np.arange(len(x), dtype=float), np.full(len(x), 2.0)
    totals = Totals.of(x, y, weights)
    places, counts, means = totals.at(np.array([[5.0], [1], [0], [2]], np.float32))
    assert (places.tolist(), counts.tolist(), means.tolist()) == ([1, 2], [2, 4], [2, 0.5])
    places, counts, means = totals.others(x, y, weights)
    assert (places.tolist(), counts.tolist(), means.tolist()) == ([0, 1], [2, 2], [1, 0])
    totals.add(np.array([[1.0], [2]], np.float32), np.array([8.0, 8]), np.ones(2))
    places, counts, means = totals.at(np.array([[1.0], [2]], np.float32))
    assert (places.tolist(), counts.tolist()) == ([0], [3])
    np.testing.assert_allclose(means, [4])


def intercepts(correlation, rows=1000, copies=2, seed=0):
    """(inputs, targets with the variance 1 around the prediction 0)."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(rows, 2)).astype(np.float32), copies, 0)
    u = np.repeat(rng.normal(size=rows), copies)
    return x, correlation**0.5 * u + (1 - correlation) ** 0.5 * rng.normal(size=len(x))


@pytest.mark.parametrize("correlation", [0.3, 0.8])
@pytest.mark.parametrize("copies", [2, 5])
@pytest.mark.parametrize("degrees", [np.inf, 10.0])
def test_correlation_and_scale_are_those_of_the_samples(correlation, copies, degrees):
    x, y = intercepts(correlation, copies=copies)
    n, nothing = copies - 1, np.zeros(len(y))
    found = learn_intercept(x, y, np.ones(len(y)), nothing, nothing, nothing, degrees)
    assert abs(found.correlation - correlation) < 0.1
    if np.isinf(degrees):
        assert found.scale == pytest.approx(1 - correlation * best_share(correlation, np.array(float(n))), rel=0.1)
    mu, log_scale2 = found.given(x, nothing, nothing)
    np.testing.assert_allclose(mu.reshape(-1, copies), np.repeat(mu[::copies, None], copies, 1))
    assert np.corrcoef(mu, y)[0, 1] > 0.6
    np.testing.assert_allclose(log_scale2, np.log(found.scale))
    other = found.given(x + 1, nothing, nothing)
    assert not other[0].any() and not other[1].any()


def test_pairs_that_have_nothing_in_common_change_nothing():
    x, y = intercepts(0.0)
    ones, nothing = np.ones(len(y)), np.zeros(len(y))
    assert learn_intercept(x, y, ones, nothing, nothing, nothing, np.inf) is None
    assert learn_intercept(x[::2], y[::2], ones[::2], nothing[::2], nothing[::2], nothing[::2], np.inf) is None
    assert learn_intercept(x[:2], y[:2] * 0, ones[:2], ones[:2], ones[:2], nothing[:2], np.inf) is None  # one pair


def test_what_networks_have_learnt_is_not_added_again():
    x, y = intercepts(0.8)
    ones, nothing = np.ones(len(y)), np.zeros(len(y))
    means = y.reshape(-1, 2).mean(1).repeat(2)
    alone, learnt = (learn_intercept(x, y, ones, nothing, seen, nothing, np.inf) for seen in (nothing, 0.5 * means))
    assert learnt.learnt == pytest.approx(0.5)
    np.testing.assert_allclose(learnt.given(x, 0.5 * means, nothing)[0], alone.given(x, nothing, nothing)[0], atol=1e-9)


def test_a_scale_is_not_smaller_than_rounding():
    x, y = intercepts(1.0, rows=3000)
    y, nothing, ones = np.round(y), np.zeros(len(y)), np.ones(len(y))
    assert learn_intercept(x, y, ones, nothing, nothing, nothing, np.inf).scale == pytest.approx(1 / 12, rel=0.2)


def test_the_share_of_several_observations():
    rng = np.random.default_rng(0)
    u = rng.normal(size=200_000) * 0.6**0.5
    seen = (u + rng.normal(size=(3, len(u))) * 0.4**0.5).mean(0)
    best = (seen @ u) / (seen @ seen)
    assert best_share(0.6, np.array(3.0)) == pytest.approx(best, rel=0.01)
    assert best_share(1.0, np.array(0.0)) == 0


def test_repeated_classes_are_as_probable_as_they_are():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(1000, 2)).astype(np.float32), 2, 0)
    first = rng.integers(0, 3, 1000)
    second = np.where(rng.uniform(size=1000) < 0.7, first, rng.integers(0, 3, 1000))
    numbers, ones = np.stack([first, second], 1).ravel(), np.ones(2000)
    third = np.full((2000, 3), 1 / 3)
    found = learn_class(x, numbers, ones, third)
    assert found.probability == pytest.approx(0.7, abs=0.06)
    p = found.given(np.concatenate([x[:2], x[:1] + 1]), third[:3])
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(p[2], 1 / 3)
    assert p[0, first[0]] > 0.6 or first[0] != second[0]
    assert learn_class(x, rng.integers(0, 3, 2000), ones, third) is None
    assert learn_class(x[::2], first, ones[::2], third[::2]) is None


def repeated_table(rows=300, seed=0):
    """Each of the rows of inputs has an effect of its own, and is measured twice."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    effect = x[:, 0] + rng.normal(size=rows)
    return x, effect, np.concatenate([effect, effect]) + 0.2 * rng.normal(size=2 * rows)


def test_an_effect_of_known_rows_is_predicted_and_new_rows_have_honest_error_bars():
    x, effect, y = repeated_table()
    model = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), y)
    known, (inputs, _, truth) = model.predict_distribution(x), repeated_table(seed=1)
    new = model.predict_distribution(np.concatenate([inputs, inputs]))
    assert np.sqrt(np.mean((known.mean - effect) ** 2)) < 0.25
    assert 0.8 < known.coverage(effect + 0.2 * np.random.default_rng(2).normal(size=len(effect)), 0.9) < 0.98
    assert 0.83 < new.coverage(truth, 0.9) < 0.96
    assert new.std.mean() > 3 * known.std.mean()
    assert (known.epistemic <= known.variance + 1e-12).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    further = x[:1].repeat(10, 0)
    before = model.predict(x[:1])[0]
    model.partial_fit(further, np.full(10, before + 5))
    assert model.predict(x[:1])[0] > before + 3


def test_copies_of_samples_do_not_make_error_bars_too_narrow():
    """A bootstrap sample: copies in another fold would predict each other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    y = x[:, 0] + rng.normal(size=200)
    some = rng.integers(0, 200, 200)
    test = rng.normal(size=(1000, 5))
    truth = test[:, 0] + rng.normal(size=1000)
    settings = QUICK | {"hidden_layer_sizes": (100,), "epochs": 100, "n_seeds": 2}
    distribution = TAGIRegressor(**settings).fit(x[some], y[some]).predict_distribution(test)
    assert 0.83 < distribution.coverage(truth, 0.9) < 0.97


def test_several_targets_have_intercepts_of_their_own():
    x, effect, y = repeated_table()
    other = np.random.default_rng(3).normal(size=len(y))
    model = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), np.stack([y, other], 1))
    first, second = model.noise_
    assert first.intercept.correlation > 0.8 and second.intercept is None
    assert np.sqrt(np.mean((model.predict(x)[:, 0] - effect) ** 2)) < 0.25


def test_a_classifier_knows_rows_again():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    model = TAGIClassifier(**QUICK).fit(np.concatenate([x, x]), np.concatenate([labels, labels]))
    assert model.score(x, labels) == 1
    assert model.predict_proba(x)[np.arange(200), labels].min() > 0.9
    assert model.predict_proba(rng.normal(size=(500, 3))).max() < 0.9
    model.partial_fit(x[:1].repeat(5, 0), [1 - labels[0]] * 5)
    assert model.predict(x[:1])[0] == 1 - labels[0]
    assert TAGIClassifier(**QUICK).fit(x, labels)._shared is None


def test_rows_are_the_same_in_any_batch():
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert rows_of(x)[3] == rows_of(x[3:4])[0] == rows_of(np.asfortranarray(x))[3]

"""Samples with equal inputs: folds, random intercepts, classes."""

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.estimators import TAGIClassifier, TAGIRegressor
from pytagi_ddp.estimators.folds import alike, assign_folds, joined
from pytagi_ddp.estimators.inputs import checked_groups, codes
from pytagi_ddp.estimators.repeated import Rows, best_share, groups_of, learn_classes, learn_intercept

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


def test_groups_of_two_kinds_are_joined():
    first, second = np.array([0, 0, 1, 2, 3, 4]), np.array([5, 6, 6, 7, 7, 0])
    found = joined(first, second)
    assert found[0] == found[1] == found[2] != found[3] == found[4] != found[5] != found[0]


@pytest.mark.parametrize("kind", [TAGIRegressor, TAGIClassifier])
def test_groups_are_kept_together(kind, monkeypatch):
    rng = np.random.default_rng(0)
    x, days = rng.normal(size=(90, 2)), np.repeat([f"day {k}" for k in range(9)], 10)
    y, weights = np.arange(90) % 3, np.r_[np.zeros(10), np.ones(80)]
    made = []
    monkeypatch.setattr(
        "pytagi_ddp.estimators.ensemble.assign_folds", lambda *args: made.append(assign_folds(*args)) or made[-1]
    )
    kind(**QUICK | {"epochs": 1}).fit(x, y, weights, groups=days)
    assert all(len(set(made[0][days[10:] == day])) == 1 for day in set(days[10:])) and made[0].max() == 2
    kind(**QUICK | {"epochs": 1}).fit(x, y, groups=days > "day 4")
    assert made[1].max() == 1
    for bad, message in (
        (days[:5], "one label for each sample"),
        (np.zeros(90), "all samples are of one group"),
        (np.where(np.arange(90) == 7, np.nan, 1.0), "no label in row 7"),
        (x, r"got the shape \(90, 2\)"),
        (np.ma.array(days, mask=np.arange(90) == 7), "no label in row 7"),
        (
            np.where(np.arange(90) == 7, np.datetime64("NaT", "ns"), np.datetime64("2020-01-01", "ns")),
            "no label in row 7",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**QUICK).fit(x, y, groups=bad)


@pytest.mark.parametrize("kind", [TAGIRegressor, TAGIClassifier])
def test_columns_that_tell_persons_apart_are_named(kind):
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(40), 3)
    age, weight = rng.normal(size=(2, 40))[:, patients]
    x, y = np.c_[rng.normal(size=120), age, weight], (rng.normal(size=120) > 0).astype(int)
    quick = QUICK | {"epochs": 1}
    with pytest.warns(UserWarning, match=r"columns \[1, 2\] of X have values that repeat together"):
        kind(**quick).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(**quick).fit(x, y, groups=patients)


def test_columns_that_are_not_those_of_persons():
    rng = np.random.default_rng(0)
    a, day = rng.normal(size=40), np.arange(800) % 365
    for columns in (
        (a.repeat(3), rng.normal(size=120)),  # one column alone
        (a.repeat(3), np.exp(a).repeat(3), -a.repeat(3)),  # functions of it
        (a.repeat(3), a[rng.permutation(40)].repeat(3)[::-1]),  # which do not repeat together
        (a[:20].repeat(3), rng.normal(size=20).repeat(3), rng.normal(size=60)),  # few values
        (a.repeat(3), rng.normal(size=40).repeat(3)),  # equal rows, which are together anyway
        (rng.normal(size=120), rng.normal(size=120)),  # nothing repeats
        (np.sin(day / 365 * 2 * np.pi), np.cos(day / 365 * 2 * np.pi), day, day**2, rng.normal(size=800)),  # a calendar
        (*np.where(rng.random(100) < 0.6, np.nan, rng.normal(size=(2, 100))), rng.normal(size=100)),  # missing together
        (*np.where(rng.random(100) < 0.6, 0, rng.normal(size=(2, 100))), rng.normal(size=100)),  # amounts of rainy days
    ):
        assert alike(np.stack(columns, 1).astype(np.float32)) is None
    found = alike(np.stack([a.repeat(3), np.exp(a).repeat(3), rng.permutation(a).repeat(3), rng.normal(size=120)], 1))
    assert found == (0, 2)


def test_checks_of_a_wide_table_do_not_look_at_each_column(monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 200))
    x[:2, 7], x[0, 8] = -9999, np.nan
    monkeypatch.setattr(np, "unique", None)
    assert list(codes(np.sort(x, 0), 20)) == [(7, -9999, 2)] and alike(x) is None


def test_many_classes_take_little_memory():
    x, numbers, p = np.arange(20.0)[:, None] // 2, np.arange(20) // 2, np.full((20, 3000), 1 / 3000)
    tracemalloc.start()
    try:
        shared = learn_classes(x, numbers, np.ones(20), p, [])
        shared.learn(x, numbers, np.ones(20))
        assert tracemalloc.get_traced_memory()[1] < 20 * p.nbytes  # a matrix of classes x classes has 150 p.nbytes
    finally:
        tracemalloc.stop()
    assert shared.rows.sums[3, 4] == 4


def test_groups_may_be_labels_of_any_type():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    numbers = np.repeat(np.arange(3), 2)
    days = pandas.date_range("2020", periods=3)[numbers]
    for some in (
        *(days, days.values, days.values.astype("M8[D]"), days.tz_localize("UTC"), days.to_period("D"), days - days[0]),
        *(days.astype(str), days.astype(str).astype("category"), pandas.cut(numbers, 3), numbers.tolist()),
    ):
        assert checked_groups(some).tolist() == numbers.tolist()
        if not isinstance(some, list | np.ndarray):
            assert checked_groups(pandas.Series(some)).tolist() == numbers.tolist()
    assert checked_groups(polars.Series(days.date.tolist())).tolist() == numbers.tolist()
    assert checked_groups(polars.Series(days.date.tolist()).to_arrow()).tolist() == numbers.tolist()


def test_equal_rows_are_groups_unless_they_are_a_large_part():
    alone = np.arange(10, 80, dtype=np.float32)
    x = np.c_[np.r_[[0.0, -0.0, np.nan, -np.nan, 2, 2 + 1e-6], [3] * 9, alone], np.ones(85)].astype(np.float32)
    group = groups_of(x)
    assert group[0] == group[1] != group[2] == group[3] != group[4] == group[5]
    assert len(set(group.tolist())) == 3 + 9 + 70
    assert len(set(groups_of(x[:-5]).tolist())) == 3 + 9 + 65
    assert len(set(groups_of(np.r_[x, 100 + x, 200 + x]).tolist())) == 3 * (3 + 1 + 70)


def test_rows_leave_out_large_parts_and_missing_inputs_and_take_further_samples():
    x = np.array([[0.0], [0], [1], *[[2]] * 5, [np.nan], [np.nan]], np.float32)
    y, weights = np.arange(len(x), dtype=float), np.full(len(x), 2.0)
    rows = Rows.of(x, [])
    rows.add(x, y[:, None], weights)
    some = np.array([[5.0], [1], [0], [2], [np.nan]], np.float32)
    known, counts, sums = rows.at(some)
    assert (known.tolist(), counts.tolist(), sums.tolist()) == ([1, 2], [2, 4], [[4], [2]])
    rows.add(np.array([[1.0], [2], [5]], np.float32), np.full((3, 1), 8.0), np.ones(3))
    known, counts, sums = rows.at(some)
    assert (known.tolist(), counts.tolist(), sums.tolist()) == ([0, 1, 2], [1, 3, 4], [[8], [12], [2]])
    assert [part.shape for part in rows.at(some[3:])] == [(0,), (0,), (0, 1)]
    categories = Rows.of(np.array([[0.0, 0, 0]], np.float32), [slice(1, 3)])
    places = categories.places(np.array([[-1.0, 0, 0], [-1, 2, -1], [-1, -1, -1]], np.float32), new=True)
    assert places.tolist() == [0, 1, -1]


def intercepts(correlation, rows=1000, copies=2, seed=0):
    """(inputs, targets with the variance 1 around the prediction 0)."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(rows, 2)).astype(np.float32), copies, 0)
    u = np.repeat(rng.normal(size=rows), copies)
    return x, correlation**0.5 * u + (1 - correlation) ** 0.5 * rng.normal(size=len(x))


def learnt(x, y, seen=None, log_scale2=None, degrees=np.inf, weight=1.0):
    nothing = np.zeros(len(y))
    arguments = nothing, nothing if seen is None else seen, nothing if log_scale2 is None else log_scale2
    return learn_intercept(x, y, np.full(len(y), weight), *arguments, degrees, [])


@pytest.mark.parametrize("correlation", [0.3, 0.8])
@pytest.mark.parametrize("copies", [2, 5])
@pytest.mark.parametrize("degrees", [np.inf, 10.0])
def test_correlation_and_scale_are_those_of_the_samples(correlation, copies, degrees):
    x, y = intercepts(correlation, copies=copies)
    nothing, found = np.zeros(len(y)), learnt(x, y, degrees=degrees)
    assert abs(found.variance - correlation) < 0.1
    mu, log_scale2 = found.given(x, nothing, nothing)
    np.testing.assert_allclose(mu.reshape(-1, copies), np.repeat(mu[::copies, None], copies, 1))
    if np.isinf(degrees):  # of one more observation
        np.testing.assert_allclose(np.exp(log_scale2), 1 - correlation * best_share(correlation, copies), rtol=0.15)
    other = found.given(x + 1, nothing, nothing)
    assert not other[0].any() and not other[1].any()


def test_error_bars_are_narrower_where_more_has_been_observed():
    rng = np.random.default_rng(0)
    g = np.r_[np.repeat(np.arange(60), 15), np.arange(60, 400)]
    x, u = rng.normal(size=(400, 2)).astype(np.float32), rng.normal(size=400)
    y = (2 * u[g] + 0.7 * rng.normal(size=len(g))) / 4.49**0.5
    mu, log_scale2 = learnt(x[g], y).given(x, np.zeros(400), np.zeros(400))
    again = (2 * u + 0.7 * rng.normal(size=(30, 400))) / 4.49**0.5
    for some in (slice(60), slice(60, None)):
        errors = (again - mu)[:, some] ** 2
        assert errors.mean() == pytest.approx(np.exp(log_scale2[some]).mean(), rel=0.3)
    assert log_scale2[0] < log_scale2[-1] - 0.3


def test_quiet_inputs_have_narrow_error_bars():
    """The variance between inputs is 1; that within them is 0.04 or 1."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(400, 2)).astype(np.float32), 8, 0)
    std = np.where(x[:, 0] > 0, 1.0, 0.2)
    log_scale2 = np.log(1 + std**2)
    y = np.repeat(rng.normal(size=400), 8) + std * rng.normal(size=len(x))
    found = learnt(x, y, log_scale2=log_scale2).given(x, np.zeros(len(y)), log_scale2)[1]
    np.testing.assert_allclose(np.exp(found[std == 0.2] / 2), 0.22, rtol=0.35)
    np.testing.assert_allclose(np.exp(found[std == 1] / 2), 1.06, rtol=0.2)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_an_outlier_does_not_move_its_inputs(scale):
    x, y = intercepts(0.8, rows=200, copies=4)
    nothing, log_scale2 = np.zeros(len(y)), np.full(len(y), 2 * np.log(scale))
    outlier = y.copy()
    outlier[0] += 100
    found = [learnt(x, scale * some, log_scale2=log_scale2, degrees=3.0) for some in (y, outlier)]
    mu, moved = (each.given(x, nothing, log_scale2)[0][0] for each in found)
    assert abs(moved - mu) < 0.5 * scale


def test_pairs_that_have_nothing_in_common_change_nothing():
    x, y = intercepts(0.0)
    assert learnt(x, y) is None
    assert learnt(x[::2], y[::2]) is None
    assert learnt(np.r_[x[:2], x[2::2]], np.r_[0.0, 0.0, y[2::2]]) is None  # one pair
    assert learnt(np.r_[x[[0] * 9], x[2::2]], np.r_[[1.5] * 9, y[2::2]]) is None  # nine count as one
    assert learnt(np.zeros((100, 1), np.float32), y[:100]) is None  # all inputs are equal
    rng = np.random.default_rng(0)
    many = np.repeat(rng.normal(size=(150, 3)).astype(np.float32), 6, 0)
    log_scale2 = 2 * many[:, 2].astype(float)
    assert learnt(many, np.exp(log_scale2 / 2) * rng.normal(size=900), log_scale2=log_scale2) is None


def test_skewed_noise_is_no_intercept():
    """Its weighted mean is far below its mean, so that samples with equal inputs would be predicted too low."""
    x, _ = intercepts(0.0, copies=6)
    noise = (np.random.default_rng(1).lognormal(0, 1, len(x)) - np.exp(0.5)) / 2.16
    assert learnt(x, noise, degrees=3.0) is None


def test_copies_that_agree_are_predicted_as_they_are():
    """Their distribution is skewed, but there is no noise whose mean could be biased."""
    x, _ = intercepts(0.0)
    y = np.repeat(np.random.default_rng(1).lognormal(0, 1, len(x) // 2) - np.exp(0.5), 2) / 2.16
    found, nothing = learnt(x, y, degrees=3.0), np.zeros(len(x))
    np.testing.assert_allclose(found.given(x, nothing, nothing)[0], y, atol=0.03)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_what_networks_have_learnt_is_not_added_again(weight):
    x, y = intercepts(0.8)
    nothing, means = np.zeros(len(y)), y.reshape(-1, 2).mean(1).repeat(2)
    alone, partly = (learnt(x, y, seen=seen, weight=weight) for seen in (nothing, 0.5 * means))
    assert partly.learnt == pytest.approx(0.5)
    np.testing.assert_allclose(partly.given(x, 0.5 * means, nothing)[0], alone.given(x, nothing, nothing)[0], atol=1e-9)


def test_further_observations_are_deviations_from_what_was_predicted():
    x, y = intercepts(0.8)
    found, nothing = learnt(x, y), np.zeros(len(y))
    before = found.given(x[:1], nothing[:1], nothing[:1])[0][0]
    found.learn(x[:1].repeat(50, 0), np.full(50, 3.0), np.ones(50), np.zeros(50))
    assert found.given(x[:1], nothing[:1], nothing[:1])[0][0] > max(before, 2.5)


def test_a_scale_is_not_smaller_than_rounding():
    x, y = intercepts(1.0, rows=3000)
    nothing, found = np.zeros(len(y)), learnt(x, np.round(y))
    np.testing.assert_allclose(np.exp(found.given(x, nothing, nothing)[1]), 1 / 12, rtol=0.2)


def test_the_share_of_several_observations():
    rng = np.random.default_rng(0)
    u = rng.normal(size=200_000) * 0.6**0.5
    seen = (u + rng.normal(size=(3, len(u))) * 0.4**0.5).mean(0)
    best = (seen @ u) / (seen @ seen)
    assert best_share(0.6, np.array(3.0)) == pytest.approx(best, rel=0.01)
    assert best_share(1.0, np.array(0.0)) == 0


@pytest.mark.parametrize("prior", [0.3, 3.0])
def test_classes_at_known_inputs_are_as_probable_as_they_are(prior):
    rng = np.random.default_rng(0)
    g = np.r_[np.repeat(np.arange(200), 15), np.arange(200, 1000), np.arange(200, 1000)]
    x, p = rng.normal(size=(1000, 2)).astype(np.float32), rng.dirichlet(np.full(3, prior / 3), 1000)
    numbers, third = (rng.random((len(g), 1)) > p[g].cumsum(1)).sum(1), np.full((len(g), 3), 1 / 3)
    found = learn_classes(x[g], numbers, np.ones(len(g)), third, [])
    assert found.prior == pytest.approx(prior, rel=0.35)
    predicted = found.given(x, third[:1000])
    np.testing.assert_allclose(predicted.sum(1), 1)
    for some in (slice(200), slice(200, None)):  # calibrated
        sure = predicted[some].max(1)
        assert p[some][np.arange(len(sure)), predicted[some].argmax(1)].mean() == pytest.approx(sure.mean(), abs=0.04)
    np.testing.assert_array_equal(found.given(x + 1, third[:1000]), third[:1000])
    found.learn(x[:1].repeat(1000, 0), np.zeros(1000, int), np.ones(1000))
    assert found.given(x[:1], third[:1])[0, 0] > 0.95


def test_classes_that_have_nothing_in_common_change_nothing():
    rng = np.random.default_rng(0)
    x, third = np.repeat(rng.normal(size=(1000, 2)).astype(np.float32), 2, 0), np.full((2000, 3), 1 / 3)
    assert learn_classes(x, rng.integers(0, 3, 2000), np.ones(2000), third, []) is None
    assert learn_classes(x[::2], np.zeros(1000, int), np.ones(1000), third[::2], []) is None
    same = np.zeros((200, 1), np.float32)
    assert learn_classes(same, rng.integers(0, 3, 200), np.ones(200), third[:200], []) is None
    agree = np.repeat(rng.integers(0, 3, 20), 2)  # 20 pairs do not show that all agree
    assert learn_classes(x[:40], agree, np.ones(40), third[:40], []).prior > 0.01


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


def test_known_rows_of_a_wide_table_take_little_memory():
    rng = np.random.default_rng(0)
    x = np.asfortranarray(np.repeat(rng.normal(size=(60, 2000)), 2, 0).astype(np.float32))
    shared = learn_classes(x, np.repeat(rng.integers(0, 2, 60), 2), np.ones(120), np.full((120, 2), 0.5), [])
    assert len(pickle.dumps(shared)) < x[0].nbytes


def test_several_targets_have_intercepts_of_their_own():
    x, effect, y = repeated_table()
    other = np.random.default_rng(3).normal(size=len(y))
    model = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), np.stack([y, other], 1))
    first, second = model.noise_
    assert first.intercept.variance > 0.4 and second.intercept is None
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


def test_tables_of_a_few_categories_are_learnt():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (200, 2))
    y = (rng.random(200) < 0.2 + 0.6 * x[:, 0]).astype(int)
    assert TAGIClassifier(**QUICK).fit(x, y).score(x, y) > 0.7
    assert TAGIRegressor(**QUICK).fit(x, y).noise_.intercept is None


def test_unknown_categories_are_not_known_rows():
    rng = np.random.default_rng(0)
    effect = 2 * rng.normal(size=101)
    names = np.array([[f"m{k}"] for k in range(100) for _ in range(3)] + [[None]] * 3, object)
    y = effect[np.arange(303) // 3] + 0.2 * rng.normal(size=303)
    model = TAGIRegressor(**QUICK, categorical_features=[0]).fit(names, y)
    known, unknown = (model.predict(np.array([[name]], object), return_std=True)[1][0] for name in ("m1", None))
    assert model.noise_.intercept is not None and known < 0.6 and unknown > 1


def test_known_inputs_follow_a_level_that_changes():
    x, effect, y = repeated_table()
    model, rng = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), y), np.random.default_rng(3)
    for month in range(1, 13):
        model.partial_fit(x, effect + 0.25 * month + 0.2 * rng.normal(size=len(x)))
    known, other = (model.predict(some).mean() - effect.mean() - 3 for some in (x, x + 1e-3))
    assert abs(known) < max(abs(other), 0.3)


def test_known_rows_may_be_predicted_as_new_ones():
    x, _, y = repeated_table()
    model = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), y)
    nearly = model.predict(x + 1e-3)
    assert np.abs(model.predict(x) - nearly).max() > 1
    np.testing.assert_allclose(model.set_params(known_rows=False).predict(x), nearly, atol=0.1)
    labels = np.random.default_rng(0).integers(0, 2, len(x))
    classifier = TAGIClassifier(**QUICK).fit(np.concatenate([x, x]), np.r_[labels, labels])
    assert classifier.score(x, labels) == 1 > classifier.set_params(known_rows=False).score(x, labels)
    without = (
        kind(**QUICK, known_rows=False).fit(np.concatenate([x, x]), y > 0) for kind in (TAGIRegressor, TAGIClassifier)
    )
    assert next(without).noise_.intercept is None and next(without)._shared is None
    with pytest.raises(TypeError, match="known_rows"):
        TAGIRegressor(known_rows="no").fit(x, y[: len(x)])


def test_float32_inputs_are_known_rows():
    x, _, y = repeated_table()
    model = TAGIRegressor(**QUICK).fit(np.concatenate([x, x]), y)
    np.testing.assert_allclose(model.predict(x.astype(np.float32)), model.predict(x), atol=0.01)

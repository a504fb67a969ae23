"""scikit-learn's own checks of estimators."""

import copy
import importlib.util
import os
import pickle
import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from joblib import parallel_config
from scipy.sparse import csc_array, csc_matrix, csr_array, csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, StackingClassifier, StackingRegressor, VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.parallel import Parallel

from pytagi_ddp import estimators
from pytagi_ddp.estimators import (
    TAGIClassifier,
    TAGIRegressor,
    coverage_scorer,
    ensemble,
    inputs,
    locks,
    log_likelihood_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
)
from pytagi_ddp.estimators.inputs import sample_weights
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.nn import Sequential
from tests.conftest import weekly

SMALL = {"hidden_layer_sizes": (16,), "epochs": 10, "n_bins": 4, "n_folds": 2, "n_seeds": 1}
CHOOSING = SMALL | {"n_bins": None}  # the number of bins and of layers, as by default: several times as many networks
both = pytest.mark.parametrize("kind", [TAGIRegressor, TAGIClassifier])


def data(n=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, (x[:, 0] > 0).astype(int)


# A sample that stands twice in the table is in two batches, and perhaps in two folds; one of weight 2 is in one of
# each. Both count as much, and results are as good, but not the same to the last bit.
OF_WEIGHTS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "repeated samples are in several batches and folds"
    for kind in ("dense", "sparse")
}


@pytest.mark.slow
@both
@pytest.mark.parametrize("options", [SMALL, pytest.param(CHOOSING | {"epochs": 20}, marks=weekly)])
def test_check_estimator(kind, options):
    results = check_estimator(kind(**options), on_skip=None, expected_failed_checks=OF_WEIGHTS)
    assert len(results) > 50
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == OF_WEIGHTS.keys()
    assert {result["status"] for result in results} <= {"passed", "skipped", "xfail"}


@both
def test_results_depend_on_the_seed_and_on_nothing_else(kind):
    x, y = data()
    one = kind(**CHOOSING, random_state=3).fit(x, y)
    with parallel_config(backend="threading"):
        same = kind(**CHOOSING, random_state=3, n_jobs=2).fit(x, y)
    other = kind(**CHOOSING, random_state=4).fit(x, y)
    for net, twin, stranger in zip(one.networks_, same.networks_, other.networks_, strict=True):
        np.testing.assert_array_equal(net.arena.theta, twin.arena.theta)
        assert not np.array_equal(net.arena.theta, stranger.arena.theta)
    assert not np.array_equal(one.networks_[0].arena.theta, one.networks_[1].arena.theta)


@both
def test_no_more_processes_than_networks(kind, monkeypatch):
    x, y = data()
    asked = []

    def recorded(n_jobs, **options):
        asked.append(n_jobs)
        return Parallel(n_jobs=n_jobs, **options)

    monkeypatch.setattr(ensemble, "Parallel", recorded)
    with parallel_config(backend="threading"):
        kind(**CHOOSING, n_jobs=100).fit(x, y)
        kind(**CHOOSING).fit(x, y)
    assert set(asked) == {2, 1}  # two networks
    with parallel_config(backend="threading", n_jobs=2):
        kind(**CHOOSING).fit(x, y)
    assert asked[-1] == 2
    with pytest.raises(ValueError, match="n_jobs == 0"):
        kind(**CHOOSING, n_jobs=0).fit(x, y)


def test_results_do_not_depend_on_the_number_of_threads(request):
    """Processes of joblib have fewer threads than the program."""
    request.addfinalizer(partial(set_threads, get_threads()))
    x, found = np.random.default_rng(0).normal(size=(400, 10)), []
    for threads in (1, 2):
        set_threads(threads)
        model = TAGIRegressor((400,), n_bins=24, epochs=5, n_folds=2, n_seeds=1, random_state=0)
        found.append(model.fit(x, np.sin(x[:, 0])).networks_[0].arena.theta)
        assert get_threads() == threads
    np.testing.assert_array_equal(*found)


def test_works_in_pipelines_and_searches():
    x, y = data()
    search = GridSearchCV(TAGIRegressor(**CHOOSING, random_state=0), {"forget": [1.0, 4.0]}, cv=2).fit(x, y)
    assert search.best_params_["forget"] in (1.0, 4.0) and search.best_score_ > 0.2
    pipeline = make_pipeline(PolynomialFeatures(2), TAGIClassifier(**CHOOSING, random_state=0))
    assert pipeline.fit(x, y).score(x, y) > 0.8


def test_others_may_be_made_of_them():
    x, y = data(90)
    z = x[:, 0] + 0.3 * x[:, 1]
    regressor, classifier = TAGIRegressor(**SMALL, random_state=0), TAGIClassifier(**SMALL, random_state=0)
    weights = np.ones(90)
    for model in (
        StackingRegressor([("tagi", regressor), ("linear", Ridge())], cv=2),
        VotingRegressor([("tagi", regressor), ("linear", Ridge())]),
        BaggingRegressor(regressor, 2, random_state=0),
        MultiOutputRegressor(regressor),
        TransformedTargetRegressor(regressor, func=np.arcsinh, inverse_func=np.sinh),
    ):
        targets = np.c_[z, -z] if isinstance(model, MultiOutputRegressor) else z
        assert model.fit(x, targets).score(x, targets) > 0.6, model
    for model in (
        CalibratedClassifierCV(classifier, cv=2),
        StackingClassifier([("tagi", classifier), ("logistic", LogisticRegression())], cv=2),
        OneVsRestClassifier(classifier),
    ):
        assert model.fit(x, y).score(x, y) > 0.85, model
    assert VotingRegressor([("tagi", regressor)]).fit(x, z, sample_weight=weights).score(x, z) > 0.6
    assert CalibratedClassifierCV(classifier, cv=2).fit(x, y, sample_weight=weights).score(x, y) > 0.85
    unseen = cross_val_predict(regressor, x, z, cv=2)
    assert np.corrcoef(unseen, z)[0, 1] > 0.8


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mapie_makes_intervals_of_them():
    regression = pytest.importorskip("mapie.regression", reason="MAPIE is not installed")
    x, _ = data(300)
    y = x[:, 0] + 0.3 * x[:, 1]
    conformal = regression.SplitConformalRegressor(TAGIRegressor(**SMALL, random_state=0), prefit=False)
    conformal.fit(x[:100], y[:100]).conformalize(x[100:200], y[100:200])
    _, intervals = conformal.predict_interval(x[200:])
    inside = (intervals[:, 0, 0] <= y[200:]) & (y[200:] <= intervals[:, 1, 0])
    assert inside.mean() > 0.8


SCORERS = [log_likelihood_scorer, neg_crps_scorer, neg_interval_score_scorer]


def test_scorers_score_what_pipelines_and_searches_end_with():
    x, y = data()
    y = y + 0.3 * x[:, 1]
    alone = TAGIRegressor(**SMALL, random_state=0)
    pipeline = make_pipeline(PolynomialFeatures(2), "passthrough", make_pipeline(PolynomialFeatures(1), alone))
    grid = {"pipeline__tagiregressor__epochs": [1, 20]}
    named = {str(scorer): scorer for scorer in SCORERS}
    search = GridSearchCV(pipeline, grid, scoring=named, refit=str(SCORERS[0]), cv=2, error_score="raise").fit(x, y)
    assert search.score(x, y) == SCORERS[0](search, x, y)
    pipeline.fit(x, y)
    for name, scorer in named.items():
        few, many = search.cv_results_[f"mean_test_{name}"]
        assert np.isfinite(few) and few < many
        assert scorer(search, x, y) == scorer(search.best_estimator_, x, y)
        assert scorer(FrozenEstimator(pipeline), x, y) == scorer(pipeline, x, y)
        assert pickle.loads(pickle.dumps(scorer)) is scorer


def test_scorers_are_means_of_their_scores():
    x, y = data()
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)
    assert log_likelihood_scorer(fitted, x, y) == fitted.log_likelihood(x, y).mean()
    assert neg_crps_scorer(fitted, x, y) == -fitted.crps(x, y).mean()
    low, high = fitted.predict_interval(x, 0.9)
    scores = [u - l + 20 * max(l - k, 0) + 20 * max(k - u, 0) for l, u, k in zip(low, high, y, strict=True)]  # noqa: E741
    assert neg_interval_score_scorer(fitted, x, y) == pytest.approx(-np.mean(scores))
    worse = y + 10.0
    assert all(scorer(fitted, x, worse) < scorer(fitted, x, y) - 1 for scorer in SCORERS)
    for scorer in (*SCORERS, coverage_scorer):
        with pytest.raises(ValueError, match=r"60.* 1\b"):
            scorer(fitted, x, y[:1])
        with pytest.raises(ValueError, match=r"one number for each of 60 samples, got the shape \(1,\)"):
            scorer(fitted, x, y, sample_weight=[1.0])
        with pytest.raises(ValueError, match=r"y contains NaN\. The first one is in row 5: leave out its row"):
            scorer(fitted, x, np.where(np.arange(60) == 5, np.nan, y))


def test_scores_of_weights_and_of_several_targets():
    x, y = data()
    y = y + 0.3 * x[:, 1]
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)
    y[::3] += 3.0
    weights = np.arange(60) % 3
    rows = np.arange(60).repeat(weights)
    both = np.c_[y, 10 * x[:, 2] + y]
    several = TAGIRegressor(**SMALL, random_state=0).fit(x, both)
    parts = several.predict_distribution(x).parts
    for scorer in (*SCORERS, coverage_scorer):
        assert scorer(fitted, x, y, weights) == pytest.approx(scorer(fitted, x[rows], y[rows]))
        assert scorer(fitted, x, y, weights) != pytest.approx(scorer(fitted, x, y))
        scores = []
        for k, part in enumerate(parts):
            alone = copy.copy(fitted)
            alone.predict_distribution = lambda X, part=part: part
            scores.append(scorer(alone, x, both[:, k], weights))
        expected = np.sum(scores) if scorer is log_likelihood_scorer else np.mean(scores)
        assert scorer(several, x, both, weights) == pytest.approx(expected)


def test_coverage_is_the_share_inside():
    x, y = data()
    y = y + 0.3 * x[:, 1]
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)
    low, high = fitted.predict_interval(x, 0.9)
    far = np.where(np.arange(60) < 15, high + 1, (low + high) / 2)
    assert coverage_scorer(fitted, x, far) == 0.75
    assert 0.8 < coverage_scorer(fitted, x, y) <= 1
    found = cross_validate(clone(fitted), x, y, cv=2, scoring={"coverage": coverage_scorer, "crps": neg_crps_scorer})
    assert np.isfinite(found["test_coverage"]).all() and (found["test_crps"] < 0).all()


def test_scorers_refuse_what_has_no_density_of_y():
    x, y = data()
    transformed = TransformedTargetRegressor(TAGIRegressor(**SMALL, random_state=0), func=np.exp, inverse_func=np.log)
    for estimator, message in (
        (transformed, "a TransformedTargetRegressor predicts no distribution"),
        (make_pipeline(PolynomialFeatures(1), transformed), "a TransformedTargetRegressor predicts no distribution"),
        (TAGIClassifier(**SMALL, random_state=0), "neg_log_loss"),
        (Ridge(), "takes a TAGIRegressor, or a Pipeline or a search that ends with one, got Ridge"),
    ):
        estimator.fit(x, y)
        for scorer in SCORERS:
            with pytest.raises(TypeError, match=message):
                scorer(estimator, x, y)


def test_a_pipeline_predicts_standard_deviations_and_quantiles():
    x, y = data()
    pipeline = make_pipeline(PolynomialFeatures(2), TAGIRegressor(**SMALL, random_state=0)).fit(x, y)
    mean, std, quantiles = pipeline.predict(x, return_std=True, quantiles=[0.05, 0.95])
    inside = pipeline[:-1].transform(x)
    np.testing.assert_array_equal((mean, std), pipeline[-1].predict(inside, return_std=True))
    np.testing.assert_allclose(quantiles.T, pipeline[-1].predict_interval(inside, 0.9))


METHODS = {
    TAGIRegressor: ("predict", "predict_interval", "score", "log_likelihood", "crps"),
    TAGIClassifier: ("predict", "predict_proba", "predict_log_proba", "score"),
}


def calls(fitted, x, y):
    """Each method that predicts, called with samples of several sizes, some of them missing."""
    x = np.where(x > 2, np.nan, x)
    found = []
    for n in (1, 7, len(x)):
        for name in METHODS[type(fitted)]:
            with_y = name in ("score", "log_likelihood", "crps")
            found.append(partial(getattr(fitted, name), *((x[:n], y[:n]) if with_y else (x[:n],))))
    return found


@both
def test_progress_is_shown_if_asked_for(kind, capfd):
    x, y = data()
    silent = kind(**SMALL, random_state=0).fit(x, y)
    assert capfd.readouterr() == ("", "")
    shown = kind(**SMALL, random_state=0, verbose=1).fit(x, y)
    assert "2 networks" in capfd.readouterr().err
    np.testing.assert_array_equal(shown.predict(x), silent.predict(x))
    assert not [thread for thread in threading.enumerate() if "tqdm" in type(thread).__module__]


@both
@pytest.mark.filterwarnings("ignore:R.2 score is not well-defined")
def test_any_number_of_threads_predicts_what_one_does(kind):
    x, y = data()
    fitted = kind(**SMALL, random_state=0).fit(x, y)
    some = calls(fitted, x, y) * 8
    expected = [call() for call in some]
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda call: call(), some))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@both
def test_threads_predict_while_another_learns_samples(kind):
    """Each prediction is one of those between two batches; a call that is refused disturbs nobody."""
    x, y = data()
    fitted = kind(**SMALL, random_state=0).fit(x, y)
    online, method = copy.deepcopy(fitted), "predict" if kind is TAGIRegressor else "predict_proba"
    possible = [getattr(online, method)(x)]
    for start in range(0, 60, 16):
        online.partial_fit(x[start : start + 16], y[start : start + 16])
        possible.append(getattr(online, method)(x))
    with ThreadPoolExecutor(3) as executor:
        predictions = [executor.submit(getattr(fitted, method), x) for _ in range(30)]
        for start in range(0, 60, 16):
            with pytest.raises(ValueError, match="NaN"):
                fitted.partial_fit(x, np.full(60, np.nan))
            fitted.partial_fit(x[start : start + 16], y[start : start + 16])
            predictions += [executor.submit(getattr(fitted, method), x) for _ in range(5)]
    assert all(any(np.array_equal(one.result(), other) for other in possible) for one in predictions)


def test_many_short_threads_leave_nothing():
    x, y = data()
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)

    def run(count):
        for _ in range(count):
            thread = threading.Thread(target=fitted.predict, args=(x,))
            thread.start()
            thread.join()

    run(20)
    tracemalloc.start()
    run(20)
    before = tracemalloc.get_traced_memory()[0]
    run(200)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000  # a network of 10 kB for each of 200 threads would be 2 MB
    assert len(locks._locks) < 100


def test_importance_by_threads():
    x, y = data()
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)
    expected = permutation_importance(fitted, x, y, random_state=0).importances
    for scoring in (log_likelihood_scorer, neg_crps_scorer):
        means = permutation_importance(fitted, x, y, scoring=scoring, random_state=0).importances_mean
        assert means[0] > 3 * np.abs(means[1:]).max()
    with parallel_config(backend="threading"):
        found = permutation_importance(fitted, x, y, random_state=0, n_jobs=2).importances
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_amid_predictions_predicts():
    x, y = data()
    fitted = TAGIRegressor(**SMALL, random_state=0).fit(x, y)
    expected, over = fitted.predict(x), threading.Event()

    def serve():
        while not over.is_set():
            fitted.predict(x)

    with ThreadPoolExecutor(2) as executor:
        servers = [executor.submit(serve) for _ in range(2)]
        codes = []
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(0 if np.array_equal(fitted.predict(x), expected) else 1)
            codes.append(os.waitpid(child, 0)[1])
        over.set()
    assert codes == [0] * 5
    assert all(server.result() is None for server in servers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_waits_until_no_thread_compiles():
    from numba.core.compiler_lock import global_compiler_lock

    begun = threading.Event()

    def compiles():
        with global_compiler_lock:
            begun.set()
            time.sleep(0.3)

    with ThreadPoolExecutor(1) as executor:
        compiling = executor.submit(compiles)
        assert begun.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(5)  # ends it if the lock of a thread that is not there were awaited
            with global_compiler_lock:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert compiling.result() is None


@both
def test_calls_of_many_sizes_have_few_sizes_of_batches(kind, monkeypatch):
    x, y = data(600)
    fitted, sizes, predict = kind(**SMALL, random_state=0).fit(x, y), set(), Sequential.predict

    def watched(net, x, batch_size):
        sizes.add(len(x) % batch_size)
        return predict(net, x, batch_size)

    monkeypatch.setattr(Sequential, "predict", watched)
    for size in range(1, 600, 7):
        assert fitted.predict(x[:size]).shape == (size,)
    assert len(sizes) < 60 and {size % 32 for size in sizes if size > 256} <= {0}


@both
@pytest.mark.parametrize("hidden", [(7,), (50, 50), (400,)])
def test_predictions_hardly_depend_on_the_batch_they_stand_in(kind, hidden):
    """Sums of float32 in another order, in batches of another size."""
    x, y = data(600)
    fitted = kind(hidden, epochs=2, n_folds=2, n_seeds=1, random_state=0).fit(x, y)
    if kind is TAGIRegressor:
        mean, std = fitted.predict(x, return_std=True)
        whole, units = np.array([mean, std]), std
    else:
        whole, units = fitted.predict_proba(x).T, np.ones(len(x))
    for size in (1, 2, 3, 17, 63, 64, 511):
        for start in range(0, min(600, 40 * size), size):
            rows = slice(start, start + size)
            part = np.array(fitted.predict(x[rows], True)) if kind is TAGIRegressor else fitted.predict_proba(x[rows]).T
            assert np.abs((part - whole[:, rows]) / units[rows]).max() < 1e-5


@both
@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 2.0},
        {"batch_size": 0.5},
        {"n_folds": 0},
        {"n_seeds": "2"},
        {"hidden_layer_sizes": ""},
        {"hidden_layer_sizes": (8.0,)},
        {"hidden_layer_sizes": ((8,), (8, 8))},
        {"hidden_layer_sizes": [[8], [8]]},
        {"forget": 0.5},
        {"forget": np.inf},
        {"sigma_v": 0},
        {"sigma_v": np.inf},
        {"sigma_v": True},
        {"epochs": True},
        {"hidden_layer_sizes": True},
        {"n_bins": -1},
        {"n_bins": 2.5},
        {"max_time": 0},
        {"max_time": "long"},
    ],
)
def test_parameters_without_meaning_are_named(kind, wrong):
    (name,) = wrong
    with pytest.raises((TypeError, ValueError), match=name):
        kind(**SMALL | wrong).fit(*data())
    learning = kind(**SMALL, random_state=0).partial_fit(*data())
    with pytest.raises((TypeError, ValueError), match=name):
        learning.set_params(**wrong).partial_fit(*data())


@pytest.mark.parametrize("wrong", [{"heteroscedastic": "no"}, {"student_t": 3}])
def test_options_that_are_neither_yes_nor_no_are_named(wrong):
    with pytest.raises(TypeError, match="must be True or False"):
        TAGIRegressor(**SMALL | wrong).fit(*data())


@both
def test_layers_may_be_a_number_or_an_array(kind):
    for sizes in (8, np.array([8]), [np.int64(8)]):
        fitted = kind(**SMALL | {"hidden_layer_sizes": sizes, "epochs": 1, "n_bins": 0}).fit(*data())
        assert fitted.networks_[0].layers[0].output_size == 8


@both
def test_missing_inputs_are_no_error_and_no_knowledge(kind):
    x, y = data(200)
    x[:20, 1] = np.nan
    fitted = kind(**SMALL, random_state=0).fit(x, y)
    known, unknown = np.array([[2.0, 0, 0]]), np.array([[np.nan, 0, 0]])
    if kind is TAGIClassifier:
        sure, unsure = (fitted.predict_proba(place).max() for place in (known, unknown))
        assert sure > 0.9 and unsure < 0.8
    else:
        assert abs(fitted.predict(unknown)[0] - 0.5) < 0.2 < abs(fitted.predict(known)[0] - 0.5)
    with pytest.raises(ValueError, match="infinity"):
        fitted.predict(np.array([[np.inf, 0, 0]]))
    for far in (1e17, -1e20, 1e300):
        with pytest.raises(
            ValueError, match=r"X has .* in row 1, column 2, .* 1e\+15 standard deviations .*: correct it"
        ):
            fitted.predict(np.array([[0, 0, 0], [0, 0, far]]))
    coded = kind(**SMALL, random_state=0).set_params(n_bins=8).fit(x, y)
    for model in (fitted, coded):
        assert np.isfinite(model.predict(np.array([[2e14, 0, 0], [-2e14, 0, 2e14]]))).all()


@both
def test_what_is_masked_is_missing(kind):
    x, y = data()
    masked = np.ma.masked_greater(x, 1)
    with_nan, fitted = (kind(**CHOOSING, random_state=0).fit(some, y) for some in (masked.filled(np.nan), masked))
    np.testing.assert_array_equal(fitted.predict(masked), with_nan.predict(masked.filled(np.nan)))
    with pytest.raises(ValueError, match="y contains NaN"):
        fitted.fit(x, np.ma.masked_equal(y, 1))


@both
@pytest.mark.parametrize("train", ["fit", "partial_fit"])
def test_a_column_without_any_number_is_left_out(kind, train):
    """Its weights stay as they were drawn: values of it that come later would change predictions, by chance."""
    x, y = data()
    fitted = kind(**SMALL, random_state=0)
    with pytest.warns(UserWarning, match=r"columns \[3\] of X hold no number: they are left out"):
        getattr(fitted, train)(np.c_[x, np.full(len(x), np.nan)], y)
    without = fitted.predict(np.c_[x, np.full(len(x), np.nan)])
    np.testing.assert_array_equal(fitted.predict(np.c_[x, np.linspace(-9, 9, len(x))]), without)
    assert np.mean((without > 0.5) == y) > 0.9


@both
def test_sparse_samples_are_made_dense(kind, monkeypatch):
    x, y = data()
    x[x < 0.3] = 0
    expected = kind(**SMALL | {"epochs": 1}, random_state=0).fit(x, y).predict(x)
    for sparse in (csr_array, csc_array, csr_matrix, csc_matrix):
        fitted = kind(**SMALL | {"epochs": 1}, random_state=0).fit(sparse(x), y)
        np.testing.assert_array_equal(fitted.predict(sparse(x)), expected)
        assert fitted.score(sparse(x), y) == fitted.score(x, y)
    pipeline = make_pipeline(OneHotEncoder(), kind(**SMALL, random_state=0))
    assert pipeline.fit(np.sign(x).astype(int), y).score(np.sign(x).astype(int), y) > 0.5
    monkeypatch.setattr(inputs, "memory_limit", lambda: 2000.0)  # of a container
    with pytest.raises(ValueError, match=r"X is sparse, 60 x 3, .* GiB memory. Make fewer columns.* fewer rows"):
        fitted.predict(csr_array(x))


def test_several_labels_of_a_sample_and_documents_get_advice():
    x, _ = data()
    labels = (x > 0).astype(int)
    for y, error in ((labels, ValueError), (csr_array(labels), TypeError)):
        with pytest.raises(error, match=r"A sample has one class: .*MultiOutputClassifier"):
            TAGIClassifier(**SMALL).fit(x, y)
    assert MultiOutputClassifier(TAGIClassifier(**SMALL | {"epochs": 1})).fit(x, labels).predict(x).shape == x.shape
    with pytest.raises(ValueError, match=r"'some words'\. It is in row 0\. .*free text by TfidfVectorizer"):
        TAGIClassifier(**SMALL).fit(["some words"] * len(x), x[:, 0] > 0)


def test_dense_samples_take_as_many_bytes_as_the_limit_assumes():
    x, y = csr_array(np.arange(2_000_000.0).reshape(20_000, 100) % 7), np.arange(20_000.0)
    model = TAGIRegressor(4, epochs=1, n_folds=1, n_seeds=1, n_bins=0, random_state=0).fit(x[:50], y[:50])
    for call in (lambda: model.fit(x, y), lambda: model.predict(x)):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0.9 < peak / (inputs.BYTES * 2_000_000) < 1.1


def test_draws_of_missing_inputs_take_little_memory():
    x = np.random.default_rng(0).normal(size=(20_000, 50))
    model = TAGIRegressor(4, epochs=1, n_folds=1, n_seeds=1, n_bins=0, random_state=0).fit(x[:50], x[:50, 0])
    x[:, 3] = np.nan
    tracemalloc.start()
    mean = model.predict(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * x.size  # 64 draws of all samples are 256 bytes for each entry
    np.testing.assert_allclose(model.predict(x[5000:5100]), mean[5000:5100], rtol=0, atol=1e-5)


@both
def test_bad_input_is_found(kind):
    pandas = pytest.importorskip("pandas")
    x, y = data()
    x[7, 2] = np.inf
    for samples, place in ((x, "row 7, column 2"), (pandas.DataFrame(x, columns=list("abc")), "row 7, column 'c'")):
        for call in (lambda: kind(**SMALL).fit(samples, y), lambda: kind(**SMALL).partial_fit(samples, y)):  # noqa: B023
            with pytest.raises(
                ValueError, match=rf"X contains infinity .*\. The first one is in {place}: leave out its"
            ):
                call()
    integers = pandas.array([None] + 59 * [7], dtype="Int64")
    with pytest.raises(ValueError, match=r"The first one is in row 7, column 'c'"):
        kind(**SMALL).fit(pandas.DataFrame({"a": x[:, 0], "b": integers, "c": x[:, 2]}), y)
    x[7, 2] = 0
    with pytest.raises(ValueError, match=r"X has 1e\+300 in row 1, column 'b', which is more than"):
        named = kind(**SMALL).fit(pandas.DataFrame(x, columns=list("abc")), y)
        named.predict(pandas.DataFrame([[0, 0, 0], [0, 1e300, 0]], columns=list("abc")))
    estimator = kind(**SMALL)
    with pytest.raises(ValueError, match=r"y contains NaN\. The first one is in row 5: leave out its row"):
        estimator.fit(x, np.where(np.arange(60) == 5, np.nan, y))
    missing = np.arange(60) == 5
    objects = pandas.Series(np.where(missing, None, y))
    named = pandas.Series(np.where(y > 0, "yes", "no")).where(~missing)
    some = [objects, objects.to_numpy(), objects.tolist(), objects.astype("Int64")]
    if kind is TAGIClassifier:
        some += [named, named.astype("string"), named.astype("category"), np.where(missing, None, named)]
        with pytest.raises(ValueError, match=r"Unknown label type.*\. Give classes of one type: y\.astype\(int\)"):
            estimator.fit(x, y.astype(object))
        with pytest.raises(TypeError, match=r"'int' and 'str'\. Give classes of one type: .*y\.astype\(str\)$"):
            estimator.fit(x, np.array(["a", 1] * 30, object))
        with pytest.raises(ValueError, match=r"needs at least two classes, y has 1 class: 'a'"):
            estimator.fit(x, ["a"] * 60)
    for targets in some:
        with pytest.raises(ValueError, match=r"y contains NaN\. The first one is in row 5: leave out its row"):
            estimator.fit(x, targets)
    with pytest.raises(ValueError, match=r"'red'\. It is in row 3, column 1\. Name columns .*OneHotEncoder.*Function"):
        estimator.fit([[1, "red" if k == 3 else 2] for k in range(60)], y)
    with pytest.raises(ValueError, match=r"'red'\. It is in row 3, column 1\. Name columns"):
        estimator.fit(np.array([[1, "red" if k == 3 else 2.0] for k in range(60)], object), y)
    with pytest.raises(TypeError, match=r"'NAType'\. It is in row 3, column 1\. Write NaN, which is a missing value"):
        estimator.fit(np.array([[1, pandas.NA if k == 3 else 2.0] for k in range(60)], object), y)
    with pytest.raises(TypeError, match=r"'when' \(datetime64.*\. Name columns .*, and dates by a FunctionTransformer"):
        estimator.fit(pandas.DataFrame({"a": x[:, 0], "when": pandas.date_range("2020", periods=60)}), y)
    assert vars(estimator).keys() == kind(**SMALL).__dict__.keys()


@both
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), r"one number for each of 60 samples, got the shape \(59,\)"),
        (np.ones((60, 2)), r"got the shape \(60, 2\)"),
        (np.r_[np.ones(40), -1, np.ones(19)], "at least 0, got -1.0 in row 40"),
        (np.r_[np.nan, np.ones(59)], "finite numbers of at least 0, got nan in row 0"),
        (np.zeros(60), "all weights are zero"),
        (np.eye(60)[3], r"at least 2 samples \(with a weight above 0\), got 1"),
    ],
)
def test_weights_without_meaning_are_refused(kind, weights, message):
    x, y = data()
    estimator = kind(**SMALL)
    with pytest.raises(ValueError, match=message if kind is TAGIRegressor else f"{message}|1 class"):
        estimator.fit(x, y, sample_weight=weights)
    assert not hasattr(estimator, "networks_")


@both
@pytest.mark.parametrize("train", ["fit", "partial_fit"])
def test_samples_of_weight_zero_are_left_out(kind, train):
    x, y = data()
    weights = (np.arange(60) % 3 > 0) * 2.0
    x[3], kept = 1e6, weights > 0  # a sample that scales would show
    one, other = kind(**CHOOSING, random_state=0), kind(**CHOOSING, random_state=0)
    getattr(one, train)(x, y, sample_weight=weights)
    getattr(other, train)(x[kept], y[kept], sample_weight=weights[kept])
    np.testing.assert_array_equal(one.predict(x[kept]), other.predict(x[kept]))
    plain = getattr(kind(**CHOOSING, random_state=0), train)(x[kept], y[kept])
    ones = getattr(kind(**CHOOSING, random_state=0), train)(x[kept], y[kept], sample_weight=np.ones(40))
    method = "predict" if kind is TAGIRegressor else "predict_proba"
    np.testing.assert_array_equal(getattr(plain, method)(x[kept]), getattr(ones, method)(x[kept]))
    assert np.abs(getattr(one, method)(x[kept]) - getattr(plain, method)(x[kept])).max() > 1e-3


def test_weights_that_sum_to_1_leave_no_evidence():
    share, learnt = np.full(60, 1 / 60), np.ones(60)
    with pytest.warns(UserWarning, match=r"sums to 1, and 60 samples count as so few .* give w / w\.mean\(\)"):
        np.testing.assert_array_equal(sample_weights(share, 60), share)
    sample_weights(share, 60, learnt=False)
    with pytest.warns(UserWarning, match=r"sums to 3, and 300 samples"):  # as 1/(samples of the class)
        sample_weights(np.full(300, 0.01), 300)
    with pytest.warns(UserWarning, match=r"so many observations: steps overshoot"):
        sample_weights(np.full(60, 1e3), 60)
    sample_weights(np.where(np.arange(60) < 3, learnt, 0), 60)
    sample_weights(0.01, 1)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pytagi-ddp\[sklearn\]'"):
        importlib.reload(estimators)


@both
def test_an_estimator_of_version_0_2_0_goes_on(kind):
    """Its pickle has none of the attributes that came later; its classes are paths in a tree."""
    x, y = data()
    later = {"n_bins", "categorical_features", "max_time", "likelihood", "_categories", "_tree", "_empty"}
    known = {"sigma_v": 0.5} if kind is TAGIClassifier else {}
    model = kind(**SMALL | {"n_bins": 0}, **known, random_state=0).fit(x, y)
    old = kind.__new__(kind)
    state = pickle.loads(pickle.dumps(model)).__getstate__()
    if kind is TAGIRegressor:
        state |= {"_y_mean": model._y_mean[0], "_y_std": model._y_std[0]}
    old.__setstate__({name: value for name, value in state.items() if name not in later})
    assert later.isdisjoint(vars(old))
    np.testing.assert_array_equal(old.predict(x), model.predict(x))
    np.testing.assert_array_equal(old.partial_fit(x, y).predict(x), model.partial_fit(x, y).predict(x))
    assert clone(old).get_params()["n_bins"] == 0 and not hasattr(clone(old), "networks_")


def test_learnt_noise_of_version_0_2_0_predicts():
    """Its pickle has no limits of the noise, which change nothing at these samples."""
    x, y = data()
    model = TAGIRegressor(**SMALL | {"n_bins": 0}, random_state=0).fit(x, y)
    known = model.predict(x, return_std=True)
    for owner, later in (
        (model.noise_, ("limits", "complete", "of_others", "within")),
        (model.noise_.features, ("most", "most_spread")),
    ):
        for name in later:
            del vars(owner)[name]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x, return_std=True), known)


def test_scorers_are_given_weights_by_metadata_routing():
    rng, odd = np.random.default_rng(0), np.arange(200) % 2
    x = rng.normal(size=(200, 2))
    y = x[:, 0] + np.where(odd, 3.0, 0.1) * rng.normal(size=200)
    weights = np.where(odd, 0.0, 1.0)
    options = {"epochs": 5, "n_folds": 2, "n_seeds": 1, "n_bins": 0, "random_state": 0}
    asking = log_likelihood_scorer.set_score_request(sample_weight=True)
    assert repr(pickle.loads(pickle.dumps(asking))) == repr(asking)
    with config_context(enable_metadata_routing=True):
        regressor = TAGIRegressor(10, **options).set_fit_request(sample_weight=True)
        given = {"cv": 2, "params": {"sample_weight": weights}, "error_score": "raise"}
        with pytest.raises(ValueError, match="sample_weight"):
            cross_validate(regressor, x, y, scoring=log_likelihood_scorer, **given)
        found = cross_validate(regressor, x, y, scoring=asking, return_estimator=True, return_indices=True, **given)
        unweighted = log_likelihood_scorer.set_score_request(sample_weight=False)
        plain = cross_validate(regressor, x, y, scoring=unweighted, **given)["test_score"]
    for score, other, model, rows in zip(
        found["test_score"], plain, found["estimator"], found["indices"]["test"], strict=True
    ):
        assert score == log_likelihood_scorer(model, x[rows], y[rows], weights[rows])
        assert other == log_likelihood_scorer(model, x[rows], y[rows]) < score - 1

"""Metrics against hand-made numbers and scipy."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm

from pytagi_ddp import metric
from pytagi_ddp.metric import HRCSoftmaxMetric

PREDICTION = np.array([1.0, 2.0, 3.0, 4.0])
OBSERVATION = np.array([1.0, 4.0, np.nan, 3.0])


def test_squared_errors_skip_missing_observations():
    assert metric.mse(PREDICTION, OBSERVATION) == pytest.approx(5 / 3)
    assert metric.rmse(PREDICTION, OBSERVATION) == pytest.approx(math.sqrt(5 / 3))


@pytest.mark.parametrize("observation", [[], [np.nan, np.nan]])
def test_there_is_no_mean_of_nothing(observation):
    prediction = np.zeros(len(observation))
    for measure in (metric.mse, metric.rmse, partial(metric.log_likelihood, std=1.0)):
        with pytest.warns(RuntimeWarning, match="no observation to take the mean over"):
            assert math.isnan(measure(prediction, observation))
    assert metric.log_likelihood(prediction, observation, 1.0, "sum") == 0


def test_log_likelihood_is_the_gaussian_one():
    std = np.array([0.5, 1.0, 2.0, 3.0])
    expected = norm.logpdf(OBSERVATION, PREDICTION, std)
    assert metric.log_likelihood(PREDICTION, OBSERVATION, std) == pytest.approx(np.nanmean(expected))
    assert metric.log_likelihood(PREDICTION, OBSERVATION, std, "sum") == pytest.approx(np.nansum(expected))
    one_std = norm.logpdf(OBSERVATION, PREDICTION, 2.0)
    assert metric.log_likelihood(PREDICTION, OBSERVATION, 2.0) == pytest.approx(np.nanmean(one_std))
    for std in (1e-200, 1e200):  # whose squares are not numbers of float64 any more
        assert metric.log_likelihood([0.0], [0.0], std) == pytest.approx(norm.logpdf(0, 0, std))
    with pytest.raises(ValueError, match="'median'"):
        metric.log_likelihood(PREDICTION, OBSERVATION, std, reduction="median")


def test_a_column_and_a_row_are_compared_element_by_element():
    assert metric.mse(PREDICTION[:, None], OBSERVATION) == pytest.approx(5 / 3)
    assert metric.log_likelihood(PREDICTION, OBSERVATION[:, None], np.ones(4)) == pytest.approx(
        metric.log_likelihood(PREDICTION, OBSERVATION, 1.0)
    )


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"prediction of shape \(3,\) .* observations of shape \(4,\)"):
        metric.mse(PREDICTION[:3], OBSERVATION)
    with pytest.raises(ValueError, match=r"std of shape \(2,\)"):
        metric.log_likelihood(PREDICTION, OBSERVATION, np.ones(2))
    with pytest.raises(ValueError, match="3 predictions and 2 labels"):
        metric.classification_error(np.array([1, 2, 3]), np.array([1, 2]))
    with pytest.raises(ValueError, match="0 predictions"):
        metric.classification_error(np.array([]), np.array([]))


def test_integers_of_few_bits_do_not_wrap_around():
    assert metric.mse(np.uint8([10]), np.uint8([200])) == 190**2
    assert metric.rmse(np.int32([10**5]), np.int32([-(10**5)])) == 2 * 10**5
    expected = norm.logpdf(200, 10, 100)
    assert metric.log_likelihood(np.uint8([10]), np.uint8([200]), 100) == pytest.approx(expected)


def test_a_table_that_lies_the_other_way_round_does_not_fit():
    table = np.arange(6.0).reshape(2, 3)
    assert metric.mse(table.ravel(), table) == metric.mse(table, table.ravel()) == metric.mse(table[None], table) == 0
    with pytest.raises(ValueError, match=r"prediction of shape \(3, 2\) does not fit observations of shape \(2, 3\)"):
        metric.mse(table.T, table)


def test_images_in_another_order_do_not_fit():
    images = np.arange(48.0).reshape(8, 2, 3)
    for shape in ((8, 6), (16, 3), (48,), (8, 1, 6), (8, 2, 3, 1)):
        assert metric.mse(images.reshape(shape), images) == metric.mse(images, images.reshape(shape)) == 0
    with pytest.raises(ValueError, match=r"of shape \(6, 8\) does not fit observations of shape \(8, 2, 3\)"):
        metric.mse(images.reshape(8, 6).T, images)


def test_classification_error_is_the_share_of_wrong_classes():
    assert metric.classification_error(np.array([1, 2, 3, 4]), np.array([1, 2, 2, 4])) == 0.25
    assert metric.classification_error(np.array([[1], [2]]), np.array([1, 2])) == 0.0
    assert metric.classification_error(np.array(["a", "b"]), np.array(["a", "c"], object)) == 0.5
    with pytest.raises(TypeError, match="predictions of <U1 and labels of int64 are never equal"):
        metric.classification_error(np.array(["1", "2"]), np.array([1, 2]))


@pytest.mark.parametrize("num_classes", [2, 7, 10, 100])
def test_a_network_that_says_the_label_is_never_wrong(num_classes):
    scorer = HRCSoftmaxMetric(num_classes)
    tree = scorer.hrc_softmax
    labels = np.random.default_rng(num_classes).integers(0, num_classes, 20)
    obs, idx, num_obs = scorer.utils.label_to_obs(labels, num_classes)
    mean = np.zeros((20, tree.len), np.float32)
    np.put_along_axis(mean, idx.reshape(20, num_obs) - 1, obs.reshape(20, num_obs), axis=1)
    var = np.full_like(mean, 0.01)
    np.testing.assert_array_equal(scorer.get_predicted_labels(mean.ravel(), var.ravel()), labels)
    assert scorer.error_rate(mean, var, labels) == 0.0
    wrong = labels.copy()
    wrong[:5] = (wrong[:5] + 1) % num_classes
    assert scorer.error_rate(mean.ravel(), var.ravel(), wrong) == 0.25


def test_outputs_of_another_width_are_named():
    with pytest.raises(ValueError, match="25 means do not fit 2 samples of 11"):
        HRCSoftmaxMetric(10).get_predicted_labels(np.zeros(25), np.ones(25))
    with pytest.raises(ValueError, match="2 predictions and 3 labels"):
        HRCSoftmaxMetric(10).error_rate(np.zeros(22), np.ones(22), np.arange(3))


PROBABILITIES = np.array([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65], [0.25, 0.75]])


def test_calibration_is_compared_in_bins_of_confidence():
    confidence, accuracy, count = metric.reliability_bins(PROBABILITIES, np.array([0, 1, 1, 1]), bins=5)
    np.testing.assert_allclose([confidence, accuracy, count], [[0.7, 0.95], [1, 0.5], [2, 2]])
    assert metric.calibration_error(PROBABILITIES, [0, 1, 1, 1], bins=5) == pytest.approx((0.3 + 0.45) / 2)
    assert metric.calibration_error(np.eye(3), np.arange(3)) == 0  # a confidence of 1 is in the last bin
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 20000)
    label = (p.cumsum(1) > rng.random((20000, 1))).argmax(1)  # drawn from the probabilities
    error = metric.calibration_error(p, label)
    assert error < 0.02
    assert metric.calibration_error(p.reshape(200, 100, 3), label.reshape(200, 100)) == error  # a class for each pixel
    assert metric.calibration_error(p**4 / (p**4).sum(1, keepdims=True), label) > 0.1
    with pytest.raises(ValueError, match=r"got \(4, 2\), 3 and 10"):
        metric.calibration_error(PROBABILITIES, [0, 1, 1])
    with pytest.raises(ValueError, match=r"confidences from 1.3 to 1.9; divide"):
        metric.calibration_error(2 * PROBABILITIES, [0, 1, 1, 1])


def test_entropy():
    np.testing.assert_allclose(metric.entropy([[1, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]), np.log([1, 4, 2]))
    for wrong in (-0.1, np.nan):
        with pytest.raises(ValueError, match=f"probabilities from {wrong}"):
            metric.entropy([0.5, wrong])
    with pytest.raises(ValueError, match=r"probabilities from 0\.5 to 1\.5; divide means"):
        metric.entropy([0.5, 1.5])  # what a ClosedFormSoftmax may give; ln 1.5 > 0 would be taken off
    with pytest.raises(ValueError, match=r"sums from 1 to 1\.8; give those of the class 1 of two"):
        metric.entropy([[0.9, 0.9], [0.5, 0.5]])


def test_mutual_information_is_that_of_draws_that_disagree():
    draws = np.array([[1, 0.5, 0.9], [0, 0.5, 0.9]])  # certain and different, uncertain, the same
    expected = [np.log(2), 0, 0]
    np.testing.assert_allclose(metric.mutual_information(draws), expected, atol=1e-12)
    np.testing.assert_allclose(metric.mutual_information(np.stack([1 - draws, draws], -1)), expected, atol=1e-12)
    p = np.random.default_rng(0).dirichlet([1] * 4, (5, 50))
    assert (metric.mutual_information(np.repeat(p[:1], 5, 0)) >= 0).all()
    for wrong in (draws[0], p[:0]):
        with pytest.raises(ValueError, match=r"shape \(draws, n, classes\)"):
            metric.mutual_information(wrong)


def test_one_column_has_the_probabilities_of_the_class_1():
    column, label = PROBABILITIES[:, 1:], np.array([0, 1, 1, 1])
    np.testing.assert_allclose(metric.entropy(column), metric.entropy(PROBABILITIES))
    assert metric.calibration_error(column, label) == pytest.approx(metric.calibration_error(PROBABILITIES, label))
    with pytest.raises(ValueError, match="probabilities are from 0 to 1"):
        metric.calibration_error([[1.5]], [1])


def test_a_column_may_exceed_1_by_rounding():
    np.testing.assert_allclose(metric.entropy(np.nextafter(np.float32([[1]]), 2)), 0, atol=1e-6)
    with pytest.raises(ValueError, match="probabilities are from 0 to 1"):
        metric.entropy([[1.5]])


def test_probabilities_of_few_bits_count_as_they_are():
    p = np.random.default_rng(0).dirichlet([0.1] * 3, 100).astype(np.float16)
    label, exact = np.zeros(100, int), p.astype(np.float64)
    np.testing.assert_array_equal(metric.entropy(p), metric.entropy(exact))
    for bins in range(1, 30):
        assert metric.calibration_error(p, label, bins) == metric.calibration_error(exact, label, bins)


def test_auroc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 9, 50), rng.integers(3, 12, 70)  # with equal ones
    pairs = high[:, None] - low
    assert metric.auroc(low, high) == pytest.approx(np.mean(pairs > 0) + np.mean(pairs == 0) / 2)
    assert metric.auroc([1, 2], [3]) == 1 and metric.auroc([3], [1, 2]) == 0 and metric.auroc([1, 1], [1]) == 0.5
    with pytest.raises(ValueError, match="got 0 and 1 scores"):
        metric.auroc([], [1])
    with pytest.raises(ValueError, match="compares numbers"):
        metric.auroc([np.nan], [1])


def test_auroc_refuses_scores_and_labels():
    p, y = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    assert metric.auroc(p[y == 0], p[y == 1]) == 0.75
    for arguments in ((p, y), (y, p), (y == 1, p)):
        with pytest.raises(ValueError, match=r"give auroc\(p\[y == 0\], p\[y == 1\]\)"):
            metric.auroc(*arguments)
    assert metric.auroc([0, 0, 0, 0], p) == 1 and metric.auroc([0, 1], p) == 0.5  # scores
    assert metric.auroc([False, True], [True, True]) == 0.75
    assert metric.auroc([0, 1, 0, 0], y) == 0.625


def test_a_prediction_that_is_missing_is_not_left_out():
    assert np.isnan(metric.rmse([np.nan, 1.0], [5.0, 1.0]))
    assert metric.rmse([7.0, 1.0], [np.nan, 1.0]) == 0
    with pytest.raises(ValueError, match="standard deviations above 0"):
        metric.log_likelihood([0.0, 1.0], [0.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize("label", [[1, 2], ["a", "b"], [0.0, 1.0], [-1, 0]])
def test_labels_that_are_no_numbers_of_columns(label):
    with pytest.raises(ValueError, match="integers from 0 to 1, got"):
        metric.calibration_error(np.array([[0.2, 0.8], [0.7, 0.3]]), label)


def test_calibration_of_missing_labels_says_how_to_leave_them_out():
    for label, advice in (([-1, 0], r"-1 is a missing label; give p\[y >= 0\], y\[y >= 0\]"), ([1, 2], "searchsorted")):
        with pytest.raises(ValueError, match=advice):
            metric.calibration_error(np.array([[0.2, 0.8], [0.7, 0.3]]), label)

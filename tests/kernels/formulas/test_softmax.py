"""Class activations over wide ranges of means and variances, against float64."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import attention, softmax
from pytagi_ddp.kernels.tensors import Delta, State
from tests.nn import reference_activation

KERNELS = {"softmax": "Softmax", "remax": "Remax", "closed_form_softmax": "ClosedFormSoftmax"}
# standard deviation of the means over the classes, largest variance of a class
SPREADS = [(1, 1), (3, 1), (3, 5), (3, 0.01), (10, 0.1), (1, 1e-4), (20, 1)]


def moments(kernel, m, s):
    m, s = (np.array(np.broadcast_to(a, np.shape(m)), np.float32) for a in (m, s))
    ours = State(*(np.empty_like(m) for _ in range(3)))
    getattr(softmax, kernel)(State(m, s), ours)
    return ours


def inputs(spread, variance, classes=10):
    """Small enough for the loops of one thread: those of many are not compiled only for this."""
    rng = np.random.default_rng(0)
    m = rng.normal(0, spread, (5000 // classes, classes)).astype(np.float32)
    return m, (variance * rng.uniform(0.1, 1, m.shape)).astype(np.float32)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("spread", "variance"), SPREADS)
def test_accuracy(kernel, spread, variance):
    """Means to 2e-5 of themselves; variances and Jacobians to 5e-6 of the largest: 1 - a and log-variances cancel."""
    m, s = inputs(spread, variance)
    ours = moments(kernel, m, s)
    exact = reference_activation.moments(KERNELS[kernel], m.astype(float), s.astype(float))
    assert (np.abs(ours[0] - exact[0]) / np.maximum(exact[0], 1e-30)).max() < 2e-5
    for got, want in zip(ours[1:], exact[1:], strict=True):
        assert np.abs(got - want).max() < 5e-6 * np.abs(want).max()


@pytest.mark.parametrize("kernel", ["softmax", "remax"])
@pytest.mark.parametrize("classes", [1, 2, 1000])
def test_means_sum_to_one(kernel, classes):
    mean, _, _ = moments(kernel, *inputs(3, 1, classes))
    np.testing.assert_allclose(mean.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["softmax", "closed_form_softmax"])
@pytest.mark.parametrize("shift", [-1000, 40, 90, 1000])
def test_a_shift_of_all_means_changes_nothing(kernel, shift):
    """Also where e^m itself would overflow or vanish."""
    m, s = inputs(3, 1)
    m = np.round(m * 64) / 64  # so that m + shift is exact
    for got, want in zip(moments(kernel, m + shift, s), moments(kernel, m, s), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("variance", [0, 1e-38, 1e-20, 1e-6, 1, 25])
def test_no_nan_and_no_negative_variance(kernel, variance):
    m = np.float32([[0, 1, 2], [-100, 0, 100], [5, 5, 5], [-50, -50, -50], [1000, 0, 0], [-3e4, -1e-30, 0]])
    mean, var, jcb = moments(kernel, m, variance)
    assert np.isfinite(mean).all() and np.isfinite(var).all() and np.isfinite(jcb).all()
    assert var.min() >= 0 and mean.min() >= 0


@pytest.mark.parametrize("kernel", ["softmax", "closed_form_softmax"])
def test_without_variance_both_are_the_softmax(kernel):
    m, _ = inputs(2, 1)
    mean, var, jcb = moments(kernel, m, 0)
    a = np.exp(m.astype(float)) / np.exp(m.astype(float)).sum(1, keepdims=True)
    np.testing.assert_allclose(mean, a, rtol=2e-6)
    np.testing.assert_array_equal(var, 0)
    np.testing.assert_allclose(jcb, a * (1 - a), rtol=1e-5)


def test_remax_without_variance_is_the_ratio_and_passes_nothing_back():
    mean, _, jcb = moments("remax", np.float32([[1, 2, 5], [-1, 0, 4]]), 0)
    np.testing.assert_allclose(mean[0], [1 / 8, 2 / 8, 5 / 8], rtol=1e-5)
    np.testing.assert_allclose(mean[1], [0, 0, 1], atol=2e-6)
    np.testing.assert_array_equal(jcb, 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_in_place_and_apart_are_the_same(kernel):
    m, s = inputs(2, 1)
    apart = moments(kernel, m, s)
    jcb = np.empty_like(m)
    getattr(softmax, kernel)(State(m, s), State(m, s, jcb))
    for got, want in zip((m, s, jcb), apart, strict=True):
        np.testing.assert_array_equal(got, want)


def test_shares_of_attention_are_those_of_remax():
    m, s = inputs(2, 1)
    mean, var, _ = moments("remax", m, s)
    slopes = Delta(np.empty_like(m), np.empty_like(m))
    attention.remax(State(m, s), slopes, 1.0, False)
    np.testing.assert_allclose(m, mean, rtol=1e-5)
    np.testing.assert_allclose(s, var, rtol=1e-4, atol=1e-9)

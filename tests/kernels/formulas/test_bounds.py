"""NaN is carried by every formula: a network that has diverged must not look finite."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import attention, batch_norm, softmax, step
from pytagi_ddp.kernels.formulas import lstm
from pytagi_ddp.kernels.tensors import Delta, State, Sums, Tensor
from tests.kernels.formulas.test_activation import KERNELS, moments

NAN = np.float32(np.nan)


def units(*shape):
    """Moments of units, all different."""
    n = int(np.prod(shape))
    return State(*np.float32([np.linspace(-3, 3, n), np.linspace(0.1, 2, n)]).reshape(2, *shape))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("moment", [0, 1])
def test_activations(kernel, moment):
    """Of a mean into the mean, of a variance into the variance, of its own unit alone."""
    for place in (9, 12, 16):  # of positive means, as ReLU gives 0 for negative ones
        x = units(17)
        x[moment][place] = NAN
        out = np.stack(moments(kernel, x.mu, x.var)[:2])
        assert np.isnan(out[moment, place])
        assert np.isfinite(np.delete(out, place, axis=1)).all()


@pytest.mark.parametrize("kernel", ["softmax", "remax", "closed_form_softmax"])
@pytest.mark.parametrize("place", [0, 2])
def test_classes(kernel, place):
    """A mean reaches all classes of its sample, through their total; no other sample."""
    x, out = units(3, 5), State(*np.empty((3, 3, 5), np.float32))
    x.mu[1, place] = NAN
    getattr(softmax, kernel)(x, out)
    for moment in out:
        assert np.isnan(moment[1]).all() and np.isfinite(moment[[0, 2]]).all()


@pytest.mark.parametrize("kernel", ["softmax", "remax", "closed_form_softmax"])
def test_variance_of_a_class(kernel):
    x, out = units(3, 5), State(*np.empty((3, 3, 5), np.float32))
    x.var[1, 2] = NAN
    getattr(softmax, kernel)(x, out)
    assert np.isnan(out.var[1, 2]) and np.isfinite(np.stack(out)[:, [0, 2]]).all()


@pytest.mark.parametrize("moment", [0, 1])
def test_shares_of_attention(moment):
    scores, slopes = units(4, 4), Delta(*np.empty((2, 4, 4), np.float32))
    scores[moment][2, 1] = NAN
    attention.remax(scores, slopes, 0.7, False)
    assert np.isnan(scores.mu[2]).all() and np.isnan(scores.var[2]).all()
    assert np.isfinite(np.delete(np.stack(scores[:2]), 2, axis=1)).all()


def test_pooled_statistics():
    sums = Sums(np.float32([4]), np.float32([NAN, 1, 2, 3]), np.float32([9, NAN, 9, 9]))
    mean, var = np.empty((2, 4), np.float32)
    batch_norm.pooled_statistics(np.zeros(4, np.float32), sums, mean, var)
    np.testing.assert_array_equal(np.isnan(mean), [True, False, False, False])
    np.testing.assert_array_equal(np.isnan(var), [True, True, False, False])


@pytest.mark.parametrize("rate", [0, 0.1])
@pytest.mark.parametrize("field", range(4))
def test_a_parameter_keeps_its_value(field, rate):
    """The step reports what is not finite; nothing is bounded to a number before it looks. Sums stop the whole step."""
    tensor = Tensor(*np.float32([[1, 2, 3], [1, 1, 1], [0.1, 0.1, 0.1], [-0.1, -0.1, -0.1]]))
    tensor[field][1] = NAN
    before, counts = np.stack(tensor), np.zeros((2, 1), np.int32)
    step.step(tensor, np.float32([1, 2, 1, rate]), *np.int32([[0], [3], [1]]), *np.float32([[5], [3]]), *counts)
    np.testing.assert_array_equal(np.stack(tensor)[:, 1], before[:, 1])
    assert counts.tolist() == [[0], [1]]
    assert ((np.stack(tensor)[:2, [0, 2]] != before[:2, [0, 2]]) == (field < 2)).all()


def test_gain_of_a_smoother():
    assert np.isnan(lstm.smoother_gain(np.float32(1), NAN))
    assert lstm.smoother_gain(np.float32(1), np.float32(-1)) == pytest.approx(1e5)


def test_moments_of_gates():
    """The variance j^2 s is limited to j."""
    for s, limited in ((0, 0), (1, 0.01), (10, 0.1), (100, 0.1), (1e30, 0.1)):
        var, slope = lstm.bounded(np.float32(s), np.float32(0.1))
        assert var == pytest.approx(limited, rel=1e-6) and slope**2 * s == pytest.approx(limited, rel=1e-6)
    assert lstm.bounded(np.float32(9), np.float32(0)) == (0, 0)
    for s, j in ((NAN, 0.1), (9, NAN)):
        assert np.isnan(lstm.bounded(np.float32(s), np.float32(j))).all()

"""What a network accepts as input, and the errors that name what is wrong."""

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import randomise

X = np.random.default_rng(0).integers(-8, 8, (3, 4)).astype(np.float32)  # exact in every type below
VAR = np.abs(X) / 4 + 0.25


@pytest.fixture
def net() -> nn.Sequential:
    return randomise(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))


FORMS = {
    "float64": lambda a: a.astype(np.float64),
    "float16": lambda a: a.astype(np.float16),
    "big-endian": lambda a: a.astype(">f4"),
    "flat": lambda a: a.reshape(-1),
    "more dimensions": lambda a: a.reshape(3, 1, 2, 2),
    "Fortran order": np.asfortranarray,
    "every second column": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "backwards in memory": lambda a: a[::-1].copy()[::-1],
    "transposed memory": lambda a: a.T.copy().T,
    "read-only": lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    "list": lambda a: a.tolist(),
    "masked array": np.ma.masked_array,
    "memory map": lambda a: np.asarray(memoryview(a)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_any_type_stride_and_shape(net, form):
    expected = net(X, VAR)
    for mu_x, var_x in ((form(X), VAR), (X, form(VAR)), (form(X), form(VAR))):
        for got, want in zip(net(mu_x, var_x), expected, strict=True):
            np.testing.assert_array_equal(got, want)
            assert (got.dtype, got.shape) == (np.float32, (6,))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8, bool])
def test_integers_and_booleans(net, kind):
    x = np.abs(X).astype(kind)
    np.testing.assert_array_equal(net(x)[0], net(x.astype(np.float32))[0])


def test_keywords(net):
    expected = net(X, VAR)
    for got in (net(mu_x=X, var_x=VAR), net.forward(var_x=VAR, mu_x=X), net.forward(X, VAR)):
        np.testing.assert_array_equal(got[0], expected[0])


def test_zero_variance_is_no_variance(net):
    for got, want in zip(net(X, np.zeros_like(X)), net(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_results_are_the_callers(net):
    """Fresh arrays: the next forward pass leaves them alone, and writing to them harms nothing."""
    first = net(X)
    kept = [np.array(a) for a in first]
    second = net(2 * X)
    for got, want in zip(first, kept, strict=True):
        np.testing.assert_array_equal(got, want)
    second[0][:] = np.nan
    assert np.isfinite(net.get_outputs()[0]).all()


def test_a_changed_input_does_not_reach_the_backward_pass(net):
    """The first layer needs its input again; it keeps a copy."""
    deltas = []
    for spoil in (False, True):
        x = X.copy()
        net(x)
        if spoil:
            x[:] = 1e6
        net.set_delta_z(np.ones(6), -np.ones(6))
        net.backward()
        deltas.append(np.array(net.layers[0].delta_mu_w))
    np.testing.assert_array_equal(*deltas)


@pytest.mark.parametrize(
    ("mu_x", "var_x", "message"),
    [
        (np.zeros(7), None, "mu_x holds 7 values, not a whole number of samples of 4 inputs"),
        (np.zeros(0), None, "mu_x holds 0 values"),
        (X, np.zeros(8), "var_x must hold 12 values, got 8"),
        (X, 0.1, "var_x must hold 12 values, got 1"),
        ([1, 2, np.nan, np.inf], None, "mu_x: 2 of 4 values are NaN or infinite"),
        ([1, 2, 3, 1e300], None, "mu_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, np.nan, 1, 1], "var_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, np.inf, 1, 1], "var_x: 1 of 4 values are NaN or infinite"),
        (np.zeros(4), [1, -0.5, 1, 1], "var_x holds variances and must not be negative, the smallest is -0.5"),
    ],
)
def test_bad_values(net, mu_x, var_x, message):
    with pytest.raises(ValueError, match=message):
        net(mu_x, var_x)
    net.eval()
    with pytest.raises(ValueError, match=message.replace("mu_x", "(mu_x|x)")):
        net.predict(mu_x, var_x=var_x) if np.size(mu_x) else net(mu_x)


@pytest.mark.parametrize("wrong", [None, "text", X.astype(complex), X.astype(object), [[1, 2], [3]]])
def test_what_holds_no_numbers(net, wrong):
    with pytest.raises((TypeError, ValueError), match=r"real numbers|inhomogeneous"):
        net(wrong)


def test_a_refused_input_leaves_the_last_forward_pass(net):
    net(X)
    with pytest.raises(ValueError, match="7 values"):
        net(np.zeros(7))
    net.set_delta_z(np.ones(6), -np.ones(6))
    net.backward()
    assert np.abs(net.layers[0].delta_mu_w).max() > 0


def test_images_may_come_flat_or_shaped():
    net = randomise(nn.Sequential(nn.Conv2d(3, 2, 2, in_width=4, in_height=3)))
    x = np.random.default_rng(1).normal(size=(5, 3, 3, 4))
    np.testing.assert_array_equal(net(x)[0], net(x.reshape(-1))[0])
    with pytest.raises(ValueError, match="mu_x holds 35 values, not a whole number of samples of 36 inputs"):
        net(np.zeros(35))


# -- predict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 1000])
def test_predict_by_batches_equals_one_forward_pass(batch_size):
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm2d(3), nn.Linear(3, 2))
    x = np.random.default_rng(2).normal(size=(7, 4))
    var = np.full((7, 4), 0.3)
    net(x)
    mu, s = net.predict(x, batch_size, var)
    assert mu.shape == s.shape == (7, 2)
    assert net.training
    net.eval()
    for got, want in zip((mu, s), net(x, var), strict=True):
        np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5, atol=1e-6)


def test_predict_shapes_and_errors(net):
    assert net.predict(np.zeros((0, 4)))[0].shape == (0, 2)
    assert net.predict(np.zeros(4))[1].shape == (1, 2)
    with pytest.raises(ValueError, match="batch_size of at least 1, got 0"):
        net.predict(X, 0)
    with pytest.raises(ValueError, match="x holds 6 values, not a whole number of samples of 4 inputs"):
        net.predict(np.zeros(6))
    with pytest.raises(ValueError, match="var_x must hold 12 values, got 4"):
        net.predict(X, var_x=np.zeros(4))
    assert net.training  # also after an error

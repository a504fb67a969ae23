"""PiecewiseLinearEncoding: bins, their moments, and what its arguments may be."""

import numpy as np
import pytest

from pytagi_ddp import nn

EDGES = [[-1, 0, 0.5, 2], None, [0, 1], [-2, -1, 0, 1, 2]]
ENDS = [[(-1, 0), (0, 3), (1, -1)], None, None, [(0, 0.5)] * 4]


def bins_of(z, ends=None):
    """What the bins of numbers z give, by definition."""
    parts = []
    for j, edges in enumerate(EDGES):
        low, high = np.array((edges or [0, 1])[:-1]), np.array((edges or [0, 1])[1:])
        u = (z[..., j, None] - low) / (high - low)
        u[..., 1:] = np.maximum(u[..., 1:], 0)
        u[..., :-1] = np.minimum(u[..., :-1], 1)
        bottom, top = np.array(ends[j] if ends and ends[j] else [(0, 1)] * len(low)).T
        parts.append(bottom + (top - bottom) * u)
    return np.concatenate(parts, -1)


@pytest.mark.parametrize("ends", [None, ENDS])
def test_numbers_and_gaussians(ends):
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.PiecewiseLinearEncoding(EDGES, ends))
    x, var = rng.normal(size=(6, 4)) * 2, rng.uniform(0.01, 4, (6, 4))
    mean, none = net.predict(x)
    np.testing.assert_allclose(mean, bins_of(x, ends), atol=1e-6)
    assert not none.any()
    steps = np.linspace(-8, 8, 4001)[:, None, None]  # standard deviations, of the trapezoidal rule
    z = x + steps * np.sqrt(var)
    density = 0.004 * np.exp(-(steps**2) / 2) / np.sqrt(2 * np.pi)
    expected = (density * bins_of(z, ends)).sum(0)
    mean, variance = net.predict(x, var_x=var)
    np.testing.assert_allclose(mean, expected, atol=1e-4)
    np.testing.assert_allclose(variance, (density * (bins_of(z, ends) - expected) ** 2).sum(0), atol=2e-4)


def test_values_have_units():
    values = [[0, 2.5], None, None, [1]]
    net = nn.Sequential(nn.PiecewiseLinearEncoding(EDGES, values=values, height=3))
    assert net.layers[0].get_layer_info() == "PiecewiseLinearEncoding(4->12)"
    x = np.float32([[0, 0, 0, 1], [2.5, 1, 1, 0], [2.50001, 1, 1, 1 + 2e-7]])
    marks = [[3, 0, 3], [0, 3, 0], [0, 0, 3]]
    bins = nn.Sequential(nn.PiecewiseLinearEncoding(EDGES))
    mean, var = net.predict(x)
    np.testing.assert_array_equal(mean, np.c_[bins.predict(x)[0], marks])
    assert not var.any()
    mean, var = net.predict(x, var_x=np.float32([[0, 1, 1, 1e-9], [0] * 4, [0] * 4]))
    np.testing.assert_array_equal(mean[:, 9:], [[3, 0, 0], *marks[1:]])  # an uncertain input is never just this number
    assert not var[:, 9:].any()


def test_an_activation_leaves_the_zeros_of_the_next_pass():
    """Its variances, at least 1e-6, were those of the encoding in the next pass."""
    net = nn.Sequential(nn.PiecewiseLinearEncoding(EDGES), nn.MixtureReLU(), nn.Linear(9, 2))
    x = np.random.default_rng(0).normal(size=(6, 4))
    first = net(x)
    for again in (net(x), net.predict(x)):
        assert all(np.array_equal(a.ravel(), b) for a, b in zip(again, first, strict=True))


def test_a_missing_input_has_the_moments_of_a_standard_normal():
    net = nn.Sequential(nn.PiecewiseLinearEncoding(EDGES), nn.Linear(9, 2))
    net.missing_inputs = "standard normal"
    missing = net.predict([[np.nan, 1, 2, 3]])
    known = net.predict([[0, 1, 2, 3]], var_x=np.float32([[1, 0, 0, 0]]))
    for one, other in zip(missing, known, strict=True):
        np.testing.assert_array_equal(one, other)


def test_arguments_are_settled_and_may_be_arrays():
    layer = nn.PiecewiseLinearEncoding(np.array([[0.1, 0.2, 0.3]]), [[(0, 1), (2, 3)]], [[0.2]])
    assert repr(layer) == repr(nn.PiecewiseLinearEncoding([[0.1, 0.2, 0.3]], [[(0, 1), (2, 3)]], [[0.2]]))
    with pytest.raises(AttributeError, match="cannot be assigned"):
        layer.edges = [[0, 1]]


def test_many_edges_are_shown_in_short():
    short, long = nn.PiecewiseLinearEncoding([[0, 1, 2, 3]]), nn.PiecewiseLinearEncoding([range(999)] * 9)
    assert "edges=[[0.0, 1.0, 2.0, 3.0]], ends=None" in repr(short)
    assert "edges=[[0.0, 1.0, 2.0, ...], [" in repr(long) and len(repr(long)) < 200


@pytest.mark.parametrize(
    ("edges", "options", "error", "message"),
    [
        ([], {}, ValueError, "at least one input"),
        ([[0, 1], [0]], {}, ValueError, r"edges\[1\] .* two or more finite numbers that increase"),
        ([[0, 0, 1]], {}, ValueError, r"edges\[0\] .* increase"),
        ([[1, 1 + 1e-12]], {}, ValueError, "increase in float32"),
        ([[0, np.inf]], {}, ValueError, "finite"),
        ([["low", "high"]], {}, TypeError, r"edges\[0\] .* must be numbers or None"),
        ([[0, 1]], {"ends": [None, None]}, ValueError, "edges for 1 inputs, and ends for 2"),
        ([[0, 1, 2]], {"ends": [[(0, 1)]]}, ValueError, r"ends\[0\] .* \(bottom, top\) of 2 bins"),
        ([[0, 1]], {"ends": [[(0, np.nan)]]}, ValueError, "all finite"),
        ([[0, 1]], {"ends": [[("a", "b")]]}, TypeError, r"ends\[0\] .* must be numbers or None"),
        ([[0, 1]], {"values": [None, [1]]}, ValueError, "edges for 1 inputs, and values for 2"),
        ([[0, 1]], {"values": [[2, 1]]}, ValueError, r"values\[0\] .* one or more finite numbers that increase"),
        ([[0, 1]], {"values": [["a"]]}, TypeError, r"values\[0\] .* must be numbers or None"),
        ([[0, 1]], {"values": [[1]], "height": np.inf}, ValueError, "height must be in .*, got inf"),
    ],
)
def test_arguments_that_are_refused(edges, options, error, message):
    with pytest.raises(error, match=message):
        nn.PiecewiseLinearEncoding(edges, **options)


def test_an_input_of_another_size_is_refused():
    with pytest.raises(ValueError, match="has edges for 4 inputs, and cannot take an input of 3"):
        nn.Sequential(nn.Linear(2, 3), nn.PiecewiseLinearEncoding(EDGES))

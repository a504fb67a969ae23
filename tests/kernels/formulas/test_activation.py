"""Moment formulas of the elementwise activations over wide grids, against float64.

The formulas run inside the kernels of the CPU, as everywhere. Grids stay below the size from which kernels use threads,
so that only one form of each is compiled.
"""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.layers import activation
from pytagi_ddp.kernels.formulas.activation import ELEMENTWISE, parameters_of
from pytagi_ddp.kernels.tensors import State
from tests.battery.layers import layers_of
from tests.nn import reference_activation

LAYERS = {kind.formula: kind for kind in layers_of(nn) if issubclass(kind, nn.Activation) and kind.formula}
KERNELS = {formula: kind.__name__ for formula, kind in LAYERS.items()} | {"even_exp": "EvenExp"}


def run(kernel, x, out, *parameters):
    """Calls the kernel, with the defaults of its layer where no parameters are given."""
    if kernel == "even_exp":
        return activation.even_exp(x, out)
    layer = getattr(nn, KERNELS[kernel])()
    activation.elementwise(kernel, x, out, *(parameters or [getattr(layer, name) for name in layer.formula_settings]))


def moments(kernel, m, s, *parameters):
    """(mean, variance, Jacobian) of the kernel; s may be one number."""
    m, s = (np.array(np.broadcast_to(a, np.shape(m)), np.float32) for a in (m, s))
    out = State(*(np.empty_like(m) for _ in range(3)))
    run(kernel, State(m, s), out, *parameters)
    return out


def both(kernel, m, s, *parameters):
    """The kernel's moments and the exact ones, of the same float32 inputs."""
    m64, s64 = (np.broadcast_to(a, (1, np.size(m))).astype(np.float32).astype(float) for a in (m, s))
    exact = reference_activation.moments(KERNELS[kernel], m64, s64, *parameters)
    return moments(kernel, m, s, *parameters), [np.broadcast_to(e, m64.shape)[0] for e in exact]


def flushed(x):
    """Kernels take subnormal numbers for zero."""
    return np.where(np.abs(x) < 1.01 * np.finfo(np.float32).tiny, 0, x)


def relative(ours, exact):
    return np.abs(flushed(ours) - flushed(exact)) / np.maximum(np.abs(exact), 1e-37)


def test_every_formula_has_a_layer():
    """Adding an activation is an entry in the registry and a class: neither may be forgotten, nor a setting."""
    without = ELEMENTWISE.keys() - LAYERS.keys()
    assert not without, f"no activation in __all__ of pytagi_ddp.nn has the formula {', '.join(without)}"
    unknown = LAYERS.keys() - ELEMENTWISE.keys()
    assert not unknown, f"add {', '.join(unknown)} to ELEMENTWISE in kernels/formulas/activation.py"
    for name, formula in ELEMENTWISE.items():
        assert LAYERS[name].formula_settings == parameters_of(formula), name


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        ("relu", ()),
        ("leaky_relu", ()),
        ("leaky_relu", (0.3,)),
        ("leaky_relu", (-2.5,)),
        ("softplus", ()),
        ("elu", ()),
        ("elu", (0.25,)),
        ("elu", (3.0,)),
    ],
)
def test_relative_accuracy_everywhere(kernel, parameters):
    m = np.linspace(-60, 60, 30_002)
    for ours, exact in zip(*both(kernel, m, np.linspace(1e-3, 5, m.size), *parameters), strict=True):
        assert relative(ours, exact).max() < 1e-6


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_elu_near_zero_loses_no_digits(alpha):
    m = np.concatenate([-np.logspace(-30, 0, 5000), [0]])
    (mean, _, jcb), exact = both("elu", m, 1, alpha)
    assert relative(mean, exact[0])[:-1].max() < 1e-6
    assert mean[-1] == 0 and jcb[-1] == np.float32(alpha)


@pytest.mark.parametrize(("kernel", "bound"), [("sigmoid", 1.5e-7), ("tanh", 3e-7)])
def test_logistic_functions(kernel, bound):
    """J is a product with 1 - p: exact to rounding of 1, also where it is tiny."""
    m = np.linspace(-60, 60, 30_002)
    (mean, var, jcb), exact = both(kernel, m, np.ones_like(m))
    assert relative(mean, exact[0]).max() < 5e-7
    assert np.abs(jcb - exact[2]).max() < bound
    assert np.abs(var - exact[1]).max() < bound
    np.testing.assert_array_equal(flushed(var), flushed(jcb * jcb))
    assert jcb.min() >= 0


def mixture_grid():
    """m/sd from -12 to 12 and sd from 1e-4 to 1e4."""
    a, sd = np.meshgrid(np.linspace(-12, 12, 961), np.logspace(-4, 4, 33))
    m, s = (a * sd).astype(np.float32).ravel(), (sd**2).astype(np.float32).ravel()
    return m, s, m.astype(float) / np.sqrt(s.astype(float))


def test_mixture_relu_at_every_scale():
    """Digits are lost in the lower tail only, as its moments are small differences: a^2 and a^4 times 1e-6."""
    m, s, a = mixture_grid()
    ours, exact = both("mixture_relu", m, s)
    tail = 1 + np.minimum(a, 0) ** 2
    assert (relative(ours[0], exact[0]) / tail).max() < 1e-6
    assert (relative(ours[1], exact[1]) / tail**2).max() < 1e-6
    assert (relative(ours[2], exact[2]) / tail).max() < 1e-6


@pytest.mark.parametrize("kernel", ["mixture_tanh", "mixture_sigmoid"])
@pytest.mark.parametrize("sd", [1e-6, 1e-3, 0.01, 0.1, 0.5, 1, 3, 7.9])
def test_clipped_gaussians(kernel, sd):
    m = np.concatenate([np.linspace(-3, 3, 4001), np.linspace(-200, 200, 4001)])
    ours, exact = both(kernel, m, sd**2)
    wide = max(sd, 1)
    assert np.abs(ours[0] - exact[0]).max() < 2e-7 * wide
    assert np.abs(ours[1] - exact[1]).max() < 3e-7 * wide**2
    assert relative(ours[1], exact[1]).max() < 5e-5 * wide
    assert np.abs(ours[2] - exact[2]).max() < 3e-7
    assert relative(ours[2], exact[2])[exact[2] > 1e-30].max() < 2e-5


@pytest.mark.parametrize("kernel", ["mixture_tanh", "mixture_sigmoid"])
@pytest.mark.parametrize("sd", [8, 8.1, 10, 30, 1e2, 1e3, 1e4, 1e6, 1e9, 1e15, 1e19])
def test_clipped_gaussians_that_are_wide(kernel, sd):
    """The variance comes near 1, and was lost in rounding: up to 2 % of it at sd = 100, all from 10,000 on."""
    m = np.linspace(-6, 6, 4001) * sd
    (mean, var, jcb), exact = both(kernel, m, sd**2)
    assert np.abs(mean - exact[0]).max() < 3e-7
    assert np.abs(var - exact[1]).max() < 5e-6
    assert relative(var, exact[1]).max() < 5e-5
    assert relative(jcb, exact[2]).max() < 1e-4


@pytest.mark.parametrize("bad", [(0, np.inf), (0, np.nan), (np.nan, 1), (np.nan, 1e6)])
def test_clipped_gaussians_do_not_hide_what_has_gone_wrong(bad):
    mean, var, _ = moments("mixture_tanh", *([value] for value in bad))
    assert np.isnan(mean) and np.isnan(var)


def test_log_normal():
    """The exponential takes an absolute error of its argument, which grows with the argument."""
    m = np.linspace(-40, 40, 30_002)
    ours, exact = both("even_exp", m, np.linspace(1e-4, 4, m.size))
    for got, want in zip(ours, exact, strict=True):
        assert relative(got, want).max() < 5e-6


def test_even_positions_of_even_exp_are_passed_on():
    m, s = np.float32([-3, 1, 100, 2]), np.float32([0.5, 1, 7, 0])
    mean, var, jcb = moments("even_exp", m, s)
    np.testing.assert_array_equal(mean[::2], m[::2])
    np.testing.assert_array_equal(var[::2], s[::2])
    np.testing.assert_array_equal(jcb[::2], 1)
    np.testing.assert_array_equal([var[3], jcb[3]], [0, mean[3]])


EXTREMES = np.float32([-3e4, -200, -50, -1, -1e-30, 0, 1e-30, 0.5, 1, 50, 200, 3e4])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("variance", [0, 1e-40, 1e-20, 1e-6, 1, 1e4])
def test_no_nan_and_no_negative_variance(kernel, variance):
    m = EXTREMES if kernel != "even_exp" else np.clip(EXTREMES, -60, 30)
    mean, var, jcb = moments(kernel, m, variance if kernel != "even_exp" else min(variance, 10))
    assert np.isfinite(mean).all() and np.isfinite(var).all() and np.isfinite(jcb).all()
    assert var.min() >= 0


@pytest.mark.parametrize("variance", [0, 1e-38, 1e-20])
def test_without_variance_mixtures_are_the_functions_themselves(variance):
    m = np.linspace(-50, 50, 20_001).astype(np.float32)  # -1, 0 and 1 are among them
    mean, var, jcb = moments("mixture_relu", m, variance)
    np.testing.assert_array_equal(mean, np.maximum(m, np.float32(1e-6)))
    np.testing.assert_array_equal(var, np.float32(1e-6))
    np.testing.assert_allclose(jcb, np.where(m == 0, 0.5, m > 0), atol=1e-30)
    mean, var, jcb = moments("mixture_tanh", m, variance)
    np.testing.assert_array_equal(mean, np.clip(m, -1, 1))
    np.testing.assert_array_equal(var, np.float32(1e-6))
    np.testing.assert_allclose(jcb, np.where(np.abs(m) == 1, 0.5, np.abs(m) < 1), atol=1e-30)


@pytest.mark.parametrize("kernel", KERNELS)
def test_in_place_and_apart_are_the_same(kernel):
    rng = np.random.default_rng(0)
    m, s = rng.normal(size=1001).astype(np.float32), rng.uniform(0, 2, 1001).astype(np.float32)
    mean, var, jcb = moments(kernel, m, s)
    jcb_in_place = np.empty_like(m)
    run(kernel, State(m, s), State(m, s, jcb_in_place))
    np.testing.assert_array_equal(m, mean)
    np.testing.assert_array_equal(s, var)
    np.testing.assert_array_equal(jcb_in_place, jcb)

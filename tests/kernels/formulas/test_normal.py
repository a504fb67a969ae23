"""Exponential, logistic functions and the normal distribution against SciPy in float64."""

import numpy as np
import pytest
from numba import njit
from scipy.special import erfcx, expit, ndtr

from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH
from pytagi_ddp.kernels.formulas import normal
from pytagi_ddp.kernels.formulas.likelihood import mills

GRID = np.concatenate([np.linspace(-100, 100, 200_001), np.linspace(-1e-3, 1e-3, 2001)]).astype(np.float32)


@njit(error_model="numpy", fastmath=FASTMATH)
def tabulate(x, out):
    """Everything in one loop, compiled with the options of the kernels."""
    for i in range(x.size):
        out[0, i] = normal.exp(x[i])
        out[1, i] = normal.sigmoid(x[i])
        out[2, i] = normal.tanh(x[i])
        out[3, i], out[4, i] = normal.normal_tail_pdf(abs(x[i]))


@pytest.fixture(scope="module")
def table():
    def of(x):
        x = np.asarray(x, np.float32)
        out = np.empty((5, x.size), np.float32)
        tabulate(x, out)
        return dict(zip(("exp", "sigmoid", "tanh", "tail", "pdf"), out, strict=True))

    return of


def relative_error(actual, expected):
    return np.abs(actual / expected - 1).max()


def test_exp(table):
    inside = (GRID >= -87) & (GRID <= 88)
    got = table(GRID)["exp"]
    assert relative_error(got[inside], np.exp(GRID[inside].astype(float))) < 3e-7
    # Beyond, it stays at the ends: small normal and large finite numbers.
    assert np.all((got[GRID < -87] > 0) & (got[GRID < -87] < 2e-38))
    assert np.all((got[GRID > 88.3] > 2e38) & np.isfinite(got[GRID > 88.3]))


def test_sigmoid(table):
    got = table(GRID)["sigmoid"]
    inside = GRID >= -86
    assert relative_error(got[inside], expit(GRID[inside].astype(float))) < 4e-7
    assert np.all((got > 0) & (got <= 1))


def test_tanh(table):
    got = table(GRID)["tanh"]
    other = GRID != 0
    assert relative_error(got[other], np.tanh(GRID[other].astype(float))) < 2e-7
    assert table([0])["tanh"] == 0
    np.testing.assert_array_equal(got, -table(-GRID)["tanh"])


@pytest.mark.parametrize(("start", "end", "bound"), [(0, 3, 6e-7), (3, 6, 1.5e-6), (6, 9, 2.5e-6), (9, 13, 5e-6)])
def test_normal_tail(table, start, end, bound):
    x = np.linspace(start, end, 50_001).astype(np.float32)
    exact = x.astype(float)
    got = table(x)
    assert relative_error(got["tail"], ndtr(-exact)) < bound
    assert relative_error(got["pdf"], np.exp(-(exact**2) / 2) / np.sqrt(2 * np.pi)) < bound


def test_the_tail_stays_a_normal_number_far_out(table):
    got = table([13, 14, 1e10, np.inf])
    for name, value in (("tail", ndtr(-13)), ("pdf", np.exp(-84.5) / np.sqrt(2 * np.pi))):
        np.testing.assert_allclose(got[name], value, rtol=1e-5)


@njit(error_model="numpy", fastmath=FASTMATH)
def ratios(x, out):
    for i in range(x.size):
        out[0, i], out[1, i] = mills(x[i])


def test_mills_ratio():
    x = np.concatenate([np.linspace(0, 12, 4001), np.geomspace(12, 1e4, 1001)]).astype(np.float32)
    found, exact = np.empty((2, x.size), np.float32), x.astype(float)
    ratios(x, found)
    ratio = np.sqrt(np.pi / 2) * erfcx(exact / np.sqrt(2))
    assert relative_error(found[0], ratio) < 1e-6
    near = exact < 200  # further out the difference loses its digits in float64, too
    assert relative_error(found[1][near], (1 - exact * ratio)[near]) < 6e-5


def test_infinities(table):
    got = table([np.inf, -np.inf])
    np.testing.assert_array_equal(got["sigmoid"] > 0.5, [True, False])
    np.testing.assert_array_equal(got["tanh"], [1, -1])


def test_nan_is_not_swallowed(table):
    got = table([np.nan])
    assert all(np.isnan(got[name]) for name in ("exp", "sigmoid", "tanh"))

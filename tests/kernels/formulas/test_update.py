"""Output updates and the capped step over wide grids, against float64."""

import numpy as np
import pytest
from numba import njit

from pytagi_ddp.kernels.cpu.layers import output_update
from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH
from pytagi_ddp.kernels.formulas.normalize import normalized_moments
from pytagi_ddp.kernels.formulas.update import capped_step, pooled_factors
from pytagi_ddp.kernels.tensors import Delta, State


def float32(*arrays):
    return [np.ascontiguousarray(a, np.float32) for a in arrays]


def random_columns(n, *ranges):
    """float32 columns: (a, b) uniform, ("log", a, b) log-uniform from 10^a to 10^b."""
    rng = np.random.default_rng(1)
    columns = [10 ** rng.uniform(*r[1:], n) if r[0] == "log" else rng.uniform(*r, n) for r in ranges]
    return float32(*columns)


def test_observation_delta():
    m, s, j, y, v = random_columns(20_000, (-50, 50), ("log", -8, 4), (0, 1), (-50, 50), ("log", -8, 4))
    dm, ds = np.empty_like(m), np.empty_like(m)
    output_update.update(State(m, s, j), State(y, v), Delta(dm, ds))
    m, s, j, y, v = (a.astype(float) for a in (m, s, j, y, v))
    np.testing.assert_allclose(dm, j * (y - m) / (s + v), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(ds, -j * j / (s + v), rtol=1e-6, atol=1e-30)


def test_missing_and_impossible_observations_give_nothing():
    """NaN is missing; without any variance there is nothing to weigh; an infinitely noisy one says nothing."""
    m, s, j, y, v = float32([1] * 4, [1, 0, 1, 1], [1] * 4, [np.nan, 3, 3, np.nan], [1, 0, np.inf, 0])
    dm, ds = np.ones_like(m), np.ones_like(m)
    output_update.update(State(m, s, j), State(y, v), Delta(dm, ds))
    np.testing.assert_array_equal(dm, 0)
    np.testing.assert_array_equal(ds, 0)


def heteros_reference(m, s, j, e, v, c, y):
    """Deltas at (mean output, noise output): Z ~ N(m, s), noise variance ~ (e, v)."""
    total = s + e
    mean_of_noise = e / total * (y - m)
    var_of_noise = e - e**2 / total
    square_mean = mean_of_noise**2 + var_of_noise
    square_var = 2 * var_of_noise**2 + 4 * var_of_noise * mean_of_noise**2
    prior = 3 * v + 2 * e**2
    gain = v / prior
    slope = c / v
    return (
        j * (y - m) / total,
        -(j**2) / total,
        slope * gain * (square_mean - e),
        (slope * gain) ** 2 * (square_var - prior),
    )


def test_heteros_delta():
    m, s, j, e, v, c, y = random_columns(
        20_000, (-5, 5), ("log", -3, 1), (0.1, 1), ("log", -2, 1), ("log", -3, 1), ("log", -2, 1), (-5, 5)
    )
    mu, var, jcb = (np.stack(pair, 1).reshape(-1) for pair in ((m, e), (s, v), (j, c)))
    dm, ds = np.empty_like(mu), np.empty_like(mu)
    output_update.update_heteros(State(mu, var, jcb), State(y, None), Delta(dm, ds))
    exact = heteros_reference(*(a.astype(float) for a in (m, s, j, e, v, c, y)))
    scale = np.maximum(np.abs(exact[2]), (c * e / (3 * v + 2 * e**2)).astype(float))  # of the two terms that cancel
    np.testing.assert_allclose(dm[::2], exact[0], rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(ds[::2], exact[1], rtol=1e-6)
    assert (np.abs(dm[1::2] - exact[2]) / scale).max() < 5e-6
    np.testing.assert_allclose(ds[1::2], exact[3], rtol=2e-4, atol=1e-6 * np.abs(exact[3]).max())


def test_heteros_without_an_observation_or_without_noise():
    """NaN: all four deltas are 0. A noise output that cannot change keeps its deltas at 0, the mean still learns."""
    mu, var, jcb = float32([1, 2, 1, 2], [1, 1, 1, 0], [1, 1, 1, 1])
    dm, ds = np.ones_like(mu), np.ones_like(mu)
    output_update.update_heteros(State(mu, var, jcb), State(np.float32([np.nan, 4]), None), Delta(dm, ds))
    np.testing.assert_allclose(dm, [0, 0, 1, 0])
    np.testing.assert_allclose(ds, [0, 0, -1 / 3, 0], rtol=1e-6)


@njit(error_model="numpy", fastmath=FASTMATH)
def tabulate(mu, var, g, h, cap, out_mu, out_var, fell, x, z):
    """The step of every parameter, and the normalised moments of every row of x."""
    for i in range(mu.size):
        out_mu[i], out_var[i], fell[i] = capped_step(mu[i], var[i], g[i], h[i], cap)
        z[0, i], z[1, i] = normalized_moments(x[0, i], x[1, i], x[2, i], x[3, i], x[4, i], x[5, i], x[6, i], x[7, i])


def table(mu, var, g, h, cap, x=None):
    mu, var, g, h = float32(mu, var, g, h)
    x = np.ones((8, mu.size), np.float32) if x is None else x
    z, fell = np.empty((2, mu.size), np.float32), np.empty(mu.size, np.int64)
    out_mu, out_var = np.empty_like(mu), np.empty_like(mu)
    tabulate(mu, var, g, h, np.float32(cap), out_mu, out_var, fell, x, z)
    return out_mu, out_var, fell, z


@pytest.mark.parametrize("cap", [0.1, 1.0, 2.0, 3.0])
def test_capped_step(cap):
    m, s, g, h = random_columns(20_000, (-2, 2), ("log", -10, 1), (-50, 50), (-500, 50))
    out_mu, out_var, fell, _ = table(m, s, g, h, cap)
    m, s, g, h = (a.astype(float) for a in (m, s, g, h))
    bar = np.sqrt(s) / cap
    expected = s + np.clip(s * s * h, -bar, bar)
    certain = np.abs(expected) > 1e-5 * s  # where rounding cannot decide the sign
    np.testing.assert_allclose(out_mu, m + np.clip(s * g, -bar, bar), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(fell[certain], (expected <= 0)[certain])
    kept = certain & (expected > 0)
    assert (np.abs(out_var - expected) / s)[kept].max() < 1e-5
    np.testing.assert_array_equal(out_var[fell > 0], np.float32(1e-5))
    assert np.abs(out_mu - m).max() > 0 and fell.any() and not fell.all()


@pytest.mark.parametrize("cap", [0.1, 1.0, 2.0, 3.0])
def test_a_parameter_of_variance_0_is_known(cap):
    m, g, h = [1.5, -2, 0, 3], [1e30, -4, 0, 1], [-1e30, 4, 0, 1e9]
    out_mu, out_var, fell, _ = table(m, [0] * 4, g, h, cap)
    np.testing.assert_array_equal(out_mu, np.float32(m))
    np.testing.assert_array_equal(out_var, 0)
    assert not fell.any()


def test_a_variance_that_falls_to_exactly_0_becomes_the_floor():
    s = np.float32(10.0) ** np.arange(-12, 9)
    _, out_var, fell, _ = table(np.zeros(s.size), s, np.zeros(s.size), -1 / s, 1e-8)
    near = np.abs(s + s * s * np.float32(-1 / s)) <= 1e-7 * s
    assert near.all() and fell[out_var == np.float32(1e-5)].all() and fell.sum() > 5
    assert (out_var > 0).all()


def test_a_delta_of_tiny_variance_does_not_underflow():
    """s = 1e-12: s^2 h is 1e-24 h, far below float32's rounding of 1, and must still arrive."""
    _, out_var, _, _ = table([0.0], [1e-12], [0.0], [-5e11], 2)
    np.testing.assert_allclose(out_var, 0.5e-12, rtol=1e-5)


@pytest.mark.parametrize(
    ("samples", "ranks", "average", "expected"),
    [
        (3, 2, True, (1 / 2, 2, 0.1 / (2 * 0.9 + 0.1))),  # two samples of one rank, which has half of the evidence
        (4, 2, True, (1 / 2, 2, 0.1 / (2 * 0.9 + 0.1))),
        (3, 2, False, (1, 3, 0.1)),
        (3, 1, True, (1, 3, 0.1)),
        (0, 0, True, (0, 0, 0)),
    ],
)
def test_factors_of_a_step_of_ranks(samples, ranks, average, expected):
    found = pooled_factors(np.float32(samples), np.float32(ranks), average, np.float32(0.1))
    assert found == pytest.approx(expected, rel=1e-6)


def test_normalized_moments():
    n = 10_000
    x = np.stack(random_columns(n, *[(-5, 5), (0, 3)] + [(-3, 3), ("log", -2, 2)] + [(-2, 2), (0, 1)] * 2))
    zeros = np.zeros(n)
    _, _, _, z = table(zeros, zeros + 1, zeros, zeros, 1, x)
    m, s, mean, r, w, s_w, b, s_b = x.astype(float)
    t = r * (m - mean)
    assert (np.abs(z[0] - (t * w + b)) / (np.abs(t * w) + np.abs(b) + np.abs(r * m * w))).max() < 1e-6
    np.testing.assert_allclose(z[1], r * r * s * (w * w + s_w) + s_w * t * t + s_b, rtol=5e-5)

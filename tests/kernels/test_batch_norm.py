"""What kernels of batch normalisation on the CPU do besides: large means, sums of branches, Jacobians, deltas through
statistics."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import batch_norm, elementwise
from pytagi_ddp.kernels.tensors import Delta, Normalization, State, Tensor

SHAPES = [(2, 1), (129, 5), (300, 64)]


def normalization(shape: tuple[int, int], seed: int = 0) -> Normalization:
    random = np.random.default_rng(seed)
    draw = lambda *n: random.standard_normal(n, dtype=np.float32)  # noqa: E731
    n = shape[1]
    x, out = State(draw(*shape), np.abs(draw(*shape)), draw(*shape)), State(*np.full((2, *shape), np.float32(np.nan)))
    sums = [np.zeros(n, np.float32) for _ in range(4)]
    weights, bias = Tensor(draw(n), np.abs(draw(n)), *sums[:2]), Tensor(draw(n), np.abs(draw(n)), *sums[2:])
    return Normalization(x, draw(n), np.abs(draw(n)), weights, bias, out)


@pytest.mark.parametrize("rows", [2, 129, 2000])
@pytest.mark.parametrize("deviation", [0, 0.01, 1])
def test_moments_of_values_with_a_large_mean(rows, deviation):
    """The mean had an error of up to three last bits of the values, and squares were about that mean."""
    x = np.float32(10000.1 + deviation * np.random.default_rng(0).standard_normal((rows, 5)))
    mean, m2 = np.empty((2, 5), np.float32)
    batch_norm.moments(State(x, np.zeros_like(x)), np.empty(batch_norm.partial_shape(rows, 5), np.float32), mean, m2)
    exact = x.astype(np.float64).mean(0)
    np.testing.assert_allclose(mean, exact, rtol=0, atol=0.51 * np.spacing(np.float32(10000)))
    np.testing.assert_allclose(m2, ((x - exact) ** 2).sum(0), rtol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("added", ["means", "state", "normalization"])
def test_sum_of_branches(shape, added):
    norm, other = normalization(shape), normalization(shape, 1)
    batch_norm.forward(norm)
    batch_norm.forward(other)
    out = State(norm.out.mu.copy(), norm.out.var.copy())
    second = State(other.out.mu.copy(), None if added == "means" else other.out.var.copy())
    elementwise.add_state(out, second)
    batch_norm.forward(norm, other if added == "normalization" else second)
    np.testing.assert_array_equal(norm.out[:2], out[:2])
    if added == "means":
        np.testing.assert_array_equal(norm.out.mu, normalized_mean(norm) + other.out.mu)


def normalized_mean(norm: Normalization) -> np.ndarray:
    """That of the normalisation alone."""
    alone = norm._replace(out=State(*np.empty((2, *norm.x.mu.shape), np.float32)))
    batch_norm.forward(alone)
    return alone.out.mu


@pytest.mark.parametrize("shape", SHAPES)
def test_deltas_through_a_jacobian_and_into_other_memory(shape):
    norm = normalization(shape)
    start, partial = np.random.default_rng(2).standard_normal((2, *shape), np.float32), batch_norm.partial_shape(*shape)
    afterwards, beside, into = (Delta(*start.copy()) for _ in range(3))
    plain = norm._replace(x=norm.x._replace(jcb=None))
    batch_norm.backward(plain, afterwards, afterwards, np.empty(partial, np.float32), False)
    elementwise.apply_jacobian(afterwards, norm.x.jcb)
    sums = [np.copy(a) for a in (*norm.weights[2:], *norm.bias[2:])]
    batch_norm.backward(norm, beside, beside, np.empty(partial, np.float32), False)
    np.testing.assert_array_equal(beside[:2], afterwards[:2])
    np.testing.assert_array_equal((*norm.weights[2:], *norm.bias[2:]), sums)
    batch_norm.backward(norm, Delta(*start), into, np.empty(partial, np.float32), False)
    np.testing.assert_array_equal(into[:2], beside[:2])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sloped", [False, True])
def test_deltas_through_statistics_are_the_derivative_of_the_whole_map(shape, sloped):
    """In float64, by differences: what moving a unit does to sum(dm_z m_z), with its statistics."""
    norm = normalization(shape)
    norm = norm._replace(x=norm.x if sloped else norm.x._replace(jcb=None))
    m, s = (a.astype(np.float64) for a in norm.x[:2])
    w, n, eps = norm.weights.mu.astype(np.float64), shape[0], 1e-3
    direction, dm = np.random.default_rng(3).standard_normal((2, *shape))

    def normalised(m: np.ndarray) -> np.ndarray:
        t = m - m.mean(0)
        return w * t / np.sqrt(((t**2).sum(0) + s.sum(0)) / (n - 1) + eps)

    change = (dm * (normalised(m + 1e-5 * direction) - normalised(m - 1e-5 * direction)) / 2e-5).sum(0)
    r = 1 / np.sqrt((((m - m.mean(0)) ** 2).sum(0) + s.sum(0)) / (n - 1) + eps)
    norm = norm._replace(mean=m.mean(0).astype(np.float32), r=r.astype(np.float32))
    into, partial = Delta(*np.float32([dm, dm])), np.empty(batch_norm.partial_shape(*shape), np.float32)
    batch_norm.backward(norm, into, into, partial, False)
    batch_norm.subtract_statistics(norm, into, partial, np.empty((2, shape[1]), np.float32))
    of_units = into.mu / norm.x.jcb if sloped else into.mu
    np.testing.assert_allclose((of_units * direction).sum(0), change, 1e-4, 1e-5 * np.abs(dm * w * r).sum(0).max())

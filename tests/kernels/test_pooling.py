"""Average pooling: window by window, as its definition says."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu import pooling
from pytagi_ddp.kernels.tensors import Delta, State

# batch, height, width, channels, kernel, stride, pad
CASES = [
    (2, 6, 8, 16, 2, 2, 0),
    (3, 9, 7, 21, 3, 2, 0),
    (1, 5, 5, 3, 3, 1, 1),
    (2, 4, 4, 32, 4, 1, 0),
    (2, 7, 7, 17, 2, 3, 1),
    (1, 3, 3, 16, 5, 2, 2),
    (40, 27, 27, 16, 3, 2, 0),
]


def windows(size, kernel, stride, pad):
    """Of each window along one side: the pixels that it sees."""
    count = (size + 2 * pad - kernel) // stride + 1
    return [range(max(k * stride - pad, 0), min(k * stride - pad + kernel, size)) for k in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_moments_and_deltas(case, threads):
    batch, height, width, channels, kernel, stride, pad = case
    down, across = windows(height, kernel, stride, pad), windows(width, kernel, stride, pad)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, batch, height, width, channels), np.float32) ** 2
    delta = rng.standard_normal((2, batch, len(down), len(across), channels), np.float32)
    out, into = np.full((2, batch + 1, *delta.shape[2:]), -7, np.float32), np.full_like(x, -7)
    pooling.average_forward(State(*x), State(*out[:, :batch]), kernel, stride, pad)
    pooling.average_backward(Delta(*delta), Delta(*into), kernel, stride, pad)
    expected, back = np.zeros(delta.shape), np.zeros(x.shape)
    for i, rows in enumerate(down):
        for j, columns in enumerate(across):
            for r in rows:
                for q in columns:
                    expected[:, :, i, j] += x[:, :, r, q]
                    back[:, :, r, q] += delta[:, :, i, j]
    factors = (np.array([1 / kernel**2, 1 / kernel**4])).reshape(2, 1, 1, 1, 1)
    np.testing.assert_allclose(out[:, :batch], factors * expected, rtol=1e-6)
    np.testing.assert_allclose(into, factors * back, rtol=1e-5, atol=1e-7)
    assert (out[:, batch] == -7).all()


def test_wrong_arguments_are_refused():
    x, out = np.zeros((2, 1, 4, 4, 3), np.float32), np.zeros((2, 1, 2, 2, 3), np.float32)
    for given, kernel, stride, pad in (
        ((x, out[..., :2].copy()), 2, 2, 0),
        ((x, np.zeros((2, 2, 2, 2, 3), np.float32)), 2, 2, 0),
        ((x, out), 0, 2, 0),
        ((x, out), 2, 0, 0),
        ((x, out), 2, 2, -1),
    ):
        with pytest.raises(ValueError, match=r"pooling\.average: shapes do not fit together: mu \(1, 4, 4, 3\)"):
            pooling.average_forward(State(*given[0]), State(*given[1]), kernel, stride, pad)
    with pytest.raises(ValueError, match="shapes do not fit"):
        pooling.average_forward(State(x[0], x[1, :, :3].copy()), State(*out), 2, 2, 0)
    with pytest.raises(ValueError):
        pooling.average_forward(State(*x.astype(float)), State(*out), 2, 2, 0)

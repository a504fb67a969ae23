"""Pooling against its definition, window by window."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import pooling
from pytagi_ddp.kernels.tensors import Delta, State

# batch, height, width, channels, kernel, stride, pad
CASES = [
    (2, 6, 8, 16, 2, 2, 0),
    (3, 9, 7, 21, 3, 2, 0),
    (1, 5, 5, 3, 3, 1, 1),
    (2, 4, 4, 32, 4, 1, 0),
    (2, 7, 7, 17, 2, 3, 1),
    (2, 5, 4, 40, 3, 2, 0),
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


@pytest.mark.parametrize("case", CASES)
def test_largest_means(case, threads):
    batch, height, width, channels, kernel, stride, pad = case
    down, across = windows(height, kernel, stride, pad), windows(width, kernel, stride, pad)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, batch, height, width, channels), np.float32)
    x[0] = np.round(2 * x[0])  # means that are equal
    x[0][rng.random(x[0].shape) < 0.02] = np.nan
    delta = rng.standard_normal((2, batch, len(down), len(across), channels), np.float32)
    out, into = np.full((2, batch + 1, *delta.shape[2:]), -7, np.float32), np.full_like(x, -7)
    winner = np.full(delta.shape[1:], -7, np.int32)
    pooling.max_forward(State(*x), State(*out[:, :batch]), winner, kernel, stride, pad)
    pooling.max_backward(Delta(*delta), winner, Delta(*into), kernel, stride, pad)
    back = np.zeros(x.shape)
    b, c = np.ogrid[:batch, :channels]
    for i, rows in enumerate(down):
        for j, columns in enumerate(across):
            pixels = np.array([(r, q) for r in rows for q in columns])
            seen = x[0][:, pixels[:, 0], pixels[:, 1]]
            ranks = np.where(np.isnan(seen), np.inf, seen)
            last = seen.shape[1] - 1 - np.argmax(ranks[:, ::-1], 1)  # of several that are NaN
            r, q = pixels[np.where(np.isnan(seen).any(1), last, np.argmax(ranks, 1))].transpose(2, 0, 1)
            np.testing.assert_array_equal(winner[:, i, j], r * width + q)
            np.testing.assert_array_equal(out[:, :batch, i, j], x[:, b, r, q, c])
            back[:, b, r, q, c] += delta[:, :, i, j]
    np.testing.assert_allclose(into, back, rtol=1e-5, atol=1e-6)
    assert (out[:, batch] == -7).all()


def test_wrong_arguments_are_refused():
    x, out = np.zeros((2, 1, 4, 4, 3), np.float32), np.zeros((2, 1, 2, 2, 3), np.float32)
    for given, kernel, stride, pad in (
        ((x, out[..., :2].copy()), 2, 2, 0),
        ((x, np.zeros((2, 2, 2, 2, 3), np.float32)), 2, 2, 0),
        ((x, out), 0, 2, 0),
        ((x, out), 2, 0, 0),
        ((x, out), 2, 2, -1),
        ((x, out), 2, 2**30, 0),  # positions of windows exceed an int
    ):
        with pytest.raises(ValueError, match=r"pooling\.average: shapes do not fit together: mu \(1, 4, 4, 3\)"):
            pooling.average_forward(State(*given[0]), State(*given[1]), kernel, stride, pad)
    with pytest.raises(ValueError, match="shapes do not fit"):
        pooling.average_forward(State(x[0], x[1, :, :3].copy()), State(*out), 2, 2, 0)
    with pytest.raises(ValueError):
        pooling.average_forward(State(*x.astype(float)), State(*out), 2, 2, 0)


def test_wrong_arguments_of_the_largest_means_are_refused():
    x, out, winner = (
        np.ones((2, 1, 4, 4, 3), np.float32),
        np.ones((2, 1, 2, 2, 3), np.float32),
        np.ones((1, 2, 2, 3), "i"),
    )
    for given, windows, pixels, sizes in (
        (x, out[..., :2].copy(), winner, (2, 2, 0)),
        (x, out, winner[..., :2].copy(), (2, 2, 0)),
        (x, np.ones((2, 2, 2, 2, 3), np.float32), np.ones((2, 2, 2, 3), "i"), (2, 2, 0)),
        (x, out, winner, (0, 2, 0)),
        (x, out, winner, (2, 0, 0)),
        (x, out, winner, (2, 2, -1)),
        (x, out[:, :, :, :1].copy(), winner[:, :, :1].copy(), (2, 4, 0)),  # the second window starts below the image
        (x, out[:, :, :1].copy(), winner[:, :1].copy(), (2, 4, 0)),  # beside the image
        (x, out, winner, (2, 2**30, 2**30 - 1)),  # positions of windows exceed an int
    ):
        with pytest.raises(ValueError, match=r"pooling\.largest: shapes do not fit together: mu \(1, 4, 4, 3\)"):
            pooling.max_forward(State(*given), State(*windows), pixels, *sizes)
    for given, windows, pixels in ((x, out[..., :2].copy(), winner), (x, out, winner[..., :2].copy())):
        with pytest.raises(ValueError, match=r"pooling\.scatter: shapes do not fit together"):
            pooling.max_backward(Delta(*windows), pixels, Delta(*given), 2, 2, 0)
    with pytest.raises(ValueError):
        pooling.max_forward(State(*x), State(*out), winner.astype(np.int64), 2, 2, 0)
    into = np.ones_like(x)
    nowhere = np.full_like(winner, 16)
    nowhere[0, 0] = -1
    pooling.max_backward(Delta(*out), nowhere, Delta(*into), 2, 2, 0)  # numbers of no pixel
    assert not into.any()

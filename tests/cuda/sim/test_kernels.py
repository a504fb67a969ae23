"""Every CUDA kernel but the products against its twin on the CPU, on small ragged sizes."""

import numpy as np
import pytest

from pytagi_ddp.kernels import cpu, cuda

NAN = np.float32(np.nan)


def normal(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def uniform(*shape, seed=0, low=0.05, high=1.5):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def call(kernels, family: str, function: str, inputs: list) -> list:
    """Calls a kernel with copies of `inputs`, the same array where they are the same; returns them as it left them."""
    array = cpu.array if kernels is cpu else cuda.array.arrays(0)
    copies = {id(a): array.place(a.copy()) for a in inputs if isinstance(a, np.ndarray)}
    getattr(getattr(kernels, family), function)(*(copies.get(id(a), a) for a in inputs))
    return [array.to_host(copies[id(a)]) if isinstance(a, np.ndarray) else a for a in inputs]


def both(family: str, function: str, inputs: list, tolerance: float = 2e-6) -> list:
    """Calls the kernel on both devices with copies of `inputs`, and compares all arrays after the call."""
    results = [call(kernels, family, function, inputs) for kernels in (cpu, cuda)]
    for position, (expected, actual) in enumerate(zip(*results, strict=True)):
        if isinstance(expected, np.ndarray) and expected.size:
            scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            what = f"{family}.{function}, argument {position}"
            np.testing.assert_allclose(actual, expected, tolerance, tolerance * scale, err_msg=what)
    return results[1]


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "leaky_relu",
        "sigmoid",
        "tanh",
        "softplus",
        "mixture_relu",
        "mixture_sigmoid",
        "mixture_tanh",
        "even_exp",
    ],
)
def test_activations(name):
    n = 71
    mu, var = normal(n, scale=2), uniform(n, seed=1)
    var[::20] = 0
    both("activation", name, [mu, var, *np.full((3, n), NAN)])


def test_activation_in_place():
    mu, var, jcb = normal(70), uniform(70), np.full(70, NAN)
    apart = both("activation", "mixture_relu", [mu, var, *np.full((3, 70), NAN)])
    in_place = call(cuda, "activation", "mixture_relu", [mu, var, mu, var, jcb])
    np.testing.assert_array_equal(in_place[2:], apart[2:])


@pytest.mark.parametrize("name", ["softmax", "remax", "closed_form_softmax"])
@pytest.mark.parametrize("classes", [2, 5, 37])
def test_softmax(name, classes):
    mu, var = normal(3, classes, scale=2), uniform(3, classes, seed=1)
    mu[0] = 1.5  # a tie: the first class counts as the largest
    apart = both("softmax", name, [mu, var, *np.full((3, 3, classes), NAN)], 2e-5)
    in_place = call(cuda, "softmax", name, [mu, var, mu, var, np.full_like(mu, NAN)])
    np.testing.assert_array_equal(in_place[2:], apart[2:])


@pytest.mark.parametrize("shape", [(2, 1), (7, 3), (140, 9)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_batch_norm(shape, bias, accumulate):
    rows, n = shape
    mu, var = normal(*shape) + 100, uniform(*shape)  # a mean far from 0: sums of squares would lose the variance
    partial = np.full(cuda.batch_norm.partial_shape(rows, n), NAN)
    mean, m2 = call(cuda, "batch_norm", "moments", [mu, var, partial, *np.full((2, n), NAN)])[3:]
    exact = mu.astype(float)
    np.testing.assert_allclose(mean, exact.mean(0), 1e-6)
    np.testing.assert_allclose(m2, ((exact - exact.mean(0)) ** 2).sum(0) + var.sum(0, float), 2e-5)

    r = both("batch_norm", "rescale", [m2, np.float32(rows - 1), np.float32(1e-5), np.full(n, NAN)])[3]
    sums = [np.full(1, 3, np.float32), normal(n, seed=2), 9 + uniform(n, seed=3)]
    both("batch_norm", "pool_moments", [mean, m2, rows, mean + 1, *sums], 1e-5)
    both("batch_norm", "pooled_statistics", [normal(n), *sums, *np.full((2, n), NAN)])
    both("batch_norm", "update_running", [normal(n), uniform(n), np.float32(0.9), *sums])
    both("batch_norm", "update_running", [normal(n), uniform(n), np.float32(0.9), np.zeros(1, np.float32), *sums[1:]])
    w, b = (normal(n, seed=4), uniform(n, seed=5)), (normal(n, seed=6), uniform(n, seed=7))
    both("batch_norm", "forward", [mu, var, mean, r, *w, *b, *np.full((2, *shape), NAN)], 1e-5)

    deltas = normal(*shape, seed=8), -uniform(*shape, seed=9)
    old = [normal(n, seed=k) if accumulate else np.zeros(n, np.float32) for k in range(4)]
    results = []
    for kernels in (cpu, cuda):
        sums = old if bias else [old[0], old[1], old[2][:0], old[3][:0]]
        partial = np.full(kernels.batch_norm.partial_shape(rows, n), NAN)
        after = call(kernels, "batch_norm", "backward", [mu, mean, r, w[0], *deltas, partial, accumulate, *sums])
        results.append([*after[4:6], *after[8:]])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, 1e-5, 2e-5 * np.abs(deltas[0]).sum(0).max())


def test_sums_of_a_failed_step_are_replaced():
    """NaN sums, as observations out of range leave them, must not survive in those of the next step."""
    mu, n = normal(5, 3), 3
    partial = np.empty(cuda.batch_norm.partial_shape(5, n), np.float32)
    arguments = [mu, mu[0], mu[1], mu[2], mu.copy(), mu.copy(), partial, False, *np.full((4, n), NAN)]
    assert np.isfinite(call(cuda, "batch_norm", "backward", arguments)[8:]).all()


@pytest.mark.parametrize("shape", [(3, 1, 2), (2, 37, 3), (2, 3, 19)])
def test_layer_norm(shape):
    batch, _, n = shape
    mu, var = normal(*shape) + 50, uniform(*shape)
    mean, r = both("layer_norm", "moments", [mu, var, np.float32(1e-4), *np.full((2, batch), NAN)], 1e-5)[3:]
    w, b = (normal(n, seed=4), uniform(n, seed=5)), (normal(n, seed=6), uniform(n, seed=7))
    both("layer_norm", "forward", [mu, var, mean, r, *w, *b, *np.full((2, *shape), NAN)], 2e-5)
    deltas = normal(*shape, seed=8), -uniform(*shape, seed=9)
    partial = np.zeros((4, batch, n), np.float32)
    for accumulate in (True, False):
        sums = [normal(n, seed=k) for k in range(4)]
        both("layer_norm", "backward", [mu, mean, r, w[0], *deltas, partial, accumulate, *sums], 2e-5)


WINDOWS = [(2, 2, 0, (6, 4), (3, 2)), (3, 2, 0, (7, 5), (3, 2)), (3, 1, 1, (4, 5), (4, 5)), (2, 3, 1, (5, 5), (2, 2))]


@pytest.mark.parametrize(("kernel_size", "stride", "pad", "image", "windows"), WINDOWS)
def test_pooling(kernel_size, stride, pad, image, windows):
    mu, var = normal(2, *image, 3), uniform(2, *image, 3)
    mu[0, :, :, 0] = 1  # ties
    out = np.full((2, 2, *windows, 3), NAN)
    both("pooling", "average_forward", [mu, var, *out, kernel_size, stride, pad])
    winner = np.full(out[0].shape, -1, np.int32)
    winner = both("pooling", "max_forward", [mu, var, *out, winner, kernel_size, stride, pad])[4]
    deltas, into = (normal(*winner.shape), -uniform(*winner.shape)), np.full((2, *mu.shape), NAN)
    both("pooling", "average_backward", [*deltas, *into, kernel_size, stride, pad])
    both("pooling", "max_backward", [*deltas, winner, *into, kernel_size, stride, pad])


def test_elementwise():
    a, b = normal(70), normal(70, seed=1)
    both("elementwise", "add", [a, b, np.full(70, NAN)])
    both("elementwise", "multiply", [a, b])
    both("elementwise", "apply_jacobian", [a, b, normal(70, seed=2)])


@pytest.mark.parametrize("shape", [(2, 3, 35), (1, 40, 33), (3, 1, 5)])
def test_transpose(shape):
    batch, rows, columns = shape
    both("elementwise", "transpose", [normal(*shape), np.full((batch, columns, rows), NAN)], 0)


def test_output_update():
    mu, var, jcb, obs, noise = normal(40), uniform(40), normal(40, seed=1), normal(40, seed=2), uniform(40, seed=3)
    obs[3] = np.nan
    delta = both("output_update", "update", [mu, var, jcb, obs, noise, *np.full((2, 40), NAN)])[5:]
    assert delta[0][3] == delta[1][3] == 0
    pairs = [mu, var, jcb, obs[:20], *np.full((2, 40), NAN)]
    mu[1::2] = np.abs(mu[1::2]) + 0.1
    both("output_update", "update_heteros", pairs, 1e-5)


def test_output_update_using_indices():
    rows = (5, 8)
    index = np.random.default_rng(0).integers(0, 8, (5, 4)).astype(np.int32)
    index[2] = [1, 6, 1, 0]  # named twice: the last observation counts
    obs, noise = normal(5, 4, seed=1), uniform(5, 4)
    states = normal(*rows), uniform(*rows), normal(*rows, seed=2)
    both("output_update", "update_using_indices", [*states, obs, noise, index, *np.full((2, *rows), NAN)])


@pytest.mark.parametrize("factors", [(1, 2), (0.5, 0.1), (0, 1)])
def test_step(factors):
    mu, var, g, h = normal(90), uniform(90), normal(90, seed=1), normal(90, seed=2)
    g[5], h[40], h[7] = np.nan, np.inf, -1e9
    starts, stops = np.int32([0, 3, 39]), np.int32([3, 39, 90])
    counts = np.full((2, 3), -1, np.int32)
    arguments = [mu, var, g, h, np.float32(factors), starts, stops, *counts]
    after = both("step", "step", arguments)
    np.testing.assert_array_equal(after[8], [0, 1, 1] if factors[0] else [0, 0, 0])
    if not factors[0]:
        np.testing.assert_array_equal(after[:2], [mu, var])


@pytest.mark.parametrize("header", [(0, 0, 0), (1, 1, 0), (300, 2, 1), (257, 2, 0), (510, 2, 0)])
def test_pooled_factors(header):
    for average in (True, False):
        both("step", "pooled_factors", [np.float32(header), np.full(2, NAN), average])


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_merge(ranks, weighted):
    mu, var, prior = normal(70), uniform(70), (normal(70, seed=1), uniform(70, seed=2))
    sums = both("merge", "contribute", [mu, var, *prior, *np.full((2, 70), NAN), weighted])[4:6]
    both("merge", "merge_sums", [mu, var, *prior, *sums, np.float32([9, ranks, 0]), weighted])

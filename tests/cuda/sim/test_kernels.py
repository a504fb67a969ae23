"""Every CUDA kernel but the products against its twin on the CPU, on small ragged sizes."""

import numpy as np
import pytest

from pytagi_ddp.kernels import cpu, cuda
from pytagi_ddp.kernels.formulas.activation import ELEMENTWISE, parameters_of
from pytagi_ddp.kernels.tensors import ALL, CAUSAL_FACTOR, CAUSAL_RESULT, Delta, Heads, State, Sums, Tensor

NAN = np.float32(np.nan)


def normal(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def uniform(*shape, seed=0, low=0.05, high=1.5):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def unwritten(kind: type, *shape: int, fields: int = 2):
    """A State or Delta of NaN."""
    return kind(*np.full((fields, *shape), NAN))


def mapped(function, value):
    """`value` with `function` of every array in it, also in tuples."""
    if isinstance(value, tuple):
        return type(value)(*(mapped(function, item) for item in value))
    return function(value) if isinstance(value, np.ndarray) else value


def flat(values) -> list[np.ndarray]:
    """All arrays in order."""
    found = []
    for value in values:
        mapped(found.append, value)
    return found


def call(kernels, family: str, function: str, inputs: list) -> list:
    """Calls a kernel with copies of `inputs`, the same array where they are the same; returns them as it left them."""
    array = cpu.array if kernels is cpu else cuda.array.arrays(0)
    copies = {id(a): array.place(a.copy()) for a in flat(inputs)}
    getattr(getattr(kernels, family), function)(*(mapped(lambda a: copies[id(a)], value) for value in inputs))
    return [mapped(lambda a: array.to_host(copies[id(a)]), value) for value in inputs]


def both(family: str, function: str, inputs: list, tolerance: float = 2e-6) -> list:
    """Calls the kernel on both devices with copies of `inputs`, and compares all arrays after the call."""
    results = [call(kernels, family, function, inputs) for kernels in (cpu, cuda)]
    for position, (expected, actual) in enumerate(zip(*map(flat, results), strict=True)):
        if expected.size:
            scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            what = f"{family}.{function}, array {position}"
            np.testing.assert_allclose(actual, expected, tolerance, tolerance * scale, err_msg=what)
    return results[1]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_activations(name):
    x = State(normal(71, scale=2), uniform(71, seed=1))
    x.var[::20] = 0
    settings = [0.3] * len(parameters_of(ELEMENTWISE[name]))
    both("activation", "elementwise", [name, x, unwritten(State, 71, fields=3), *settings])


def test_even_exp():
    x = State(normal(71, scale=2), uniform(71, seed=1))
    both("activation", "even_exp", [x, unwritten(State, 71, fields=3)])


def test_activation_in_place():
    x, jcb = State(normal(7, 10), uniform(7, 10)), np.full((7, 10), NAN)
    apart = both("activation", "elementwise", ["mixture_relu", x, unwritten(State, 7, 10, fields=3)])
    in_place = call(cuda, "activation", "elementwise", ["mixture_relu", x, State(x.mu, x.var, jcb)])
    np.testing.assert_array_equal(in_place[2], apart[2])


@pytest.mark.parametrize("name", ["softmax", "remax", "closed_form_softmax"])
@pytest.mark.parametrize("classes", [2, 5, 37])
def test_softmax(name, classes):
    x = State(normal(3, classes, scale=2), uniform(3, classes, seed=1))
    x.mu[0] = 1.5  # a tie: the first class counts as the largest
    apart = both("softmax", name, [x, unwritten(State, 3, classes, fields=3)], 2e-5)
    in_place = call(cuda, "softmax", name, [x, State(x.mu, x.var, np.full_like(x.mu, NAN))])
    np.testing.assert_array_equal(in_place[1], apart[1])


@pytest.mark.parametrize("certain", ["neither", "first", "second"])
@pytest.mark.parametrize("causal", [ALL, CAUSAL_FACTOR, CAUSAL_RESULT])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("share", [1, 2])
def test_products_of_heads(certain, causal, transposed, share):
    """Of squares (11, 11) and columns of 5 units a head, so that tiles are cut on all sides; shared ones add up."""
    batch, heads, n, size = 2, 4, 11, 5
    square = State(normal(batch * heads, n, n), uniform(batch * heads, n, n, seed=1))
    if causal == CAUSAL_FACTOR:
        square.mu[:], square.var[:] = np.tril(square.mu), np.tril(square.var)
    units = State(normal(batch, n, heads * size, seed=2), uniform(batch, n, heads * size, seed=3))
    side = Heads(units, 0, n * heads * size, size, heads * size)
    if causal == CAUSAL_RESULT:
        x, y = side, side._replace(units=State(2 * units.mu, 3 * units.var), transposed=True)
        out = Heads(unwritten(State, batch * heads // share, n, n), 0, heads // share * n * n, n * n, n, share)
        sizes = n, size, n
    else:
        x, y = Heads(square, 0, heads * n * n, n * n, n, 1, transposed), side
        width = heads // share * size
        out = Heads(unwritten(State, batch, n, width), 0, n * width, size, width, share)
        sizes = n, n, size
    x, y = (
        factor._replace(units=State(factor.units.mu, None)) if which == certain else factor
        for which, factor in (("first", x), ("second", y))
    )
    found = [call(k, "attention", "multiply", [x, y, out, batch, heads, *sizes, causal])[2].units for k in (cpu, cuda)]
    for expected, actual in zip(*([a for a in units[:2]] for units in found), strict=True):
        if causal == CAUSAL_RESULT:
            expected, actual = np.tril(expected), np.tril(actual)
        np.testing.assert_allclose(actual, expected, 2e-6, 2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(2, 1), (7, 3), (140, 9)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_batch_norm(shape, bias, accumulate):
    rows, n = shape
    x = State(normal(*shape) + 100, uniform(*shape))  # a mean far from 0: sums of squares would lose the variance
    partial = np.full(cuda.batch_norm.partial_shape(rows, n), NAN)
    mean, m2 = call(cuda, "batch_norm", "moments", [x, partial, *np.full((2, n), NAN)])[2:]
    exact = x.mu.astype(float)
    np.testing.assert_allclose(mean, exact.mean(0), 1e-6)
    np.testing.assert_allclose(m2, ((exact - exact.mean(0)) ** 2).sum(0) + x.var.sum(0, float), 2e-5)

    r = both("batch_norm", "rescale", [m2, rows - 1, 1e-5, np.full(n, NAN)])[3]
    sums = Sums(np.full(1, 3, np.float32), normal(n, seed=2), 9 + uniform(n, seed=3))
    both("batch_norm", "pool_moments", [mean, m2, rows, mean + 1, sums], 1e-5)
    both("batch_norm", "pooled_statistics", [normal(n), sums, *np.full((2, n), NAN)])
    both("batch_norm", "update_running", [normal(n), uniform(n), 0.9, sums])
    nothing = sums._replace(count=np.zeros(1, np.float32))
    both("batch_norm", "update_running", [normal(n), uniform(n), 0.9, nothing])
    weights, biases = affine(n)
    both("batch_norm", "forward", [x, mean, r, weights, biases, unwritten(State, *shape)], 1e-5)

    delta = Delta(normal(*shape, seed=8), -uniform(*shape, seed=9))
    old = [normal(n, seed=k) if accumulate else np.zeros(n, np.float32) for k in range(4)]
    weights = weights._replace(delta_mu_sum=old[0], delta_var_sum=old[1])
    biases = biases._replace(delta_mu_sum=old[2] if bias else old[2][:0], delta_var_sum=old[3] if bias else old[3][:0])
    results = []
    for kernels in (cpu, cuda):
        partial = np.full(kernels.batch_norm.partial_shape(rows, n), NAN)
        inputs = [x, delta, mean, r, weights, biases, partial, accumulate]
        _, deltas, _, _, *sums, _, _ = call(kernels, "batch_norm", "backward", inputs)
        results.append(flat([deltas, *sums]))
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, 1e-5, 2e-5 * np.abs(delta.mu).sum(0).max())


def affine(n: int) -> tuple[Tensor, Tensor]:
    """Weights and biases of a normalisation, without batch sums."""
    return Tensor(normal(n, seed=4), uniform(n, seed=5)), Tensor(normal(n, seed=6), uniform(n, seed=7))


def test_sums_of_a_failed_step_are_replaced():
    """NaN sums, as observations out of range leave them, must not survive in those of the next step."""
    x = State(normal(5, 3), None)
    partial = np.empty(cuda.batch_norm.partial_shape(5, 3), np.float32)
    weights, biases = (
        tensor._replace(delta_mu_sum=np.full(3, NAN), delta_var_sum=np.full(3, NAN)) for tensor in affine(3)
    )
    arguments = [x, Delta(x.mu.copy(), x.mu.copy()), x.mu[0], x.mu[1], weights, biases, partial, False]
    assert np.isfinite(flat(call(cuda, "batch_norm", "backward", arguments)[4:6])).all()


@pytest.mark.parametrize("shape", [(3, 1, 2), (2, 37, 3), (2, 3, 19)])
def test_layer_norm(shape):
    batch, _, n = shape
    x = State(normal(*shape) + 50, uniform(*shape))
    mean, r = both("layer_norm", "moments", [x, 1e-4, *np.full((2, batch), NAN)], 1e-5)[2:]
    weights, biases = affine(n)
    both("layer_norm", "forward", [x, mean, r, weights, biases, unwritten(State, *shape)], 2e-5)
    delta = Delta(normal(*shape, seed=8), -uniform(*shape, seed=9))
    partial = np.zeros((4, batch, n), np.float32)
    weights = weights._replace(delta_mu_sum=normal(n), delta_var_sum=normal(n, seed=1))
    biases = biases._replace(delta_mu_sum=normal(n, seed=2), delta_var_sum=normal(n, seed=3))
    for accumulate in (True, False):
        both("layer_norm", "backward", [x, delta, mean, r, weights, biases, partial, accumulate], 2e-5)


WINDOWS = [(2, 2, 0, (6, 4), (3, 2)), (3, 2, 0, (7, 5), (3, 2)), (3, 1, 1, (4, 5), (4, 5)), (2, 3, 1, (5, 5), (2, 2))]


@pytest.mark.parametrize(("kernel_size", "stride", "pad", "image", "windows"), WINDOWS)
def test_pooling(kernel_size, stride, pad, image, windows):
    x = State(normal(2, *image, 3), uniform(2, *image, 3))
    x.mu[0, :, :, 0] = 1  # ties
    out = unwritten(State, 2, *windows, 3)
    both("pooling", "average_forward", [x, out, kernel_size, stride, pad])
    winner = np.full(out.mu.shape, -1, np.int32)
    winner = both("pooling", "max_forward", [x, out, winner, kernel_size, stride, pad])[2]
    delta, into = Delta(normal(*winner.shape), -uniform(*winner.shape)), unwritten(Delta, *x.mu.shape)
    both("pooling", "average_backward", [delta, into, kernel_size, stride, pad])
    both("pooling", "max_backward", [delta, winner, into, kernel_size, stride, pad])


def test_elementwise():
    a, b = normal(7, 10), normal(7, 10, seed=1)
    both("elementwise", "add", [a, b, np.full((7, 10), NAN)])
    both("elementwise", "multiply", [a, b])
    both("elementwise", "apply_jacobian", [Delta(a, b), normal(7, 10, seed=2)])


@pytest.mark.parametrize("shape", [(2, 3, 35), (1, 40, 33), (3, 1, 5)])
def test_transpose(shape):
    batch, rows, columns = shape
    both("elementwise", "transpose", [normal(*shape), np.full((batch, columns, rows), NAN)], 0)


def test_output_update():
    output = State(normal(10, 4), uniform(10, 4), normal(10, 4, seed=1))
    observed = State(normal(40, seed=2), uniform(40, seed=3))
    observed.mu[3] = np.nan
    delta = both("output_update", "update", [output, observed, unwritten(Delta, 10, 4)])[2]
    assert delta.mu[0, 3] == delta.var[0, 3] == 0
    output.mu[:, 1::2] = np.abs(output.mu[:, 1::2]) + 0.1
    pairs = State(observed.mu[:20], None)
    both("output_update", "update_heteros", [output, pairs, unwritten(Delta, 10, 4)], 1e-5)


def test_output_update_using_indices():
    rows = (5, 8)
    index = np.random.default_rng(0).integers(0, 8, (5, 4)).astype(np.int32)
    index[2] = [1, 6, 1, 0]  # named twice: the last observation counts
    observed = State(normal(5, 4, seed=1), uniform(5, 4))
    output = State(normal(*rows), uniform(*rows), normal(*rows, seed=2))
    both("output_update", "update_using_indices", [output, observed, index, unwritten(Delta, *rows)])


@pytest.mark.parametrize("factors", [(1, 2, 1), (0.5, 1, 2), (0, 1, 1)])
def test_step(factors):
    parameters = Tensor(normal(90), uniform(90), normal(90, seed=1), normal(90, seed=2))
    parameters.delta_mu_sum[5], parameters.delta_var_sum[40], parameters.delta_var_sum[7] = np.nan, np.inf, -1e9
    starts, stops, steps = np.int32([0, 3, 39]), np.int32([3, 39, 90]), np.int32([1, 200, 3])
    counts = np.full((2, 3), -1, np.int32)
    after = both("step", "step", [parameters, np.float32(factors), starts, stops, steps, *counts])
    np.testing.assert_array_equal(after[6], [0, 1, 1] if factors[0] else [0, 0, 0])
    if not factors[0]:
        np.testing.assert_array_equal(after[0][:2], parameters[:2])


@pytest.mark.parametrize("header", [(0, 0, 0), (1, 1, 0), (300, 2, 1), (257, 2, 0), (510, 2, 0)])
def test_pooled_factors(header):
    for average in (True, False):
        both("step", "pooled_factors", [np.float32(header), np.full(3, NAN), average])


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_merge(ranks, weighted):
    posterior, prior = Tensor(normal(70), uniform(70)), Tensor(normal(70, seed=1), uniform(70, seed=2))
    change = both("merge", "contribute", [posterior, prior, unwritten(Delta, 70), weighted])[2]
    both("merge", "merge_sums", [posterior, prior, change, np.float32([9, ranks, 0]), weighted])

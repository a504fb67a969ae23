"""Every CUDA kernel but the products against its twin on the CPU, on ragged sizes."""

import ast
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp.kernels import cpu, cuda
from pytagi_ddp.kernels.cuda.runtime import compile
from pytagi_ddp.kernels.formulas.activation import ELEMENTWISE, parameters_of
from pytagi_ddp.kernels.formulas.bounds import at_least, at_most
from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.likelihood import LIKELIHOODS
from pytagi_ddp.kernels.tensors import (
    ALL,
    CAUSAL_FACTOR,
    CAUSAL_RESULT,
    Delta,
    Heads,
    LSTMSaved,
    Normalization,
    PartialMoments,
    State,
    Sums,
    Tensor,
)
from pytagi_ddp.nn import PiecewiseLinearEncoding

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


def call(kernels, family: str, function: str, inputs: list, **options) -> list:
    """Calls a kernel with copies of `inputs`, the same array where they are the same; returns them as it left them."""
    array = cpu.array if kernels is cpu else cuda.array.arrays(0)
    copies = {id(a): array.place(a.copy()) for a in flat(inputs)}
    operands = [mapped(lambda a: copies[id(a)], value) for value in inputs]
    getattr(getattr(kernels, family), function)(*operands, **options)
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
@pytest.mark.parametrize("n", [71, 256, 257, 5000])
def test_activations(name, n):
    x = State(normal(n, scale=2), uniform(n, seed=1))
    x.var[::20] = 0
    settings = [0.3] * len(parameters_of(ELEMENTWISE[name]))
    both("activation", "elementwise", [name, x, unwritten(State, n, fields=3), *settings])


@formula
def between(m, s, low, high):
    """Units outside of an interval are known to be at its ends."""
    inside = np.float32(low < m < high)
    return at_most(at_least(m, low), high), inside * s, inside


def test_an_activation_of_two_parameters(monkeypatch):
    monkeypatch.setattr(compile, "REGISTRY", {})  # it is not one of the library's kernels
    monkeypatch.setitem(cpu.activation._LOOPS, "between", cpu.activation._loop_of("between", between))
    monkeypatch.setitem(cuda.activation._KERNELS, "between", cuda.activation._kernel_of("between", between))
    x = State(normal(71, scale=2), uniform(71, seed=1))
    out = both("activation", "elementwise", ["between", x, unwritten(State, 71, fields=3), -0.5, 1.5])[2]
    np.testing.assert_array_equal(out.mu, np.clip(x.mu, -0.5, 1.5))
    np.testing.assert_array_equal(out.var, np.where(out.jcb, x.var, 0))
    assert 10 < out.jcb.sum() < 61


@pytest.mark.parametrize("name", ["mixture_tanh", "mixture_sigmoid"])
def test_clipped_gaussians_that_are_wide(name):
    x = State(normal(300), 10 ** uniform(300, seed=1, low=0, high=12))
    x.mu[:] *= np.sqrt(x.var)
    both("activation", "elementwise", [name, x, unwritten(State, 300, fields=3)], 1e-5)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_nan_passes_activations(name):
    x = State(normal(40), uniform(40))
    x.mu[3] = x.var[30] = NAN
    x.mu[30] = 1  # ReLU gives 0, whatever the variance, below 0
    settings = [0.3] * len(parameters_of(ELEMENTWISE[name]))
    out = both("activation", "elementwise", [name, x, unwritten(State, 40, fields=3), *settings])[2]
    assert np.isnan(out.mu[3]) and np.isnan(out.var[30])


@pytest.mark.parametrize("name", ["softmax", "remax", "closed_form_softmax"])
def test_nan_passes_classes(name):
    for moment, place in ((0, 0), (0, 3), (1, 3)):
        x = State(normal(3, 37), uniform(3, 37))
        x[moment][1, place] = NAN
        out = both("softmax", name, [x, unwritten(State, 3, 37, fields=3)], 2e-5)[1]
        assert np.isnan(out[moment][1, place])


def test_nan_passes_pooled_statistics():
    sums = Sums(np.float32([4]), np.float32([NAN, 1, 2]), np.float32([9, NAN, 9]))
    mean, var = both("batch_norm", "pooled_statistics", [normal(3), sums, *np.full((2, 3), NAN)])[2:]
    np.testing.assert_array_equal(np.isnan([mean, var]), [[True, False, False], [True, True, False]])


@pytest.mark.parametrize("place", [0, 1, 4, 8])
def test_nan_passes_the_largest_mean(place):
    x = State(normal(2, 3, 3, 5), uniform(2, 3, 3, 5))
    x.mu.reshape(2, 9, 5)[1, place, 2] = NAN
    out, winner = unwritten(State, 2, 1, 1, 5), np.full((2, 1, 1, 5), -1, np.int32)
    _, out, winner, *_ = both("pooling", "max_forward", [x, out, winner, 3, 3, 0])
    assert np.flatnonzero(np.isnan(out.mu)).tolist() == [7]
    assert winner[1, 0, 0, 2] == place and out.var[1, 0, 0, 2] == x.var.reshape(2, 9, 5)[1, place, 2]


def test_even_exp():
    x = State(normal(71, scale=2), uniform(71, seed=1))
    both("activation", "even_exp", [x, unwritten(State, 71, fields=3)])


def test_activation_in_place():
    x, jcb = State(normal(7, 10), uniform(7, 10)), np.full((7, 10), NAN)
    apart = both("activation", "elementwise", ["mixture_relu", x, unwritten(State, 7, 10, fields=3)])
    in_place = call(cuda, "activation", "elementwise", ["mixture_relu", x, State(x.mu, x.var, jcb)])
    np.testing.assert_array_equal(in_place[2], apart[2])


@pytest.mark.parametrize("name", ["softmax", "remax", "closed_form_softmax"])
@pytest.mark.parametrize("classes", [2, 5, 37, 128, 129, 1000])
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
    """Of squares a little larger than a tile, and 5 units a head, so that tiles are cut on all sides; shares add up."""
    batch, heads, n, size = 2, 4, cuda.attention.TILE + 3, 5
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


NORMS = [(2, 1), (7, 3), (140, 9), (256, 32), (1030, 70)]
TAKEN = ["", *cuda.batch_norm.activations]


def activated(x: State, activation: str) -> State:
    """x behind an activation, with its Jacobian, as the kernels of the CPU make it."""
    if not activation:
        return x
    out = unwritten(State, *x.mu.shape, fields=3)
    return call(cpu, "activation", "elementwise", [activation, x, out])[2]


def normalization(shape: tuple[int, int], activation: str, seed: int) -> tuple[Normalization, Normalization]:
    """One for the CPU, behind the activation, and the same for the kernels that make it themselves."""
    x = State(normal(*shape, seed=seed), uniform(*shape, seed=seed))
    mean, r, out = normal(shape[1], seed=seed + 1), uniform(shape[1], seed=seed + 2), unwritten(State, *shape)
    plain = Normalization(activated(x, activation), mean, r, *affine(shape[1]), out)
    return plain, plain._replace(x=x, activation=activation)


def close(expected: list, actual: list, tolerance: float = 1e-5) -> None:
    """Compares all arrays, by the largest number of each."""
    for one, other in zip(flat(expected), flat(actual), strict=True):
        if one.size:
            np.testing.assert_allclose(other, one, tolerance, tolerance * np.abs(one).max())


@pytest.mark.parametrize("shape", NORMS)
@pytest.mark.parametrize("activation", TAKEN)
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_batch_statistics(shape, activation, momentum):
    rows, n = shape
    x = State(normal(*shape) + 100, uniform(*shape))  # a mean far from 0: sums of squares would lose the variance
    partial = np.full(cuda.batch_norm.partial_shape(rows, n), NAN)
    mean, m2 = call(cuda, "batch_norm", "moments", [x, partial, *np.full((2, n), NAN)], activation=activation)[2:4]
    passed = activated(x, activation)
    exact = passed.mu.astype(float)
    np.testing.assert_allclose(mean, exact.mean(0), 1e-6)
    np.testing.assert_allclose(m2, ((exact - exact.mean(0)) ** 2).sum(0) + passed.var.sum(0, float), 2e-5)

    r = both("batch_norm", "rescale", [m2, rows - 1, 1e-5, np.full(n, NAN)])[3]
    sums = Sums(np.full(1, 3, np.float32), normal(n, seed=2), 9 + uniform(n, seed=3))
    pooled = both("batch_norm", "pool_moments", [mean, m2, rows, mean + 1, sums], 1e-5)[4]
    both("batch_norm", "pooled_statistics", [normal(n), sums, *np.full((2, n), NAN)])
    running = State(mean + 1, uniform(n))
    moved = both("batch_norm", "update_running", [*running[:2], 0.9, pooled])
    nothing = sums._replace(count=np.zeros(1, np.float32))
    both("batch_norm", "update_running", [normal(n), uniform(n), 0.9, nothing])

    inputs = [x, partial, *np.full((3, n), NAN), 1e-5, running, sums, momentum]
    for kernels in (cuda,) if activation else (cpu, cuda):
        options = {} if kernels is cpu else {"activation": activation}
        inputs[1] = np.full(kernels.batch_norm.partial_shape(rows, n), NAN)
        _, _, *found, _, after, left, _ = call(kernels, "batch_norm", "statistics", inputs, **options)
        expected = [*running[:2], *pooled] if momentum is None else [*moved[:2], *moved[3]]
        close([mean, m2, r, *expected], [*found, *after[:2], *left], 2e-5)


@pytest.mark.parametrize("shape", [(7, 3), (140, 9), (1030, 70)])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_batch_statistics_from_moments_of_parts(shape, momentum):
    """As a product leaves them, in which case nothing reads the units; of 32 rows, the last part of fewer."""
    rows, n = shape
    x = State(normal(*shape) + 10, uniform(*shape))
    parts = [slice(first, first + 32) for first in range(0, rows, 32)]
    means = np.stack([x.mu[part].mean(0) for part in parts])
    squares = [((x.mu[part] - mean) ** 2 + x.var[part]).sum(0) for part, mean in zip(parts, means, strict=True)]
    running, sums = State(normal(n), uniform(n)), Sums(np.full(1, 3, np.float32), normal(n), 9 + uniform(n))
    results = []
    for kernels in (cpu, cuda):
        array = cpu.array if kernels is cpu else cuda.array.arrays(0)
        units = mapped(array.place, x if kernels is cpu else unwritten(State, *shape))
        partial = array.place(np.full(kernels.batch_norm.partial_shape(rows, n), NAN))
        mean, m2, r = (array.place(np.full(n, NAN)) for _ in range(3))
        moved, pooled = (mapped(lambda a: array.place(a.copy()), value) for value in (running, sums))  # noqa: B023
        made = PartialMoments(array.place(np.stack([means, squares]).reshape(-1)), 32)
        options = {} if kernels is cpu else {"made": made}
        kernels.batch_norm.statistics(units, partial, mean, m2, r, 1e-5, moved, pooled, momentum, **options)
        results.append([array.to_host(a) for a in (mean, m2, r, *moved[:2], *pooled)])
        kernels.batch_norm.moments(units, partial, mean, m2, **options)
        results[-1] += [array.to_host(a) for a in (mean, m2)]
    close(*results, 2e-5)


@pytest.mark.parametrize("shape", NORMS)
@pytest.mark.parametrize("activation", TAKEN)
@pytest.mark.parametrize("added", ["nothing", "means", "a state", "a normalization", "another shape"])
def test_batch_normalisation(shape, activation, added):
    norms = normalization(shape, activation, 1)
    others = normalization(shape if added == "a normalization" else shape[::-1], TAKEN[-1], 5)
    state = State(normal(*shape, seed=8), None if added == "means" else uniform(*shape, seed=9))
    others = others if added in ("a normalization", "another shape") else (state,) * 2
    inputs = [[norm] if added == "nothing" else [norm, other] for norm, other in zip(norms, others, strict=True)]
    results = [call(k, "batch_norm", "forward", i)[0].out for k, i in zip((cpu, cuda), inputs, strict=True)]
    close([results[0]], [results[1]])


@pytest.mark.parametrize("shape", NORMS)
@pytest.mark.parametrize("activation", [None, *TAKEN])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_deltas_of_batch_norm(shape, activation, bias, accumulate):
    """In place or not; None: no activation, and no Jacobian."""
    rows, n = shape
    norms = normalization(shape, activation or "", 1)
    if activation == "":
        norms = (norms[0]._replace(x=norms[0].x._replace(jcb=normal(*shape, seed=3))),) * 2
    delta = Delta(normal(*shape, seed=8), -uniform(*shape, seed=9))
    old = [normal(n, seed=k) if accumulate else np.full(n, NAN) for k in range(4)]
    w = norms[0].weights._replace(delta_mu_sum=old[0], delta_var_sum=old[1])
    b = norms[0].bias._replace(
        delta_mu_sum=old[2] if bias else old[2][:0], delta_var_sum=old[3] if bias else old[3][:0]
    )
    results = []
    for kernels, norm in zip((cpu, cuda), norms, strict=True):
        norm = norm._replace(weights=w, bias=b)
        partial = np.full(kernels.batch_norm.partial_shape(rows, n), NAN)
        into = delta if kernels is cpu else unwritten(Delta, *shape)
        found, before, after, *left = call(kernels, "batch_norm", "backward", [norm, delta, into, partial, accumulate])
        results.append([after, found.weights, found.bias])
        if kernels is cuda:
            np.testing.assert_array_equal(before.mu, delta.mu)
            in_place = call(kernels, "batch_norm", "backward", [norm, delta, delta, partial, accumulate])[1]
            np.testing.assert_array_equal(in_place[:2], after[:2])
        if rows > 1:
            parts, means = left[0], np.full((2, n), NAN)
            through = call(kernels, "batch_norm", "subtract_statistics", [norm, after, parts, means])[1]
            results[-1].append(through)
    for expected, actual in zip(*map(flat, results), strict=True):
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
    norm, delta = Normalization(x, x.mu[0], x.mu[1], weights, biases, State(None, None)), Delta(x.mu, x.mu.copy())
    found = call(cuda, "batch_norm", "backward", [norm, delta, delta, partial, False])[0]
    assert np.isfinite([*found.weights[2:], *found.bias[2:]]).all()


@pytest.mark.parametrize("shape", [(3, 1, 2), (2, 37, 3), (2, 3, 19), (3, 64, 32), (2, 65, 33), (5, 1, 300)])
@pytest.mark.parametrize("statistics", ["moments", "mean_squares"])
def test_layer_norm(shape, statistics):
    batch, _, n = shape
    x = State(normal(*shape) + 50, uniform(*shape))
    mean, r = both("layer_norm", statistics, [x, 1e-4, *np.full((2, batch), NAN)], 1e-5)[2:]
    weights, biases = affine(n)
    both("layer_norm", "forward", [x, mean, r, weights, biases, unwritten(State, *shape)], 2e-5)
    delta = Delta(normal(*shape, seed=8), -uniform(*shape, seed=9))
    partial = np.zeros((4, batch, n), np.float32)
    weights = weights._replace(delta_mu_sum=normal(n), delta_var_sum=normal(n, seed=1))
    biases = biases._replace(delta_mu_sum=normal(n, seed=2), delta_var_sum=normal(n, seed=3))
    for accumulate in (True, False):
        both("layer_norm", "backward", [x, delta, mean, r, weights, biases, partial, accumulate], 2e-5)


WINDOWS = [(2, 2, 0, (6, 4), (3, 2)), (3, 2, 0, (7, 5), (3, 2)), (3, 1, 1, (4, 5), (4, 5)), (2, 3, 1, (5, 5), (2, 2))]


WINDOWS += [(3, 2, 1, (17, 15), (9, 8)), (7, 1, 3, (9, 9), (9, 9)), (4, 4, 0, (8, 8), (2, 2))]


@pytest.mark.parametrize(("kernel_size", "stride", "pad", "image", "windows"), WINDOWS)
@pytest.mark.parametrize("channels", [3, 33])
def test_pooling(kernel_size, stride, pad, image, windows, channels):
    x = State(normal(2, *image, channels), uniform(2, *image, channels))
    x.mu[0, :, :, 0] = 1  # ties
    out = unwritten(State, 2, *windows, channels)
    both("pooling", "average_forward", [x, out, kernel_size, stride, pad])
    winner = np.full(out.mu.shape, -1, np.int32)
    winner = both("pooling", "max_forward", [x, out, winner, kernel_size, stride, pad])[2]
    delta, into = Delta(normal(*winner.shape), -uniform(*winner.shape)), unwritten(Delta, *x.mu.shape)
    both("pooling", "average_backward", [delta, into, kernel_size, stride, pad])
    both("pooling", "max_backward", [delta, winner, into, kernel_size, stride, pad])


@pytest.mark.parametrize("shape", [(7, 10), (8, 32), (1, 257), (33, 100)])
def test_elementwise(shape):
    a, b = normal(*shape), normal(*shape, seed=1)
    both("elementwise", "add", [a, b, np.full(shape, NAN)])
    both("elementwise", "add_state", [State(a, b), State(b, a)])
    both("elementwise", "add_state", [State(a, b), State(b, None)])
    both("elementwise", "multiply", [a, b])
    both("elementwise", "apply_jacobian", [Delta(a, b), normal(*shape, seed=2)])


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (40, 1), (2, 300), (600, 3)])
def test_copies_of_columns(rows, columns):
    wide, narrow = normal(rows, columns + 4), normal(rows, columns, seed=1)
    both("elementwise", "copy_columns", [narrow, 0, wide, 3, columns], 0)
    both("elementwise", "copy_columns", [wide, 3, narrow, 0, columns], 0)


@pytest.mark.parametrize("shape", [(2, 3, 35), (1, 40, 33), (3, 1, 5), (2, 64, 96), (1, 3, 1024)])
def test_transpose(shape):
    batch, rows, columns = shape
    both("elementwise", "transpose", [normal(*shape), np.full((batch, columns, rows), NAN)], 0)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(3, 2, 3), (5, 5, 1), (33, 16, 33), (20, 20, 16)])
@pytest.mark.parametrize("certain", [None, 0, 1])
def test_products_of_heads_of_the_size_of_tiles(rows, depth, columns, certain):
    """Two samples of four heads, of which two share their second factor."""
    x, y = (State(normal(16 * n, seed=n), uniform(16 * n, seed=n)) for n in (rows * depth, depth * columns))
    if certain is not None:
        x, y = ((m._replace(var=None) if i == certain else m) for i, m in enumerate((x, y)))
    shared = Heads(y, 0, 2 * depth * columns, depth * columns, columns, 2)
    into = Heads(unwritten(State, 8 * rows * columns), 0, 4 * rows * columns, rows * columns, columns)
    layout = 4 * rows * depth, rows * depth
    for factor in (Heads(x, 1, *layout, depth), Heads(x, 1, *layout, rows, transposed=True)):
        both("attention", "multiply", [factor, shared, into, 2, 4, rows, depth, columns, ALL], 1e-5)


@pytest.mark.parametrize("steps", [2, 5, 128, 129, 300])
@pytest.mark.parametrize("causal", [True, False])
def test_shares_of_attention(steps, causal):
    shape = (2 * steps if steps < 9 else steps, steps)
    scores = State(normal(*shape, scale=2), uniform(*shape))
    shares, slopes = both("attention", "remax", [scores, unwritten(Delta, *shape), 0.7, causal], 1e-5)[:2]
    delta = Delta(normal(*shape, seed=8), -uniform(*shape, seed=9))
    both("attention", "remax_backward", [delta, shares.mu, Delta(*slopes), 0.7, causal], 2e-5)


@pytest.mark.parametrize(("steps", "size", "heads"), [(3, 2, 1), (2, 4, 3), (20, 16, 2)])
def test_rotation(steps, size, heads):
    units = State(normal(2 * steps, heads * size + 3), uniform(2 * steps, heads * size + 3))
    table = np.tile([0.6, 0.8], (steps, 1)).repeat(size // 2, axis=1).astype(np.float32)
    for inverse in (False, True):
        both("attention", "rotate", [units, table, heads, inverse])


@pytest.mark.parametrize(("n", "rows", "features"), [(7, 5, 3), (300, 20, 32), (65, 7, 130)])
def test_embedding(n, rows, features):
    categories = np.random.default_rng(0).integers(-1, rows + 1, n).astype(np.float32)  # some have no row
    categories[1] = np.nan
    table = Tensor(normal(rows, features), uniform(rows, features), *np.full((2, rows, features), np.float32(0.5)))
    for padding in (-1, 2):
        both("embedding", "forward", [categories, table, padding, unwritten(State, n, features)], 0)
        both("embedding", "backward", [categories, Delta(normal(n, features), normal(n, features)), table, padding])


@pytest.mark.parametrize(("rows", "bins", "values"), [(3, [2, 1, 4], [2, 0, 1]), (50, [24] * 8 + [1], [0] * 8 + [240])])
def test_piecewise_linear_encoding(rows, bins, values):
    edges = [np.round(np.linspace(-1, 1, count + 1), 3) for count in bins]
    layer = PiecewiseLinearEncoding(edges, values=[np.arange(count) if count else None for count in values])
    first, units = np.cumsum([0, *bins], dtype=np.float32), layer.constants()
    count = sum(bins) + sum(values)
    units[3:5] = normal(2, count, seed=3)  # bottom and top
    x = State(normal(rows, len(bins)), np.round(uniform(rows, len(bins))))
    x.mu[::2, ::2] = np.round(2 * x.mu[::2, ::2])  # values that have a unit
    x.mu[0, 0] = np.nan
    out = unwritten(State, rows, count)._replace(jcb=np.full((rows, count), np.nan, np.float32))
    both("encoding", "forward", [x, first, units, out], 1e-5)
    both("encoding", "forward", [x._replace(var=None), first, units, out._replace(var=None)])
    delta = Delta(normal(rows, count), normal(rows, count, seed=4))
    both("encoding", "backward", [delta, first, unwritten(Delta, rows, len(bins))])


def test_output_update():
    output = State(normal(10, 4), uniform(10, 4), normal(10, 4, seed=1))
    observed = State(normal(40, seed=2), uniform(40, seed=3))
    observed.mu[3] = np.nan
    delta = both("output_update", "update", [output, observed, unwritten(Delta, 10, 4)])[2]
    assert delta.mu[0, 3] == delta.var[0, 3] == 0
    output.mu[:, 1::2] = np.abs(output.mu[:, 1::2]) + 0.1
    pairs = State(observed.mu[:20], None)
    output.mu[1, 1], output.var[2, 3] = np.inf, np.inf  # noises, of pairs 2 and 5
    both("output_update", "update_heteros", [output, pairs, unwritten(Delta, 10, 4)], 1e-5)


def test_output_update_using_indices():
    rows = (5, 8)
    index = np.random.default_rng(0).integers(0, 8, (5, 4)).astype(np.int32)
    index[2] = [1, 6, 1, 0]  # named twice: the last observation counts
    observed = State(normal(5, 4, seed=1), uniform(5, 4))
    output = State(normal(*rows), uniform(*rows), normal(*rows, seed=2))
    both("output_update", "update_using_indices", [output, observed, index, unwritten(Delta, *rows)])


# Observations, and the parameters a and b, of each likelihood.
OBSERVED = {
    "gaussian": (normal, 0.3, 1),
    "given": (normal, 0.3, -0.2),
    "interval": (normal, 2.5, 0.2),
    "laplace": (normal, 0.4, 1),
    "student_t": (normal, 0.4, 3),
    "gamma": (uniform, 2, 1),
    "binomial": (lambda *shape: np.round(uniform(*shape, high=0.95)), 1, -0.5),
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_likelihoods(kind):
    rows, width, outputs, first = 90, 7, 5, 1
    assert kind in OBSERVED, f"add {kind} to OBSERVED: a function that makes observations, and parameters a and b"
    make, a, b = OBSERVED[kind]
    output = State(normal(rows, width), uniform(rows, width), normal(rows, width, seed=1))
    observed = make(rows, outputs).astype(np.float32)
    observed[1, 0] = NAN
    output.mu[2, 2] = NAN  # of a network that has diverged
    whole, single = rows * outputs, np.float32([b])
    parameter = np.full(whole, a, np.float32)
    for weight in (np.float32([1]), uniform(whole, seed=4)):
        inputs = [kind, output, observed, parameter, single, weight, first, unwritten(Delta, rows, width)]
        delta = both("likelihood", "observe", inputs, 2e-5)[-1]
        assert delta.mu[1, 1] == delta.var[1, 1] == 0
        assert np.isnan(delta.mu[2, 2]) and np.isnan(delta.var[2, 2])
        assert np.isnan(delta.mu[:, 0]).all()  # of other parts: not written
        assert np.isfinite(delta.mu[3:, first : first + outputs]).all()


@pytest.mark.parametrize("classes", [2, 37, 64, 65, 300])
def test_categorical_likelihood(classes):
    rows = 4
    output = State(normal(rows, classes + 3), uniform(rows, classes + 3, high=9), normal(rows, classes + 3, seed=1))
    index = np.int32([0, classes - 1, -1, classes // 2])
    for weight in (np.float32([2]), uniform(rows, seed=4)):
        inputs = [output, index, weight, 2, classes, unwritten(Delta, rows, classes + 3)]
        delta = both("likelihood", "categorical", inputs, 2e-5)[-1]
        np.testing.assert_array_equal(delta.mu[2, 2 : 2 + classes], 0)
        assert np.isnan(delta.var[:, [0, 1, -1]]).all()


@pytest.mark.parametrize(
    "factors", [(1, 2, 1, 0), (0.5, 1, 2, 0), (0, 1, 1, 0), (1, 2, 1, 0.3), (0.5, 300, 1, 1), (0, 1, 1, 0.2)]
)
def test_step(factors):
    parameters = Tensor(normal(90), uniform(90), normal(90, seed=1), normal(90, seed=2))
    parameters.delta_var_sum[7] = -1e9
    parameters.var[11], parameters.var[50] = 0, 0  # known
    starts, stops, steps = np.int32([0, 3, 39]), np.int32([3, 39, 90]), np.int32([1, 200, 3])
    priors, counts = np.float32([[0, 1, 0.5], [2, 0.01, 0]]), np.full((2, 3), -1, np.int32)
    after = both("step", "step", [parameters, np.float32(factors), starts, stops, steps, *priors, *counts])
    assert not after[-1].any()
    np.testing.assert_array_equal(after[0].var[[11, 50]], 0)
    np.testing.assert_array_equal(after[0].mu[[11, 50]], parameters.mu[[11, 50]])
    if not factors[0]:
        np.testing.assert_array_equal(after[0][:2], parameters[:2])
    parameters.delta_var_sum[40] = np.inf
    after = both("step", "step", [parameters, np.float32(factors), starts, stops, steps, *priors, *counts])
    np.testing.assert_array_equal(after[0], parameters)
    np.testing.assert_array_equal(after[-2:], [[0, 0, 0], [0, 0, factors[0] != 0]])


@pytest.mark.parametrize("scale", [0, 0.5])
def test_what_a_step_would_refuse(scale):
    parameters = Tensor(normal(90), uniform(90), normal(90, seed=1), normal(90, seed=2))
    parameters.mu[89], parameters.var[50] = np.nan, np.inf
    parameters.delta_mu_sum[5], parameters.delta_mu_sum[50], parameters.delta_var_sum[40] = np.nan, np.nan, -np.inf
    starts, stops, counts = np.int32([0, 3, 39]), np.int32([3, 39, 90]), np.full(3, -1, np.int32)
    found = both("step", "look", [parameters, np.float32([scale, 1, 1, 0]), starts, stops, counts])
    np.testing.assert_array_equal(found[-1], [0, 1, 3] if scale else [0, 0, 0])


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("n", [70, 1, 256, 5001])
def test_settle(n, refused):
    counts = np.zeros(300, np.int32)
    counts[299] = refused
    state, kept = both("step", "settle", [normal(n), normal(n, seed=1), counts])[:2]
    np.testing.assert_array_equal(state, kept)
    np.testing.assert_array_equal(state, normal(n, seed=1) if refused else normal(n))


@pytest.mark.parametrize("header", [(0, 0, 0), (1, 1, 0), (300, 2, 1), (257, 2, 0), (510, 2, 0)])
def test_pooled_factors(header):
    for average in (True, False):
        both("step", "pooled_factors", [np.float32(header), np.full(4, NAN), average, 0.1])


@pytest.mark.parametrize("n", [70, 256, 5001])
def test_forget(n):
    var = uniform(n)
    var[3], var[4] = 0, NAN
    ends = np.int32([0, 3, n // 2, n - 1])  # the last one stays
    found = both("step", "forget", [var, ends[:-1].copy(), ends[1:].copy(), np.float32([0.3, 3, 0.7]), 1.5], 0)[0]
    np.testing.assert_array_equal(found[3 : n // 2], np.minimum(np.float32(1.5) * var[3 : n // 2], np.float32(3)))
    assert found[-1] == var[-1]


@pytest.mark.parametrize("rule", range(3))
@pytest.mark.parametrize("ranks", [0, 1, 3])
@pytest.mark.parametrize("n", [70, 256, 5001])
def test_merge(ranks, rule, n):
    posterior, prior = Tensor(normal(n), uniform(n)), Tensor(normal(n, seed=1), uniform(n, seed=2))
    posterior.mu[5], posterior.var[5] = prior.mu[5], prior.var[5]  # which stays
    change = both("merge", "contribute", [posterior, prior, unwritten(Delta, n), rule])[2]
    both("merge", "merge_sums", [posterior, prior, change, np.float32([9, ranks, 0]), rule])


@pytest.mark.parametrize("n", [70, 300])
def test_rebase(n):
    posterior, old, new = (Tensor(normal(n, seed=k), uniform(n, seed=k + 1)) for k in (1, 3, 5))
    posterior.mu[5], posterior.var[5], old.var[6], new.var[7] = old.mu[5], old.var[5], 0, 1e-4
    both("merge", "rebase", [posterior, old, new])


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("n", [1, 300])
def test_mixture(weight, n):
    posterior, into = (Tensor(normal(n, seed=k), uniform(n, seed=k + 1)) for k in (1, 3))
    mixed = both("merge", "mix", [posterior, into, weight])[1]
    if weight == 1:
        np.testing.assert_allclose(mixed[:2], posterior[:2], 1e-6, 1e-6)


def test_a_memory_keeps_no_negative_variance():
    """Where deltas of many outputs take away more than there is."""
    n = 37
    memory = State(normal(2 * n), uniform(2 * n))
    kept = LSTMSaved(*(uniform(1, 1, n, seed=k) for k in range(8)))
    delta = Delta(normal(1, n), -uniform(1, n, low=0, high=4))
    var = both("recurrent", "update_memory", [memory, delta, kept])[0].var
    assert (var == np.float32(1e-5)).any() and (var > np.float32(1e-5)).any() and (var > 0).all()


def test_formulas_call_neither_min_nor_max():
    """These drop NaN on a GPU; `formulas.bounds` has functions that do not."""
    for path in (Path(__file__).parents[3] / "kernels" / "formulas").glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not {getattr(function, "id", "") for function in calls} & {"min", "max"}, path

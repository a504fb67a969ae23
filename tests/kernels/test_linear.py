"""Dense moment products against float64 sums."""

from functools import cache

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import linear
from pytagi_ddp.kernels.cpu.runtime.workspace import workspace
from pytagi_ddp.kernels.tensors import Delta, State, Tensor

SHAPES = [  # batch, inputs, outputs
    (1, 1, 1),
    (1, 7, 3),
    (5, 1, 17),
    (3, 33, 16),
    (32, 784, 129),
    (70, 130, 65),
    (1100, 40, 50),  # more rows than one block
    (9, 820, 600),  # more inputs and outputs than one block
    (70, 820, 150),  # the same of rows for which the weights are transposed
    (70, 820, 300),  # the same, of blocks for AMX
    (512, 1168, 32),  # two threads' parts of the inputs have longer blocks than all of them
]


def arrays(shape, seed=0):
    """A forward and a backward call's inputs; deltas of the variance are negative as they are in training."""
    rng = np.random.default_rng(seed)
    batch, inputs, outputs = shape
    normal = lambda *size: rng.standard_normal(size, dtype=np.float32)  # noqa: E731
    return {
        "mu": normal(batch, inputs),
        "var": normal(batch, inputs) ** 2,
        "jcb": normal(batch, inputs),
        "w": normal(outputs, inputs),
        "s": normal(outputs, inputs) ** 2,
        "b": normal(outputs),
        "sb": normal(outputs) ** 2,
        "dm": normal(batch, outputs),
        "ds": -(normal(batch, outputs) ** 2),
    }


@cache
def expected_outputs(shape):
    """Of `arrays(shape)`: means without bias, and what variances and means of inputs add to variances."""
    x = {key: value.astype(np.float64) for key, value in arrays(shape).items()}
    return x["mu"] @ x["w"].T, x["var"] @ (x["w"] ** 2 + x["s"]).T, x["mu"] ** 2 @ x["s"].T


@cache
def expected_deltas(shape):
    """Of `arrays(shape)`: deltas of inputs without Jacobian, and sums of weights and biases; each for both moments."""
    x = {key: value.astype(np.float64) for key, value in arrays(shape).items()}
    of_inputs = x["dm"] @ x["w"], x["ds"] @ x["w"] ** 2
    return of_inputs, (x["dm"].T @ x["mu"], x["ds"].T @ x["mu"] ** 2), (x["dm"].sum(0), x["ds"].sum(0))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(np.abs(expected).max(), 1e-30))


def run_forward(a, deterministic=False, bias=True):
    batch, outputs = a["dm"].shape
    out = np.full((2, batch, outputs), np.nan, np.float32)
    x, weights = State(a["mu"], None if deterministic else a["var"]), Tensor(a["w"], a["s"])
    linear.forward(x, weights, Tensor(a["b"], a["sb"]) if bias else None, State(*out))
    return out


def run_backward(a, jcb=True, state=True, bias=True, accumulate=False, start=np.nan):
    (outputs, inputs), batch = a["w"].shape, len(a["mu"])
    d_in = np.full((2, batch, inputs), np.nan, np.float32)
    weight = np.full((2, outputs, inputs), start, np.float32)
    b = np.full((2, outputs), start, np.float32)
    linear.backward(
        State(a["mu"], a["var"], a["jcb"] if jcb else None),
        Delta(a["dm"], a["ds"]),
        Tensor(a["w"], a["s"], *weight),
        Tensor(a["b"], a["sb"], *b) if bias else None,
        Delta(*d_in) if state else None,
        accumulate,
    )
    return d_in, weight, b


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("deterministic", "bias"), [(False, True), (True, True), (False, False)])
@pytest.mark.usefixtures("bounded_scratch")
def test_forward(shape, deterministic, bias, threads):
    a = arrays(shape)
    out_mu, out_var = run_forward(a, deterministic, bias)
    mu, of_var, of_mu = expected_outputs(shape)
    close(out_mu, mu + bias * a["b"])
    close(out_var, (0 if deterministic else of_var) + of_mu + bias * a["sb"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("jcb", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.usefixtures("bounded_scratch")
@pytest.mark.slow
def test_backward(shape, jcb, accumulate, threads):
    a = arrays(shape)
    start = 0.5 if accumulate else np.nan
    d_in, weight, bias = run_backward(a, jcb, accumulate=accumulate, start=start)
    offset = start if accumulate else 0
    jacobian = a["jcb"].astype(np.float64) if jcb else 1
    expected_in, expected_weight, expected_bias = expected_deltas(shape)
    for k in range(2):
        close(d_in[k], jacobian ** (k + 1) * expected_in[k])
        close(weight[k], offset + expected_weight[k])
        close(bias[k], offset + expected_bias[k])


def test_first_layer_skips_input_deltas_and_bias():
    a = arrays((6, 20, 30))
    _, weight, _ = run_backward(a, state=False, bias=False)
    _, expected, _ = run_backward(a)
    np.testing.assert_array_equal(weight, expected)


def test_same_bits_every_time(threads):
    a = arrays((65, 520, 130))
    first = [run_forward(a), *run_backward(a)]
    for _ in range(3):
        for one, other in zip(first, [run_forward(a), *run_backward(a)], strict=True):
            np.testing.assert_array_equal(one, other)


def test_batch_grows_and_shrinks():
    largest = arrays((300, 50, 40))
    expected = run_forward(largest)
    for batch in (10, 300, 1, 130):
        a = {k: v[:batch] if k in ("mu", "var", "jcb", "dm", "ds") else v for k, v in largest.items()}
        np.testing.assert_allclose(run_forward(a), expected[:, :batch], rtol=1e-4, atol=1e-3)


def test_second_call_allocates_nothing(threads):
    a = arrays((64, 300, 200))
    run_forward(a)
    run_backward(a)
    before = workspace(0)
    run_forward(a)
    run_backward(a)
    assert workspace(0) is before


@pytest.mark.parametrize("name", ["mu", "var", "w", "s", "b", "sb"])
def test_forward_refuses_sizes_that_do_not_fit(name):
    a = arrays((4, 6, 5))
    a[name] = np.ascontiguousarray(a[name][..., :-1])
    with pytest.raises(ValueError, match="linear"):
        run_forward(a)


@pytest.mark.parametrize("name", ["jcb", "dm", "ds", "w"])
def test_backward_refuses_sizes_that_do_not_fit(name):
    a = arrays((4, 6, 5))
    a[name] = np.ascontiguousarray(a[name][:-1])
    with pytest.raises(ValueError, match="linear"):
        run_backward(a)


def test_refuses_double_precision():
    a = arrays((4, 6, 5))
    a["mu"] = a["mu"].astype(np.float64)
    with pytest.raises(ValueError, match="float"):
        run_forward(a)

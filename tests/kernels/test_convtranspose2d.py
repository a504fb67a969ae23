"""Transposed convolution moment products against float64 sums over taps."""

from functools import cache, partial

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import convtranspose2d
from tests.kernels import test_conv2d
from tests.kernels.test_conv2d import CASES, adjoint, arrays, close, convolve, weight_sums

pytestmark = pytest.mark.slow  # some hundred cases, which are those of test_conv2d.py


def transposed(case) -> dict[str, np.ndarray]:
    """Operands by name: inputs have the shape of a convolution's outputs, and the other way round."""
    drawn, rng = arrays(case), np.random.default_rng(1)
    of_image, of_output = ("mu", "var", "jcb"), ("dm", "ds")
    shape = drawn["dm"].shape
    a = {name: rng.standard_normal(shape, dtype=np.float32) for name in of_image}
    a["var"] **= 2
    a |= dict(zip(of_output, (drawn["mu"], -drawn["var"]), strict=True))
    channels = drawn["w"].shape[1]
    b, sb = rng.standard_normal((2, channels), dtype=np.float32)
    return a | {"w": drawn["w"], "s": drawn["s"], "b": b, "sb": sb**2}


@cache
def expected_outputs(case):
    """As that of test_conv2d, of `transposed(case)`."""
    a = transposed(case)
    shape = a["dm"].shape
    of_var = adjoint(case, a["var"], a["w"].astype(np.float64) ** 2 + a["s"], shape)
    return adjoint(case, a["mu"], a["w"], shape), of_var, adjoint(case, a["mu"].astype(np.float64) ** 2, a["s"], shape)


@cache
def expected_deltas(case):
    """As that of test_conv2d, of `transposed(case)`."""
    a = transposed(case)
    w, shape = a["w"].astype(np.float64), a["mu"].shape
    of_inputs = convolve(case, a["dm"], a["w"], shape), convolve(case, a["ds"], w**2, shape)
    means = weight_sums(case, a["dm"], a["mu"], w.shape)
    return *of_inputs, means, weight_sums(case, a["ds"], a["mu"].astype(np.float64) ** 2, w.shape)


run_forward = partial(test_conv2d.run_forward, kernels=convtranspose2d)
run_backward = partial(test_conv2d.run_backward, kernels=convtranspose2d)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("deterministic", "bias"), [(False, True), (True, False)])
def test_forward(case, deterministic, bias, threads):
    a = transposed(case)
    out_mu, out_var = run_forward(case, a, deterministic, bias)
    mu, of_var, of_mu = expected_outputs(case)
    close(out_mu, mu + bias * a["b"])
    close(out_var, (0 if deterministic else of_var) + of_mu + bias * a["sb"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("jcb", "accumulate"), [(True, False), (False, True)])
def test_backward(case, jcb, accumulate, threads):
    a = transposed(case)
    start = 0.5 if accumulate else np.nan
    d_in, weight, bias = run_backward(case, a, jcb, accumulate=accumulate, start=start)
    offset = start if accumulate else 0
    jacobian = a["jcb"].astype(np.float64) if jcb else 1
    of_dm, of_ds, weight_mu, weight_var = expected_deltas(case)
    close(d_in[0], jacobian * of_dm)
    close(d_in[1], jacobian**2 * of_ds)
    close(weight[0], offset + weight_mu)
    close(weight[1], offset + weight_var)
    close(bias[0], offset + a["dm"].sum((0, 1, 2), dtype=np.float64))
    close(bias[1], offset + a["ds"].sum((0, 1, 2), dtype=np.float64))


def test_first_layer_skips_input_deltas_and_bias():
    a = transposed(CASES[1])
    _, weight, _ = run_backward(CASES[1], a, state=False, bias=False)
    _, expected, _ = run_backward(CASES[1], a)
    np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("name", ["mu", "var", "w", "s", "b", "sb"])
def test_forward_refuses_sizes_that_do_not_fit(name):
    a = transposed(CASES[1])
    a[name] = np.ascontiguousarray(a[name][..., :-1])
    with pytest.raises(ValueError, match="convtranspose2d"):
        run_forward(CASES[1], a)


@pytest.mark.parametrize("name", ["jcb", "dm", "ds", "w"])
def test_backward_refuses_sizes_that_do_not_fit(name):
    a = transposed(CASES[1])
    a[name] = np.ascontiguousarray(a[name][..., :-1])
    with pytest.raises(ValueError, match="convtranspose2d"):
        run_backward(CASES[1], a)

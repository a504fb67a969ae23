"""Convolution moment products against float64 sums over taps."""

from functools import cache

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import conv2d
from pytagi_ddp.kernels.cpu.products import _winograd
from pytagi_ddp.kernels.cpu.runtime.workspace import workspace
from pytagi_ddp.kernels.tensors import Delta, State, Tensor

CASES = [  # batch, height, width, channels, outputs, kernel, stride, zeros at top/left, zeros at bottom/right
    (1, 1, 1, 1, 1, 1, 1, 0, 0),
    (2, 5, 7, 3, 4, 3, 1, 1, 1),
    (1, 8, 8, 1, 16, 5, 1, 0, 0),
    (3, 6, 5, 17, 9, 1, 1, 0, 0),
    (2, 7, 9, 4, 6, 1, 2, 0, 0),  # k < stride: pixels that no output reads
    (2, 7, 6, 5, 3, 2, 3, 0, 1),
    (3, 8, 8, 16, 33, 3, 2, 0, 1),  # the strided convolutions of a residual block
    (3, 8, 8, 16, 33, 2, 2, 0, 0),
    (2, 9, 11, 6, 5, 3, 2, 1, 1),
    (1, 10, 4, 2, 3, 4, 3, 2, 1),
    (2, 6, 6, 3, 2, 5, 1, 2, 2),
    (2, 4, 5, 3, 5, 3, 1, 4, 4),  # more padding than kernel
    (2, 2, 2, 3, 5, 5, 1, 2, 2),  # kernel larger than the image
    (5, 20, 21, 60, 20, 3, 1, 1, 1),  # more positions and patch elements than one block
    (20, 4, 4, 130, 70, 3, 1, 1, 1),
    (16, 32, 32, 3, 32, 16, 16, 0, 0),  # large patches of few channels
    (1, 16, 18, 16, 32, 3, 1, 1, 1),  # in the Winograd form, by tiles of 2 x 2 pixels: more tiles than one block
    (40, 2, 2, 16, 16, 3, 1, 1, 1),  # every tile at all four edges
    (9, 4, 4, 272, 272, 3, 1, 1, 1),  # kernels made anew for each panel, sums in chunks
]
WINOGRAD = CASES[-3:]
LARGE_TILES = [  # in the Winograd form, by tiles of 4 x 4 pixels
    (4, 16, 16, 16, 32, 3, 1, 1, 1),  # tiles at an edge, at a corner, and inside
    (17, 8, 12, 48, 16, 3, 1, 1, 1),  # the last block is a short one
    (70, 4, 4, 16, 16, 3, 1, 1, 1),  # every tile at all four edges
    (64, 4, 4, 160, 208, 3, 1, 1, 1),  # kernels made anew for each panel, sums in chunks
    (9, 7, 14, 16, 32, 3, 1, 1, 1),  # tiles that are not whole
    (10, 9, 13, 32, 16, 3, 1, 0, 0),  # and an adjoint with other tiles than the convolution
    (8, 10, 7, 16, 16, 3, 1, 2, 1),
]
OTHER_FORMS = [
    (3, 13, 13, 16, 32, 5, 1, 0, 0),
    (4, 12, 9, 32, 16, 5, 1, 2, 2),
    (5, 7, 6, 16, 16, 5, 1, 4, 3),  # more padding than half of the kernel
    (40, 2, 2, 160, 208, 5, 1, 2, 2),  # kernels made anew for each panel, sums in chunks
    (6, 16, 24, 16, 32, 3, 2, 0, 1),  # taps 0 and 2 meet even pixels
    (34, 8, 8, 160, 208, 3, 2, 0, 1),
    (1, 61, 62, 32, 16, 3, 2, 0, 0),  # tiles that are not whole
    (6, 16, 24, 16, 32, 3, 2, 1, 0),  # and odd pixels
    (1, 61, 62, 16, 16, 3, 2, 1, 1),
    (8, 16, 16, 16, 32, 4, 2, 1, 1),
    (34, 8, 8, 112, 112, 4, 2, 1, 1),
    (9, 17, 14, 32, 16, 4, 2, 1, 1),
]
PLAIN = CASES[:-3]
CASES += LARGE_TILES + OTHER_FORMS


def arrays(case, seed=0):
    batch, height, width, channels, outputs, k, stride, before, after = case
    out_size = [(n + before + after - k) // stride + 1 for n in (height, width)]
    rng = np.random.default_rng(seed)
    normal = lambda *size: rng.standard_normal(size, dtype=np.float32)  # noqa: E731
    return {
        "mu": normal(batch, height, width, channels),
        "var": normal(batch, height, width, channels) ** 2,
        "jcb": normal(batch, height, width, channels),
        "w": normal(outputs, channels, k, k),
        "s": normal(outputs, channels, k, k) ** 2,
        "b": normal(outputs),
        "sb": normal(outputs) ** 2,
        "dm": normal(batch, *out_size, outputs),
        "ds": -(normal(batch, *out_size, outputs) ** 2),
    }


def taps(case, padded_shape, out_shape):
    """For each kernel element (r, q): the slice of the padded image that it multiplies."""
    k, stride = case[5], case[6]
    for r in range(k):
        for q in range(k):
            rows = slice(r, r + stride * (out_shape[1] - 1) + 1, stride)
            yield r, q, (slice(None), rows, slice(q, q + stride * (out_shape[2] - 1) + 1, stride))


def pad(case, x):
    zeros = (case[7], case[8])
    return np.pad(x.astype(np.float64), ((0, 0), zeros, zeros, (0, 0)))


def convolve(case, x, w, out_shape):
    x, out = pad(case, x), np.zeros(out_shape)
    for r, q, window in taps(case, x.shape, out_shape):
        out += np.einsum("byxc,oc->byxo", x[window], w[:, :, r, q].astype(np.float64))
    return out


def adjoint(case, d, w, in_shape):
    x = pad(case, np.zeros(in_shape))
    for r, q, window in taps(case, x.shape, d.shape):
        x[window] += np.einsum("byxo,oc->byxc", d.astype(np.float64), w[:, :, r, q].astype(np.float64))
    return x[:, case[7] : case[7] + in_shape[1], case[7] : case[7] + in_shape[2]]


def weight_sums(case, x, d, w_shape):
    x, g = pad(case, x), np.zeros(w_shape)
    for r, q, window in taps(case, x.shape, d.shape):
        g[:, :, r, q] = np.einsum("byxo,byxc->oc", d.astype(np.float64), x[window])
    return g


@cache
def expected_outputs(case):
    """Of `arrays(case)`: means without bias, and the parts of the variances that variances and means of pixels have."""
    a = arrays(case)
    shape = a["dm"].shape
    mu, of_var = convolve(case, a["mu"], a["w"], shape), convolve(case, a["var"], a["w"] ** 2 + a["s"], shape)
    return mu, of_var, convolve(case, a["mu"] ** 2, a["s"], shape)


@cache
def expected_deltas(case):
    """Of `arrays(case)`: deltas of pixels without Jacobian, and sums of weights."""
    a = arrays(case)
    of_image = adjoint(case, a["dm"], a["w"], a["mu"].shape), adjoint(case, a["ds"], a["w"] ** 2, a["mu"].shape)
    sums = weight_sums(case, a["mu"], a["dm"], a["w"].shape), weight_sums(case, a["mu"] ** 2, a["ds"], a["w"].shape)
    return *of_image, *sums


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(np.abs(expected).max(), 1e-30))


def run_forward(case, a, deterministic=False, bias=True, kernels=None):
    out = np.full((2, *a["dm"].shape), np.nan, np.float32)
    x, weights = State(a["mu"], None if deterministic else a["var"]), Tensor(a["w"], a["s"])
    (kernels or conv2d).forward(x, weights, Tensor(a["b"], a["sb"]) if bias else None, State(*out), case[6], case[7])
    return out


def run_backward(case, a, jcb=True, state=True, bias=True, accumulate=False, start=np.nan, kernels=None):
    d_in = np.full((2, *a["mu"].shape), np.nan, np.float32)
    weight = np.full((2, *a["w"].shape), start, np.float32)
    b = np.full((2, len(a["b"])), start, np.float32)
    (kernels or conv2d).backward(
        State(a["mu"], a["var"], a["jcb"] if jcb else None),
        Delta(a["dm"], a["ds"]),
        Tensor(a["w"], a["s"], *weight),
        Tensor(a["b"], a["sb"], *b) if bias else None,
        Delta(*d_in) if state else None,
        case[6],
        case[7],
        accumulate,
    )
    return d_in, weight, b


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("deterministic", "bias"), [(False, True), (True, False)])
@pytest.mark.usefixtures("bounded_scratch")
def test_forward(case, deterministic, bias, threads):
    a = arrays(case)
    out_mu, out_var = run_forward(case, a, deterministic, bias)
    mu, of_var, of_mu = expected_outputs(case)
    close(out_mu, mu + bias * a["b"])
    close(out_var, (0 if deterministic else of_var) + of_mu + bias * a["sb"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("jcb", "accumulate"), [(True, False), (False, True)])
@pytest.mark.usefixtures("bounded_scratch")
@pytest.mark.slow
def test_backward(case, jcb, accumulate, threads):
    a = arrays(case)
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
    a = arrays(CASES[1])
    _, weight, _ = run_backward(CASES[1], a, state=False, bias=False)
    _, expected, _ = run_backward(CASES[1], a)
    np.testing.assert_array_equal(weight, expected)


@pytest.fixture
def plain_sums():
    _winograd.set_largest(0)
    yield
    _winograd.set_largest(4)


@pytest.fixture
def small_tiles():
    _winograd.set_largest(2)
    yield
    _winograd.set_largest(4)


@pytest.mark.parametrize("case", WINOGRAD)
def test_forward_by_plain_sums(case, plain_sums):
    a = arrays(case)
    out_mu, _ = run_forward(case, a)
    close(out_mu, convolve(case, a["mu"], a["w"], out_mu.shape) + a["b"])


@pytest.mark.parametrize("case", WINOGRAD)
def test_winograd_form_is_taken_and_accurate(case, request):
    a = arrays(case)
    exact = convolve(case, a["var"], a["w"].astype(np.float64) ** 2 + a["s"], a["dm"].shape)
    exact += convolve(case, a["mu"].astype(np.float64) ** 2, a["s"], a["dm"].shape)
    fast = run_forward(case, a, bias=False)
    np.testing.assert_allclose(fast[1], exact, rtol=5e-6)
    request.getfixturevalue("plain_sums")
    plain = run_forward(case, a, bias=False)
    assert (fast != plain).any()
    assert np.abs(fast - plain).max() < 5e-6 * np.abs(plain).max()


@pytest.mark.parametrize(
    ("case", "other"), [*((c, "small_tiles") for c in LARGE_TILES), *((c, "plain_sums") for c in OTHER_FORMS)]
)
def test_other_forms_are_taken_and_accurate(case, other, request):
    """Errors near 1e-6 of the largest: a quarter of what interpolation at 0, 1, -1, 2, -2 would leave."""
    a = arrays(case)
    shape, pixels = a["dm"].shape, a["mu"].astype(np.float64)
    exact = [convolve(case, a["mu"], a["w"], shape)]
    exact += [convolve(case, a["var"], a["w"].astype(np.float64) ** 2 + a["s"], shape)]
    exact[1] += convolve(case, pixels**2, a["s"], shape)
    exact += [weight_sums(case, x, a[d], a["w"].shape) for x, d in ((pixels, "dm"), (pixels**2, "ds"))]
    forward, (_, weight, _) = run_forward(case, a, bias=False), run_backward(case, a)
    for fast, want, limit in zip((*forward, *weight), exact, (4e-6, 1.5e-6, 4e-6, 1.5e-6), strict=True):
        assert np.abs(fast - want).max() < (2 if case[5] == 5 else 1) * limit * np.abs(want).max()
    request.getfixturevalue(other)
    assert (run_forward(case, a, bias=False) != forward).any()
    assert (run_backward(case, a)[1] != weight).any()


@pytest.mark.parametrize("case", WINOGRAD)
def test_variances_of_a_winograd_form_are_positive(case):
    a, rng = arrays(case), np.random.default_rng(1)
    spread = np.exp(3 * rng.standard_normal((*a["var"].shape[:3], 1), dtype=np.float32))  # 1e8 between pixels
    a["mu"], a["var"] = a["mu"] * np.sqrt(spread), a["var"] * spread
    a["s"] *= np.exp(rng.standard_normal(a["s"].shape, dtype=np.float32))
    exact = convolve(case, a["var"], a["w"].astype(np.float64) ** 2 + a["s"], a["dm"].shape)
    exact += convolve(case, a["mu"].astype(np.float64) ** 2, a["s"], a["dm"].shape)
    np.testing.assert_allclose(run_forward(case, a, bias=False)[1], exact, rtol=1e-3)


def test_a_variance_never_rounds_to_less_than_zero():
    """One pixel in each window, and a tap a hundred-millionth of the others in all channels: the worst case."""
    case = (1, 16, 16, 64, 64, 3, 1, 1, 1)  # too few tiles for F(4)
    a = arrays(case)
    lit = np.zeros((1, 16, 16, 1), np.float32)
    lit[:, 1::4, 2::4] = 1
    a["mu"], a["var"] = a["mu"] * lit, a["var"] * lit
    small = np.ones((3, 3), np.float32)
    small[0, 0] = small[2, 1] = 1e-8
    a["w"], a["s"] = a["w"] * np.sqrt(small), a["s"] * small
    out_var = run_forward(case, a, bias=False)[1]
    exact = convolve(case, a["var"], a["w"].astype(np.float64) ** 2 + a["s"], a["dm"].shape)
    exact += convolve(case, a["mu"].astype(np.float64) ** 2, a["s"], a["dm"].shape)
    assert out_var.min() == 0
    assert (out_var[exact == 0] == 0).all()
    assert np.abs(out_var - exact).max() < 2e-6 * exact.max()


@pytest.mark.parametrize("case", [*CASES[-14:-10], *OTHER_FORMS[1::3]])
def test_same_bits_every_time(case, threads):
    a = arrays(case)
    first = [run_forward(case, a), *run_backward(case, a)]
    for _ in range(3):
        for one, other in zip(first, [run_forward(case, a), *run_backward(case, a)], strict=True):
            np.testing.assert_array_equal(one, other)


def test_batch_grows_and_shrinks():
    case = (24, 6, 6, 8, 12, 3, 1, 1, 1)
    largest = arrays(case)
    expected = run_forward(case, largest)
    for batch in (3, 24, 1, 13):
        a = {k: v[:batch] if k in ("mu", "var", "jcb", "dm", "ds") else v for k, v in largest.items()}
        np.testing.assert_allclose(run_forward(case, a), expected[:, :batch], rtol=1e-4, atol=1e-3)


def test_second_call_allocates_nothing(threads):
    case = (8, 8, 8, 32, 48, 3, 2, 0, 1)
    a = arrays(case)
    run_forward(case, a)
    run_backward(case, a)
    before = workspace(0)
    run_forward(case, a)
    run_backward(case, a)
    assert workspace(0) is before


@pytest.mark.parametrize("name", ["mu", "var", "w", "s", "b", "sb"])
def test_forward_refuses_sizes_that_do_not_fit(name):
    a = arrays(CASES[1])
    a[name] = np.ascontiguousarray(a[name][..., :-1])
    with pytest.raises(ValueError, match="conv2d"):
        run_forward(CASES[1], a)


@pytest.mark.parametrize("name", ["jcb", "dm", "ds", "w"])
def test_backward_refuses_sizes_that_do_not_fit(name):
    a = arrays(CASES[1])
    a[name] = np.ascontiguousarray(a[name][:-1])
    with pytest.raises(ValueError, match="conv2d"):
        run_backward(CASES[1], a)


def test_refuses_a_stride_of_zero():
    a = arrays(CASES[1])
    with pytest.raises(ValueError, match="stride 0"):
        run_forward((*CASES[1][:6], 0, *CASES[1][7:]), a)

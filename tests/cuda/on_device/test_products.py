"""Dense and convolution products of the GPU against the CPU's (which are tested against float64)."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import activation as cpu_activation
from pytagi_ddp.kernels.cpu.layers import conv2d as cpu_conv2d
from pytagi_ddp.kernels.cpu.layers import convtranspose2d as cpu_convtranspose2d
from pytagi_ddp.kernels.cpu.layers import linear as cpu_linear
from pytagi_ddp.kernels.cpu.runtime import array as cpu_array
from pytagi_ddp.kernels.cuda.layers import conv2d, convtranspose2d, linear
from pytagi_ddp.kernels.cuda.products import dispatch, plan
from pytagi_ddp.kernels.cuda.products.fused_activation import TAKEN
from pytagi_ddp.kernels.cuda.products.plan import FORWARD, KNOWN, PARAMETERS, STATE, TRANSPOSED, Speed
from pytagi_ddp.kernels.cuda.runtime import array as cuda_array
from pytagi_ddp.kernels.tensors import Delta, State, Tensor
from tests.conftest import weekly
from tests.kernels.products import KERNELS, normal, operands, window

CPU = {linear: cpu_linear, conv2d: cpu_conv2d, convtranspose2d: cpu_convtranspose2d}
CONVOLUTIONS = [conv2d, convtranspose2d]
KINDS = (FORWARD, KNOWN, STATE, PARAMETERS)
SMALL, TF32_TILES, TF32 = dispatch.SMALL, [dispatch.LARGE], {dispatch.LARGE: dispatch.TF32}
DENSE = [(1, 1, 1), (1, 7, 3), (5, 1, 17), (9, 34, 10), (12, 12, 8)]  # batch, inputs, outputs
CONV = [  # batch, height, width, channels, outputs, kernel, stride, zeros at top/left, zeros at bottom/right
    (1, 1, 1, 1, 1, 1, 1, 0, 0),
    (2, 5, 4, 3, 4, 3, 1, 1, 1),
    (1, 4, 5, 4, 8, 3, 1, 1, 1),  # every row is read four numbers at a time
    (2, 5, 6, 4, 5, 1, 2, 0, 0),  # k < stride: pixels that no output reads
    (1, 7, 6, 5, 3, 2, 3, 0, 1),
    (1, 6, 6, 8, 4, 3, 2, 0, 1),  # a strided convolution of a residual block
    (1, 7, 5, 2, 3, 4, 3, 2, 1),
    (1, 2, 2, 3, 5, 5, 1, 2, 2),  # kernel larger than the image
]
# One tile and several, whole and ragged.
MORE_DENSE = [(33, 64, 32), (131, 20, 70), (128, 128, 64), (37, 301, 130)]
MORE_CONV = [
    (2, 16, 16, 16, 16, 3, 1, 1, 1),
    (3, 9, 9, 35, 70, 3, 2, 1, 1),
    (2, 16, 16, 32, 64, 1, 2, 0, 0),
    (1, 28, 28, 1, 16, 4, 1, 1, 1),
    (2, 8, 8, 12, 20, 5, 3, 2, 2),
]


@pytest.fixture
def use(monkeypatch):
    """use(tile, ...): makes all products with one tile; split: in as many parts as have eight terms."""

    def choose(tile, split=False, tf32=None):
        speeds = {tile: Speed(1 << 16 if split else 1, 1.0)}
        for name in ("SPEEDS", "TF32_SPEEDS"):
            monkeypatch.setattr(dispatch, name, speeds)
        if split:
            monkeypatch.setattr(plan, "MIN_PART", 8)
            monkeypatch.setattr(plan, "LAUNCH", 0)
        if tf32:
            monkeypatch.setattr(dispatch, "TF32", tf32)
            monkeypatch.setattr(dispatch, "tensor_cores", lambda like: True)
        plan.plan.cache_clear()

    yield choose
    plan.plan.cache_clear()


def coarse(rng, *shape):
    """Numbers of three bits, whose products and sums of squares TF32 holds exactly."""
    return rng.integers(-7, 8, shape).astype(np.float32) / 4


def given(kind, case, draw=normal):
    """What a layer reads, by name, and its window."""
    return operands(kind, case, draw), window(case)


dense, convolution, transposed = (partial(given, kind) for kind in KERNELS)
GIVEN = dict(zip(CPU, (dense, convolution, transposed), strict=True))


def everything(product, a, window, var=True, bias=True, jcb=True, accumulate=False):
    """All results of a layer's forward and backward pass; accumulate: onto what is there, where a product can."""
    array = cpu_array if product in CPU.values() else cuda_array.arrays(0)
    start = np.float32(0.5 if accumulate else np.nan)
    pair = lambda like: [array.place(np.full(like.shape, start)) for _ in range(2)]  # noqa: E731
    out, into, sums, bias_sums = pair(a["dm"]), pair(a["mu"]), pair(a["w"]), pair(a["b"])
    a = {name: array.place(value.copy()) for name, value in a.items()}
    x = State(a["mu"], a["var"] if var else None, a["jcb"] if jcb else None)
    weights, biases = Tensor(a["w"], a["s"], *sums), Tensor(a["b"], a["sb"], *bias_sums) if bias else None
    product.forward(x, weights, biases, State(*out), *window)
    options = {"added": True} if accumulate and getattr(product, "adds", False) else {}
    product.backward(x, Delta(a["dm"], a["ds"]), weights, biases, Delta(*into), *window, accumulate, **options)
    results = {"out": out, "in_delta": into, "weights": sums} | ({"biases": bias_sums} if bias else {})
    found = {name: np.stack([array.to_host(moment) for moment in both]) for name, both in results.items()}
    if options:
        found["in_delta"] -= start
    return found


def compare(actual, expected, tolerance=2e-6):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        bound = tolerance * max(np.abs(array).max(), 1e-30)
        np.testing.assert_allclose(actual[name], array, 0, bound, err_msg=name)


def check(product, case, draw=normal, tolerance=2e-6, **switches):
    a, window = GIVEN[product](case, draw)
    compare(everything(product, a, window, **switches), everything(CPU[product], a, window, **switches), tolerance)


SWITCHES = [
    {},
    {"var": False, "bias": False, "jcb": False},
    {"accumulate": True},
]


@pytest.mark.parametrize("case", DENSE)
@pytest.mark.parametrize("switches", SWITCHES)
def test_dense(case, switches):
    check(linear, case, **switches)


@pytest.mark.parametrize("case", CONV)
@pytest.mark.parametrize("switches", SWITCHES[:2])
def test_convolution(case, switches):
    check(conv2d, case, **switches)


@pytest.mark.parametrize("case", CONV)
@pytest.mark.parametrize("switches", SWITCHES)
def test_transposed_convolution(case, switches):
    check(convtranspose2d, case, **switches)


@pytest.mark.parametrize("tile", [dispatch.SMALL, dispatch.LARGE, *dispatch.NARROW])
@pytest.mark.parametrize("case", [(3, 5, 9), (4, 12, 8), *MORE_DENSE])
def test_tiles_of_the_gpu(tile, case, use):
    use(tile)
    check(linear, case)


def tiles_in_convolutions() -> Iterator:
    """Each tile with each case, by turns with and without variances of the inputs; with both once a week."""
    tiles = [(tile, None) for tile in (dispatch.SMALL, dispatch.LARGE, *dispatch.NARROW)]
    for i, (tile, tf32) in enumerate([*tiles, (dispatch.LARGE, dispatch.TF32)]):
        for k, case in enumerate(MORE_CONV):
            for var in (True, False):
                yield pytest.param(tile, tf32, case, var, marks=[weekly] * ((i + k + var) % 2))


@pytest.mark.parametrize(("tile", "tf32", "case", "var"), [*tiles_in_convolutions()])
def test_tiles_of_the_gpu_in_convolutions(tile, tf32, case, var, use):
    use(tile, tf32=tf32)
    for product in CONVOLUTIONS[: 1 if tile in dispatch.NARROW else 2]:
        check(product, case, coarse if tf32 else normal, 4e-6, var=var)


@pytest.mark.parametrize("switches", SWITCHES)
def test_split_sums(switches, use):
    use(SMALL, split=True)
    sizes = plan.Sizes.dense(26, 20, 9)
    assert all(dispatch.plan_of(kind, sizes, None).parts > 1 for kind in (KNOWN, PARAMETERS))
    check(linear, (26, 20, 9), **switches)


@pytest.mark.parametrize(("product", "of"), [(conv2d, 0), (convtranspose2d, TRANSPOSED)])
def test_split_sums_of_a_strided_convolution(product, of, use):
    use(SMALL, split=True)
    sizes = plan.Sizes(1, 9, 8, 4, 5, 4, 8, 3, 2, 1)
    assert all(dispatch.plan_of(kind + of, sizes, None).parts > 1 for kind in KINDS)
    check(product, (1, 9, 8, 4, 8, 3, 2, 1, 1))


@pytest.mark.parametrize("tile", TF32_TILES)
@pytest.mark.parametrize("case", [(17, 12, 20), (5, 11, 3), *MORE_DENSE])
def test_tf32_dense(tile, case, use):
    use(tile, split=True, tf32=TF32[tile])
    check(linear, case, coarse)


@pytest.mark.parametrize("product", CONVOLUTIONS)
@pytest.mark.parametrize("case", [(1, 5, 4, 4, 4, 3, 1, 1, 1), (1, 5, 4, 3, 5, 3, 2, 1, 1)])
def test_tf32_convolution(product, case, use):
    use(TF32_TILES[0], tf32=TF32[TF32_TILES[0]])
    check(product, case, coarse)


def test_tf32_rounds_to_ten_bits_without_bias(use):
    use(TF32_TILES[0], tf32=TF32[TF32_TILES[0]])
    a, window = dense((16, 64, 16), lambda rng, *shape: rng.uniform(1, 2, shape).astype(np.float32))
    rounded, exact = everything(linear, a, window), everything(cpu_linear, a, window)
    error = rounded["out"][0] / exact["out"][0] - 1
    assert 1e-6 < np.abs(error).max() < 2 * 2.0**-11
    assert abs(error.mean()) < 2.0**-14  # dropping the bits alone would give -2^-10


@pytest.mark.parametrize("product", [linear, conv2d])
def test_the_same_bits_every_time(product, use):
    use(SMALL, split=True)
    a, window = dense((20, 9, 5)) if product is linear else convolution(CONV[1])
    first, second = everything(product, a, window), everything(product, a, window)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize("case", CONV[1:7:2] + MORE_CONV[:2])
@pytest.mark.parametrize("tile", [SMALL, *TF32_TILES])
@pytest.mark.parametrize("activation", TAKEN)
@pytest.mark.parametrize("var", [True, False])
def test_moments_of_an_output(case, tile, activation, var, use):
    """Behind an activation, and merged from those of the tiles, against float64."""
    tf32 = tile in TF32_TILES
    use(tile, tf32=TF32.get(tile) if tf32 else None)
    a, window = convolution(case)
    array = cuda_array.arrays(0)
    out = State(*(array.place(np.full(a["dm"].shape, np.float32(np.nan))) for _ in range(2)))
    a = {name: array.place(value) for name, value in a.items()}
    x, weights, bias = State(a["mu"], a["var"] if var else None), Tensor(a["w"], a["s"]), Tensor(a["b"], a["sb"])
    values, rows = conv2d.forward(x, weights, bias, out, *window, moments=activation)
    m, v = (array.to_host(moment).reshape(-1, a["b"].size) for moment in out[:2])
    if activation:
        cpu_activation.elementwise(activation, State(m, v), State(m, v, np.empty_like(m)))
    means, squares = array.to_host(values).reshape(2, -1, a["b"].size).astype(float)
    counts = np.array([len(m[start : start + rows]) for start in range(0, len(m), rows)])[:, None]
    mean = (counts * means).sum(0) / len(m)
    spread = (squares + counts * (means - mean) ** 2).sum(0)
    m, v = m.astype(float), v.astype(float)
    np.testing.assert_allclose(mean, m.mean(0), 1e-5, 1e-5 * np.abs(m).max())
    np.testing.assert_allclose(spread, ((m - m.mean(0)) ** 2 + v).sum(0), 1e-5)


def test_nothing_of_the_input_is_asked_for():
    a, window = dense((4, 6, 5))
    array = cuda_array.arrays(0)
    mu, dm, ds, w = (array.place(a[name]) for name in ("mu", "dm", "ds", "w"))
    sums = [array.place(np.full((5, 6), np.float32(np.nan))) for _ in range(2)]
    linear.backward(State(mu, None), Delta(dm, ds), Tensor(w, None, *sums), None, None, False)
    found = {"weights": np.stack([array.to_host(moment) for moment in sums])}
    compare(found, {"weights": everything(cpu_linear, a, window)["weights"]})


def test_nan_reaches_both_moments(use):
    for tile, tf32 in ((SMALL, None), (TF32_TILES[0], TF32[TF32_TILES[0]])):
        use(tile, tf32=tf32)
        a, window = dense((2, 9, 3))
        a["mu"][1, 4] = np.nan
        out = everything(linear, a, window)["out"]
        assert np.isnan(out[:, 1]).all()
        assert np.isfinite(out[:, 0]).all()


@pytest.mark.parametrize("name", ["mu", "var", "jcb", "w", "s", "b", "sb", "dm", "ds"])
def test_sizes_that_do_not_fit(name):
    layers = {linear: dense((4, 6, 5)), conv2d: convolution(CONV[1]), convtranspose2d: transposed(CONV[1])}
    for product, (a, sides) in layers.items():
        a[name] = np.ascontiguousarray(a[name][..., :-1])
        with pytest.raises(ValueError, match=product.__name__.rsplit(".", 1)[-1]):
            everything(product, a, sides)


def test_which_kernel():
    names = {tensor: dispatch.kernel_of(STATE, dispatch.LARGE, tensor).name for tensor in (False, True)}
    assert names == {False: "state_fp32_128x64", True: "state_tf32_128x64"}
    assert dispatch.kernel_of(STATE, dispatch.SMALL, True).name == "state_fp32_32x32"

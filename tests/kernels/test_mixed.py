"""Products of variances in bfloat16: exact where nothing is rounded, otherwise within what 8 bits of mantissa give."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import kernels
from pytagi_ddp.kernels.cpu.layers import linear
from tests.kernels import test_conv2d, test_moment_products
from tests.kernels.products import KERNELS, backward, forward, operands

REASON = linear.why_not_mixed()
needs_bfloat16 = pytest.mark.skipif(REASON is not None, reason=str(REASON))
ROUNDING = 1.01 * 2**-7  # of a product of two factors, each rounded by at most 2^-8; the rest is float32's
DENSE = [("linear", case) for case in test_moment_products.DENSE]
PLAIN = [("conv2d", case) for case in test_conv2d.PLAIN]
WINOGRAD = [("conv2d", case) for case in test_conv2d.WINOGRAD]
LARGE_TILES = [("conv2d", case) for case in test_conv2d.LARGE_TILES]
MEANS = ("out_mu", "in_delta_mu", "g_w", "g_b", "h_b")
VARIANCES = ("out_var", "in_delta_var", "h_w")


def run(kind, case, a, precision) -> dict[str, np.ndarray]:
    """Every result of a forward and a backward call."""
    layer = getattr(kernels.get_kernels("cpu", precision), kind)
    out, (state, weight, bias) = forward(layer, case, a), backward(layer, case, a)
    names = ("out_mu", "out_var", "in_delta_mu", "in_delta_var", "g_w", "h_w", "g_b", "h_b")
    return dict(zip(names, (*out, *state, *weight, *bias), strict=True))


def integers(kind, case) -> dict[str, np.ndarray]:
    """Operands that bfloat16 holds exactly, also after the transforms of the Winograd form, and small sums."""
    rng = np.random.default_rng(0)
    top = {"mu": 4, "var": 9, "jcb": 3, "w": 2, "s": 3, "b": 9, "sb": 9, "dm": 9, "ds": 9}
    draw = {name: rng.integers(0, top[name], x.shape, endpoint=True) for name, x in operands(kind, case).items()}
    return {name: x.astype(np.float32) for name, x in draw.items()}


IN_OTHER_ORDER = (16, 32, 48)  # samples of batches that small_batch.h adds in its own order, in float32 only


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), DENSE + PLAIN + WINOGRAD)
@pytest.mark.slow
def test_what_needs_no_rounding_is_exact(kind, case, threads):
    a = integers(kind, case)
    expected, actual = run(kind, case, a, "float32"), run(kind, case, a, "mixed")
    for name, want in expected.items():
        np.testing.assert_array_equal(actual[name], want, err_msg=name)


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), DENSE + PLAIN)
def test_variances_are_within_two_roundings(kind, case):
    """Sums of terms of one sign: relative errors do not grow, and they average out."""
    a = operands(kind, case)
    expected, actual = run(kind, case, a, "float32"), run(kind, case, a, "mixed")
    for name in VARIANCES:
        np.testing.assert_allclose(actual[name], expected[name], rtol=ROUNDING, err_msg=name)
        assert (actual[name] != expected[name]).any()


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), WINOGRAD + LARGE_TILES)
def test_variances_of_the_winograd_form(kind, case):
    a = operands(kind, case)
    expected, actual = run(kind, case, a, "float32"), run(kind, case, a, "mixed")
    for name in VARIANCES:
        error, scale = np.abs(actual[name] - expected[name]), np.abs(expected[name])
        assert 0 < error.max() < 0.01 * scale.max(), name
        assert np.sqrt(np.mean(error**2) / np.mean(scale**2)) < 2**-8, name


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), DENSE + PLAIN + WINOGRAD + LARGE_TILES)
@pytest.mark.slow
def test_means_keep_every_bit(kind, case, threads):
    a = operands(kind, case)
    expected, actual = run(kind, case, a, "float32"), run(kind, case, a, "mixed")
    in_other_order = kind == "linear" and case[0] in IN_OTHER_ORDER
    for name in MEANS:
        if in_other_order:
            size = np.abs(expected[name]).max()
            np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=1e-5 * size, err_msg=name)
        else:
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@needs_bfloat16
def test_errors_average_out():
    """Rounding to nearest: a truncation would lose 0.5 % of every sum."""
    case = (256, 512, 64)
    a = operands("linear", case)
    expected, actual = run("linear", case, a, "float32"), run("linear", case, a, "mixed")
    for name in VARIANCES:
        ratio = actual[name] / expected[name].astype(np.float64) - 1
        assert abs(ratio.mean()) < 2e-5, name
        assert ratio.std() < 1e-3, name


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), [DENSE[4], PLAIN[1], WINOGRAD[0]])
def test_zeros_stay_zeros(kind, case):
    a = operands(kind, case)
    for name in ("mu", "var", "ds", "sb"):
        a[name][...] = 0
    results = run(kind, case, a, "mixed")
    for name in VARIANCES:
        assert not results[name].any(), name


@needs_bfloat16
def test_every_nan_stays_nan(threads):
    """Also one whose bits become those of -0 if they are rounded as those of a number."""
    case = (96, 96, 96)
    a = operands("linear", case)
    a["var"].view(np.uint32)[5, 7] = 0x7FFFFFFF
    a["s"].view(np.uint32)[3, 90] = 0x7FFFFFFF
    expected = np.zeros((96, 96), bool)
    expected[5] = expected[:, 3] = True
    np.testing.assert_array_equal(np.isnan(run("linear", case, a, "mixed")["out_var"]), expected)


@needs_bfloat16
@pytest.mark.parametrize(("images", "error"), [(1, 0.01), (2, 0.03)], ids=["F(2)", "F(4)"])
def test_a_variance_never_rounds_to_less_than_zero(images, error):
    case, a = test_conv2d.worst_case(images)
    a["sb"][...] = 0
    expected, actual = run("conv2d", case, a, "float32"), run("conv2d", case, a, "mixed")
    assert actual["out_var"].min() == 0
    assert np.abs(actual["out_var"] - expected["out_var"]).max() < error * expected["out_var"].max()


@needs_bfloat16
@pytest.mark.parametrize(("kind", "case"), [("linear", (65, 520, 130)), PLAIN[-1], WINOGRAD[-1]])
def test_same_bits_every_time(kind, case, threads):
    a = operands(kind, case)
    first = run(kind, case, a, "mixed")
    for _ in range(2):
        for name, again in run(kind, case, a, "mixed").items():
            np.testing.assert_array_equal(again, first[name], err_msg=name)


@needs_bfloat16
def test_kernels_of_a_precision_are_the_same_object():
    mixed = kernels.get_kernels("cpu", "mixed")
    assert mixed is kernels.get_kernels("cpu", "mixed") is not kernels.get_kernels("cpu")
    assert mixed.array is kernels.get_kernels("cpu").array


def test_refuses_a_gpu():
    with pytest.raises(RuntimeError, match=r"cuda:0.*allow_tf32"):
        kernels.get_kernels("cuda:0", "mixed")


def test_refuses_a_cpu_without_the_instructions():
    package = SimpleNamespace(linear=SimpleNamespace(why_not_mixed=lambda: "no such instructions"))
    with pytest.raises(RuntimeError, match='no such instructions; keep "float32"'):
        kernels._mixed(package)


@pytest.mark.skipif(REASON is None, reason="this CPU has the instructions")
@pytest.mark.parametrize(("kind", "case"), [DENSE[1], PLAIN[1]])
def test_kernels_refuse_too(kind, case):
    mixed = SimpleNamespace(forward=partial(KERNELS[kind].forward, mixed=True))
    with pytest.raises(RuntimeError, match="avx512_bf16"):
        forward(mixed, case, operands(kind, case), bias=False)

"""Cases of convolutions, and their Winograd forms: taken, exact enough, and without negative variances."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import conv2d
from pytagi_ddp.kernels.cpu.products import _winograd
from tests.kernels.products import backward, close, convolve, expected, forward, operands

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
    (16, 16, 16, 18, 40, 8, 8, 0, 0),  # large patches of few channels: as many elements as a block may have
    (1, 4, 4, 128, 40, 3, 1, 1, 1),  # the same of many channels, and the second of two threads has more outputs
    (1, 4, 4, 40, 128, 3, 1, 1, 1),  # or inputs
    (1, 16, 18, 20, 32, 3, 1, 1, 1),  # not in the Winograd form, because of the channels
    (1, 16, 18, 32, 20, 3, 1, 1, 1),  # because of the outputs
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


def variances(case, a):
    """Of outputs without bias, in float64."""
    shape, w = a["dm"].shape, a["w"].astype(np.float64)
    of_var = convolve(case, a["var"], w**2 + a["s"], shape)
    return of_var + convolve(case, a["mu"].astype(np.float64) ** 2, a["s"], shape)


@pytest.mark.parametrize("case", WINOGRAD)
def test_forward_by_plain_sums(case, plain_sums):
    a = operands("conv2d", case)
    close(forward(conv2d, case, a)[0], expected("conv2d", case)["out_mu"] + a["b"])


@pytest.mark.parametrize("case", WINOGRAD)
def test_winograd_form_is_taken_and_accurate(case, request):
    a = operands("conv2d", case)
    fast = forward(conv2d, case, a, bias=False)
    np.testing.assert_allclose(fast[1], variances(case, a), rtol=5e-6)
    request.getfixturevalue("plain_sums")
    plain = forward(conv2d, case, a, bias=False)
    assert (fast != plain).any()
    assert np.abs(fast - plain).max() < 5e-6 * np.abs(plain).max()


@pytest.mark.parametrize(
    ("case", "other"), [*((c, "small_tiles") for c in LARGE_TILES), *((c, "plain_sums") for c in OTHER_FORMS)]
)
def test_other_forms_are_taken_and_accurate(case, other, request):
    """Errors near 1e-6 of the largest: a quarter of what interpolation at 0, 1, -1, 2, -2 would leave."""
    a, want = operands("conv2d", case), expected("conv2d", case)
    exact = want["out_mu"], want["of_var"] + want["of_mu"], want["w_mu"], want["w_var"]
    outputs, weight = forward(conv2d, case, a, bias=False), backward(conv2d, case, a)[1]
    for fast, exactly, limit in zip((*outputs, *weight), exact, (4e-6, 1.5e-6, 4e-6, 1.5e-6), strict=True):
        assert np.abs(fast - exactly).max() < (2 if case[5] == 5 else 1) * limit * np.abs(exactly).max()
    request.getfixturevalue(other)
    assert (forward(conv2d, case, a, bias=False) != outputs).any()
    assert (backward(conv2d, case, a)[1] != weight).any()


@pytest.mark.parametrize("case", WINOGRAD)
def test_variances_of_a_winograd_form_are_positive(case):
    a, rng = operands("conv2d", case), np.random.default_rng(1)
    spread = np.exp(3 * rng.standard_normal((*a["var"].shape[:3], 1), dtype=np.float32))  # 1e8 between pixels
    a["mu"], a["var"] = a["mu"] * np.sqrt(spread), a["var"] * spread
    a["s"] *= np.exp(rng.standard_normal(a["s"].shape, dtype=np.float32))
    np.testing.assert_allclose(forward(conv2d, case, a, bias=False)[1], variances(case, a), rtol=1e-3)


def worst_case(images: int):
    """A case and its operands: one pixel in each window, and a tap a hundred-millionth of the others in all channels.

    Transformed values cancel most there. One image has too few tiles for F(4).
    """
    case = (images, 16, 16, 64, 64, 3, 1, 1, 1)
    a = operands("conv2d", case)
    lit = np.zeros((1, 16, 16, 1), np.float32)
    lit[:, 1::4, 2::4] = 1
    small = np.ones((3, 3), np.float32)
    small[0, 0] = small[2, 1] = 1e-8
    return case, a | {"mu": a["mu"] * lit, "var": a["var"] * lit, "w": a["w"] * np.sqrt(small), "s": a["s"] * small}


def test_a_variance_never_rounds_to_less_than_zero():
    case, a = worst_case(1)
    out_var, exact = forward(conv2d, case, a, bias=False)[1], variances(case, a)
    assert out_var.min() == 0
    assert (out_var[exact == 0] == 0).all()
    assert np.abs(out_var - exact).max() < 2e-6 * exact.max()

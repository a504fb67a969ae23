"""Dense, convolution and transposed convolution moment products against float64 sums; see also test_conv2d.py."""

from collections.abc import Iterator

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.workspace import workspace
from tests.conftest import weekly
from tests.kernels.conftest import WAYS
from tests.kernels.products import KERNELS, backward, close, expected, forward, operands
from tests.kernels.test_conv2d import CASES, LARGE_TILES, OTHER_FORMS

DENSE = [  # batch, inputs, outputs
    (1, 1, 1),
    (1, 7, 3),
    (5, 1, 17),
    (3, 33, 16),
    (16, 33, 65),  # by the kernel for 16 samples
    (48, 130, 130),  # the same, three times, and the last outputs one by one
    (16, 4100, 3),  # too many inputs for it
    (32, 784, 129),
    (70, 130, 65),
    (1100, 40, 50),  # more rows than one block
    (9, 820, 600),  # more inputs and outputs than one block
    (5, 40, 560),  # as many outputs as a block may have, and more steps of a sum than a block of bfloat16.h
    (70, 820, 150),  # the same of rows for which the weights are transposed
    (70, 820, 300),  # the same, of blocks for AMX
    (512, 1744, 64),  # three threads' parts of the inputs have longer blocks than all of them
]
KINDS = {"linear": DENSE, "conv2d": CASES, "convtranspose2d": CASES}


def ways() -> Iterator:
    """Dense cases in every way; convolutions in the best way and one other, in turn, and in all of them once a week."""
    best, *others = WAYS
    for shift, (kind, cases) in enumerate(KINDS.items()):
        for k, case in enumerate(cases):
            in_turn = others if kind == "linear" else [others[(k + 2 * shift) % len(others)]]
            for way in WAYS:
                marks = [pytest.mark.slow] * (kind == "convtranspose2d") + [weekly] * (way not in (best, *in_turn))
                yield pytest.param(way, kind, case, marks=marks)


in_several_ways = pytest.mark.parametrize(("threads", "kind", "case"), [*ways()], indirect=["threads"])
SMALL = [("linear", (4, 6, 5)), ("conv2d", CASES[1]), ("convtranspose2d", CASES[1])]


@in_several_ways
@pytest.mark.usefixtures("bounded_scratch")
def test_forward(kind, case, threads):
    """With variances of the inputs and a bias, and without both."""
    a, want = operands(kind, case), expected(kind, case)
    for both in (True, False):
        mu, variance = forward(KERNELS[kind], case, a, both, both)
        close(mu, want["out_mu"] + both * a["b"])
        close(variance, both * want["of_var"] + want["of_mu"] + both * a["sb"])


FEW_SAMPLES = ("linear", (2, 300, 40))  # by few_rows.h


@pytest.mark.parametrize(
    ("kind", "case"), [FEW_SAMPLES, *((kind, case) for kind in KINDS for case in KINDS[kind][::4])]
)
def test_variances_of_0_have_the_bits_of_none(kind, case):
    """The second stage of a pipeline is given zeros, where one process has no variances."""
    a = operands(kind, case)
    without = forward(KERNELS[kind], case, a, var=False)
    np.testing.assert_array_equal(forward(KERNELS[kind], case, a | {"var": np.zeros_like(a["var"])}), without)


@in_several_ways
@pytest.mark.usefixtures("bounded_scratch")
@pytest.mark.slow
def test_backward(kind, case, threads):
    """Behind an activation, in place of what is there; and behind none, added to it."""
    a, want = operands(kind, case), expected(kind, case)
    for jcb, start in ((True, np.nan), (False, 0.5)):
        into, *sums = backward(KERNELS[kind], case, a, jcb, accumulate=not jcb, start=start)
        for k, moment in enumerate(("mu", "var")):
            close(into[k], (a["jcb"].astype(np.float64) ** (k + 1) if jcb else 1) * want[f"in_{moment}"])
            for found, which in zip(sums, "wb", strict=True):
                close(found[k], (0 if jcb else start) + want[f"{which}_{moment}"])


@pytest.mark.parametrize(("kind", "case"), SMALL)
def test_first_layer_skips_input_deltas_and_bias(kind, case):
    a = operands(kind, case)
    alone = backward(KERNELS[kind], case, a, state=False, bias=False)
    np.testing.assert_array_equal(alone[1], backward(KERNELS[kind], case, a)[1])


SEVERAL = [*LARGE_TILES[-2:], *OTHER_FORMS[:1], *OTHER_FORMS[1::3]]


@pytest.mark.parametrize(("kind", "case"), [("linear", (65, 520, 130)), *(("conv2d", case) for case in SEVERAL)])
def test_same_bits_every_time(kind, case, threads):
    a = operands(kind, case)
    first = [forward(KERNELS[kind], case, a), *backward(KERNELS[kind], case, a)]
    for _ in range(3):
        again = [forward(KERNELS[kind], case, a), *backward(KERNELS[kind], case, a)]
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("kind", "case"), [("linear", (300, 50, 40)), ("conv2d", (24, 6, 6, 8, 12, 3, 1, 1, 1))])
def test_batch_grows_and_shrinks(kind, case):
    largest = operands(kind, case)
    whole = forward(KERNELS[kind], case, largest)
    for batch in (3, case[0], 1, 13, 130):
        a = {k: v[:batch] if k in ("mu", "var", "jcb", "dm", "ds") else v for k, v in largest.items()}
        np.testing.assert_allclose(forward(KERNELS[kind], case, a), whole[:, :batch], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("kind", "case"), [("linear", (64, 300, 200)), ("conv2d", (8, 8, 8, 32, 48, 3, 2, 0, 1))])
def test_second_call_allocates_nothing(kind, case, threads):
    a, memory = operands(kind, case), []
    for _ in range(2):
        forward(KERNELS[kind], case, a)
        backward(KERNELS[kind], case, a)
        memory.append(workspace(0))
    assert memory[0] is memory[1]


@pytest.mark.parametrize(("kind", "case"), SMALL)
@pytest.mark.parametrize("call", [forward, backward])
def test_sizes_that_do_not_fit_are_refused(kind, case, call):
    for name in ("mu", "var", "w", "s", "b", "sb") if call is forward else ("jcb", "dm", "ds", "w"):
        a = operands(kind, case)
        a[name] = np.ascontiguousarray(a[name][..., :-1] if call is forward else a[name][:-1])
        with pytest.raises(ValueError, match=kind):
            call(KERNELS[kind], case, a)


def lengthened(arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The arrays, one of them with one more element along one axis, for each array and each axis."""
    for k, array in enumerate(arrays):
        for axis in range(array.ndim):
            longer = np.concatenate([array, array.take([0], axis)], axis)
            yield [*arrays[:k], longer, *arrays[k + 1 :]]


@pytest.mark.parametrize(("kind", "case"), SMALL)
def test_each_array_that_does_not_fit_is_refused(kind, case):
    a, transposed = operands(kind, case), kind == "convtranspose2d"
    kernel = load("layers._linear" if kind == "linear" else "layers._conv2d")
    options = () if kind == "linear" else (*case[6:8], transposed)
    out, into, sums = ([a[name].copy() for _ in range(2)] for name in ("dm", "mu", "w"))
    given = [a[name] for name in ("mu", "var", "w", "s", "b", "sb")] + out
    kernel.forward(*given, *options, 1, False)
    wrong = [*lengthened(given), *([*given[:k], None, *given[k + 1 :]] for k in (4, 5))]
    for arrays in wrong:
        with pytest.raises(ValueError, match=rf"{kind}\.forward: shapes do not fit"):
            kernel.forward(*arrays, *options, 1, False)
    with pytest.raises(ValueError, match=rf"{kind}\.forward"):
        kernel.forward(*given, *options, 0, False)
    given = [a[name] for name in ("mu", "jcb", "dm", "ds", "w")] + into + sums + [a["b"], a["sb"]]
    kernel.backward(*given, *options, False, 1, False)
    wrong = [*lengthened(given), *([*given[:k], None, *given[k + 1 :]] for k in (5, 6, 9, 10))]
    for arrays in wrong:
        with pytest.raises(ValueError, match=rf"{kind}\.backward: shapes do not fit"):
            kernel.backward(*arrays, *options, False, 1, False)
    with pytest.raises(ValueError, match=rf"{kind}\.backward"):
        kernel.backward(*given, *options, False, 0, False)


def test_what_else_is_refused():
    a = operands(*SMALL[0])
    a["mu"] = a["mu"].astype(np.float64)
    with pytest.raises(ValueError, match="float"):
        forward(KERNELS["linear"], SMALL[0][1], a)
    case = CASES[1]
    with pytest.raises(ValueError, match="stride 0"):
        forward(KERNELS["conv2d"], (*case[:6], 0, *case[7:]), operands("conv2d", case))

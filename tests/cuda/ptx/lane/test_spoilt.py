"""Kernels of the library with one instruction changed: the machine finds a problem, or the test of the kernel fails."""

import re
from functools import partial

import pytest

from pytagi_ddp.kernels.cuda.products import dispatch
from tests.cuda.ptx.machine import Program, machine
from tests.cuda.sim import test_kernels, test_products
from tests.cuda.sim.test_products import use as use  # a fixture

BARRIER = r"bar\.sync\s+0;"
softmax = partial(test_kernels.test_softmax, "softmax", 129)
batch_norm = partial(test_kernels.test_deltas_of_batch_norm, (140, 9), "relu", True, True)
transpose = partial(test_kernels.test_transpose, (2, 64, 96))
addition = partial(test_kernels.test_elementwise, (7, 10))
relu = partial(test_kernels.test_activations, "mixture_relu", 257)


def dense(use, tile, **options):
    use(tile, **options)
    a, window = test_products.dense((37, 36, 20), test_products.coarse)
    actual = test_products.everything(test_products.linear, a, window)
    test_products.compare(actual, test_products.everything(test_products.cpu_linear, a, window))


SMALL, TENSOR = (dispatch.SMALL, {}), (dispatch.LARGE, {"tf32": dispatch.TF32})
SPOILT = {  # kernel, what is replaced, how many such come before, by what, the test
    "no barrier behind the first write of a sum": ("softmax__softmax", BARRIER, 0, "", softmax),
    "no barrier within a sum": ("softmax__softmax", BARRIER, 3, "", softmax),
    "no barrier before the next sum": ("batch_norm__backward", BARRIER, 4, "", batch_norm),
    "one element too many": ("elementwise__add", r"setp\.ge\.s64", 0, "setp.gt.s64", addition),
    "an element beside": ("elementwise__add", r"(ld\.global\.f32\s+%f\d+, \[%rd\d+)\]", 0, r"\1+4]", addition),
    "another element of the tile": ("elementwise__transpose", r"(st\.shared\.f32\s+\[%r\w+)\]", 2, r"\1+4]", transpose),
    "no barrier between the tile's halves": ("elementwise__transpose", BARRIER, 0, "", transpose),
    "another sign": ("activation_mixture_relu", r"sub\.f32", 0, "add.f32", relu),
    "another comparison": ("activation_mixture_relu", r"setp\.gt\.f32", 0, "setp.le.f32", relu),
    "no barrier between two tiles of a product": ("forward_fp32_32x32", BARRIER, 0, "", SMALL),
    "a product read askew": ("state_fp32_32x32", r"(ld\.shared\.v4\.f32\s+\{[^}]*\}, \[%r\w+)\]", 0, r"\1+4]", SMALL),
    "a factor too few": (
        "parameters_fp32_32x32",
        r"fma\.rn\.f32\s+(%f\d+), (%f\d+), %f\d+",
        5,
        r"mov.f32 \1, \2;//",
        SMALL,
    ),
    "copies not waited for": ("forward_tf32_128x64", r"cp\.async\.wait_group 1", 0, "cp.async.wait_group 2", TENSOR),
    "copies never closed": ("state_tf32_128x64", r"cp\.async\.commit_group;", 0, "", TENSOR),
    "no barrier behind the copies": ("forward_tf32_128x64", BARRIER, 0, "", TENSOR),
    "a copy of what lies beside": (
        "state_tf32_128x64",
        r"(cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+)\]",
        0,
        r"\1+16]",
        TENSOR,
    ),
    "factors of the tensor core exchanged": (
        "parameters_tf32_128x64",
        r"(mma\S+ \{[^}]*\}, \{)(%r\d+), ?(%r\d+)",
        0,
        r"\1\3,\2",
        TENSOR,
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_kernel_is_noticed(name, use, monkeypatch):
    kernel, what, skip, by, case = SPOILT[name]
    if isinstance(case, tuple):
        case = partial(dense, use, case[0], **case[1])
    case()
    spoilt = 0
    for program in machine.programs[kernel][:]:
        ptx = "\n".join(program.kernel.lines)
        found = list(re.finditer(what, ptx))
        if len(found) > skip:
            start, end = found[skip].span()
            changed = Program(ptx[:start] + found[skip].expand(by) + ptx[end:])
            monkeypatch.setattr(program, "_run", changed._run)
            spoilt += 1
    assert spoilt, "there is no such instruction"
    before = len(machine.problems)
    try:
        case()
        noticed = len(machine.problems) > before
    except AssertionError:
        noticed = True
    del machine.problems[before:]
    assert noticed

"""What single instructions do, against NumPy."""

import numpy as np
import pytest

from tests.cuda.ptx.machine import missing
from tests.cuda.ptx.parse import Unsupported
from tests.cuda.ptx.snippets import Array, compute, run
from tests.cuda.ptx.translate import MMA

pytestmark = [pytest.mark.ptx, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

INTS = np.int32([0, 1, -1, 2, -2, 7, -7, 2**31 - 1, -(2**31), 12345, -99999, 65536, 3, 5, -5, 31])
OTHER = np.where(np.roll(INTS, 5) == 0, 3, np.roll(INTS, 5)).astype(np.int32)
FLOATS = np.float32(
    [0, -0.0, 1, -1, 0.5, 2.5, -2.5, 1e-42, -1e-42, 3e38, -3e38, np.inf, -np.inf, np.nan, 2**31, -(2.0**31), 8388609]
)
SECOND = np.roll(FLOATS, 7)


def as_unsigned(x):
    return x.view(np.uint32)


def quotient(a, b):
    """Rounded towards zero."""
    return (np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64)) * np.sign(a) * np.sign(b)).astype(np.int32)


BINARY = {
    "add.s32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "min.s32": np.minimum,
    "max.s32": np.maximum,
    "min.u32": lambda a, b: np.minimum(as_unsigned(a), as_unsigned(b)).view(np.int32),
    "div.s32": quotient,
    "rem.s32": lambda a, b: a - quotient(a, b) * b,
    "div.u32": lambda a, b: (as_unsigned(a) // as_unsigned(b)).view(np.int32),
    "rem.u32": lambda a, b: (as_unsigned(a) % as_unsigned(b)).view(np.int32),
    "add.f32": np.add,
    "sub.f32": np.subtract,
    "mul.f32": np.multiply,
    "div.rn.f32": np.divide,
    "min.f32": np.fmin,  # these two drop NaN
    "max.f32": np.fmax,
    "copysign.f32": lambda a, b: np.copysign(b, a),
}


@pytest.mark.parametrize("op", BINARY)
def test_binary(op):
    a, b = (FLOATS, SECOND) if op.endswith("f32") else (INTS, OTHER)
    with np.errstate(all="ignore"):
        expected = BINARY[op](a, b)
    got = compute(f"{op} %y, %x1, %x2;", [a, b], a.dtype)
    np.testing.assert_array_equal(got, expected)


def test_shifts():
    by, x = np.int32([0, 1, 31, 32, 33, 255]), np.int32([-1, -8, 1 << 30, -5, 7, -7])
    inside, far = np.minimum(by, 31), by > 31
    np.testing.assert_array_equal(compute("shl.b32 %y, %x1, %x2;", [x, by], np.int32), np.where(far, 0, x << inside))
    np.testing.assert_array_equal(compute("shr.s32 %y, %x1, %x2;", [x, by], np.int32), x >> inside)
    expected = np.where(far, 0, as_unsigned(x) >> inside.astype(np.uint32)).astype(np.uint32).view(np.int32)
    np.testing.assert_array_equal(compute("shr.u32 %y, %x1, %x2;", [x, by], np.int32), expected)


def test_products():
    third = np.full(16, 7, np.int32)
    np.testing.assert_array_equal(
        compute("mad.lo.s32 %y, %x1, %x2, %x3;", [INTS, OTHER, third], np.int32), INTS * OTHER + 7
    )
    for kind, numbers in (("s32", INTS), ("u32", as_unsigned(INTS))):
        out = compute(
            f"mul.wide.{kind} %rd20, %x1, %x2; shr.u64 %rd21, %rd20, 32; cvt.u32.u64 %y, %rd21;",
            [INTS, OTHER],
            np.int32,
        )
        other = OTHER if kind == "s32" else as_unsigned(OTHER)
        exact = [int(a) * int(b) >> 32 for a, b in zip(numbers, other, strict=True)]
        np.testing.assert_array_equal(as_unsigned(out), np.array(exact, np.int64).astype(np.uint32))


def test_fma_rounds_once():
    a, b = np.float32([1 + 2.0**-12]), np.float32([-(1 + 2.0**-11)])
    assert compute("fma.rn.f32 %y, %x1, %x1, %x2;", [a, b])[0] == np.float32(2.0**-24)


def test_directed_rounding():
    one, below = np.float32(1), np.nextafter(np.float32(1), np.float32(0))
    tiny = np.float32([2.0**-30, -(2.0**-30)])
    np.testing.assert_array_equal(compute("fma.rm.f32 %y, 0f3F800000, 0f3F800000, %x1;", [tiny]), [one, below])
    np.testing.assert_array_equal(compute("add.rz.f32 %y, %x1, 0f3F800000;", [tiny]), [one, below])


def test_functions():
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute("sqrt.rn.f32 %y, %x1;", [np.abs(FLOATS)]), np.sqrt(np.abs(FLOATS)))
        np.testing.assert_array_equal(compute("rcp.rn.f32 %y, %x1;", [FLOATS]), 1 / FLOATS)
        np.testing.assert_array_equal(compute("abs.f32 %y, %x1;", [FLOATS]), np.abs(FLOATS))
    x = np.float32([0, 1, -1, -126, -130, 127, 128, np.nan, 1e-42])
    expected = [1, 2, 0.5, 2.0**-126, 0, 2.0**127, np.inf, np.nan, 1]
    np.testing.assert_array_equal(compute("ex2.approx.ftz.f32 %y, %x1;", [x]), np.float32(expected))


def test_conversions():
    whole = np.trunc(np.nan_to_num(FLOATS.astype(float), nan=0, posinf=1e30, neginf=-1e30))
    expected = np.clip(whole, -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32)
    np.testing.assert_array_equal(compute("cvt.rzi.s32.f32 %y, %x1;", [FLOATS], np.int32), expected)
    np.testing.assert_array_equal(compute("cvt.rn.f32.s32 %y, %x1;", [INTS]), INTS.astype(np.float32))
    clipped = np.float32([-1, 0.25, 7, np.nan])
    np.testing.assert_array_equal(compute("cvt.sat.f32.f32 %y, %x1;", [clipped]), np.float32([0, 0.25, 1, 0]))
    up = compute("cvt.s64.s32 %rd20, %x1; shr.u64 %rd21, %rd20, 32; cvt.u32.u64 %y, %rd21;", [INTS], np.int32)
    np.testing.assert_array_equal(up, -(INTS < 0).astype(np.int32))


NAN = np.isnan(FLOATS) | np.isnan(SECOND)
COMPARISONS = {
    "lt": FLOATS < SECOND,
    "ge": FLOATS >= SECOND,
    "eq": FLOATS == SECOND,
    "ne": (FLOATS != SECOND) & ~NAN,
    "leu": (FLOATS <= SECOND) | NAN,
    "gtu": (FLOATS > SECOND) | NAN,
    "neu": FLOATS != SECOND,
    "nan": NAN,
    "num": ~NAN,
}


@pytest.mark.parametrize("how", COMPARISONS)
def test_comparisons_with_and_without_nan(how):
    got = compute(f"setp.{how}.f32 %p1, %x1, %x2; selp.u32 %y, 1, 0, %p1;", [FLOATS, SECOND], np.int32)
    np.testing.assert_array_equal(got, COMPARISONS[how])


def test_guards_and_loops():
    """Threads of a warp go round different numbers of times."""
    out = Array(np.zeros(64, np.int32))
    loop = """
mov.u32 %r1, 0;
$again:
setp.ge.u32 %p1, %r1, %r0;
@%p1 bra $done;
add.u32 %r1, %r1, 1;
bra.uni $again;
$done:
add.s64 %rd1, %a0, %rd0;
@!%p1 mov.u32 %r1, 0;
mul.lo.u32 %r2, %r1, 3;
st.global.u32 [%rd1], %r2;
"""
    assert run(loop, [out], 64) == set()
    np.testing.assert_array_equal(out.values, 3 * np.arange(64))


def test_mma():
    """Fragments by the table of the PTX ISA; the last 13 bits of factors do not count."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape, dtype=np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
    fragments, places = np.zeros((10, 32), np.float32), {}
    for lane in range(32):
        g, t = divmod(lane, 4)
        places[lane] = [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]
        fragments[:4, lane] = a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]
        fragments[4:, lane] = b[t, g], b[t + 4, g], *(c[place] for place in places[lane])
    out = Array(np.zeros((4, 32), np.float32))
    code = ["add.s64 %rd1, %a0, %rd0; add.s64 %rd2, %a1, %rd0;"]
    code += [f"ld.global.{'u32 %r' if i < 6 else 'f32 %f'}{10 + i}, [%rd1+{128 * i}];" for i in range(10)]
    code += [MMA + " {%f1,%f2,%f3,%f4}, {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%f16,%f17,%f18,%f19};"]
    code += [f"st.global.f32 [%rd2+{128 * i}], %f{i + 1};" for i in range(4)]
    assert run("\n".join(code), [Array(fragments), out]) == set()
    found = np.zeros((16, 8))
    for lane, four in places.items():
        for e, place in enumerate(four):
            found[place] = out.values[e, lane]
    cut = lambda x: (as_unsigned(x) & np.uint32(0xFFFFE000)).view(np.float32).astype(float)  # noqa: E731
    np.testing.assert_allclose(found, cut(a) @ cut(b) + c, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "code", ["atom.global.add.f32 %f1, [%a0], %f2;", "sin.approx.f32 %f1, %f2;", "add.f32 %f1, %rd2, %f2;", "nonsense"]
)
def test_what_is_not_known_is_refused(code):
    with pytest.raises(Unsupported):
        run(code, [Array(np.zeros(4, np.float32))])

"""Counts of outlines are those of whole runs."""

from collections import Counter

import numpy as np
import pytest

from tests.cuda.ptx.machine import Program, missing
from tests.cuda.ptx.outline import Outline
from tests.cuda.ptx.snippets import Array

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

HEAD = """
.visible .entry counted(.param .u64 x, .param .u64 y, .param .u32 n)
.maxntid 32, 1, 1
{
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .pred %p<9>;
.shared .align 16 .b8 s[128];
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x; mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
"""
SUM = (  # each thread adds n neighbours, and stores twice if it is among the first four
    HEAD
    + """
mov.f32 %f1, 0f00000000; mov.u32 %r3, 0;
$again:
ld.global.f32 %f2, [%rd4];
fma.rn.f32 %f1, %f2, %f2, %f1;
add.s64 %rd4, %rd4, 4; add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, %r1;
@%p1 bra $again;
mov.u32 %r4, s; shl.b32 %r5, %r2, 2; add.u32 %r4, %r4, %r5;
st.shared.f32 [%r4], %f1;
bar.sync 0;
ld.shared.f32 %f3, [%r4];
st.global.f32 [%rd5], %f3;
setp.gt.u32 %p2, %r2, 3;
@%p2 bra $end;
st.global.f32 [%rd5], %f3;
$end:
ret;
}
"""
)
AT_INDEX = "mul.wide.u32 %rd6, %r3, 4; add.s64 %rd7, %rd2, %rd6; ld.global.f32 %f1, [%rd7];\nret;\n}"
LOOK_UP = f"{HEAD} ld.global.u32 %r3, [%rd4]; {AT_INDEX}"
FROM_SHARED = f"{HEAD} mov.u32 %r4, s; ld.shared.u32 %r3, [%r4]; {AT_INDEX}"


def arrays() -> list:
    return [Array(np.arange(40, dtype=np.float32)).piece, Array(np.zeros(32, np.float32)).piece, np.uint32(5)]


def test_counts_of_a_small_kernel():
    given = arrays()
    done = Outline(SUM).count((3,), (32,), given)
    program = Program(SUM)
    program.launch((1,), (32,), given)
    assert {name: done[name] for name in ("instructions", "ffma", "shared")} == {
        name: 3 * program.work[name] for name in ("instructions", "ffma", "shared")
    }
    assert done == Counter(
        instructions=done["instructions"],
        ffma=3 * 32 * 5,
        mma=0,
        shared=3 * 32 * 8,
        load=3 * 32 * 5 * 4,
        store=3 * 36 * 4,
        block_load=3 * 36 * 4,
        block_store=3 * 32 * 4,
        read=36 * 4,
        written=32 * 4,
    )


def test_the_next_launch_touches_all_words_anew():
    outline, given = Outline(SUM), arrays()
    assert outline.count((3,), (32,), given) == outline.count((3,), (32,), given)


def test_arrays_in_one_place_are_counted_once():
    x = Array(np.zeros(64, np.int32)).piece
    for words, distinct in ((0, 32), (31, 32), (32, 33)):
        y = x._replace(offset=4 * words, size=x.size - 4 * words)
        assert Outline(LOOK_UP).count((1,), (32,), [x, y, np.uint32(0)])["read"] == 4 * distinct


def test_what_depends_on_numbers_is_said():
    assert Outline(SUM).depends_on == []
    outline = Outline(LOOK_UP)
    assert len(outline.depends_on) == 1 and "[%rd4]" in outline.depends_on[0]
    index = Array(np.full(32, 7, np.int32)).piece
    assert outline.count((1,), (32,), [index, arrays()[1], np.uint32(0)])["read"] == 32 * 4 + 4


def test_accesses_beside_the_arrays():
    given = arrays()
    with pytest.raises(ValueError, match="counted: 36 accesses"):
        Outline(SUM).count((1,), (32,), [given[0], given[1]._replace(size=0), np.uint32(1)])


def test_numbers_in_shared_memory_are_zero():
    outline = Outline(FROM_SHARED)
    assert len(outline.depends_on) == 1
    assert outline.count((1,), (32,), arrays())["read"] == 4

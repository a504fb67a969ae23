"""Kernels with planted faults: the machine finds each fault that it looks for, and nothing else."""

from collections import Counter

import numpy as np
import pytest

from tests.cuda.ptx.machine import BACKWARDS, SHUFFLED, Program, machine, missing
from tests.cuda.ptx.problems import KINDS
from tests.cuda.ptx.snippets import Array, run
from tests.cuda.ptx.translate import MMA

pytestmark = [pytest.mark.ptx, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

MINE = "add.s64 %rd1, %a0, %rd0; "  # the element of this thread
SHARED = ".shared .align 16 .b8 s[256];\n.shared .align 16 .b8 after[256];"
PLACE = "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; xor.b32 %r4, %r2, 4; add.u32 %r5, %r1, %r4; "
WRITE, READ, NEIGHBOUR = "st.shared.u32 [%r3], %r0; ", "ld.shared.u32 %r6, [%r3]; ", "ld.shared.u32 %r6, [%r5]; "
BARRIER = "bar.sync 0; "
COPY = MINE + PLACE + "cp.async.ca.shared.global [%r3], [%rd1], 4, 4; cp.async.commit_group; "
WAIT = "cp.async.wait_group 0; "
ZEROS = "{%f1,%f2,%f3,%f4}, {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%f16,%f17,%f18,%f19};"

CLEAN = {
    "global memory": MINE + "ld.global.f32 %f1, [%rd1]; st.global.f32 [%rd1], %f1;",
    "shared memory behind a barrier": PLACE + WRITE + BARRIER + NEIGHBOUR,
    "a thread's own place": PLACE + WRITE + READ + WRITE,
    "all read one place": "ld.global.f32 %f1, [%a0];",
    "a copy that is waited for": COPY + WAIT + READ,
    "a copy of another thread, behind a barrier": COPY + WAIT + BARRIER + NEIGHBOUR,
    "mma of a whole warp": f"{MMA} {ZEROS}",
}
FAULTS = {
    "past the end": ("P_BOUNDS", MINE + "ld.global.f32 %f1, [%rd1+4];"),
    "before the start": ("P_BOUNDS", MINE + "ld.global.f32 %f1, [%rd1+-4];"),
    "a null pointer": ("P_BOUNDS", "mov.u64 %rd1, 0; st.global.u32 [%rd1], %r0;"),
    "past the end of shared memory": ("P_BOUNDS", PLACE + "st.shared.u32 [%r3+132], %r0;"),
    "four numbers from the second on": ("P_MISALIGNED", "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%a0+4];"),
    "shared memory never written": ("P_UNWRITTEN", PLACE + READ),
    "read without a barrier": ("P_WRITE_READ", PLACE + WRITE + NEIGHBOUR),
    "written after a neighbour's read": ("P_READ_WRITE", PLACE + WRITE + BARRIER + NEIGHBOUR + WRITE),
    "two writers": ("P_WRITE_WRITE", PLACE + "st.shared.u32 [%r1], %r0;"),
    "two writers of global memory": ("P_WRITE_WRITE", "st.global.u32 [%a0], %r0;"),
    "a copy that is read at once": ("P_UNDER_WAY", COPY + READ + WAIT),
    "a copy one group too new": ("P_UNDER_WAY", COPY + "cp.async.wait_group 1; " + READ + WAIT),
    "a copy of another thread": ("P_WRITE_READ", COPY + WAIT + NEIGHBOUR),
    "a copy never waited for": ("P_NOT_WAITED", COPY),
    "two barriers of one warp": (
        "P_BARRIER_APART",
        f"setp.lt.u32 %p1, %r0, 16;\n@%p1 bra $other;\n{BARRIER}\nret;\n$other:\n{BARRIER}",
    ),
    "mma by half a warp": ("P_WARP_APART", f"setp.lt.u32 %p1, %r0, 16; @%p1 bra $end;\n{MMA} {ZEROS}\n$end:"),
}


def numbers(n: int = 32) -> Array:
    return Array(np.arange(n, dtype=np.float32))


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_where_nothing_is_wrong(name):
    assert run(CLEAN[name], [numbers()], shared=SHARED) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    kind, code = FAULTS[name]
    assert KINDS[kind] in run(code, [numbers(), numbers()], shared=SHARED)


def test_every_kind_is_planted():
    elsewhere = {"P_BARRIER_LEFT"}
    assert {kind for kind, _ in FAULTS.values()} | elsewhere == KINDS.keys()


def test_a_barrier_that_half_of_the_threads_have_left():
    code = f"setp.lt.u32 %p1, %r0, 32; @%p1 bra $stay;\nret;\n$stay:\n{BARRIER}"
    assert run(code, [numbers()], threads=64) == {KINDS["P_BARRIER_LEFT"]}


GLOBAL_WRITE = "st.global.u32 [%rd1], %r0; "
GLOBAL_NEIGHBOUR = "cvt.u64.u32 %rd2, %r4; add.s64 %rd3, %a0, %rd2; ld.global.u32 %r6, [%rd3]; "
BARRIERS = {  # a kernel, and which of its barriers keep nothing apart
    "behind a write, and at the end": ([PLACE, WRITE, BARRIER, NEIGHBOUR, BARRIER], [1]),
    "around a read": ([PLACE, WRITE, BARRIER, NEIGHBOUR, BARRIER, WRITE], []),
    "around what is each thread's own": ([PLACE, WRITE, BARRIER, READ, BARRIER, WRITE], [0, 1]),
    "in global memory": ([MINE, PLACE, GLOBAL_WRITE, BARRIER, GLOBAL_NEIGHBOUR, BARRIER], [1]),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_barriers_that_keep_nothing_apart(name):
    code, idle = BARRIERS[name]
    assert run("\n".join(code), [numbers()], shared=SHARED) == set()
    program = machine.programs["snippet"][-1]
    lines = [number for number, line in enumerate(program.kernel.lines, 1) if line.startswith(BARRIER.strip())]
    assert [lines.index(line) for line in program.idle_barriers] == idle


def test_global_memory_never_written():
    nothing = Array(np.zeros(32, np.float32), written=False)
    assert run(MINE + "ld.global.f32 %f1, [%rd1];", [nothing]) == {KINDS["P_UNWRITTEN"]}
    assert run(MINE + "st.global.u32 [%rd1], %r0; ld.global.f32 %f1, [%rd1];", [nothing]) == set()
    np.testing.assert_array_equal(nothing.values.view(np.int32), np.arange(32))


def test_alignment_is_that_of_the_array():
    four = "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%a0];"
    assert run(four, [Array(np.zeros(8, np.float32), shift=16)]) == set()
    assert run(four, [Array(np.zeros(8, np.float32), shift=4)]) == {KINDS["P_MISALIGNED"]}


def test_blocks_that_meet_in_global_memory():
    own = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %a0, %rd2; st.global.u32 [%rd3], %r1; "
    assert run(own, [numbers()], threads=1, grid=2) == set()
    assert run("st.global.u32 [%a0], %r0;", [numbers()], threads=1, grid=2) == {KINDS["P_WRITE_WRITE"]}
    assert run(own + "ld.global.u32 %r2, [%a0];", [numbers()], threads=1, grid=2) == {KINDS["P_WRITE_READ"]}


OWN = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %a0, %rd2; "
WRITE_OWN = "st.global.u32 [%rd3], %r1; "
TICKET = "atom.acq_rel.gpu.global.inc.u32 %r2, [%a1], 2; "  # of three blocks
LAST = TICKET + "setp.ne.u32 %p1, %r2, 2; @%p1 bra $end; "
TICKETS = {
    "written before the ticket": (OWN + WRITE_OWN + LAST + "ld.global.u32 %r3, [%a0+4]; $end:", 1, None),
    "written behind a barrier after it": (
        OWN + TICKET + BARRIER + WRITE_OWN + "ld.global.u32 %r3, [%a0];",
        1,
        "P_WRITE_READ",
    ),
    "written by a thread without a barrier": (
        OWN + "st.global.u32 [%rd3+16], %r0; setp.ne.u32 %p2, %r0, 0; @%p2 bra $end; " + LAST
        + "ld.global.u32 %r3, [%a0+20]; $end:",
        2,
        "P_WRITE_READ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TICKETS)
def test_tickets_put_blocks_in_order(name):
    """The third block reads what another one wrote, or its second thread, which waits for nobody."""
    code, threads, problem = TICKETS[name]
    counter = Array(np.zeros(1, np.int32))
    found = run(code, [numbers(), counter], threads=threads, grid=3)
    assert found - {KINDS["P_WRITE_WRITE"]} == ({KINDS[problem]} if problem else set())
    assert counter.values[0] == 0


def test_a_copy_of_no_bytes_brings_zeros():
    out = Array(np.ones(32, np.float32))
    code = MINE + PLACE + "setp.lt.u32 %p1, %r0, 7; selp.b32 %r7, 4, 0, %p1; "
    code += "cp.async.ca.shared.global [%r3], [%rd1], 4, %r7; cp.async.commit_group; " + WAIT
    code += "ld.shared.f32 %f1, [%r3]; add.s64 %rd2, %a1, %rd0; st.global.f32 [%rd2], %f1;"
    assert run(code, [numbers(), out], shared=SHARED) == set()
    np.testing.assert_array_equal(out.values, np.where(np.arange(32) < 7, np.arange(32), 0))


def test_order_of_threads():
    """The last one to write stays: the race is also seen in the result."""
    ptx = """
.visible .entry last(.param .u64 out)
{
.reg .b64 %rd<2>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
st.global.u32 [%rd1], %r1;
ret;
}
"""
    found, before = [], len(machine.problems)
    for order in (BACKWARDS, *[SHUFFLED] * 8):
        out = Array(np.zeros(1, np.int32))
        machine.order = order
        Program(ptx).launch((1,), (512,), [out.piece])
        found.append(int(out.values[0]))
    assert found[0] == 0
    assert len(set(found[1:])) > 1
    del machine.problems[before:]


@pytest.mark.parametrize(("grid", "threads"), [((0,), 32), ((1, 1 << 16), 32), ((1,), 64)])
def test_launches_that_cuda_refuses(grid, threads):
    ptx = ".visible .entry none()\n.maxntid 32, 1, 1\n{\nret;\n}"
    with pytest.raises(ValueError, match="none"):
        Program(ptx).launch(grid, (threads,), [])


def test_work_is_counted():
    ptx = """
.visible .entry counted(.param .u64 x)
{
.reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .f32 %f<5>; .reg .pred %p<2>;
ld.param.u64 %rd1, [x];
mov.u32 %r1, 0;
$again:
ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];
fma.rn.f32 %f1, %f2, %f3, %f4;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 5;
@%p1 bra $again;
ret;
}
"""
    program = Program(ptx)
    program.launch((3,), (2,), [numbers().piece])
    assert program.work == Counter({"ffma": 30, "global": 480, "instructions": 6 * (2 + 25 + 1)})

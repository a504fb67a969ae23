"""Small kernels written as PTX, to test the machine itself."""

import numpy as np

from tests.cuda.ptx.machine import FORWARDS, Memory, Piece, Program, machine

REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .b64 %rd<32>; .reg .b64 %a<9>;"


class Array:
    """A device array; written: else it holds nothing yet; shift: bytes from a multiple of 512 to its beginning."""

    def __init__(self, values, written: bool = True, shift: int = 0):
        values = np.ascontiguousarray(values)
        self.dtype, self.shape = values.dtype, values.shape
        self.piece = Piece(Memory(values.nbytes + shift), shift, values.nbytes)
        if written:
            self.piece.bytes[:] = values.view(np.uint8).reshape(-1)
            self.piece.written[:] = 1

    @property
    def values(self) -> np.ndarray:
        return self.piece.bytes.view(self.dtype).reshape(self.shape)


def run(body: str, arrays: list[Array], threads: int = 32, grid: int = 1, shared: str = "") -> set[str]:
    """Runs a kernel; the kinds of problems that it had.

    In it, %a0, %a1, ... are the arrays, %r0 is the thread and %rd0 four times that; shared: declarations.
    """
    parameters = ", ".join(f".param .u64 array_{i}" for i in range(len(arrays)))
    addresses = "\n".join(f"ld.param.u64 %a{i}, [array_{i}];" for i in range(len(arrays)))
    ptx = f"""
.visible .entry snippet({parameters})
.maxntid {threads}, 1, 1
{{
{REGISTERS}
{shared}
{addresses}
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd0, %r0, 4;
{body}
ret;
}}
"""
    machine.order = FORWARDS
    before = len(machine.problems)
    Program(ptx).launch((grid,), (threads,), [array.piece for array in arrays])
    found = {problem.kind for problem in machine.problems[before:]}
    del machine.problems[before:]
    return found

"""Kernels of the stand-in for CuPy. In place of the machine code of a kernel (cubin), they take its PTX."""

import ctypes

import numpy as np

from tests.cuda.ptx.machine import Piece, memory_at, program


class CPointer(int):
    """The address of an argument, or (here) its eight bytes themselves."""


class Module:
    def load(self, cubin: bytes) -> None:
        from cupy import cuda  # here, as it imports this module

        self._program, self._device = program(cubin.decode()), cuda.current()

    def get_function(self, name: str):
        made = self._program
        assert made.name == name

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments) -> None:
            from cupy import cuda

            taken = [_taken(a, kind) for a, kind in zip(arguments, made.kernel.parameters, strict=True)]
            places = {self._device, cuda.current(), *(a.memory.device for a in taken if isinstance(a, Piece))}
            assert len(places) == 1, f"{made.name}: kernel, current device and arrays are on devices {places}"
            cuda.get_current_stream().queue(lambda: made.launch(grid, block, taken))

        return launch


def _taken(argument, kind: str):
    """An argument as the machine takes it: as it is now, whatever becomes of the caller's memory."""
    if not isinstance(argument, CPointer):
        return argument if isinstance(argument, np.generic) else argument.piece
    word = ctypes.c_uint64.from_address(argument).value
    if kind == "u64":
        return memory_at(word) if word else np.uint64(0)
    return np.uint32(word & 0xFFFFFFFF)

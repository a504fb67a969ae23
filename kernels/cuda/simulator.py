"""Memory and the name `cuda` inside a simulated kernel: numba's simulator with its traps closed."""

import sys
from collections.abc import Callable

import numpy as np
from numba import float32, types
from numba.np.numpy_support import as_dtype


def _spoilt(dtype: types.Type) -> float:
    """What memory holds before it is written: a number that spoils every result it reaches."""
    return np.nan if dtype is float32 else -(1 << 30)


class Memory:
    """Memory as a kernel sees it: flat, no negative index, nothing beyond the end."""

    def __init__(self, array: np.ndarray):
        self._array = array.reshape(-1)

    @classmethod
    def unwritten(cls, size: int, dtype: types.Type) -> "Memory":
        return cls(np.full(size, _spoilt(dtype), as_dtype(dtype)))

    def _index(self, i):
        if not 0 <= i < self._array.size:
            raise IndexError(f"element {i} of {self._array.size}")
        return i

    def __getitem__(self, i):
        return self._array[self._index(i)]

    def __setitem__(self, i, value):
        self._array[self._index(i)] = value


class SimulatedCuda:
    """`numba.cuda` as the running block sees it.

    The simulator swaps the name `cuda` in the module of a kernel while it runs, not in the modules of its helpers, and
    two threads in one helper undo each other's swap. Looking the block up needs no swap.

    Args:
        context: gives the simulator's module of the running kernel.
    """

    def __init__(self, context: Callable):
        self._context = context
        self.local, self.shared = _Local(), _Shared(context)

    def __getattr__(self, name: str):
        return getattr(self._context(), name)


class _Local:
    def array(self, size: int, dtype: types.Type, alignment: int | None = None) -> list:
        """A list, which is many times faster: the innermost loops work on registers."""
        return [as_dtype(dtype).type(_spoilt(dtype))] * size


class _Shared:
    def __init__(self, context: Callable):
        self._context = context

    def array(self, size: int, dtype: types.Type, alignment: int | None = None) -> Memory:
        """The same memory for all threads of a block that come by the same place of the code."""
        context, caller = self._context(), sys._getframe(1)
        block = context.blockIdx
        key = caller.f_code, caller.f_lasti, block.x, block.y, block.z
        return vars(context).setdefault("shared_memory", {}).setdefault(key, Memory.unwritten(size, dtype))

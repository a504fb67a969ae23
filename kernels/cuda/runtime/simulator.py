"""The simulator: with NUMBA_ENABLE_CUDASIM=1, kernels run as Python over NumPy arrays.

The threads of a block take turns, from barrier to barrier, in an order that is drawn again each time (the same in every
run of a program): if a barrier is missing, a thread runs too early in some of these orders. Functions with barriers
become generators that pause at them. Numba's own simulator starts a thread of the operating system for each thread of
the block, and polls all of them.
"""

import ast
import inspect
import random
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import float32, types
from numba.np.numpy_support import as_dtype

SIMULATOR = bool(numba.config.ENABLE_CUDASIM)  # whether kernels run here and not on a GPU


def _spoilt(dtype: types.Type) -> float:
    """The content of memory before it is written: a number that makes every result computed from it invalid."""
    return np.nan if dtype is float32 else -(1 << 30)


class Memory:
    """Memory of a kernel: flat, without negative indices or access beyond the end."""

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


class _Index(NamedTuple):
    """Index of a thread or a block in three dimensions, or the number of them."""

    x: int
    y: int = 0
    z: int = 0


class SimulatedCuda:
    """The object `cuda` inside a kernel, for the running thread.

    Attributes:
        operands: by thread, values that threads of a block exchange without memory (`intrinsics.mma_tf32`).
    """

    def __init__(self) -> None:
        self.local, self.shared = _Local(), _Shared()
        self._random = random.Random(0)

    def launch(self, kernel: Callable, grid: tuple[int, ...], threads: int, arguments: list) -> None:
        """Runs a kernel (`with_pauses`) to its end, block by block."""
        self.blockDim = _Index(threads, 1, 1)
        for z, y, x in np.ndindex((1, 1, *reversed(grid))[-3:]):
            self.blockIdx = _Index(x, y, z)
            self.operands: dict[int, Any] = {}
            self.shared.arrays = {}
            paused = []
            for thread in self._random.sample(range(threads), threads):
                self.threadIdx = _Index(thread)
                running = kernel(*arguments)
                if _pauses(kernel):
                    paused.append((self.threadIdx, running))
            while paused:
                self._random.shuffle(paused)
                turns, paused = paused, []
                for index, running in turns:
                    self.threadIdx = index
                    if next(running, False):
                        paused.append((index, running))

    def syncthreads(self) -> None:
        """Not called in kernels and @device functions: `with_pauses` replaces the call by a pause.

        Raises:
            RuntimeError: another function calls it.
        """
        raise RuntimeError("cuda.syncthreads() in a function that is neither a kernel nor a @device function")


class _Local:
    def array(self, size: int, dtype: types.Type, alignment: int | None = None) -> list:
        """A list, which is many times faster than an array, because the innermost loops use registers."""
        return [as_dtype(dtype).type(_spoilt(dtype))] * size


class _Shared:
    arrays: dict[tuple, Memory]

    def array(self, size: int, dtype: types.Type, alignment: int | None = None) -> Memory:
        """Memory shared by all threads of a block, one for each place in the code."""
        caller = sys._getframe(1)
        key = caller.f_code, caller.f_lasti
        if key not in self.arrays:
            self.arrays[key] = Memory.unwritten(size, dtype)
        return self.arrays[key]


def with_pauses(function: Callable) -> Callable:
    """`function` itself; with barriers in it or in functions it calls, a generator that yields True at each of them."""
    code = function.__code__
    around = dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    scope = function.__globals__ | around
    if "syncthreads" not in code.co_names and not any(
        _pauses(scope.get(name)) for name in (*code.co_names, *code.co_freevars)
    ):
        return function
    module = ast.parse(textwrap.dedent(inspect.getsource(function)))
    ast.increment_lineno(module, code.co_firstlineno - 1)
    (definition,) = _Pauses(scope).visit(module).body
    definition.decorator_list = []
    # The enclosing function `factory` provides the names of the original's closure.
    factory: Any = ast.parse(f"def factory({', '.join(around)}):\n    return {function.__name__}")
    factory.body[0].body.insert(0, definition)
    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(factory), code.co_filename, "exec"), function.__globals__, made)
    return made["factory"](**around)


def _pauses(function: Any) -> bool:
    """Whether this is a function with barriers, in the form that `with_pauses` returns."""
    return inspect.isgeneratorfunction(function)


class _Pauses(ast.NodeTransformer):
    """Replaces barriers by `yield`, and calls of functions with barriers by `yield from`."""

    def __init__(self, scope: dict[str, Any]):
        self._scope = scope

    def visit_Call(self, call: ast.Call) -> ast.expr:
        self.generic_visit(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "syncthreads":
            return ast.Yield(ast.Constant(True))
        if isinstance(call.func, ast.Name) and _pauses(self._scope.get(call.func.id)):
            return ast.YieldFrom(call)
        return call

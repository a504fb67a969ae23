"""Definition, compilation and launch of CUDA kernels. The only file that imports numba.cuda.

A kernel is a function over flat memory; parameter types are declared once, so a launch involves no dispatch on types:

    from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, kernel, optional, thread_index

    @kernel(floats, optional(floats), floats, int32, threads=256)
    def relu(mu, var, out, n):
        i = thread_index()
        if i < n:
            out[i] = mu[i] if var is None else mu[i] + var[i]

    relu.launch(blocks(n, 256), mu, None, out, n)      # grid: a number or a tuple of up to three

* `floats` and `ints` are C-contiguous float32 and int32 arrays of any shape; the kernel sees them flat. Sizes travel as
  `int32`, `uint32` or `float32` scalars. A parameter `optional(...)` may be None: `x is None` is then decided while
  compiling. Arguments are checked for dtype and contiguity, not for size. The first one is always an array.
* Arithmetic of int32 and int64 is int64; mixing uint32 with a signed number is float64: use one kind per kernel.
  Constants of formulas are `np.float32`. No float64 may appear in the code (the compile lane fails on it).
* Shared memory: `s = cuda.shared.array(SIZE, float32, ALIGN)`; sums over a block: `block_sum(value, s, threads)`
  or, for the first thread only, `tree_sum(value, s, threads, 1)`; consecutive sums need two such arrays in turn.
* Instructions without a name in numba are in `intrinsics.py`. Functions that kernels call are formulas or `@device`.
* Every kernel enters `REGISTRY`; the compile lane builds all of them for all architectures.

NVVM makes PTX, nvJitLink a cubin (see `cubins`), and CuPy loads and launches it on its current stream. A launch takes
about 5 microseconds of host time instead of the 90 of a numba launch, and the compile lane tests the same code. A
launch runs on the device of its arrays. It uses `device_of(array) -> int`, `compute_capability(device) -> (major,
minor)` and `Function(device, cubin, name)` of `kernels.cuda.array`, a callable(grid, block, arguments) which launches
on that device's current stream.
"""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numba
import numba.cuda.cudaimpl  # what compiling needs: if it fails, `pytagi_ddp.cuda.why_not` names the reason
import numpy as np
from numba import cuda, float32, int32, types, uint32
from numba.core.compiler_lock import global_compiler_lock
from numba.cuda import dispatcher
from numba.cuda.extending import intrinsic

from pytagi_ddp.kernels.cuda.runtime import cubins
from pytagi_ddp.kernels.cuda.runtime.recorder import queue

__all__ = [
    "ALIGN",
    "REGISTRY",
    "block_sum",
    "blocks",
    "cuda",
    "device",
    "float32",
    "floats",
    "int32",
    "intrinsic",
    "ints",
    "kernel",
    "optional",
    "thread_index",
    "tree_sum",
    "types",
    "uint32",
]

if find_spec("numba_cuda") is None:
    raise ImportError("CUDA kernels need the package numba-cuda: pip install 'pytagi-ddp[cuda]'")

ALIGN = 16  # bytes, of shared arrays that are read four numbers at a time

floats = types.CPointer(float32)
ints = types.CPointer(int32)
MOST_NUMBERS = (1 << 31) - 1  # of an array
_DTYPES = {floats: np.dtype(np.float32), ints: np.dtype(np.int32)}
_SCALARS = {float32: np.float32, int32: np.int32, uint32: np.uint32}
_NULL = np.uint64(0)

_IDENTIFIER = re.compile(r"[A-Za-z]\w*|_\w+", re.ASCII)  # of PTX, without its $ and %

REGISTRY: dict[str, "Kernel"] = {}


class optional(NamedTuple):
    """A parameter that may be None; its name is lower-case because it is used as a type."""

    type: types.Type


device = numba.njit(inline="always")  # inlined before types are known, so that arguments may have any type


@device
def thread_index():
    """Number of this thread in a one-dimensional grid."""
    return cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x


@device
def tree_sum(value, scratch, threads, last):
    """Sum of `value` over threads of a block that differ by multiples of `last`, valid in the first `last` threads.

    The order of the additions is fixed. Every thread must call it.

    scratch: shared memory, one number per thread; not the array of the previous sum, which may still be read; threads:
    size of the one-dimensional block. Both `threads` and `last` are powers of two.
    """
    i = cuda.threadIdx.x
    scratch[i] = value
    half = threads // 2
    while half >= last:
        cuda.syncthreads()
        if i < half:
            scratch[i] += scratch[i + half]
        half //= 2
    return scratch[i]


@device
def block_sum(value, scratch, threads):
    """`tree_sum` over a whole block, for all of its threads."""
    tree_sum(value, scratch, threads, 1)
    cuda.syncthreads()
    return scratch[0]


def blocks(n: int, threads: int) -> int:
    """Number of blocks of `threads` threads that cover n elements, at least one."""
    return max(1, -(-n // threads))


class Compiled(NamedTuple):
    """Code of one kernel for one architecture; log: registers, spills and shared memory as the assembler reports."""

    ptx: str
    cubin: bytes
    log: str


class Kernel:
    """A kernel, and its code for each architecture and each choice of optional arguments.

    Attributes:
        name: unique among all kernels.
        threads: of a block.
        min_capability: the lowest compute capability that has the instructions it uses.
    """

    def __init__(
        self,
        function: Callable,
        parameters: tuple,
        name: str,
        threads: int,
        min_blocks: int,
        min_capability: tuple[int, int],
        one_needed: bool,
    ):
        self.name, self.threads, self.min_blocks, self.min_capability = name, threads, min_blocks, min_capability
        self._function = function
        self._types = tuple(p.type if isinstance(p, optional) else p for p in parameters)
        self._optional = tuple(i for i, p in enumerate(parameters) if isinstance(p, optional))
        self._convert = [self._converter(i) for i in range(len(parameters))]
        self._loaded: dict = {}
        self._one_needed = one_needed

    def variants(self) -> list[tuple[bool, ...]]:
        """Every combination of optional arguments that are given (True) or None (False)."""
        choices = product((True, False), repeat=len(self._optional))
        return [choice for choice in choices if any(choice) or not self._one_needed]

    def compile(self, capability: tuple[int, int], variant: tuple[bool, ...]) -> Compiled:
        """Code for a compute capability, on any machine, with or without a GPU.

        Raises:
            RuntimeError: the assembler refuses the code; its message says why.
        """
        ptx = self._ptx(variant)
        return Compiled(ptx, *cubins.assemble(ptx, self.name, capability))

    @cache  # noqa: B019 (kernels live as long as the process)
    def _ptx(self, variant: tuple[bool, ...]) -> str:
        """PTX for the oldest architecture: it serves all later ones, and the assembler optimises for the one in use."""
        absent = {i for i, present in zip(self._optional, variant, strict=True) if not present}
        signature = types.void(*(types.none if i in absent else t for i, t in enumerate(self._types)))
        bounds = (self.threads, self.min_blocks)
        with _compiling_for(self.min_capability):
            ptx, _ = cuda.compile_ptx(self._function, signature, cc=self.min_capability, launch_bounds=bounds)
        mangled = re.search(r"\.entry (\w+)\(", ptx).group(1)
        return ptx.replace(mangled, self.name)

    def launch(self, grid: int | tuple[int, ...], *arguments) -> None:
        """Queues the kernel on the current stream of the device that holds the first argument.

        Raises:
            ValueError: an array has another dtype than declared or is not C-contiguous, arguments are missing or None,
                or all optional ones are None although the kernel needs one.
        """
        grid = grid if isinstance(grid, tuple) else (grid,)
        converted = [convert(a) for convert, a in zip(self._convert, arguments, strict=True)]
        variant = tuple(arguments[i] is not None for i in self._optional)
        device = _array().device_of(arguments[0])
        function = self._loaded.get((device, variant)) or self._load(device, variant)
        queue(function, grid, (self.threads,), converted)

    def _converter(self, position: int) -> Callable:
        """The function that checks an array argument, or converts a scalar, before a launch."""
        declared = self._types[position]
        if declared in _SCALARS:
            return _SCALARS[declared]
        dtype, may_be_absent = _DTYPES[declared], position in self._optional

        def check(array):
            if array is None and may_be_absent:
                return _NULL
            if array is None:
                raise ValueError(f"{self.name}: argument {position} is None, and the kernel needs an array")
            if array.dtype != dtype or not array.flags.c_contiguous:
                what = f"{array.dtype} of shape {array.shape} and strides {array.strides}"
                raise ValueError(f"{self.name}: argument {position} is {what}, not C-contiguous {dtype}")
            if array.size > MOST_NUMBERS:
                raise ValueError(
                    f"{self.name}: argument {position} has {array.size} numbers, and a kernel takes at most "
                    f"{MOST_NUMBERS}, as it counts them in 32 bits: give smaller batches"
                )
            return array

        return check

    def _load(self, device: int, variant: tuple[bool, ...]) -> Callable:
        capability = _array().compute_capability(device)
        if capability < self.min_capability:
            needed, found = (".".join(map(str, c)) for c in (self.min_capability, capability))
            raise RuntimeError(f"{self.name} needs compute capability {needed}, GPU {device} has {found}")
        if variant not in self.variants():
            raise ValueError(f"{self.name}: one of the arguments {self._optional} is needed, all are None")
        cubin = self.code(capability, variant)
        function = self._loaded[device, variant] = _array().Function(device, cubin, self.name)
        return function

    def code(self, capability: tuple[int, int], variant: tuple[bool, ...]) -> bytes:
        """The cubin for a compute capability: read from the cache folder, or compiled and stored there."""
        file = self.file(capability, variant)
        cubin = cubins.kept(file)
        if not cubin:
            cubin = self.compile(capability, variant).cubin
            cubins.keep(file, cubin)
        return cubin

    def is_kept(self, capability: tuple[int, int], variant: tuple[bool, ...]) -> bool:
        """Whether `code` finds the cubin in the cache, so that nothing needs to be compiled."""
        return bool(cubins.kept(self.file(capability, variant)))

    def file(self, capability: tuple[int, int], variant: tuple[bool, ...]) -> str:
        """The name of the file that the cubin is kept in."""
        letters = "".join("ap"[present] for present in variant)  # a: absent, p: present
        return "{}-{}-sm{}{}.cubin".format(self.name, letters, *capability)


def kernel(
    *parameters: types.Type | optional,
    threads: int,
    min_blocks: int = 1,
    min_capability: tuple[int, int] = (7, 5),
    name: str | None = None,
    one_needed: bool = False,
) -> Callable[[Callable], Kernel]:
    """Makes a function a kernel of blocks of `threads` threads, of which `min_blocks` must fit one multiprocessor.

    name: needed for kernels made in a loop over settings, which would otherwise share a name; an identifier of PTX.
    one_needed: the optional parameters are never all None, so that this variant is not compiled.

    Raises:
        ValueError: the name is taken, or is not an identifier of PTX.
    """

    def decorate(function: Callable) -> Kernel:
        title = name or f"{function.__module__.rsplit('.', 1)[-1]}_{function.__name__}"
        if not _IDENTIFIER.fullmatch(title):
            raise ValueError(f"kernel {title!r}: a name is of letters, digits and _, and begins with no digit")
        if title in REGISTRY:
            raise ValueError(f"two kernels are called {title}")
        made = Kernel(function, parameters, title, threads, min_blocks, min_capability, one_needed)
        REGISTRY[title] = made
        return made

    return decorate


@cache
def _array() -> ModuleType:
    from pytagi_ddp.kernels.cuda.runtime import array  # here, because CuPy is loaded only where a GPU is used

    return array


@contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """Sets the architecture of inner functions; numba would otherwise ask the driver. One thread at a time.

    Garbage is not collected meanwhile: that takes long, and finds little among so many new objects.
    """
    with global_compiler_lock:
        asked, collects = dispatcher.get_current_device, gc.isenabled()
        try:  # an interrupt may come after any of these lines
            dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
            gc.disable()
            yield
        finally:
            dispatcher.get_current_device = asked
            if collects:
                gc.enable()

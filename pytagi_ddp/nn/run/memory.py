"""The memory that a pass will take, found by calling the layers without computing."""

import weakref
from collections.abc import Callable
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np

from pytagi_ddp.kernels import protocol
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.saved import Pass, PassMemory, Saved
from pytagi_ddp.nn.core.state import Array, State
from pytagi_ddp.nn.layers.chain import Chain


def pass_bytes(chain: Chain, kernels: Kernels, state: State, training: bool) -> int:
    """Bytes that layers keep for a pass of a batch and, in training, of the deltas of the backward pass.

    Not counted: parameters, the input, and scratch memory of products (at most 64 MB, and packed weights).
    Only the size of the input `state` matters.
    """
    counted = _Counted(kernels)
    chain.attach(counted)  # type: ignore[arg-type]
    try:
        memory = PassMemory(counted)  # type: ignore[arg-type]
        mu, var = (None if a is None else _Sized.of(a.shape, a.dtype) for a in state[:2])
        memory.pool.reserve(state.batch * chain.widest)
        saved = Saved(None, Pass(memory, {}, training))
        out = chain.forward(State(mu, var), saved)
        if training:
            chain.backward(memory.pool.take(*out.mu.shape), saved.ask(False, False))
        return counted.array.peak
    finally:
        chain.attach(kernels)


def refuse_too_large(needed: Callable[[int], int], batch: int, free: int) -> None:
    """Raises MemoryError if a pass does not fit; it names the memory that the pass needs, and a batch size that fits.

    Args:
        needed: returns the bytes of a pass for a batch size. free: free bytes.
    """
    whole = needed(batch)
    if whole <= free:
        return
    one = needed(1)
    each = max(1, (whole - one) // max(1, batch - 1))
    fits = 1 + (free - one) // each
    remedy = f"use a batch of at most about {fits}" if fits >= 1 else "not even one sample fits: use a smaller network"
    raise MemoryError(
        f"a pass of a batch of {batch} needs about {gigabytes(whole)} on the GPU, and {gigabytes(free)} are free: "
        f"{remedy}, recompute blocks (checkpoint_blocks=True), or end what else takes memory there"
    )


def gigabytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


class _Sized(np.ndarray):
    """An array of any shape in the memory of a single element: its strides are 0."""

    @classmethod
    def of(cls, shape: Any, dtype: Any) -> "_Sized":
        shape = shape if isinstance(shape, tuple) else (shape,)
        return cls(shape, dtype, np.zeros(1, dtype), 0, (0,) * len(shape))


class _CountedArrays:
    """Array functions that count bytes; `peak` is the largest number in use at one time."""

    asynchronous = True

    def __init__(self) -> None:
        self._held = self.peak = 0

    def empty(self, shape: Any, dtype: Any = np.float32) -> Array:
        array = _Sized.of(shape, dtype)
        self._count(array.nbytes)
        weakref.finalize(array, self._count, -array.nbytes)
        return array

    zeros = empty

    def _count(self, size: int) -> None:
        self._held += size
        self.peak = max(self.peak, self._held)

    def address(self, array: Array) -> int:
        return array.ctypes.data

    def place(self, source: np.ndarray, into: Array | None = None) -> Array:
        return self.empty(source.shape, source.dtype) if into is None or into.size < source.size else into

    def copy(self, source: Array, out: Array) -> None: ...
    def clear(self, array: Array) -> None: ...
    def synchronize(self) -> None: ...


class _Counted:
    """Replaces the kernels of a device: functions that compute do nothing, those that return sizes are the device's."""

    def __init__(self, kernels: Kernels):
        self.array = _CountedArrays()
        for family, declared in get_type_hints(protocol.Kernels).items():
            if family not in ("array", "graph"):
                setattr(self, family, _Idle(getattr(kernels, family), declared))


class _Idle:
    def __init__(self, module: Any, declared: type):
        self._module, self._declared = module, declared

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._declared, name, None)
        returned = get_type_hints(function).get("return") if function is not None else ...
        idle = returned is NoneType or NoneType in get_args(returned)
        return _nothing if idle else getattr(self._module, name)


def _nothing(*arguments: Any, **options: Any) -> None: ...

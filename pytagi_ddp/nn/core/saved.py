"""The context of one pass through a layer: values that its forward pass saves for its backward pass, and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.hooks import LeafHooks
from pytagi_ddp.nn.core.state import Array, BlockMemory, DeltaPool, Lifetime, State

Buffers = dict[Any, dict[str, Array]]  # by layer, then by name
NO_HOOKS = LeafHooks()


class PassMemory:
    """The memory of all passes of a network. It is kept between passes, so that a repeated step allocates nothing.

    Attributes:
        pool: for deltas, and for values that only the next operation reads. blocks: for activations of recomputed
            blocks.
    """

    def __init__(self, kernels: Kernels):
        self.array = kernels.array
        self.pool = DeltaPool(kernels)
        self.blocks = BlockMemory(kernels)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that layers share: for values that are needed within a pass only, or are recomputed."""
        return self.pool.nbytes + self.blocks.nbytes


class Pass(NamedTuple):
    """Values that all contexts of one pass share.

    Attributes:
        memory: of the network. buffers: memory of each layer, kept between passes of the same frame.
        training: whether the network is in training mode. hooks: those of the network.
    """

    memory: PassMemory
    buffers: Buffers
    training: bool
    hooks: LeafHooks = NO_HOOKS


class Saved:
    """The context of one pass through a layer, like `ctx` of a `torch.autograd.Function`.

    `forward` sets attributes of any names, and `backward` of the same pass reads them:

        def forward(self, state, saved):
            saved.input = state
            ...
        def backward(self, delta, saved):
            slope = 2 * saved.input.mu
            ...

    Every pass has its own contexts, so that several passes can be in progress. A layer in NumPy needs nothing else. The
    methods return memory that is kept between passes, so that a repeated step allocates nothing.

    Args:
        layer: the layer, which is part of a network; None: the network. `Saved(layer)` is for calling `forward` of a
            layer directly.

    Attributes:
        needs_input: whether `backward` has to return the deltas of the input.
        accumulate: whether `backward` adds to the batch sums of the parameters instead of replacing them.
        training: whether the network is in training mode, so that a backward pass may follow.
        recomputed: whether this forward pass repeats an earlier one, and so must not change running or carried state.
        pool: memory for deltas, a `DeltaPool`. blocks: the memory that recomputed blocks use in turn.
        hooks: those of the network.
        lifetime: of the variances of the layer's output. Means and Jacobian always last until the backward pass.

    Raises:
        AttributeError: setting an attribute with one of the names above or that of a method, or reading one that
            `forward` has not set. TypeError: copying or pickling.
    """

    needs_input, accumulate, recomputed = True, False, False
    training: bool
    pool: DeltaPool
    blocks: BlockMemory
    hooks: LeafHooks
    lifetime: Lifetime
    _lifetimes: Mapping[Any, Lifetime] = MappingProxyType({})
    _turns: BlockMemory | None = None

    def __init__(self, layer: Any, of: Pass | None = None, lifetime: Lifetime = Lifetime.USER, **more: Any):
        if of is None:
            of = Pass(PassMemory(layer.kernels), {}, True)
        own = self.__dict__  # not by `__setattr__`, to save time
        own["_layer"], own["_pass"], own["lifetime"], own["_inside"] = layer, of, lifetime, {}
        own["training"], own["pool"], own["blocks"] = of.training, of.memory.pool, of.memory.blocks
        own["hooks"] = of.hooks
        if layer is not None:
            own["_buffers"] = of.buffers.setdefault(layer, {})
        if more:
            own.update(more)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PUBLIC:
            raise AttributeError(f"a context has {name!r} itself: give what forward() saves another name", name=name)
        self.__dict__[name] = value

    if TYPE_CHECKING:  # `forward` sets attributes of any names

        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Saved is the context of one pass, and is not copied or pickled: a layer must not hold it")

    # -- memory -----------------------------------------------------------------------------------------------

    def output(self, batch: int) -> State:
        """Memory for the output. Its variances may be overwritten after the next operation, see `needs_variances`."""
        return State(self.units("mu", batch), self.units("var", batch, Lifetime.NEXT))

    def units(self, name: str, batch: int, lifetime: Lifetime = Lifetime.BACKWARD) -> Array:
        """(batch, units) array for the output, valid for `lifetime` or for that of the layer's output, if longer."""
        last, size = max(lifetime, self.lifetime), self._layer.out_shape.size
        if last == Lifetime.USER or (last == Lifetime.BACKWARD and self.training):
            return self.buffer(name, batch, size)
        return self.pool.acquire(batch, size)

    def buffer(self, name: str, batch: int, size: int, dtype: type = np.float32) -> Array:
        """(batch, size) array that is valid until the backward pass, in memory that grows to the largest batch."""
        if self._turns is not None:
            return self._turns.take(batch, size, dtype)
        array = self._buffers.get(name)
        if array is None or array.shape[0] < batch or array.shape[1] != size:
            array = self._buffers[name] = self._pass.memory.array.empty((batch, size), dtype)
        return array[:batch]

    def scratch(self, name: str, shape: tuple[int, ...]) -> Array:
        """Uninitialised array of any shape, from memory that is kept between passes and grows to the largest.

        The same name gives the same memory again, in the backward pass too.
        """
        size = math.prod(shape)
        memory = self._buffers.get(name)
        if memory is None or memory.size < size:
            memory = self._buffers[name] = self._pass.memory.array.empty(size)
        return memory[:size].reshape(shape)

    def constant(self, name: str, make: Callable[[], np.ndarray]) -> Array:
        """A float32 array on the device of the network. `make` is called once to compute it."""
        array = self._buffers.get(name)
        if array is None:
            values, functions = make(), self._pass.memory.array
            array = self._buffers[name] = functions.empty(values.shape)
            functions.copy(values, array)
        return array

    def with_variance(self, state: State) -> State:
        """`state`, an input of the layer, with variances: zeros for a deterministic one."""
        if state.var is not None:
            return state
        zeros = self._buffers.get("zeros")
        if zeros is None or zeros.shape[0] < state.batch:
            shape = (state.batch, self._layer.in_shape.size)
            zeros = self._buffers["zeros"] = self._pass.memory.array.zeros(shape)
        return state._replace(var=zeros[: state.batch])

    # -- state that is carried from pass to pass --------------------------------------------------------------

    def carried(self, name: str) -> Array:
        """The state that the layer carried into this pass, for `forward` and `backward`.

        It is a copy: a recomputed pass begins with the same state as the first time.
        """
        source = self._layer.state[name]
        kept = self.scratch(f"carried {name}", source.shape)
        if not self.recomputed:
            self._pass.memory.array.copy(source, kept)
        return kept

    def carry(self, name: str, values: Array) -> None:
        """Makes the next pass begin with `values`. A recomputed pass changes nothing."""
        if not self.recomputed:
            self._pass.memory.array.copy(values, self._layer.state[name])

    # -- contexts of inner layers -----------------------------------------------------------------------------

    def of(self, layer: Any) -> Saved:
        """The context of `layer`, a layer inside this one, in the same pass."""
        inside: Saved | None = self._inside.get(layer)
        if inside is None:
            lifetime = self._lifetimes.get(layer, self.lifetime)
            inside = self._inside[layer] = Saved(layer, self._pass, lifetime)
            if self._turns is not None:
                inside.__dict__.update(recomputed=self.recomputed, _turns=self._turns)
        return inside

    def in_turn(self, layer: Any, recomputed: bool) -> Saved:
        """A new context of `layer`, a layer inside this one, in the memory that recomputed blocks share."""
        lifetime = self.lifetime if self.lifetime == Lifetime.USER else Lifetime.NEXT  # `Recomputed` makes a copy
        inside = self._inside[layer] = Saved(layer, self._pass, lifetime, recomputed=recomputed, _turns=self.blocks)
        self.blocks.begin(inside)
        return inside

    def find(self, layer: Any) -> Saved | None:
        """The context of `layer`, at any depth inside; None if the pass has not reached it."""
        if layer in self._inside:
            return self._inside[layer]
        found = (inside.find(layer) for inside in self._inside.values())
        return next((context for context in found if context is not None), None)

    def set_lifetimes(self, lifetimes: Mapping[Any, Lifetime]) -> None:
        """Sets the lifetimes of the outputs of inner layers; by default, that of this context's output."""
        self.__dict__["_lifetimes"] = lifetimes

    def ask(self, needs_input: bool, accumulate: bool) -> Saved:
        """Sets what a backward pass has to compute, see the attributes. Returns the context."""
        own = self.__dict__
        own["needs_input"], own["accumulate"] = needs_input, accumulate
        return self


PUBLIC = frozenset(name for name in {*vars(Saved), *Saved.__annotations__} if not name.startswith("_"))

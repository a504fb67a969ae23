"""Blocks whose activations are computed again in the backward pass instead of being kept."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import NO_STATE
from pytagi_ddp.nn.hooks import LeafHooks
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.state import BlockMemory, Delta, DeltaPool, Reader, State


class Recomputed(BaseLayer):
    """Runs a block and keeps only its output. Users do not make it: a `Chain` puts it around its blocks.

    The backward pass first runs the block again, with the same kernels on the same input, and so with the same bits.
    Running and carried state do not change then. The block that ran last is not run again: its activations are still
    there.
    """

    name = "Recomputed"
    is_leaf = False
    replayable = True
    memory: BlockMemory  # of the block, set by the chain; the output that this layer keeps is in its own buffers

    def __init__(self, block: BaseLayer):
        super().__init__()
        self.block = block
        self.in_shape, self.out_shape = block.in_shape, block.out_shape

    def set_hooks(self, hooks: LeafHooks | None) -> None:
        self.block.set_hooks(hooks)

    def leaves(self) -> Iterator[BaseLayer]:
        return self.block.leaves()

    def parts(self) -> Iterator[BaseLayer]:
        yield self
        yield from self.block.parts()

    def take_up(self, kept: dict[str, Any]) -> None:
        super().take_up(kept)
        self.memory.holder = None  # the activations there may be those of another pass

    def attach(self, kernels: Kernels) -> None:
        super().attach(kernels)
        self.block.attach(kernels)

    def lend(self, pool: DeltaPool, reader: Reader) -> None:
        super().lend(pool, reader)
        self.block.lend(pool, reader if reader == Reader.USER else Reader.NEXT)  # the next reader is the copy here

    def forward(self, state: State) -> State:
        self._input = state
        self.memory.begin(self)
        out = self.block._run_forward(self.block.forward, state)
        if not self.block._way_back:
            return out
        kept = (None if a is None else self._buffer(name, *a.shape) for name, a in zip(State._fields, out, strict=True))
        result = State(*kept)
        for source, target in zip(out, result, strict=True):
            if source is not None:
                self.kernels.array.copy(source, target)
        return result

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        if self.memory.holder is not self:
            self.memory.begin(self)
            with recomputing(self.block.leaves()):
                self.block._run_forward(self.block.forward, self._input)
            pool.take_back(0, NO_STATE)
        return self.block._run_backward(delta, pool, need_input, accumulate)

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        state.pop("memory", None)
        return state


@contextmanager
def recomputing(leaves: Iterable[BaseLayer]) -> Iterator[None]:
    """Inside, a forward pass through `leaves` is a repetition, and changes nothing that outlasts the pass."""
    leaves = list(leaves)
    for leaf in leaves:
        leaf.recomputing = True
    try:
        yield
    finally:
        for leaf in leaves:
            leaf.recomputing = False


def is_block(layer: BaseLayer) -> bool:
    """Whether `layer` is made of others."""
    return next(layer.leaves()) is not layer

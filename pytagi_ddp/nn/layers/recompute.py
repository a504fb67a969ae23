"""Blocks whose activations are recomputed in the backward pass instead of being saved."""

from collections.abc import Iterator

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import NO_STATE
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Lifetime, State


class Recomputed(BaseLayer):
    """Runs a block and keeps only its output. A `Chain` wraps its blocks in it.

    The backward pass first runs the block again on the same input, with the same bits; running and carried state do not
    change. All blocks share one memory for activations. The block that ran last is not run again, because its
    activations are still in memory.
    """

    _is_leaf = False
    replayable = True

    def __init__(self, block: BaseLayer):
        super().__init__()
        self.block = block
        self.in_shape, self.out_shape = block.in_shape, block.out_shape

    def leaves(self) -> Iterator[BaseLayer]:
        return self.block.leaves()

    def _attach(self, kernels: Kernels) -> None:
        super()._attach(kernels)
        self.block._attach(kernels)

    def forward(self, state: State, saved: Saved) -> State:
        saved.input = state
        out = self.block._run_forward(state, saved.in_turn(self.block, recomputed=False))
        # In evaluation too: the output may be in the memory that all blocks share, which the next block overwrites.
        last = Lifetime.BACKWARD if saved.training else Lifetime.NEXT
        named = zip(State._fields, out, strict=True)
        kept = (None if a is None else saved.units(name, state.batch, last) for name, a in named)
        result = State(*kept)
        for source, target in zip(out, result, strict=True):
            if source is not None:
                self.kernels.array.copy(source, target)
        return result

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        inside = saved.of(self.block)
        if saved.blocks.holder is not inside:
            inside = saved.in_turn(self.block, recomputed=True)
            self.block._run_forward(saved.input, inside)
            saved.pool.release(0, NO_STATE)
        return self.block._run_backward(delta, inside, saved.needs_input, saved.accumulate)


def is_block(layer: BaseLayer) -> bool:
    """Whether `layer` contains other layers."""
    return next(layer.leaves()) is not layer

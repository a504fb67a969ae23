"""Residual block."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.chain import listing
from pytagi_ddp.nn.hooks import LeafHooks
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.layer_block import LayerBlock
from pytagi_ddp.nn.owner import Owner
from pytagi_ddp.nn.pytagi_view import BlockView, refuse_assignment
from pytagi_ddp.nn.state import BlockMemory, Delta, DeltaPool, Reader, Shape, State, apply_jacobian


class ResNetBlock(BlockView, BaseLayer):
    """main(x) + x, or main(x) + shortcut(x): means add, and variances add (the branches taken as independent).

    Backward: both branches get the deltas of the sum, and their input deltas add. If a branch ends with an activation,
    its Jacobian is applied in that branch; the Jacobian of an activation before the block is applied to the identity
    too.

    Args:
        main_block: a `LayerBlock`, a single layer, or a list or tuple of layers.
        shortcut: the same, or None for the identity.

    Raises:
        ValueError: branches with outputs of different shapes.

    Source: cuTAGI.
    """

    name = "ResNetBlock"
    is_leaf = False
    replayable = True
    kept = ("_buffers", "_input", "_ends")
    _ends: list[State] | None = None  # outputs of the branches, from `forward` to `backward`

    def __init__(
        self, main_block: BaseLayer | Sequence[BaseLayer], shortcut: BaseLayer | Sequence[BaseLayer] | None = None
    ):
        super().__init__()
        if shortcut is not None and not isinstance(shortcut, BaseLayer):
            shortcut = LayerBlock(shortcut)
        self._shortcut = shortcut
        # Inside, a single layer is a block of one; outside (names, files) it stays what the user gave.
        self._branches = [main_block if isinstance(main_block, LayerBlock) else LayerBlock(main_block)]
        if shortcut is not None:
            self._branches.append(shortcut if isinstance(shortcut, LayerBlock) else LayerBlock(shortcut))

    @property
    def main_block(self) -> LayerBlock:
        return self._branches[0]

    @property
    def shortcut(self) -> BaseLayer | None:
        return self._shortcut

    def default_input_shape(self) -> Shape | None:
        return next((shape for b in self._branches if (shape := b.default_input_shape()) is not None), None)

    def _infer_output(self, shape: Shape) -> Shape:
        for branch in self._branches:
            branch.out_like = None
        outputs = [branch.build(shape) for branch in self._branches]
        if self.shortcut is None:
            outputs.append(shape)
        main, short = outputs
        if main.size != short.size or (main.image and short.image and main.image != short.image):
            raise ValueError(f"ResNetBlock: the main block gives {main}, the shortcut {short}; they must be equal")
        plain = main.image is None and main.sequence is None
        target = short if self.shortcut is None or plain else main
        for branch, out in zip(self._branches, outputs, strict=False):
            # The units of a dense branch beside an image are those of the image, channels first.
            if out.channels_last != target.channels_last and (out.order_matters or target.order_matters):
                branch.out_like = target
                branch.build(shape)
        return target

    def claim(self, owner: Owner) -> None:
        super().claim(owner)
        for branch in self._branches:
            branch.claim(owner)

    def release(self, owner: Owner) -> None:
        super().release(owner)
        for branch in self._branches:
            branch.release(owner)

    def attach(self, kernels: Kernels) -> None:
        super().attach(kernels)
        for branch in self._branches:
            branch.attach(kernels)

    def set_workspace(self, memory: BlockMemory | None) -> None:
        for branch in self._branches:
            branch.set_workspace(memory)

    def lend(self, pool: DeltaPool, reader: Reader) -> None:
        for branch in self._branches:
            branch.lend(pool, reader)  # the output of the block is in the memory of one branch's output

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        return any(branch.needs_variances for branch in self._branches)

    def set_hooks(self, hooks: LeafHooks | None) -> None:
        for branch in self._branches:
            branch.set_hooks(hooks)

    def leaves(self) -> Iterator[BaseLayer]:
        for branch in self._branches:
            yield from branch.leaves()

    def parts(self) -> Iterator[BaseLayer]:
        yield self
        for branch in self._branches:
            yield from branch.parts()

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        yield from super().named_layers(path)
        yield from self.main_block.named_layers(f"main.{path}")
        if self.shortcut is not None:
            yield from self.shortcut.named_layers(f"shortcut.{path}")

    def settings(self) -> dict[str, Any]:
        """[name, settings] of both branches; None for the identity."""
        short = self.shortcut and [self.shortcut.name, self.shortcut.settings()]
        return {"main_block": [self.main_block.name, self.main_block.settings()], "shortcut": short}

    def __repr__(self) -> str:
        return listing(self.name, {"main_block": self.main_block, "shortcut": self.shortcut})

    def forward(self, state: State) -> State:
        self._input, norm = state, self.kernels.batch_norm
        ends = [branch._run_forward(branch.begin, state) for branch in self._branches]
        self._ends = [end.out if isinstance(end, Normalization) else end for end in ends]
        main, short = (*ends, state)[:2]
        if isinstance(short, Normalization) and not isinstance(main, Normalization):
            main, short = short, main
        if not isinstance(main, Normalization):
            assert not isinstance(short, Normalization)
            self.kernels.elementwise.add_state(main, short)  # no backward pass reads the output of a branch
            return State(main.mu, main.var)
        norm.forward(main, short if isinstance(short, Normalization) else short.reshape(*main.x.mu.shape))
        return main.out.reshape(state.batch, self.out_shape.size)

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        if self.shortcut is None and not need_input:
            return self._branch_backward(0, delta, pool, None, need_input, accumulate)
        pool.share(delta)
        second: Delta | None = delta
        if self.shortcut is not None:
            second = self._branch_backward(1, delta, pool, None, need_input, accumulate)
        elif self._input.jcb is not None:
            second = pool.own_copy(delta)
            apply_jacobian(self.kernels, second, self._input)
        return self._branch_backward(0, delta, pool, second, need_input, accumulate)

    def _branch_backward(
        self, which: int, delta: Delta, pool: DeltaPool, onto: Delta | None, need_input: bool, accumulate: bool
    ) -> Delta | None:
        assert self._ends is not None  # `forward` has come before
        branch, end = self._branches[which], self._ends[which]
        if end.jcb is not None or not branch.spares_deltas:
            delta = pool.own_copy(delta)
            apply_jacobian(self.kernels, delta, end)
        if onto is None:
            return branch._run_backward(delta, pool, need_input, accumulate)
        return branch.backward_onto(onto, delta, pool, accumulate)

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"_ends": None}

    def get_layer_info(self) -> str:
        return f"ResNetBlock({self.input_size},{self.output_size})"


refuse_assignment(ResNetBlock, ("main_block", "shortcut"), "make a new ResNetBlock, and a new network")

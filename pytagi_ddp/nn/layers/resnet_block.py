"""Residual block."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.owner import Owner
from pytagi_ddp.nn.core.pytagi_view import BlockView, refuse_assignment
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Shape, State, apply_jacobian
from pytagi_ddp.nn.layers import fused
from pytagi_ddp.nn.layers.chain import listing
from pytagi_ddp.nn.layers.layer_block import LayerBlock


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
    _is_leaf = False
    replayable = True

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

    def _claim(self, owner: Owner) -> None:
        super()._claim(owner)
        for branch in self._branches:
            branch._claim(owner)

    def _release(self, owner: Owner) -> None:
        super()._release(owner)
        for branch in self._branches:
            branch._release(owner)

    def _attach(self, kernels: Kernels) -> None:
        super()._attach(kernels)
        for branch in self._branches:
            branch._attach(kernels)

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        return any(branch.needs_variances for branch in self._branches)

    def leaves(self) -> Iterator[BaseLayer]:
        for branch in self._branches:
            yield from branch.leaves()

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

    def forward(self, state: State, saved: Saved) -> State:
        saved.input = state
        ends = [fused.begin_branch(branch, state, saved.of(branch)) for branch in self._branches]
        saved.ends = [end.out if isinstance(end, Normalization) else end for end in ends]
        main, short = (*ends, state)[:2]
        return fused.add_ends(self.kernels, main, short, state.batch)

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        pool, needs_input = saved.pool, saved.needs_input
        if self.shortcut is None and not needs_input:
            return self._branch_backward(0, delta, saved)
        pool.share(delta)
        second: Delta | None = delta
        if self.shortcut is not None:
            second = self._branch_backward(1, delta, saved)
        elif saved.input.jcb is not None:
            second = pool.own_copy(delta)
            apply_jacobian(self.kernels, second, saved.input)
        return self._branch_backward(0, delta, saved, second)

    def _branch_backward(self, which: int, delta: Delta, saved: Saved, onto: Delta | None = None) -> Delta | None:
        branch, end, inside = self._branches[which], saved.ends[which], saved.of(self._branches[which])
        if end.jcb is not None or not branch.spares_deltas:
            delta = saved.pool.own_copy(delta)
            apply_jacobian(self.kernels, delta, end)
        if onto is None:
            return branch._run_backward(delta, inside, saved.needs_input, saved.accumulate)
        return fused.backward_onto(branch, onto, delta, inside, saved.accumulate)

    def get_layer_info(self) -> str:
        return f"ResNetBlock({self.input_size},{self.output_size})"


refuse_assignment(ResNetBlock, ("main_block", "shortcut"), "make a new ResNetBlock, and a new network")

"""A block of layers that counts as one."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.chain import Chain, LayerSequence
from pytagi_ddp.nn.hooks import LeafHooks
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.owner import Owner
from pytagi_ddp.nn.pytagi_view import refuse_assignment
from pytagi_ddp.nn.state import BlockMemory, Delta, DeltaPool, Reader, Shape, State


class LayerBlock(LayerSequence, BaseLayer):
    """Layers run one after the other, for use inside a `ResNetBlock` or a `Sequential`.

    The block trains exactly as its layers would without it, whatever their number and kind.

    `block[0]`, `block[1:]`, `len(block)` and `for layer in block` are those of the tuple `block.layers`.

    Args:
        layers: at least one; one by one, or as one list or tuple.

    Raises:
        ValueError: no layer. TypeError: something that is not a layer.
    """

    name = "LayerBlock"
    is_leaf = False
    replayable = True

    def __init__(self, *layers: BaseLayer | Sequence[BaseLayer]):
        super().__init__()
        self.chain = Chain(layers, "LayerBlock")
        self.out_like: Shape | None = None  # required image and memory order of the output; None: as the layers give it

    @property
    def layers(self) -> tuple[BaseLayer, ...]:
        return tuple(self.chain.layers)

    def default_input_shape(self) -> Shape | None:
        return self.chain.default_input_shape()

    def _infer_output(self, shape: Shape) -> Shape:
        like = self.out_like
        if like is None:
            return self.chain.build(shape, None, first_in_place=False)
        return self.chain.build(shape, like.channels_last, first_in_place=False, image=like.image)

    def claim(self, owner: Owner) -> None:
        super().claim(owner)
        self.out_like = None
        for layer in self.layers:
            layer.claim(owner)

    def release(self, owner: Owner) -> None:
        super().release(owner)
        for layer in self.layers:
            layer.release(owner)

    def attach(self, kernels: Kernels) -> None:
        super().attach(kernels)
        self.chain.attach(kernels)

    def set_workspace(self, memory: BlockMemory | None) -> None:
        for operation in self.chain.operations:
            operation.set_workspace(memory)

    def lend(self, pool: DeltaPool, reader: Reader) -> None:
        self.chain.lend(pool, reader)

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        return self.chain.operations[0].needs_variances

    def set_hooks(self, hooks: LeafHooks | None) -> None:
        self.chain.set_hooks(hooks)

    def leaves(self) -> Iterator[BaseLayer]:
        return self.chain.leaves()

    def parts(self) -> Iterator[BaseLayer]:
        yield self
        yield from self.chain.parts()

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        yield from super().named_layers(path)
        for k, layer in enumerate(self.layers):
            yield from layer.named_layers(f"{path}.{k}")

    def settings(self) -> dict[str, Any]:
        """[name, settings] of each layer."""
        return {"layers": [[layer.name, layer.settings()] for layer in self.layers]}

    def __repr__(self) -> str:
        return self.chain.listing(self.name)

    def forward(self, state: State) -> State:
        return self.chain.forward(state)

    def backward(self, delta: Delta, pool: DeltaPool, need_input: bool, accumulate: bool) -> Delta | None:
        return self.chain.backward(delta, pool, need_input, accumulate)

    @property
    def gives_jacobian(self) -> bool:  # type: ignore[override]
        return self.layers[-1].gives_jacobian

    @property
    def spares_deltas(self) -> bool:
        return self.chain.spares_deltas

    def begin(self, state: State) -> State | Normalization:
        return self.chain.begin(state)

    def backward_onto(self, onto: Delta, delta: Delta, pool: DeltaPool, accumulate: bool) -> Delta | None:
        return self.chain.backward(delta, pool, True, accumulate, onto)

    def get_layer_info(self) -> str:
        return f"LayerBlock({self.input_size},{self.output_size})"


refuse_assignment(LayerBlock, ("layers",), "make a new LayerBlock, and a new network")

"""A sequence of layers as one layer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pytagi_view import refuse_assignment
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, Shape, State
from pytagi_ddp.nn.layers.chain import Chain, LayerSequence, listing


class LayerBlock(LayerSequence, BaseLayer):
    """Layers that run one after the other, for use inside a `ResNetBlock` or a `Sequential`.

    Training gives the same result with or without the block. `block[0]`, `block[1:]`, `len(block)` and
    `for layer in block` are those of the tuple `block.layers`.

    Args:
        layers: at least one, as separate arguments, or as one list or tuple.

    Raises:
        ValueError: no layer. TypeError: something that is not a layer.
    """

    _is_leaf = False
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

    def features_by_step(self, features: int) -> int | None:
        return self.chain.features_by_step(features)

    def infer_output(self, shape: Shape) -> Shape:
        like = self.out_like
        if like is None:
            return self.chain.build(shape, None)
        return self.chain.build(shape, like.channels_last, image=like.image)

    def _claim(self, owner: Any) -> None:
        super()._claim(owner)
        self.out_like = None
        for layer in self.layers:
            layer._claim(owner)

    def _release(self, owner: Any) -> None:
        super()._release(owner)
        for layer in self.layers:
            layer._release(owner)

    def _attach(self, kernels: Kernels) -> None:
        super()._attach(kernels)
        self.chain.attach(kernels)

    def _input_checks(self) -> Iterator[Callable[[np.ndarray], None]]:
        return self.layers[0]._input_checks()

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        return self.chain.operations[0].needs_variances

    def leaves(self) -> Iterator[BaseLayer]:
        return self.chain.leaves()

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        yield from super().named_layers(path)
        for k, layer in enumerate(self.layers):
            yield from layer.named_layers(f"{path}.{k}")

    def settings(self) -> dict[str, Any]:
        """[name, settings] of each layer."""
        return {"layers": [[layer.name, layer.settings()] for layer in self.layers]}

    def __repr__(self) -> str:
        return listing(self.name, dict(enumerate(self.layers)))

    def forward(self, state: State, saved: Saved) -> State:
        return self.chain.forward(state, saved)

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        return self.chain.backward(delta, saved)

    @property
    def gives_jacobian(self) -> bool:  # type: ignore[override]
        return self.layers[-1].gives_jacobian

    @property
    def spares_deltas(self) -> bool:  # type: ignore[override]
        return self.chain.spares_deltas

    def get_layer_info(self) -> str:
        return f"LayerBlock({self.input_size},{self.output_size})"


refuse_assignment(LayerBlock, ("layers",), "make a new LayerBlock, and a new network")

"""Residual block."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pytagi_view import BlockView, refuse_assignment
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.layers.chain import listing
from pytagi_ddp.nn.layers.layer_block import LayerBlock
from pytagi_ddp.nn.layers.parallel import Parallel


class ResNetBlock(BlockView, Parallel):
    """main(x) + x, or main(x) + shortcut(x): means and variances are added, as if the branches were independent.

    It is `Parallel(main_block, shortcut)` with cuTAGI's names.

    Args:
        main_block: a `LayerBlock`, a single layer, or a list or tuple of layers.
        shortcut: the same, or None for the identity.

    Raises:
        ValueError: branches with outputs of different shapes.

    Source: cuTAGI.
    """

    def __init__(
        self, main_block: BaseLayer | Sequence[BaseLayer], shortcut: BaseLayer | Sequence[BaseLayer] | None = None
    ):
        super().__init__(main_block if isinstance(main_block, LayerBlock) else LayerBlock(main_block), shortcut)

    @property
    def main_block(self) -> LayerBlock:
        return self._branches[0]

    @property
    def shortcut(self) -> BaseLayer | None:
        return self._given[1]

    def _told(self, outputs: list[Shape]) -> str:
        return f"ResNetBlock: the main block gives {outputs[0]}, the shortcut {outputs[1]}"

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        yield from BaseLayer.named_layers(self, path)
        yield from self.main_block.named_layers(f"main.{path}")
        if self.shortcut is not None:
            yield from self.shortcut.named_layers(f"shortcut.{path}")

    def settings(self) -> dict[str, Any]:
        """[name, settings] of both branches; None for the identity."""
        main, short = super().settings()["branches"]
        return {"main_block": main, "shortcut": short}

    def _own_settings(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return listing(self.name, {"main_block": self.main_block, "shortcut": self.shortcut})

    def __setstate__(self, state: dict) -> None:
        if "_shortcut" in state:  # of an earlier version
            state = state | {"merge": "sum", "split": None, "_in_parts": None, "_out_parts": None}
            main, short = (*state["_branches"], None)[:2]
            state["_given"] = main, state.pop("_shortcut")
            self._arrange([main, short])
        super().__setstate__(state)


refuse_assignment(ResNetBlock, ("main_block", "shortcut"), "make a new ResNetBlock, and a new network")

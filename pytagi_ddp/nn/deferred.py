"""Networks whose parameters are drawn later, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any

from pytagi_ddp.nn.parameters import AbsentParameters

if TYPE_CHECKING:
    from pytagi_ddp.nn.layer import BaseLayer

_deferring: ContextVar[bool] = ContextVar("deferring", default=False)
_numbers = count()


@contextmanager
def deferred_init() -> Iterator[None]:
    """Layers made inside know how many parameters they need, but have none yet; so networks of any size can be made.

        with deferred_init():
            model = Sequential(*layers)
        net = FSDPSequential(model)  # draws each layer into the shards, or: model.materialize()

    The parameters drawn later are those that the network would have had from the start, if meanwhile nothing else draws
    from the random generator or seeds it. Until they are drawn, whatever needs them raises `ParametersNotHereError`.
    """
    token = _deferring.set(True)
    try:
        yield
    finally:
        _deferring.reset(token)


def is_deferring() -> bool:
    """Whether layers that are made now are drawn later."""
    return _deferring.get()


class DeferredParameters(AbsentParameters):
    """Stands for parameters that have not been drawn.

    Attributes:
        number: the position of the layer in the order in which layers were made; they are drawn in the same order.
    """

    def __init__(self, leaf: BaseLayer, weight_shape: tuple[int, ...], num_biases: int):
        super().__init__(
            weight_shape,
            num_biases,
            f"the parameters of {leaf.get_layer_info()} are not drawn yet, as it was made inside deferred_init(): give "
            "its network to FSDPSequential, or call materialize() of it",
        )
        self.number = next(_numbers)


def drawn(leaves: Iterable[BaseLayer]) -> Iterator[BaseLayer]:
    """Draws the parameters of `leaves` that have none yet, and yields each leaf once it has them.

    Deferred leaves come first, in the order in which they were made. A caller that moves the parameters of each leaf
    elsewhere before asking for the next one never holds newly drawn parameters of two leaves.
    """
    leaves = list(leaves)
    found: list[tuple[BaseLayer, Any]] = [(leaf, leaf.parameters) for leaf in leaves]
    deferred = {leaf: stands.number for leaf, stands in found if isinstance(stands, DeferredParameters)}
    token = _deferring.set(False)
    try:
        for leaf in sorted(deferred, key=deferred.__getitem__):
            leaf.parameters = None
            leaf.init_weight_bias()
            yield leaf
        for leaf in leaves:
            if leaf not in deferred:
                leaf.draw_prior()
                yield leaf
    finally:
        _deferring.reset(token)

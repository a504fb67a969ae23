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
    """Layers made inside know the number of their parameters, and have none; so networks of any size can be made.

        with deferred_init():
            model = Sequential(*layers)
        net = FSDPSequential(model)  # draws each layer into the shards, or: model.materialize()

    The parameters are those that the network would have been made with, if nothing else draws from the generator, or
    seeds it, between here and the drawing. Until then, whatever needs them raises `ParametersNotHereError`.
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
        number: layers are drawn in the order of these, as they were made.
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
    """Each of `leaves`, when it has just been drawn, or was drawn before: in the order of today's draws.

    Whoever takes the parameters of a leaf over before the next one comes, never has memory for two of them.
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

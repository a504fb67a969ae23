"""Networks whose parameters are drawn later, one layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from pytagi_ddp.nn.core.parameters import AbsentParameters

_deferring: ContextVar[bool] = ContextVar("deferring", default=False)
_numbers = count()


@contextmanager
def deferred_init() -> Iterator[None]:
    """Layers made inside have no parameters yet, only their number; so networks of any size can be made.

        with deferred_init():
            model = Sequential(*layers)
        net = FSDPSequential(model)  # draws each layer into the shards, or: model.materialize()

    The parameters drawn later are the same as without `deferred_init`, if nothing else uses the random generator in
    between. Until they are drawn, reading them raises `ParametersNotHereError`.
    """
    with deferring(True):
        yield


@contextmanager
def deferring(value: bool) -> Iterator[None]:
    """Inside, sets whether the parameters of new layers are drawn later."""
    token = _deferring.set(value)
    try:
        yield
    finally:
        _deferring.reset(token)


def is_deferring() -> bool:
    """Whether the parameters of new layers are drawn later."""
    return _deferring.get()


class DeferredParameters(AbsentParameters):
    """Takes the place of parameters that have not been drawn.

    Args:
        layer: its name and sizes, for messages. weight_shape, num_biases: those of the parameters.

    Attributes:
        number: the position of the layer in the order in which layers were made; they are drawn in the same order.
    """

    def __init__(self, layer: str, weight_shape: tuple[int, ...], num_biases: int):
        super().__init__(
            weight_shape,
            num_biases,
            f"the parameters of {layer} are not drawn yet, as it was made inside deferred_init(): give "
            "its network to FSDPSequential, or call materialize() of it",
        )
        self.number = next(_numbers)

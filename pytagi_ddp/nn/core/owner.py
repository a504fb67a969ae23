"""What a layer asks of the network that it belongs to."""

from typing import Any, Protocol

from pytagi_ddp.nn.core.step import Change


class OwnersPasses(Protocol):
    """The passes of a network, as its layers see them.

    Attributes:
        one_thread: a context for changes, in which no other thread can be in a pass of the network.
    """

    one_thread: Any

    def invalidate(self, change: Change) -> None: ...
    def saved_of(self, layer: Any) -> Any: ...


class Owner(Protocol):
    """A `Sequential`, as its layers see it.

    Attributes:
        device: where it computes.
        num_samples: time steps for which layers make room that record them; None: as many as come.
    """

    num_samples: int | None

    @property
    def passes(self) -> OwnersPasses: ...
    @property
    def device(self) -> str: ...

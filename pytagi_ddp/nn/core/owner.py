"""What a layer asks of the network that it belongs to."""

from typing import Any, Protocol


class Owner(Protocol):
    """A `Sequential`, as its layers see it.

    Attributes:
        device: where it computes.
        num_samples: time steps for which layers make room that record them; None: as many as come.
    """

    num_samples: int | None

    @property
    def device(self) -> str: ...

    @property
    def one_thread(self) -> Any:
        """A context for changes, in which no other thread can be in a pass of the network."""

    def parameters_changed(self) -> None: ...
    def forget_graphs(self) -> None: ...
    def has_frozen_layers(self) -> None: ...
    def has_layers_of_other_modes(self) -> None: ...
    def _saved_of(self, layer: Any) -> Any: ...

"""The interface of a network for its layers."""

from typing import Any, Protocol


class Owner(Protocol):
    """A `Sequential`, as its layers use it.

    Attributes:
        passes: see `nn.run.passes`. A layer reports changes to its `invalidate`, inside its `one_thread`.
        arena: see `nn.core.arena`. A layer calls its `keep_state` after its state was set.
        device: where it computes.
        num_samples: time steps for which recording layers reserve memory; None: memory grows as needed.
    """

    passes: Any
    arena: Any
    num_samples: int | None

    @property
    def device(self) -> str: ...

"""What a layer asks of the network that it belongs to."""

from typing import Any, Protocol


class Owner(Protocol):
    """A `Sequential`, as its layers see it.

    Attributes:
        passes: of `nn.run.passes`. A layer reports changes to its `invalidate`, within its `one_thread`.
        arena: of `nn.core.arena`. A layer whose state was set calls its `keep_state`.
        device: where it computes.
        num_samples: time steps for which layers make room that record them; None: as many as come.
    """

    passes: Any
    arena: Any
    num_samples: int | None

    @property
    def device(self) -> str: ...

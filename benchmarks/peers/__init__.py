"""The libraries that are compared: each runs in a process, and if need be in an environment, of its own.

A module here has `versions()`, and `Step(workload, threads, **settings)`: `step()` is one training step, `parameters`
counts what it learns. That of this library also has `floor_flops`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OWN = "pytagi_ddp"


@dataclass(frozen=True)
class Peer:
    """A library that can be measured.

    Attributes:
        module: in this package. package: what must be installed. tagi: whether it computes what this library computes.
        install: how to get it. settings: other arguments of its `Step`.
    """

    module: str
    package: str
    tagi: bool
    install: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


PEERS = {
    OWN: Peer("own", OWN, True),
    "pytagi_ddp mixed": Peer("own", OWN, True, settings={"precision": "mixed"}),
    "pytagi_ddp recomputed": Peer("own", OWN, True, settings={"checkpoint_blocks": True}),
    "pytagi_ddp walked": Peer("own", OWN, True, settings={"replayed": False}),
    "pytagi": Peer("cutagi", "pytagi", True, "pip install pytagi; see benchmarks/README.md for the libraries it needs"),
    "torch TAGI": Peer("torch_tagi", "torch", True, "pip install torch"),
    "torch SGD": Peer("torch_sgd", "torch", False, "pip install torch"),
}

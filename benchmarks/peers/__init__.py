"""The libraries that are compared: each runs in a process, and if need be in an environment, of its own.

A module here has `versions()`, and `Step(workload, threads)`: `step()` is one training step, `parameters` counts what
it learns, `details()` tells what else is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass

OWN = "pytagi_ddp"


@dataclass(frozen=True)
class Peer:
    """A library that can be measured.

    Attributes:
        module: in this package. package: what must be installed. tagi: whether it computes what this library computes.
        install: how to get it.
    """

    module: str
    package: str
    tagi: bool
    install: str = ""


PEERS = {
    OWN: Peer("own", "pytagi_ddp", True),
    "pytagi_ddp mixed": Peer("own_mixed", "pytagi_ddp", True),
    "pytagi_ddp recomputed": Peer("own_recomputed", "pytagi_ddp", True),
    "pytagi_ddp walked": Peer("own_walked", "pytagi_ddp", True),
    "pytagi": Peer("cutagi", "pytagi", True, "pip install pytagi; see benchmarks/README.md for the libraries it needs"),
    "torch TAGI": Peer("torch_tagi", "torch", True, "pip install torch"),
    "torch SGD": Peer("torch_sgd", "torch", False, "pip install torch"),
}

"""What the user asked for."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from benchmarks.peers import OWN, PEERS
from benchmarks.workloads import SPECS


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        threads: of every library. repeat: rounds. seconds: of one round of one library.
        limit: seconds that a peer's first step may take. slow: a peer's first step of more seconds is its only one.
        workloads, peers: names of what is measured; by default not the variants of this library.
        pythons: interpreter by package, for peers in environments of their own.
    """

    threads: int
    repeat: int = 5
    seconds: float = 0.3
    limit: float = 60.0
    slow: float = 15.0
    workloads: tuple[str, ...] = tuple(SPECS)
    peers: tuple[str, ...] = tuple(name for name, peer in PEERS.items() if peer.package != OWN)
    pythons: dict[str, str] = field(default_factory=dict)

    def python(self, peer: str) -> str:
        package = PEERS[peer].package
        named = self.pythons.get(package) or os.environ.get(f"BENCHMARK_PYTHON_{package.upper()}")
        return named if named and peer != OWN else sys.executable

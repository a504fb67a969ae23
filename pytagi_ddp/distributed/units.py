"""Units of a network in shards: groups of layers that are gathered, and whose deltas are scattered, together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytagi_ddp.nn.layer import BaseLayer

ALIGNMENT = 16  # the number of parameters in a shard is a multiple of this: 64 bytes


@dataclass(frozen=True, eq=False)
class Unit:
    """Neighbouring leaves, none of them cut.

    Attributes:
        leaves: layers with parameters, in forward order.
        start: position of the first parameter among those of the network. size: N, the number of parameters.
        shard: n, parameters on each of the R ranks. Rank r has those from r n on; the last R n - N are padding.
    """

    leaves: tuple[BaseLayer, ...]
    start: int
    size: int
    shard: int

    def own(self, rank: int) -> tuple[int, int]:
        """(first, last + 1) of the parameters of a rank, by their positions in the unit; a rank may have none."""
        return min(rank * self.shard, self.size), min((rank + 1) * self.shard, self.size)


def units_of(leaves: Iterable[BaseLayer], ranks: int, min_num_params: int) -> list[Unit]:
    """Groups leaves in order into units of at most `min_num_params` parameters, or of one larger leaf.

    n = 16 ceil(N / (16 R)).
    """
    groups: list[list[BaseLayer]] = []
    size = 0
    for leaf in leaves:
        own = leaf.num_weights + leaf.num_biases
        if not own:
            continue
        if not groups or size + own > min_num_params:
            groups.append([])
            size = 0
        groups[-1].append(leaf)
        size += own
    units, start = [], 0
    for group in groups:
        size = sum(leaf.num_weights + leaf.num_biases for leaf in group)
        units.append(Unit(tuple(group), start, size, ALIGNMENT * -(-size // (ALIGNMENT * ranks))))
        start += size
    return units

"""Ranks in a grid, with a communicator along each of its dimensions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod

import numpy as np

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend, initialize
from pytagi_ddp.distributed.engine.interface import Communicator


class DeviceMesh:
    """The ranks of a job in a grid of a given shape, see `init_device_mesh`.

    ``mesh["data"]`` is the communicator of the ranks that differ from this one in that dimension only, numbered by
    their coordinates in it.

    Attributes:
        communicator: that of all ranks of the mesh.
        shape: length of each dimension.
        names: names of the dimensions.
        coordinates: this rank's position, one number for each dimension.
    """

    def __init__(self, communicator: Communicator, shape: tuple[int, ...], names: tuple[str, ...]):
        self.communicator, self.shape, self.names = communicator, shape, names
        self.coordinates = tuple(int(at) for at in np.unravel_index(communicator.rank, shape))
        self._groups: dict[str, Communicator] = {}
        for dimension, name in enumerate(names):
            line = [0 if k == dimension else at for k, at in enumerate(self.coordinates)]  # position of its first rank
            group = communicator.split(int(np.ravel_multi_index(line, shape)), self.coordinates[dimension])
            assert group is not None
            self._groups[name] = group

    def __getitem__(self, name: str) -> Communicator:
        if name not in self._groups:
            raise KeyError(f"this mesh has no dimension {name!r}; it has {', '.join(map(repr, self.names))}")
        return self._groups[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
        return f"DeviceMesh({sizes})"

    def close(self) -> None:
        """Closes the communicators along the dimensions, see `Communicator.split`; that of all ranks stays open."""
        for group in self._groups.values():
            group.close()


def init_device_mesh(shape: Sequence[int], names: Sequence[str], backend: Backend = "auto") -> DeviceMesh:
    """Arranges all ranks in a grid; collective.

        mesh = init_device_mesh((2, 4), ("pipe", "data"))  # 8 ranks: 2 stages, 4 replicas of each
        mesh["data"].all_reduce(deltas)

    Ranks are numbered as in PyTorch: the last dimension varies fastest, so that ranks 0 to 3 are ``mesh["data"]`` of
    the first stage. Ranks of a node usually have consecutive numbers, so use the last dimension for the ranks that
    communicate most.

    Args:
        shape: length of each dimension; one of them may be -1: the length that uses all ranks.
        names: names of the dimensions.
        backend: as in `initialize`, or the communicator (also of mpi4py) whose ranks are arranged.

    Raises:
        ValueError: the ranks do not fill the grid; there are not as many names as dimensions, or two are equal; another
            mesh on some rank.
        RankLeftError, CollectiveTimeoutError: as `Communicator.split`.
    """
    communicator = initialize(backend) if isinstance(backend, str) else get_distributed_backend(backend)
    lengths, labels, ranks = tuple(map(operator.index, shape)), tuple(names), communicator.world_size
    if len(labels) != len(lengths) or len(set(labels)) < len(labels) or not lengths:
        raise ValueError(f"init_device_mesh: each dimension of {lengths} needs a name of its own, got {labels}")
    known = prod(length for length in lengths if length != -1)
    if lengths.count(-1) == 1 and known > 0 and ranks % known == 0:
        lengths = tuple(ranks // known if length == -1 else length for length in lengths)
    if min(lengths) < 1 or prod(lengths) != ranks:
        problem = f"a mesh of {_product(lengths)} does not fit {ranks} ranks; {_advice(lengths, ranks)}"
        raise ValueError(f"init_device_mesh: {problem}")
    everyone = communicator.all_gather_object((lengths, labels), "init_device_mesh")
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise ValueError(
                f"init_device_mesh: ranks 0 and {rank} have different meshes: {everyone[0]} on rank 0 and {theirs} on "
                f"rank {rank}"
            )
    return DeviceMesh(communicator, lengths, labels)


def _product(lengths: Sequence[int]) -> str:
    return " x ".join(map(str, lengths))


def _advice(lengths: Sequence[int], ranks: int) -> str:
    """Advice for an error: shapes of two dimensions, and the number of ranks that these lengths need."""
    if len(lengths) == 2:
        pairs = [_product((length, ranks // length)) for length in range(1, ranks + 1) if ranks % length == 0]
        shown = pairs if len(pairs) <= 8 else [*pairs[:4], "...", *pairs[-3:]]
        what = f"{', '.join(shown)} would"
    else:
        what = "lengths whose product is the number of ranks would"
    needed = prod(lengths)
    return what + (f", or mpirun -np {needed}" if min(lengths) > 0 else "")

"""The GPU of each rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from pytagi_ddp import cuda
from pytagi_ddp.distributed.engine.errors import LaunchError

SHARED_GPU_VERSION = 23000  # NCCL 2.30: ranks may share a GPU, as an experiment
SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


class Place(NamedTuple):
    """The node of a rank, the index of its GPU there, and the identity of the GPU; or a problem with it."""

    node: str
    gpu: int
    uuid: str
    problem: str | None = None


def choose_device(local_rank: int, device_ids: Sequence[int] | None) -> int:
    """The index of a rank's GPU: `device_ids[local_rank]`, or the GPUs of the node in turn.

    Raises:
        ValueError: `device_ids` has no entry for this rank, or a negative one.
    """
    if device_ids is None:
        return local_rank % max(1, cuda.get_device_count())
    if local_rank >= len(device_ids) or device_ids[local_rank] < 0:
        raise ValueError(
            f"device_ids {list(device_ids)} names no GPU for local rank {local_rank}: it needs the index of one for "
            "each rank of the node"
        )
    return device_ids[local_rank]


def check_places(places: Sequence[Place], nccl_version: int) -> None:
    """Raises the same LaunchError on every rank if one has no GPU, or two have the same.

    With NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL shares a GPU from version 2.30 on; `nccl_version` is 23203 for 2.32.3.
    """
    for rank, place in enumerate(places):
        if place.problem:
            raise LaunchError(f"backend 'nccl' cannot be used on rank {rank} ({place.node}): {place.problem}")
    if os.environ.get(SHARED_GPU_VARIABLE) == "1" and nccl_version >= SHARED_GPU_VERSION:
        return
    first_on: dict[str, int] = {}
    for rank, place in enumerate(places):
        first = first_on.setdefault(place.uuid, rank)
        if first != rank:
            raise LaunchError(
                f"ranks {first} and {rank} are on one GPU ({place.node}, cuda:{places[first].gpu} and "
                f"cuda:{place.gpu}, {place.uuid}): NCCL needs a GPU for each rank. Start fewer ranks, give each its "
                f"own GPU by device_ids, or use backend='mpi' (NCCL 2.30 and later: {SHARED_GPU_VARIABLE}=1)"
            )

"""Communication between ranks, and data-parallel training; importing it starts nothing and needs no MPI.

    initialize()                        connect to the other ranks; rank(), local_rank(), total_workers()
    allreduce, bcast, reduce, barrier   collectives on arrays; iallreduce and ibcast return handles
    synchronize                         everything of rank 0 to all: arrays, numbers, containers, models, states
    DistributedDataContainer            this rank's share of a data set (samplers are in `pytagi_ddp.data`)
    allreduce_deltas                    data-parallel steps in a loop of one's own
    DDPSequential                       the same behind the interface of a network
    all_reduce_metrics, rank_zero_*     numbers of all ranks; what one rank does

`Communicator` is what all of these stand on.
"""

import importlib

from pytagi_ddp.distributed.backends import (
    get_distributed_backend,
    initialize,
    is_initialized,
    local_rank,
    rank,
    total_workers,
)
from pytagi_ddp.distributed.communicator import Communicator, SerialCommunicator, create_communicator
from pytagi_ddp.distributed.container import DistributedDataContainer
from pytagi_ddp.distributed.engine.debug import CollectiveMismatchError, NonFiniteError
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, LaunchError, RankLeftError
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.metrics import all_reduce_metrics
from pytagi_ddp.distributed.rank_zero import rank_zero_first, rank_zero_only, rank_zero_print
from pytagi_ddp.distributed.trees import synchronize
from pytagi_ddp.distributed.verbs import allreduce, barrier, bcast, iallreduce, ibcast, reduce

# What needs networks is loaded when it is asked for.
_LATER = {
    "DDPConfig": "config",
    "DDPSequential": "ddp",
    "ReplicaMismatchError": "compare",
    "allreduce_deltas": "functional",
}

__all__ = [
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Communicator",
    "DDPConfig",
    "DDPSequential",
    "DistributedDataContainer",
    "Handle",
    "LaunchError",
    "NonFiniteError",
    "RankLeftError",
    "ReplicaMismatchError",
    "SerialCommunicator",
    "all_reduce_metrics",
    "allreduce",
    "allreduce_deltas",
    "barrier",
    "bcast",
    "create_communicator",
    "get_distributed_backend",
    "iallreduce",
    "ibcast",
    "initialize",
    "is_initialized",
    "local_rank",
    "rank",
    "rank_zero_first",
    "rank_zero_only",
    "rank_zero_print",
    "reduce",
    "synchronize",
    "total_workers",
]


def __getattr__(name: str):
    if name in _LATER:
        return getattr(importlib.import_module(f"pytagi_ddp.distributed.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

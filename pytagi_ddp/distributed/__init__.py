"""Communication between ranks, and data-parallel training. Importing it does not start or need MPI.

    initialize()                                connect to the other ranks; rank(), local_rank(), world_size()
    all_reduce, broadcast, reduce, barrier      collectives on arrays
    start_all_reduce, start_broadcast           the same without waiting: they return handles
    synchronize                                 values of rank 0 for all ranks: arrays, numbers, models, states
    DistributedDataContainer                    this rank's share of a data set (samplers are in `pytagi_ddp.data`)
    all_reduce_deltas                           data-parallel steps in a training loop of your own
    DDPSequential                               the same with the interface of a network
    FSDPSequential                              the same for networks that are too large for one rank
    PipelineSequential                          a network divided into stages; balance_by_time, balance_by_size
    FederatedPosterior, PosteriorUpdate         federated training: clients send posteriors as messages
    DataParallel                                a replica on each GPU of one process
    all_reduce_metrics, rank_zero_*             metrics over all ranks; code that only one rank runs
    init_device_mesh                            ranks in a grid, with a communicator along each dimension
    run_threads                                 ranks as threads of this process, for notebooks and tests

All of these use a `Communicator`. Collectives also have the names of Lux and FluxMPI: see `functional.py`.
"""

from pytagi_ddp.distributed.backends import (
    get_distributed_backend,
    initialize,
    is_initialized,
    local_rank,
    rank,
    world_size,
)
from pytagi_ddp.distributed.communicator import Communicator, SerialCommunicator, create_communicator
from pytagi_ddp.distributed.compare import ReplicaMismatchError
from pytagi_ddp.distributed.config import DDPConfig
from pytagi_ddp.distributed.container import DistributedDataContainer
from pytagi_ddp.distributed.data_parallel import DataParallel
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.distributed.device_mesh import DeviceMesh, init_device_mesh
from pytagi_ddp.distributed.engine.debug import CollectiveMismatchError, NonFiniteError
from pytagi_ddp.distributed.engine.errors import CollectiveTimeoutError, LaunchError, RankLeftError
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.distributed.federated import FederatedPosterior, MergedRound, PosteriorUpdate
from pytagi_ddp.distributed.fsdp import FSDPSequential
from pytagi_ddp.distributed.functional import (
    all_reduce,
    all_reduce_deltas,
    allreduce,
    allreduce_deltas,
    barrier,
    bcast,
    broadcast,
    iallreduce,
    ibcast,
    reduce,
    start_all_reduce,
    start_broadcast,
    total_workers,
)
from pytagi_ddp.distributed.metrics import all_reduce_metrics
from pytagi_ddp.distributed.pipeline.balance import balance_by_size, balance_by_time
from pytagi_ddp.distributed.pipeline.sequential import PipelineSequential
from pytagi_ddp.distributed.rank_zero import rank_zero_first, rank_zero_only, rank_zero_print
from pytagi_ddp.distributed.run_threads import run_threads
from pytagi_ddp.distributed.synchronization import synchronize
from pytagi_ddp.nn.core.parameters import ParametersNotHereError

__all__ = [
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Communicator",
    "DDPConfig",
    "DDPSequential",
    "DataParallel",
    "DeviceMesh",
    "DistributedDataContainer",
    "FSDPSequential",
    "FederatedPosterior",
    "Handle",
    "LaunchError",
    "MergedRound",
    "NonFiniteError",
    "ParametersNotHereError",
    "PipelineSequential",
    "PosteriorUpdate",
    "RankLeftError",
    "ReplicaMismatchError",
    "SerialCommunicator",
    "all_reduce",
    "all_reduce_deltas",
    "all_reduce_metrics",
    "allreduce",
    "allreduce_deltas",
    "balance_by_size",
    "balance_by_time",
    "barrier",
    "bcast",
    "broadcast",
    "create_communicator",
    "get_distributed_backend",
    "iallreduce",
    "ibcast",
    "init_device_mesh",
    "initialize",
    "is_initialized",
    "local_rank",
    "rank",
    "rank_zero_first",
    "rank_zero_only",
    "rank_zero_print",
    "reduce",
    "run_threads",
    "start_all_reduce",
    "start_broadcast",
    "synchronize",
    "total_workers",
    "world_size",
]

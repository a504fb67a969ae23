"""What the ranks of a training share, and what must be the same on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pytagi_ddp.data.batches import RankBatches
from pytagi_ddp.distributed import DataParallel, PipelineSequential
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.compare import compare_arguments, compare_replicas
from pytagi_ddp.distributed.rank_zero import launch_of_rank_alone
from pytagi_ddp.distributed.trained_on_ranks import TrainedOnRanks
from pytagi_ddp.nn import Sequential
from pytagi_ddp.training.batches import summary
from pytagi_ddp.warn import silent, warn

Net = Sequential | TrainedOnRanks | DataParallel


def share_of(net: Net) -> tuple[int, int]:
    """(index, number) of the shares of the data. All ranks of a pipeline have the same share."""
    if not isinstance(net, TrainedOnRanks):
        return 0, 1
    group = net.data_group if isinstance(net, PipelineSequential) else net.communicator
    return group.rank, group.world_size


def warn_of_rank_alone() -> None:
    """Warns on rank 0 if a launcher has started several processes, and this one has not connected to the others."""
    launch = launch_of_rank_alone()
    if launch is not None and launch.rank == 0 and launch.world_size is not None:
        warn(
            f"{launch.launcher} has started {launch.world_size} processes, and this one trains a network alone. If all "
            "of them run this line, wrap the network in DDPSequential: otherwise each trains its own, and they write "
            "the same files. If this is meant, call initialize('serial') first"
        )


def first_rank_warns(ranks: Communicator) -> AbstractContextManager[None]:
    """The context of what all ranks check alike: only one of them warns."""
    return silent(ranks.rank > 0)


def compare_training(
    ranks: Communicator, settings: Mapping[str, Any], train: Iterable[Any], validation: Iterable[Any] | None
) -> None:
    """Raises ValueError on all ranks if their settings or data differ; collective."""
    own = {**settings, "validation is given": validation is not None}
    for name in ("batch_size", "seed"):
        own[f"{name} of the data"] = getattr(train, name) if isinstance(train, RankBatches) else None
    compare_arguments(ranks, "fit", own | summary(train, "data") | summary(validation, "validation data"))


def compare_networks_in_training(net: Net) -> None:
    """Raises ReplicaMismatchError on all ranks if one of them has changed its network alone; collective."""
    if isinstance(net, TrainedOnRanks) and net.communicator.world_size > 1:
        whole = not (net.steps_since_merge or net.model.arena.in_shards)
        stage = net.pipe_group.rank if isinstance(net, PipelineSequential) else 0
        compare_replicas(net.communicator, net.model, "fit", stage, whole)

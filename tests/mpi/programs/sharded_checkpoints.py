"""Rank programs of `tests.mpi.test_sharded_checkpoint`: networks in shards, and what becomes of their checkpoints."""

import hashlib
import os

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.nn import DDPSequential, FSDPSequential, Linear, PipelineSequential, Sequential
from tests.learning import learn
from tests.mpi.ddp_networks import with_batch_norm
from tests.mpi.rank import fault, ready, say

GLOBAL, STEPS = 12, 6


def network(way: str) -> DDPSequential | FSDPSequential | PipelineSequential:
    manual_seed(3)
    net = with_batch_norm(1)
    if way == "ddp":
        return DDPSequential(net, average=False)
    if way == "pipeline":
        return PipelineSequential(net, average=False)
    return FSDPSequential(net, average=False, min_num_params=60, reshard_after_forward=way == "fsdp")


def train(folder: str, way: str = "fsdp", stop_after: int = STEPS, gather: bool = False) -> None:
    """Trains from the newest checkpoint in a folder to a step, and saves; says what the whole network is then."""
    net = network(way)
    checkpoints = CheckpointManager(folder)
    found = checkpoints.load(net)
    for step in range(found.position.step if found else 0, stop_after):
        rng = np.random.default_rng(step)
        size, outputs = net.model.in_shape.size, net.model.out_shape.size
        x, y = (rng.normal(size=(GLOBAL, n)).astype(np.float32) for n in (size, outputs))
        mine = slice(net.rank, None, net.world_size)
        learn(net, x[mine], y[mine])
    options = {"gather": True} if gather else {}
    checkpoints.save(net, TrainingPosition(step=stop_after), **options)
    whole = net.state_dict()
    if net.rank == 0:
        bits = b"".join(array.tobytes() for arrays in whole.values() for array in arrays)
        say(found.world_size if found else 0, stop_after, hashlib.sha256(bits).hexdigest())


def train_in_turn(trainings: list[dict]) -> None:
    """Calls `train` with each of these arguments; each time it makes a new network."""
    for arguments in trainings:
        train(**arguments)


def save_for_ever(folder: str) -> None:
    """Saves checkpoint after checkpoint of a network in shards; the parameters are its number."""
    net = FSDPSequential(Sequential(Linear(300, 200), nn.ReLU(), Linear(200, 100)), min_num_params=1)
    checkpoints = CheckpointManager(folder, keep_last=1)
    for step in range(1, 100_000):
        for part in net.slices():
            part.array[:] = step
        checkpoints.save(net, TrainingPosition(step=step))
        if step == 2:
            ready(net.rank)


def save_where_others_are_blind(folder: str) -> None:
    """Rank 1 stands elsewhere, as on a node with a disk of its own."""
    net = FSDPSequential(Sequential(Linear(2, 2)))
    os.chdir(folder if net.rank == 0 else "/")
    fault()
    CheckpointManager("checkpoints").save(net, TrainingPosition(step=1))

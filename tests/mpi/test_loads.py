"""Loading amid a step, on every way of training: deltas of the parameters before are dropped, and never applied."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
from tests.learning import backpropagate
from tests.mpi.ddp_networks import batch, error_of, same_everywhere, with_batch_norm
from tests.mpi.rank import job_folder
from tests.mpi.shared import on_ranks

WAYS = {
    "DDP": DDPSequential,
    "FSDP": lambda *given: FSDPSequential(*given, min_num_params=60),
    "whole FSDP": lambda *given: FSDPSequential(*given, min_num_params=60, reshard_after_forward=False),
    "pipeline": PipelineSequential,
}


def learn(net, x, y):
    if isinstance(net, PipelineSequential):
        updater = nn.OutputUpdater("cpu")
        observed = np.full(4, 1.0)
        net.forward_backward(x, lambda states, rows, deltas: updater.update(states, y[rows], observed, deltas))
    else:
        backpropagate(net, x, y)


def amid_steps(comm, way):
    net = WAYS[way](with_batch_norm(), DDPConfig(backend=comm.backend))
    manager = CheckpointManager(job_folder() / f"amid {way}")
    x, y = batch(net.model, 8, comm.rank)
    learn(net, x, y)
    net.step()
    file = job_folder() / f"amid {way}.safetensors"
    net.save(file)
    manager.save(net, TrainingPosition())
    net.barrier()
    expected = net.communicator.broadcast_object(net.state_dict())
    learn(net, x, y)
    net.step()
    after = net.communicator.broadcast_object(net.state_dict())
    loads = {
        "load_state_dict": lambda: net.load_state_dict(expected),
        "load": lambda: net.load(file),
        "checkpoint": lambda: manager.load(net),
    }
    found = {}
    for name, load in loads.items():
        learn(net, x, y)
        load()
        before = net.communicator.broadcast_object(net.state_dict())
        net.step()
        found[name] = [net.communicator.broadcast_object(net.state_dict()) == before]
        load()
        with net.no_sync():
            learn(net, x, y)
            load()
        learn(net, x, y)
        net.step()
        found[name] += [net.communicator.broadcast_object(net.state_dict()) == after]
    return found


@on_ranks(amid_steps, 2)
@pytest.mark.parametrize("way", WAYS)
def test_deltas_of_the_parameters_before_are_dropped(results, way):
    for result in results:
        assert result == dict.fromkeys(result, [True] * 2)


def beside_a_rank_without_a_batch(comm, reshard, sync):
    """Rank 1 has none when it loads, and does not know of the pass of rank 0 that is under way."""
    net = FSDPSequential(
        with_batch_norm(),
        DDPConfig(backend=comm.backend),
        reshard_after_forward=reshard,
        sync_batch_norm=sync,
        min_num_params=60,
    )
    start = comm.broadcast_object(net.state_dict())
    x, y = batch(net.model, 4, comm.rank)
    ends = []
    for alone in (False, True):
        if alone and comm.rank == 0:
            learn(net, x, y)
        net.load_state_dict(start)
        learn(net, x, y)
        net.step()
        ends.append(comm.broadcast_object(net.state_dict()))
    own = net.model.arena.statistics
    return ends[0] == ends[1], comm.broadcast_object(own.copy()).tolist() == own.tolist()


@on_ranks(beside_a_rank_without_a_batch, 2)
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("reshard", [False, True])
def test_passes_of_others_come_before_a_load(results, reshard, sync):
    assert results == [[True, True]] * 2


def in_buckets(comm):
    net = DDPSequential(with_batch_norm(), DDPConfig(backend=comm.backend, buckets=2))
    x, y = batch(net.model, 4, comm.rank)
    manager = CheckpointManager(job_folder() / "in buckets")
    manager.save(net, TrainingPosition())
    net.barrier()
    before = net.state_dict()
    backpropagate(net, x, y)
    calls = lambda: net.load_state_dict(before), lambda: manager.load(net), lambda: net.update_bn([x])
    said = [error_of(call, RuntimeError) for call in calls]
    same = net.state_dict() == before
    net.step()
    net.load_state_dict(before)
    loaded = net.state_dict() == before
    net.update_bn([x])
    return said, same, loaded, same_everywhere(net)


@on_ranks(in_buckets, 2)
def test_deltas_that_are_on_their_way_are_not(results):
    for said, *same in results:
        assert ["call step() on every rank first" in text for text in said] == [True] * 3
        assert same == [True] * 3

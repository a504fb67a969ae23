"""DDPSequential on 1, 2 and 3 real ranks: one all-reduce, equal replicas, and the step of one process."""

import copy
from functools import partial

import numpy as np

from pytagi_ddp import manual_seed
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, ReLU, Sequential
from pytagi_ddp.nn.stepping import cap_factor
from tests.mpi.ddp_networks import (
    WITHOUT_BATCH_NORM,
    backpropagate,
    batch,
    difference,
    error_of,
    same_everywhere,
    shard,
    with_batch_norm,
)
from tests.mpi.rank import job_folder
from tests.mpi.shared import on_ranks


def sum_of_ranks(comm):
    results = {}
    for name, make in WITHOUT_BATCH_NORM.items():
        manual_seed(7)
        net = make()
        reference = copy.deepcopy(net)
        ddp = DDPSequential(net, DDPConfig(backend=comm.backend), average=False)
        sizes = [4, 1, 3][: comm.world_size]
        mine = shard(sizes, comm.rank)
        worst, equal = 0.0, True
        for step in range(3):
            x, y = batch(net, sum(sizes), step)
            backpropagate(ddp, x[mine], y[mine])
            ddp.step()
            backpropagate(reference, x, y)
            reference.step()
            worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
            equal = equal and same_everywhere(ddp)
            net.load_state_dict(reference.state_dict())
        results[name] = [worst, equal]
    return results


@on_ranks(sum_of_ranks, 1, 2, 3)
def test_sum_of_ranks_is_one_process_with_all_samples(results):
    for result in results:
        assert result.keys() == WITHOUT_BATCH_NORM.keys()
        for name, (worst, equal) in result.items():
            assert worst < 2e-5, f"{name}: parameters differ by {worst:.2g}"
            assert equal, f"{name}: ranks differ"


def average_step(comm):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(rank)  # every rank draws other parameters
    net = with_batch_norm()
    for norm in (net.layers[2], net.layers[3].main_block.layers[2]):
        norm.running_mean[:] = rank
        norm.running_var[:] = 1 + rank
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, rank=rank, world_size=size), average=True)
    manual_seed(0)
    reference = with_batch_norm()
    for norm in (reference.layers[2], reference.layers[3].main_block.layers[2]):
        norm.running_mean[:] = 0
        norm.running_var[:] = 1
    results["broadcast"] = ddp.state_dict() == reference.state_dict()

    calls = []

    def counted(name, original, *args):
        calls.append(name)
        return original(*args)

    for name in ("_all_reduce", "_broadcast", "_all_gather_object", "_broadcast_object", "_barrier"):
        setattr(ddp.communicator, name, partial(counted, name, getattr(ddp.communicator, name)))

    sizes = [4, 2, 3][:size]
    mine = shard(sizes, rank)
    x, y = batch(net, sum(sizes), 0)
    backpropagate(ddp, x[mine], y[mine])
    arena = net.arena
    prior = arena.theta.copy()
    mean_delta = sum(comm.all_gather_object(arena.delta.copy())) / np.float32(size)
    results["quiet"] = calls == []
    ddp.step()
    results["calls"] = list(calls)
    bar = np.sqrt(prior[1]) / cap_factor(-(-sum(sizes) // size))
    expected = np.stack(
        [
            prior[0] + np.clip(prior[1] * mean_delta[0], -bar, bar),
            prior[1] + np.clip(prior[1] ** 2 * mean_delta[1], -bar, bar),
        ]
    )
    expected[1][expected[1] <= 0] = 1e-5
    results["average"] = np.abs(arena.theta - expected).max()
    results["equal"] = same_everywhere(ddp)

    # The first BatchNorm sees the same inputs in one process with the whole batch.
    backpropagate(reference, x, y)
    one, many = reference.layers[2], net.layers[2]
    results["running"] = [
        np.abs(one.running_mean - many.running_mean).max(),
        np.abs(one.running_var - many.running_var).max(),
    ]

    # Nothing that evaluates or saves is collective: only rank 0 does it.
    calls.clear()
    if rank == 0:
        ddp.eval()
        ddp.predict(x)
        ddp.state_dict()
        ddp.get_outputs()
    ddp.train()
    results["local"] = calls == []
    ddp.barrier()
    return results


@on_ranks(average_step, 1, 2, 3)
def test_average_step(results):
    for result in results:
        assert result["broadcast"]
        assert result["quiet"] and result["local"]
        assert result["calls"] == ["_all_reduce"]
        assert result["average"] < 1e-6
        assert result["equal"]
        assert max(result["running"]) < 2e-6


def uneven(comm):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(3)
    net = WITHOUT_BATCH_NORM["Conv2d"]()
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, average=False)
    x, y = batch(net, 5, 1)
    if rank == 0:  # the others have no samples and contribute zeros
        backpropagate(ddp, x, y)
    ddp.step()
    backpropagate(reference, x, y)
    reference.step()
    results["one rank has samples"] = difference(reference.state_dict(), ddp.state_dict())
    ddp.step()  # nobody has seen a sample since: no step
    results["no samples"] = difference(reference.state_dict(), ddp.state_dict())
    ddp = DDPSequential(net, average=True)
    net.load_state_dict(reference.state_dict())
    if rank == 0:
        backpropagate(ddp, x, y)
    ddp.step()
    backpropagate(reference, x, y)
    reference.step()
    results["average over ranks with samples"] = difference(reference.state_dict(), ddp.state_dict())
    results["asked to stop before"] = ddp.stop_requested
    if rank == size - 1:
        ddp.request_stop()
    ddp.step()
    results["asked to stop"] = ddp.stop_requested
    path = job_folder() / "net.safetensors"
    ddp.save(path)
    ddp.barrier()
    other = WITHOUT_BATCH_NORM["Conv2d"]()
    other.load(path)
    results["saved"] = other.state_dict() == ddp.state_dict()
    return results


@on_ranks(uneven, 1, 2, 3)
def test_ranks_without_samples(results):
    for result in results:
        assert result["one rank has samples"] < 1e-5
        assert result["no samples"] < 1e-5
        assert result["average over ranks with samples"] < 1e-5
        assert (result["asked to stop before"], result["asked to stop"]) == (False, True)
        assert result["saved"]


def different_networks(comm):
    net = Sequential(Linear(4, 5), ReLU(), Linear(5, 3 - (comm.rank == 1)))
    return error_of(lambda: DDPSequential(net, DDPConfig(backend=comm.backend)), ValueError)


@on_ranks(different_networks, 3)
def test_different_networks_are_refused_on_every_rank(results):
    assert len(results) == 3
    for text in results:
        assert "ranks 0 and 1" in text and "output_size of Linear.2 is 3 on rank 0 and 2 on rank 1" in text


def wrong_world_size(comm):
    config = DDPConfig(backend=comm.backend, world_size=5)
    return error_of(lambda: DDPSequential(Sequential(Linear(1, 1)), config), ValueError)


@on_ranks(wrong_world_size, 2)
def test_wrong_world_size_is_refused(results):
    assert len(results) == 2
    for text in results:
        assert "world_size=5" in text and "2" in text

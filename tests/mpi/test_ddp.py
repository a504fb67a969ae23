"""DDPSequential on 1, 2 and 3 real ranks: one all-reduce, equal replicas, and the step of one process."""

import copy
from functools import partial

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.data import BatchLoader, ImageDataset
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, Linear, ReLU, Sequential
from pytagi_ddp.nn.core.stepping import cap_factor
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import (
    WITHOUT_BATCH_NORM,
    batch,
    difference,
    error_of,
    same_everywhere,
    shard,
    shares,
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
        sizes = shares([4, 1, 3], comm.world_size)
        mine = shard(sizes, comm.rank)
        worst, equal = 0.0, True
        for step in range(3):
            x, y = batch(net, sum(sizes), step)
            learn(ddp, x[mine], y[mine])
            learn(reference, x, y)
            worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
            equal = equal and same_everywhere(ddp)
            net.load_state_dict(reference.state_dict())
        results[name] = [worst, equal]
    return results


@on_ranks(sum_of_ranks, 1, 2, 3, real=2)
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
    active = len(sizes)  # ranks with samples
    mean_delta = sum(comm.all_gather_object(arena.delta.copy())) / np.float32(active)
    results["quiet"] = calls == []
    ddp.step()
    results["calls"] = list(calls)
    bar = np.sqrt(prior[1]) / cap_factor(-(-sum(sizes) // active))
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


@on_ranks(average_step, 1, 2, 3, real=2)
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
    learn(reference, x, y)
    results["one rank has samples"] = difference(reference.state_dict(), ddp.state_dict())
    ddp.step()  # nobody has seen a sample since: no step
    results["no samples"] = difference(reference.state_dict(), ddp.state_dict())
    ddp = DDPSequential(net, average=True)
    net.load_state_dict(reference.state_dict())
    if rank == 0:
        backpropagate(ddp, x, y)
    ddp.step()
    learn(reference, x, y)
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


@on_ranks(uneven, 1, 2, 3, real=3)
def test_ranks_without_samples(results):
    for result in results:
        assert result["one rank has samples"] < 1e-5
        assert result["no samples"] < 1e-5
        assert result["average over ranks with samples"] < 1e-5
        assert (result["asked to stop before"], result["asked to stop"]) == (False, True)
        assert result["saved"]


WAYS = {
    "DDP": lambda net, comm: DDPSequential(net, average=False, communicator=comm),
    "buckets": lambda net, comm: DDPSequential(net, DDPConfig(buckets=2), False, communicator=comm),
    "bfloat16": lambda net, comm: DDPSequential(net, DDPConfig(wire_dtype="bfloat16"), False, communicator=comm),
    "sync_batch_norm": lambda net, comm: DDPSequential(net, average=False, sync_batch_norm=True, communicator=comm),
    "merge": lambda net, comm: DDPSequential(net, every=2, communicator=comm),
    "FSDP": lambda net, comm: FSDPSequential(net, average=False, min_num_params=20, communicator=comm),
    "FSDP, whole": lambda net, comm: FSDPSequential(
        net, average=False, min_num_params=20, reshard_after_forward=False, sync_batch_norm=True, communicator=comm
    ),
}


def empty_batches(comm, way, norms):
    """Each rank calls all methods, whether it has samples or not: [0] differences from a rank that then calls none.

    [1]: differences from one process with all samples. The first step is with samples everywhere.
    """
    make = partial(with_batch_norm, blocks=0) if norms else WITHOUT_BATCH_NORM["Conv2d"]
    manual_seed(5)
    nets = [make() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    reference = copy.deepcopy(nets[0])
    whole, silent = (WAYS[way](net, comm) for net in nets)
    last = comm.rank == comm.world_size - 1
    for step in range(4):
        n = 0 if last and step > 0 else 3
        x, y = batch(reference, 3 * comm.world_size, step)
        x_mine, y_mine = (a[3 * comm.rank :][:n] for a in (x, y))
        if step == 2:  # micro-batches, the first of which is empty, and on the last rank each
            with whole.no_sync():
                backpropagate(whole, x[:0], y[:0])
                backpropagate(whole, x_mine, y_mine)
            backpropagate(whole, x[:0], y[:0].reshape(0, 4))
        else:
            backpropagate(whole, x_mine, y_mine)
        whole.step()
        if n:
            backpropagate(silent, x_mine, y_mine)
        silent.step()
        used = slice(0, 3 * (comm.world_size - (step > 0)))
        learn(reference, x[used], y[used])
    if norms and comm.world_size > 1:
        assert whole.update_bn([x_mine]) == silent.update_bn([x_mine])
    found, also, expected = whole.state_dict(), silent.state_dict(), reference.state_dict()
    if isinstance(whole, FSDPSequential) and comm.rank:  # rank 0 alone has got them
        return [0.0, 0.0]
    return [difference(also, found), difference(expected, found) if not norms else 0.0]


@on_ranks(empty_batches, 1, 2, 3, real=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norms", [False, True])
def test_a_batch_without_samples_counts_as_none(results, way, norms):
    assert all(silent == 0 for silent, _ in results)
    if way not in ("merge", "bfloat16"):
        assert all(one < 2e-5 for _, one in results), results


def shares_of_65(comm):
    """The loop of a training program, which takes what the loader gives, on 65 samples in batches of 16 per rank."""
    images = np.random.default_rng(0).integers(0, 256, (65, 2, 2, 1), np.uint8)
    data = ImageDataset(images, np.arange(65) % 2, ("a", "b"), "data")
    manual_seed(1)
    net = Sequential(Linear(4, 5), ReLU(), Linear(5, 2))
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, average=False, communicator=comm)
    sizes = []
    for trained, rank, size in ((ddp, comm.rank, comm.world_size), (reference, 0, 1)):
        batch_size = 16 * comm.world_size // size
        with BatchLoader(data, batch_size, rank, size, seed=3) as loader:
            for x, labels in loader:
                learn(trained, x, np.eye(2, dtype=np.float32)[labels])
                sizes += [len(x)]
    return [difference(reference.state_dict(), ddp.state_dict()), sizes.count(0), same_everywhere(ddp)]


@on_ranks(shares_of_65, 1, 2, 4, real=2)
def test_shares_of_which_some_are_empty(results):
    differences, empty, same = zip(*results, strict=True)
    assert max(differences) < 2e-5 and all(same)
    assert sum(empty) == len(results) - 1  # 65 = 64 + 1, or 4 x 16 + 1


def wrong_world_size(comm):
    config = DDPConfig(backend=comm.backend, world_size=5)
    return error_of(lambda: DDPSequential(Sequential(Linear(1, 1)), config), ValueError)


@on_ranks(wrong_world_size, 2)
def test_wrong_world_size_is_refused(results):
    assert len(results) == 2
    for text in results:
        assert "world_size=5" in text and "2" in text

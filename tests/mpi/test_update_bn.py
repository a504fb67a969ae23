"""Fresh statistics of BatchNorm2d on 1, 2 and 3 real ranks: those of one process for the union of the batches."""

import copy

import numpy as np

from pytagi_ddp import manual_seed
from pytagi_ddp.nn import DDPConfig, DDPSequential, update_bn
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import batch, error_of, same_everywhere, with_batch_norm
from tests.mpi.shared import on_ranks


def union(comm):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(2)
    net = with_batch_norm(2)
    reference = copy.deepcopy(net)
    net.checkpoint_blocks = True
    x, y = batch(net, 60, 0)
    parts = np.split(3 * x + 1, [7, 20, 22, 40, 49])  # shares of ranks differ in batches and in images
    if size == 3:
        parts[0] = parts[0][:0]  # a batch without images
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, timeout=20), average=False)
    with ddp.no_sync():  # deltas and sums of a first micro-batch wait
        backpropagate(ddp, x[2 * rank : 2 * rank + 2], y[2 * rank : 2 * rank + 2])
    pending = net.arena.buffer.copy()
    calls = ddp.communicator.reduce_calls
    update_bn(parts[rank::size], ddp)
    results["calls"] = ddp.communicator.reduce_calls - calls
    results["pending"] = np.array_equal(pending, net.arena.buffer)
    update_bn([part for part in parts if len(part)], reference)
    results["bits"] = np.array_equal(net.arena.statistics, reference.arena.statistics)
    results["moved"] = np.abs(net.arena.statistics - np.repeat([0, 1] * 3, 3)).max()
    ddp.step()
    results["equal"] = same_everywhere(ddp)
    return results


@on_ranks(union, 1, 2, 3, real=2)
def test_statistics_of_all_ranks_are_those_of_one_process(results):
    for result in results:
        assert result.pop("moved") > 0.5
        assert result == {"calls": 1, "pending": True, "bits": True, "equal": True}


def synchronised(comm):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(2)
    net = with_batch_norm(2)
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, timeout=20), average=False, sync_batch_norm=True)
    x, y = batch(net, 12 * size, 0)
    with ddp.no_sync():
        for _ in range(rank):  # ranks come here with other numbers of passes behind them
            backpropagate(ddp, x[:2], y[:2])
    parts = [np.split(share, 3) for share in np.array_split(x, size)]
    numbers = [max(3 - r, 0) for r in range(size)]  # batches of each rank
    update_bn(parts[rank][: numbers[rank]], ddp)
    joint = [np.concatenate([parts[r][k] for r in range(size) if k < numbers[r]]) for k in range(3)]
    update_bn(joint, reference)
    results["difference"] = np.abs(net.arena.statistics - reference.arena.statistics).max()
    results["equal"] = same_everywhere(ddp)
    learn(ddp, x[:2], y[:2])
    results["equal after a step"] = same_everywhere(ddp)
    return results


@on_ranks(synchronised, 1, 2, 3, real=3)
def test_with_synchronised_statistics_ranks_are_one_process(results):
    for result in results:
        assert result.pop("difference") < 2e-6
        assert result == {"equal": True, "equal after a step": True}


def merged(comm):
    results = {}
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, timeout=20), every=2)
    x, y = batch(net, 8 * comm.world_size, comm.rank)
    for step in range(2):
        if step:
            results["refused"] = error_of(lambda: update_bn([x], ddp), RuntimeError)
        learn(ddp, x, y)
    update_bn([x], ddp)
    results["equal"] = same_everywhere(ddp)
    for _ in range(2):
        learn(ddp, x, y)
    results["equal after a merge"] = same_everywhere(ddp)
    return results


@on_ranks(merged, 2)
def test_replicas_that_differ_are_refused(results):
    for result in results:
        assert "call merge() on every rank first" in result.pop("refused")
        assert result == {"equal": True, "equal after a merge": True}

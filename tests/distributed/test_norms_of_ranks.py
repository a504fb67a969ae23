"""BatchNorm2d on ranks that are in other modes, or do other things, than the others; and norms that are frozen."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import (
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    init_device_mesh,
    initialize,
    run_threads,
)
from pytagi_ddp.nn import BatchNorm2d, Linear, ReLU, Sequential
from tests.mpi.ddp_networks import backpropagate, batch, difference


def network():
    manual_seed(3)
    layers = [Linear(4, 6), ReLU(), BatchNorm2d(6), Linear(6, 5), ReLU(), BatchNorm2d(5), Linear(5, 2)]
    return Sequential(*layers)


def learn(net, samples, seed):
    if samples:
        backpropagate(net, *batch(net if isinstance(net, Sequential) else net.model, samples, seed))
    net.step()


def freeze(net, layers):
    for k in layers:
        net.layers[k].training = False


def whole_state(net):
    if isinstance(net, FSDPSequential):
        with net.unshard():
            return net.model.state_dict()
    return net.state_dict()


def one_rank_without_samples(kind, frozen):
    net = kind(network(), average=False, sync_batch_norm=True)
    learn(net, 6 * (net.rank == 0), seed=0)
    freeze(net.model, frozen)
    learn(net, 6 * (net.rank == 1), seed=1)
    return whole_state(net)


@pytest.mark.parametrize("frozen", [[2], [5], [2, 5]])
@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential])
def test_frozen_norms_of_synchronised_ranks(kind, frozen):
    alone = network()
    learn(alone, 6, seed=0)
    running = [alone.layers[k].running_mean.copy() for k in frozen]
    freeze(alone, frozen)
    learn(alone, 6, seed=1)
    assert all(np.array_equal(alone.layers[k].running_mean, a) for k, a in zip(frozen, running, strict=True))
    first, second = run_threads(one_rank_without_samples, 2, kind, frozen)
    assert first == second
    assert difference(alone.state_dict(), first) < 1e-5


def evaluates_before_step(mode):
    net = DDPSequential(network(), average=False)
    backpropagate(net, *batch(net.model, 6, seed=initialize().rank))
    if net.rank:
        getattr(net, mode)()
    net.step()
    return net.state_dict()


def test_a_step_of_a_rank_in_evaluation_mode_moves_its_statistics():
    for state in run_threads(evaluates_before_step, 2, "eval"):
        assert state == run_threads(evaluates_before_step, 2, "train")[0]


def passes_of_other_numbers(kind):
    net = kind(network(), average=False, sync_batch_norm=True)
    x, _ = batch(net.model, 6, seed=7)
    for step in range(3):
        with net.no_sync():
            net(x[net.rank :])
            if net.rank:  # the others go on to the next batch
                nothing = np.zeros(5 * net.model.out_shape.size)
                net.model.set_delta_z(nothing, nothing)
                net.backward()
        learn(net, 3 + net.rank, seed=10 * step + net.rank)
        net.predict(x, batch_size=2 + 2 * net.rank)
    return whole_state(net)


def test_passes_of_synchronised_ranks_belong_together_whatever_else_these_do():
    sharded, replicated = (run_threads(passes_of_other_numbers, 2, kind) for kind in (FSDPSequential, DDPSequential))
    assert sharded == replicated


def keeps_frozen(kind):
    net = kind(network())
    norm = next((layer for layer in net.model.layers if isinstance(layer, BatchNorm2d)), BatchNorm2d(1))
    norm.training = False
    x = batch(network(), 12, seed=1)[0]
    net.predict(x)
    net.update_bn([x])
    return norm.training


@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_frozen_norms_stay_frozen(kind):
    assert run_threads(keeps_frozen, 2, kind) == [False, False]


def norms_of_a_rank(kind, evaluates):
    mesh = {"mesh": init_device_mesh((2, 2), ("pipe", "data"))} if kind is PipelineSequential else {}
    net = kind(network(), **mesh)
    freeze(net.model, [k for k, layer in enumerate(net.model.layers) if isinstance(layer, BatchNorm2d)][:1])
    if net.rank == net.world_size - 1:
        net.eval() if evaluates else net.train()
    before = whole_state(net)
    with pytest.raises(ValueError, match=r"update_bn\(\).* list of unfrozen BatchNorm2d is "):
        net.update_bn([batch(network(), 12, seed=1)[0]])
    return whole_state(net) == before


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_ranks_whose_frozen_norms_differ_take_no_statistics(kind, evaluates):
    assert all(run_threads(norms_of_a_rank, 4 if kind is PipelineSequential else 2, kind, evaluates))


def waits_amid_passes(kind):
    net = kind(network(), average=False, sync_batch_norm=True)
    with net.no_sync():
        for seed in range(1 + net.rank):
            backpropagate(net, *batch(net.model, 4, seed))
    net.barrier()
    net.step()
    return whole_state(net)


def test_a_synchronised_rank_that_waits_takes_part_in_the_passes_of_others():
    sharded, replicated = (run_threads(waits_amid_passes, 2, kind) for kind in (FSDPSequential, DDPSequential))
    assert difference(sharded[0], replicated[0]) < 1e-5
    assert replicated[0] == replicated[1]

"""Likelihoods on several ranks, in shards, stages and threads: the step of one process with all samples."""

import copy

import numpy as np

from pytagi_ddp import likelihoods as lk
from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import DataParallel, PipelineSequential
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, Linear, ReLU, Sequential
from tests.mpi.ddp_networks import difference, shard
from tests.mpi.shared import on_ranks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = [RNG.integers(-1, 3, 12), RNG.poisson(2, 12).astype(float), RNG.normal(size=12)]
WEIGHT = RNG.uniform(0.5, 2, 12)
LIKELIHOOD = lk.Joint(lk.Categorical(3), lk.Poisson(), lk.StudentT(3, 0.5))


def network():
    manual_seed(3)
    return Sequential(Linear(3, 16), ReLU(), Linear(16, 5))


def steps(net, mine=slice(None), number=3):
    for _ in range(number):
        net(X[mine])
        LIKELIHOOD.observe(net, [part[mine] for part in Y], weight=WEIGHT[mine])
        net.backward()
        net.step()


def trained():
    net = network()
    steps(net)
    return net.state_dict()


def of_ranks(comm):
    mine = shard([5, 7][: comm.world_size], comm.rank) if comm.world_size == 2 else slice(None)
    config = DDPConfig(backend=comm.backend)
    ddp, fsdp = DDPSequential(network(), config, average=False), FSDPSequential(network(), config, average=False)
    expected, found = trained(), []
    for net in (ddp, fsdp):
        steps(net, mine)
        found.append(difference(expected, net.state_dict()))
    return found


@on_ranks(of_ranks, 1, 2)
def test_ranks_make_the_step_of_one_process(results):
    assert all(worst < 1e-4 for result in results for worst in result), results


def of_stages(comm):
    net = PipelineSequential(network(), communicator=comm)
    steps(net)
    return difference(trained(), net.state_dict())


@on_ranks(of_stages, 1, 2)
def test_the_last_stage_observes(results):
    assert max(results) < 1e-4


def test_threads_make_the_step_of_one():
    net = DataParallel(copy.deepcopy(network()), 2)
    steps(net)
    assert difference(trained(), net.model.state_dict()) < 1e-4

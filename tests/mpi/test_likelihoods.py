"""Likelihoods on several ranks, in shards, stages and threads: the step of one process with all samples."""

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
        state = net.state_dict()  # with FSDP, of rank 0
        found.append(difference(expected, state) if state else 0.0)
    return found


@on_ranks(of_ranks, 1, 2)
def test_ranks_make_the_step_of_one_process(results):
    assert all(worst < 1e-4 for result in results for worst in result), results


def of_stages(comm):
    expected, found = trained(), []
    for schedule in ("GPipe", "1F1B"):
        options = {"average": False, "n_microbatches": 2, "schedule": schedule}
        net = PipelineSequential(network(), DDPConfig(backend=comm.backend), **options)
        if schedule == "GPipe":
            steps(net)
        else:
            for _ in range(3):
                net.forward_backward(X if net.is_first else None, observe_part)
                net.step()
        state = net.state_dict()
        found.append(difference(expected, state) if state else 0.0)
    return max(found)


def observe_part(states, rows, deltas):
    LIKELIHOOD.update(states, [part[rows] for part in Y], deltas, weight=WEIGHT[rows])


@on_ranks(of_stages, 2)
def test_the_last_stage_observes(results):
    assert max(results) < 1e-4


def test_threads_make_the_step_of_one():
    net = DataParallel(network(), ["cpu"] * 2, average=False)
    steps(net)
    assert difference(trained(), net.model.state_dict()) < 1e-4
